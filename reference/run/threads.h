/* Tangled from book/04-ranks.nw; edit the chapter. */
/* Ranks as threads of one process: the communicator for a single
 * machine, and for tests. */
#ifndef CP_THREADS_H
#define CP_THREADS_H

#include "group/comm.h"

typedef struct {
    int ranks;
    double timeout; /* timeout of a wait, in seconds; 0: none */
    /* 0, or the seed of random delays, for tests: receive buffers
     * hold 0xFF bytes (NaN) until delivery; an odd seed delivers as
     * late as the contract allows, an even one as early. */
    uint64_t disorder;
} cp_threads_options;

typedef struct cp_threads cp_threads;

/* Start ranks that wait for work. Fails with CP_INVALID on bad options, and
 * with CP_MEMORY if not all threads can be started; none is then left. */
cp_status cp_threads_start(const cp_threads_options *options,
                           cp_threads **threads);

/* Run function(comm, context) once per rank and return when all have returned.
 * Rank r runs on thread r mod carriers; thread 0 is the caller's. Ranks of one
 * thread take turns: one runs until it waits, in comm, for another. carriers is
 * limited to the number of ranks; fewer than 1 is CP_INVALID. Fails with the
 * status and message of the rank that failed first ("rank 2: ..."); the next
 * call starts afresh. A timeout ends waits, not computations, and not while a
 * computation has the thread. */
cp_status cp_threads_work(cp_threads *threads, int carriers,
                          cp_rank_main function, void *context);

/* End the threads; NULL is ignored. */
void cp_threads_end(cp_threads *threads);

/* Start, work once with a thread for each rank, and end. */
cp_status cp_threads_run(const cp_threads_options *options,
                         cp_rank_main function, void *context);

#endif
