/* Tangled from book/13-start.nw; edit the chapter. */
/* A crew whose processes have lines to rank 0: what goes over them. How they
 * came to be is meet.h's. */
#ifndef CP_STAR_H
#define CP_STAR_H

#include "ring/crew.h"
#include "ring/wire.h"

typedef enum {
    CP_STAR_HEARD,    /* to a greeting: you are awaited */
    CP_STAR_REFUSED,  /* to a greeting: not you, or not here */
    CP_STAR_WELCOME,  /* all have come */
    CP_STAR_SHARE,    /* rank 0's data */
    CP_STAR_COLLECT,  /* to rank 0: an item; from it: all of them */
    CP_STAR_FAILURE,  /* a status and a reason */
    CP_STAR_GOODBYE,  /* to rank 0: an exit status, and a complaint */
    CP_STAR_FAREWELL, /* from it: the exit status of all */
} cp_star_kind;

typedef struct {
    uint32_t kind;
    int32_t status;
    int64_t number, bytes; /* so many follow */
} cp_star_frame;

/* Send a frame and its bytes. After a failure the line can only be heard. */
cp_wire cp_star_say(int line, cp_star_frame frame, const void *data,
                    double patience);

/* The same for a status with a reason. */
cp_wire cp_star_say_text(int line, cp_star_kind kind, int status,
                         const char *text, double patience);

/* The reason that follows a frame. */
cp_wire cp_star_take_text(int line, const cp_star_frame *frame, char text[512],
                          double patience);

/* The lines of rank 0 are lines[r], of others lines[0]; they are taken over.
 * The crew's functions keep to the contract of crew.h. A failure ends the
 * crew: all later calls fail, on all ranks, with the same reason. */
cp_status cp_star_begin(int rank, int ranks, const int *lines, double patience,
                        cp_crew *out);

#endif
