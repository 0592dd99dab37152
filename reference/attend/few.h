/* Tangled from book/17-exact.nw; edit the chapter. */
/* Attention of few rows in exact order, with the bits that they would have in a
 * panel. One thread's share of a call, not a whole call. */
#ifndef CP_FEW_H
#define CP_FEW_H

#include "reference/attend/rows.h"
#include "tokens/leaves.h"

/* The keys of a block that are cached: count rows from its first position. */
typedef struct {
    int64_t start, count;
    const float *keys[CP_LEAF_BLOCK], *values[CP_LEAF_BLOCK]; /* of head 0 */
} cp_leaf_block;

/* A workspace of rows; their scores are weighted with rows as lanes. */
typedef struct {
    cp_row_buffers few_rows;
    int64_t all, lanes; /* rows of all heads; in whole vectors */
    float *turned;      /* [head_dim][16] keys */
    float *weights;     /* [CP_LEAF_BLOCK][lanes] */
    float *added;       /* [kv_heads][rows][value_dim] of a block */
    float *rescale;     /* [lanes] */
    cp_seen_keys *seen; /* [rows]; the caller sets it */
} cp_few;

/* Lay out the rows under each key head in the memory of space. */
cp_few cp_few_lay_out(const cp_shape *shape, int64_t rows, cp_workspace *space);

/* Load queries, of all heads; tensor as in cp_attention. */
void cp_few_begin(const cp_few *few, cp_piece queries, const float *tensor);

/* Attend to the keys of a block that rows see. Keys of the next block are
 * prefetched. */
void cp_few_add(const cp_few *few, const cp_leaf_block *keys,
                const cp_leaf_block *next);

#endif
