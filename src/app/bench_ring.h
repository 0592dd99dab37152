/* Calls of ranks over a cache of one layer, to be timed. */
#ifndef CP_BENCH_RING_H
#define CP_BENCH_RING_H

#include "app/bench.h"
#include "reference/ring/store.h"
#include "reference/ring/walk.h"

/* The ranks, what they keep between calls, and the call under way. Every
 * number of a token follows from its position. */
typedef struct {
    const cp_bench *bench;
    const cp_place *place;
    int ranks;
    cp_cache *cache;
    cp_store *store;
    double *busy;   /* [ranks] seconds of each rank's thread, in all walks */
    double seconds; /* of the last walk, from barrier to barrier */
    cp_layout *layout;
    cp_plan *plan;
    cp_walker **walkers; /* [ranks]; NULL: in another process */
} cp_bench_ranks;

/* Empty caches of room tokens on each rank. Fails with CP_MEMORY; close even
 * then. */
cp_status cp_bench_ranks_open(cp_bench_ranks *it, int64_t room);
void cp_bench_ranks_close(cp_bench_ranks *it);

/* Lay out and plan a call of so many new tokens, and make its walkers. Fails
 * with CP_MEMORY; end it even then, or close. */
cp_status cp_bench_call_begin(cp_bench_ranks *it, cp_variant variant,
                              int64_t tokens);
void cp_bench_call_end(cp_bench_ranks *it);

/* Write the call's tokens and walk, as often as wanted. A context for it is
 * the cp_bench_ranks. Fails as ranks do. */
cp_status cp_bench_call_walk(void *context, double *seconds);

/* What the tokens of some pieces have in a tensor of so many numbers a row. */
typedef enum { CP_BENCH_QUERIES = 1, CP_BENCH_KEYS, CP_BENCH_VALUES } cp_seed;
void cp_bench_fill(const cp_pieces *pieces, cp_seed seed, int64_t width,
                   int threads, float *tensor);

/* How far a token's attention is from what it must be. NaN is infinitely far. */
typedef struct {
    double output; /* ||dO|| / ||O|| of all heads together */
    double lse;    /* the largest |dLSE| of a head */
} cp_bench_errors;

/* Compare the attention of the token at position of sequence 0, over all keys
 * that the ranks hold, with the oracle's.
 *   query, output  [N_H][D_H]    lse  [N_H]
 * Fails as cp_oracle does. */
cp_status cp_bench_judge(const cp_cache *cache, cp_store *store,
                         const cp_shape *shape, int64_t position,
                         const float *query, const float *output,
                         const float *lse, cp_bench_errors *errors);

#endif
