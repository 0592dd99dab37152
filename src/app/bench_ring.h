/* Calls of ranks over a cache of one layer, to be timed. */
#ifndef CP_BENCH_RING_H
#define CP_BENCH_RING_H

#include "app/bench.h"
#include "ring/cache.h"
#include "reference/ring/walk.h"

/* The ranks, what they keep between calls, and the call under way. Every
 * number of a token follows from its position. */
typedef struct {
    const cp_bench *bench;
    const cp_place *place;
    int ranks;
    int64_t room; /* tokens that each can keep */
    cp_cache *cache;
    float *keys, *values; /* [ranks here][room][N_KV][D_H] */
    double *busy; /* [ranks] seconds of each rank's thread, in all walks */
    cp_layout *layout;
    cp_plan *plan;
    cp_walker **walkers; /* [ranks]; NULL: in another process */
} cp_bench_ranks;

/* Empty caches for it, of which bench, place, ranks and room are set. Fails
 * with CP_MEMORY; close even then. */
cp_status cp_bench_ranks_open(cp_bench_ranks *it);
void cp_bench_ranks_close(cp_bench_ranks *it);

/* So many tokens in the caches, as if they had been read. */
cp_status cp_bench_past(cp_bench_ranks *it, int64_t tokens);

/* Lay out and plan a call of so many new tokens, and make its walkers. Fails
 * with CP_MEMORY; end it even then, or close. */
cp_status cp_bench_call_begin(cp_bench_ranks *it, cp_variant variant,
                              int64_t tokens);
void cp_bench_call_end(cp_bench_ranks *it);

/* Write the call's tokens and walk, as often as wanted; context is the
 * cp_bench_ranks. Fails as ranks do. */
cp_status cp_bench_call_walk(void *context, double *seconds);

/* How far a token's attention is from what it must be. NaN is infinitely far. */
typedef struct {
    double output; /* ||dO|| / ||O|| of all heads together */
    double lse;    /* the largest |dLSE| of a head */
} cp_bench_errors;

/* Compare the attention of the token at a position, over all keys of the
 * ranks, which are in this process, with the oracle's.
 *   result  output [N_H][D_H], then LSE [N_H]
 * Fails as cp_oracle does. */
cp_status cp_bench_judge(const cp_bench_ranks *it, int64_t position,
                         const float *result, cp_bench_errors *errors);

#endif
