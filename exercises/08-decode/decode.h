/* Tangled from book/labs/08-decode.nw; the skeleton; write your answer here. */
/* One decode step over ranks: which rank keeps the new token of each sequence,
 * the resulting blocks of queries, and the answers. */
#ifndef DECODE_H
#define DECODE_H

#include "reference/attend/attend.h"
#include "reference/attend/partial.h"
#include "group/comm.h"

/* The rank that keeps the next token of a sequence, of which rank r holds
 * held[r] tokens: the one with the fewest, among ranks with fewer than room; of
 * equals, the first from rank turn mod ranks on, around the ring. turn is at
 * least 0, and grows. CP_NO_RANK: no rank has room. */
int decode_owner(int ranks, const int64_t *held, int64_t room, int64_t turn);

/* Put the sequences of a batch into blocks: sequence s into that of rank
 * owner[s], in the order of s; CP_NO_RANK: s takes no part. Returns the rows of
 * a block: equal on all ranks, and as few as possible. sequence_of
 * [ranks][rows] becomes the sequence in each row, or -1 for padding; it has
 * room for ranks * sequences numbers. */
int64_t decode_rows(int ranks, int64_t sequences, const int *owner,
                    int64_t *sequence_of);

/* What a rank knows in a step, and its part of the cache: row sequence * room +
 * i has the i-th token that it holds of a sequence. */
typedef struct {
    int rank, ranks;
    cp_shape shape;
    int64_t room, rows;
    const int64_t *sequence_of; /* [ranks][rows], as above */
    const int64_t *position;    /* [sequences] of the new token */
    int64_t *count;             /* [sequences] tokens that this rank holds */
    cp_pieces held;             /* the same tokens, in rows of its cache */
    float *keys, *values;       /* the cache: [sequences * room][N_KV][D_H] */
    /* Its block: [rows][N_H][D_H] and twice [rows][N_KV][D_H]. Padding rows
     * were never written. */
    const float *queries, *new_keys, *new_values;
} decode_rank;

/* A partial in a message: output [rows][N_H][D_H], then LSE [rows][N_H]. */
static inline cp_partial decode_partial(const decode_rank *me, float *block) {
    const int64_t heads = me->shape.query_heads, dim = me->shape.head_dim;
    return (cp_partial){.rows = me->rows,
                        .heads = heads,
                        .dim = dim,
                        .output = block,
                        .lse = block + me->rows * heads * dim};
}

/* Add the new tokens of the rank's own block to its cache, to held and to
 * count. There is room for them. Fails with CP_MEMORY. */
cp_status decode_append(decode_rank *me);

/* Attend for the block of queries of rank origin, over what this rank holds.
 * Padding rows get output 0 and LSE -inf. Fails as cp_attend does. */
cp_status decode_attend(const decode_rank *me, int origin, const float *queries,
                        float *partial);

/* The step, on all ranks at once: the answers to the rank's own block, output
 * [rows][N_H][D_H] and lse [rows][N_H], over all keys up to the new token
 * itself. Each rank sends its block of queries and one partial to each other
 * rank, and nothing else. */
cp_status decode_step(cp_comm *comm, decode_rank *me, float *output,
                      float *lse);

#endif
