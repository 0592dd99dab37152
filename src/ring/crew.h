/* Tangled from book/12-model.nw; edit the chapter. */
/* The processes that run one command line together: one, unless a launcher
 * such as mpirun started more. Knows nothing of how they talk. */
#ifndef CP_CREW_H
#define CP_CREW_H

#include "ground/ground.h"

typedef struct {
    int rank, ranks;
    /* Rank 0's data become everybody's: bytes, the same on all. */
    cp_status (*share)(void *data, int64_t bytes);
    /* items [ranks] of bytes each: the own one becomes known to all. */
    cp_status (*collect)(void *items, int64_t bytes);
    void (*patience)(double seconds); /* of every wait from now on */
    /* End together: this exit status becomes one for all, with the message
     * of whoever failed. Never to be followed by anything but exit. */
    int (*leave)(int status);
    /* After a failure: go on without a process that was lost; those above it are
     * numbered anew. To be called until it says false, for there may be others,
     * or it cannot be, and the message says why. NULL: never. */
    bool (*mend)(int *lost);
} cp_crew;

/* The crew of this process. share and the others are NULL in a crew of one
 * that no launcher started. */
const cp_crew *cp_crew_mine(void);
void cp_crew_join(const cp_crew *crew);

/* Is this the process that reads, prints and writes files? */
bool cp_crew_leads(void);

/* Rank 0 did something that ended with status and, if well, left head_bytes
 * at head and *bytes bytes at *data, from malloc. All get that, *data
 * followed by a zero byte; other ranks' *data must be NULL or from malloc.
 * Returns rank 0's status with its message, or a failure of sharing. */
cp_status cp_crew_share(cp_status status, void *head, int64_t head_bytes,
                        void **data, int64_t *bytes);

/* Rank 0: return when there is something to read from file, and until then
 * tell the others now and then that it is still there. Others: at once. */
cp_status cp_crew_await(int file);

#endif
