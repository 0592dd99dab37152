/* Tangled from book/13-start.nw; edit the chapter. */
/* Processes that have lost each other connect again where rank 0 is. Sockets,
 * and no CUDA. */
#ifndef CP_RENDEZVOUS_H
#define CP_RENDEZVOUS_H

#include "ground/ground.h"

/* Rendezvous of the survivors. Rank 0 listens at address, "host:port", until
 * all ranks have connected or seconds have passed; the others try to connect
 * for as long, and wait for its answer. If rank 0 is not there, rank 1 listens
 * instead, which works on the same host only. words [ranks], bytes each: every
 * rank's piece reaches all that connected; present [ranks] is true for those,
 * and the same on each. The listener keeps its port for the life of the
 * process, one per thread. Fails with CP_BROKEN if the port is taken, or no
 * rank answers, or the listener has gone on without this one. */
cp_status cp_rendezvous(const char *address, int rank, int ranks,
                        double seconds, void *words, int64_t bytes,
                        bool *present);

#endif
