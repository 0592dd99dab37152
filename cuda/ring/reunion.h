/* Tangled from book/13-start.nw; edit the chapter. */
/* Processes that have lost sight of each other meet where rank 0 is. Sockets,
 * and nothing of CUDA. */
#ifndef CP_REUNION_H
#define CP_REUNION_H

#include "ground/ground.h"

/* Rank 0 waits for the others at place, "host:port", until all have come or so
 * many seconds are over; the others look for it as long, and wait for what it
 * says. If it is not there, rank 1 does the same, which it can on the same host.
 * words [ranks] of so many bytes: the own ones become known to all who have
 * come, and here [ranks] says who, the same to all of them. Who has waited keeps
 * the place as long as the process lives: one has a place for each thread. Fails
 * with CP_BROKEN if the place cannot be had, or nobody is there, or not any
 * more. */
cp_status cp_reunite(const char *place, int rank, int ranks, double seconds,
                     void *words, int64_t bytes, bool *here);

#endif
