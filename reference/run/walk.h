/* Tangled from book/05-walk.nw; edit the chapter. */
/* Run one rank of a plan with fp32 tensors in memory, over any communicator. */
#ifndef CP_WALK_H
#define CP_WALK_H

#include "group/comm.h"
#include "plan/steps.h"
#include "reference/attend/attend.h"
#include "reference/attend/partial.h"

typedef struct cp_walker cp_walker;

/* Called after each operation with its times, for traces and tests. */
typedef void (*cp_walk_observer)(void *context, const cp_walker *walker,
                                 const cp_op *op, double start, double end);

typedef struct {
    cp_kernel kernel; /* how to attend; NULL = cp_attend */
    int threads;      /* OpenMP threads inside this rank; 0 = 1 */
    cp_walk_observer observe;
    void *context;    /* handed to observe */
    bool poison;      /* tests: slots start as NaN and go back to it */
    const int *peers; /* [ranks] the plan's ranks as the communicator numbers
                         them; NULL: alike */
    /* A scan: combine the earlier run into the later one. */
    void (*combine)(const void *monoid, const void *earlier, void *later);
    const void *monoid;
} cp_walk_options;

/* One rank of a plan, and all its memory but the cache. */
struct cp_walker {
    const cp_plan *plan;
    int rank;
    /* Where to write the rank's new tokens before a walk, in the rows that
     * plan->layout->queries[rank] names; a walk may overwrite the queries. */
    float *queries;               /* [rows][N_H][D_H] */
    float *new_keys, *new_values; /* [rows][N_KV][D_H]; one for a latent. In a
                                     migration: the caller's new cache */
    /* With an indexer, its queries and their weights, in the same rows; and its
     * keys, cached and new, in the rows of plan->layout->keys[rank]. */
    float *index_queries, *index_weights, *index_keys;
    /* After a walk: output and LSE of the rank's queries, in the same rows;
     * padding rows are 0 and -inf. Lasts until the next walk. */
    cp_partial result;
    /* The walker's own. */
    cp_walk_options options;
    cp_steps steps;
    void **buffers; /* [buffer_count] of the steps; NULL = not needed */
    /* Kept by the kernel from one attend to the next: about the size of the
     * queries and the result; cp_attend_fast takes at most 256 MiB. */
    cp_carried carried;
    cp_comm *comm; /* during a walk, as are the caches among the buffers */
};

/* Lower a rank's program and allocate its buffers. The plan must outlive the
 * walker; options may be NULL. Fails with CP_MEMORY. */
cp_status cp_walker_new(const cp_plan *plan, int rank,
                        const cp_walk_options *options, cp_walker **out);

void cp_walker_free(cp_walker *walker);

/* Run the rank's program. cache_keys and cache_values are the rank's cache of
 * one layer, rows as in layout->cache. All ranks must walk the same plan over
 * the same communicator. On failure the cache rows in layout->appended may hold
 * anything; no others are touched. */
cp_status cp_walk(cp_walker *walker, cp_comm *comm, float *cache_keys,
                  float *cache_values);

/* For observers: a slot seen as a partial. */
cp_partial cp_walker_partial(const cp_walker *walker, int slot);

#endif
