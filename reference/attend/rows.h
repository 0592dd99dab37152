/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Attention of a few rows, as in decoding: keys and values are read where they
 * lie, once for all rows. One thread's share of a call, not a call. */
#ifndef CP_ROWS_H
#define CP_ROWS_H

#include "reference/attend/attend.h"

typedef struct {
    const cp_shape *shape;
    int64_t rows;   /* of one key head */
    float *queries; /* [kv_heads][rows][dim], scaled */
    float *sums;    /* [kv_heads][rows][value_dim] */
    float *scores;  /* [kv_heads][rows][CP_ROW_KEYS] */
    float *level;   /* [kv_heads][rows], base 2 */
    float *total;   /* [kv_heads][rows] */
} cp_row_buffers;

enum {
    CP_FEW_ROWS = 12, /* under a key head; more are many */
    CP_ROW_KEYS = 64, /* of a tile */
};
/* Lay out arrays for rows rows, at most CP_FEW_ROWS, under each key head, in
 * memory from space. */
cp_row_buffers cp_row_buffers_lay_out(const cp_shape *shape, int64_t rows,
                                      cp_workspace *space);

/* Begin with queries, of all heads; tensor as in cp_attention. */
void cp_row_buffers_begin(const cp_row_buffers *few_rows, cp_piece queries,
                          const float *tensor);

/* Attend to a tile of at most CP_ROW_KEYS keys, not apart. next is the tile to
 * prefetch, if it has any keys. */
void cp_row_buffers_add(const cp_row_buffers *few_rows, cp_piece queries,
                        cp_piece keys, cp_piece next, const cp_attention *call);

#endif
