/* Tangled from book/labs/04-ragged.nw; the skeleton; write your answer here. */
/* From a packed tensor of several sequences to padded shards, one for each
 * rank, and back. Sequence s has tokens cu_seqlens[s] .. cu_seqlens[s + 1] - 1
 * of the packed tensor. It is cut into 2N chunks of c_s = ceil(T_s / 2N)
 * positions, where T_s is its length. In the shard of rank r it has 2 c_s rows,
 * after those of sequence s - 1: c_s for chunk r, then c_s for chunk 2N-1-r. A
 * row whose position is not below T_s is padding. This is the cut of section
 * 3.3, and part r always goes to rank r: there is no rotation as in 3.4 and
 * 3.5. */
#ifndef RAGGED_H
#define RAGGED_H

#include <stdint.h>

/* A sequence may be empty, and there may be none. */
typedef struct {
    int ranks;
    int64_t sequences;
    const int32_t *cu_seqlens; /* [sequences + 1]; starts at 0, never falls */
} batch;

/* A token: its sequence, and its position in it. Padding: -1 and -1. */
typedef struct {
    int64_t sequence, position;
} token_position;

/* The rows of a shard, the same number on all ranks. */
int64_t shard_rows(const batch *how);

/* The token in a row of a rank's shard, 0 <= row < shard_rows. */
token_position token_at(const batch *how, int rank, int64_t row);

/* The positions for a rank's rotary embeddings: positions [shard_rows], each
 * within its own sequence, and -1 in padding. */
void positions_of(const batch *how, int rank, int32_t *positions);

/* Fill the shard [shard_rows][dim] of a rank from packed [tokens][dim].
 * Padding becomes 0: kernels load it, and 0 * NaN is NaN. */
void scatter_rows(const batch *how, int rank, const float *packed, float *shard,
                  int64_t dim);

/* The inverse: packed [tokens][dim] from the shards of all ranks, shards
 * [ranks] of [shard_rows][dim]. Padding rows are ignored. */
void gather_back(const batch *how, const float *const *shards, float *packed,
                 int64_t dim);

#endif
