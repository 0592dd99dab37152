/* Tangled from book/13-start.nw; edit the chapter. */
/* Which of several processes is this one? What a launcher has set in the
 * environment, and nothing that needs communication. */
#ifndef CP_LAUNCH_H
#define CP_LAUNCH_H

#include "ground/ground.h"

typedef struct {
    const char *launcher; /* "torchrun", "Open MPI", ...; NULL: none */
    int rank, ranks;      /* 0 of 1 if there is no launcher */
    int local, locals;    /* the same on this host; -1 and 0: not known */
    char root[300];       /* "host:port", where rank 0 is; "": not known */
} cp_launch;

/* Read the environment. A variable that is not a number, or that contradicts
 * another, is CP_INVALID, with a message that names it and its value. */
cp_status cp_launch_read(cp_launch *out);

#endif
