/* Tangled from book/04-ranks.nw; edit the chapter. */
/* Ranks as threads of one process: the communicator for a single
 * machine, and for tests. Not a thread pool: a run starts its
 * threads and ends them. */
#ifndef CP_THREADS_H
#define CP_THREADS_H

#include "ring/comm.h"

typedef struct {
    int ranks;
    double patience; /* seconds that a wait may last; 0: for ever */
    /* 0, or the seed of random delays, for tests: receive buffers
     * hold 0xFF bytes (NaN) until delivery; an odd seed delivers as
     * late as the contract allows, an even one as early. */
    uint64_t disorder;
} cp_threads_options;

/* What a rank does. An error that it returns ends all ranks. */
typedef cp_status (*cp_rank_main)(cp_comm *comm, void *context);

/* Run function(comm, context) once per rank, rank 0 on the caller's
 * thread and each other on one of its own, and return when all have
 * returned. The status and message of
 * the rank that failed first become the caller's ("rank 2: ...").
 * CP_INVALID on bad options; CP_MEMORY if not all threads can be
 * started, and then function is not called at all. Patience ends
 * waits, not computations. */
cp_status cp_threads_run(const cp_threads_options *options,
                         cp_rank_main function, void *context);

#endif
