/* One token's attention over all ranks, held against the oracle. */
#ifndef CP_BENCH_TRUTH_H
#define CP_BENCH_TRUTH_H

#include "reference/ring/store.h"

/* How far a token's attention is from what it must be. NaN is infinitely far. */
typedef struct {
    double output; /* ||dO|| / ||O|| of all heads together */
    double lse;    /* the largest |dLSE| of a head */
} cp_truth_errors;

/* Compare the attention of the token at position of sequence 0, over all keys
 * that the ranks hold, with the oracle's.
 *   query, output  [N_H][D_H]    lse  [N_H]
 * Fails as cp_oracle does. */
cp_status cp_truth_compare(const cp_cache *cache, cp_store *store,
                           const cp_shape *shape, int64_t position,
                           const float *query, const float *output,
                           const float *lse, cp_truth_errors *errors);

#endif
