/* Tangled from book/01-attention.nw; edit the chapter. */
/* Which tokens: spans of positions, how much they see of each other, and
 * lists of spans with their rows. No tensor is touched here. */
#ifndef CP_SPAN_H
#define CP_SPAN_H

#include "ground/ground.h"

/* Positions start, start + step, ... of one sequence, count of them.
 * count >= 1, step >= 1 (1 where count is 1), 0 <= position < 2^31. */
typedef struct {
    int64_t sequence, start, count, step;
} cp_span;

/* How much queries see of keys: nothing, every key, or a part that the
 * positions decide. */
typedef enum { CP_APART, CP_FULL, CP_DIAGONAL } cp_relation;

/* A span, and the row of a tensor where its first token lies; its tokens
 * lie in consecutive rows. */
typedef struct {
    cp_span span;
    int64_t row;
} cp_piece;

/* A growing list of pieces; all zero is an empty list. */
typedef struct {
    cp_piece *items;
    int64_t count, room;
} cp_pieces;

/* The heads of an attention layer: N_H, N_KV and D_H of the paper. Query
 * head h reads key and value head h / (N_H / N_KV). */
typedef struct {
    int64_t query_heads, kv_heads, head_dim;
    int64_t value_dim; /* numbers of a value; 0: as many as of a key */
    bool latent;       /* a value is the first value_dim numbers of its key */
    int64_t window;    /* the last keys that a query sees; 0: all (window.h) */
} cp_shape;

enum { CP_HEADS_MAX = 65536, CP_HEAD_DIM_MAX = 576 };

/* The last position of a span. */
static inline int64_t cp_span_last(cp_span span) {
    return span.start + (span.count - 1) * span.step;
}

/* The number of positions of the span below the given one. A query at
 * position p sees the first cp_span_before(keys, p + 1) keys. */
static inline int64_t cp_span_before(cp_span span, int64_t position) {
    const int64_t past = position - span.start;
    if (past <= 0)
        return 0;
    return cp_min(cp_ceil_divide(past, span.step), span.count);
}

/* How much the queries see of the keys. Exact: CP_DIAGONAL is returned only
 * if some pair is visible and some pair is not. */
cp_relation cp_span_relate(cp_span queries, cp_span keys);

/* The number of visible pairs, without a loop over positions. */
int64_t cp_span_pairs(cp_span queries, cp_span keys);

/* The positions that both spans hold; count 0 if there are none. */
cp_span cp_span_shared(cp_span a, cp_span b);

/* Append a piece, or grow the last one where the new one continues it in
 * rows and in positions. Fails with CP_MEMORY, the list untouched. */
cp_status cp_pieces_append(cp_pieces *pieces, cp_piece piece);

/* The tokens of all pieces together. */
int64_t cp_pieces_tokens(const cp_pieces *pieces);

/* Make room for this many pieces in all, so that appending up to that cannot
 * fail. Fails with CP_MEMORY, the list untouched. */
cp_status cp_pieces_reserve(cp_pieces *pieces, int64_t room);

/* Make `to` an equal list; fails with CP_MEMORY, `to` untouched. */
cp_status cp_pieces_copy(cp_pieces *to, const cp_pieces *from);

/* The tokens of a piece from number first on, at most longest of them. */
cp_piece cp_piece_part(cp_piece piece, int64_t first, int64_t longest);

/* Fill the empty list tiles with the same tokens in the same order, as pieces
 * of at most longest tokens. Fails with CP_MEMORY; free tiles even then. */
cp_status cp_pieces_cut(const cp_pieces *pieces, int64_t longest,
                        cp_pieces *tiles);

/* Free the items; the list is then empty and may be used again. */
void cp_pieces_free(cp_pieces *pieces);

static inline int64_t cp_value_dim(const cp_shape *shape) {
    return shape->value_dim > 0 ? shape->value_dim : shape->head_dim;
}

/* Numbers from a head's value to the next head's, of one token. */
static inline int64_t cp_value_step(const cp_shape *shape) {
    return shape->latent ? shape->head_dim : cp_value_dim(shape);
}

/* Numbers of a row of values that have their own tensor. */
static inline int64_t cp_value_width(const cp_shape *shape) {
    return shape->latent ? 0 : shape->kv_heads * cp_value_dim(shape);
}

/* Numbers of a token's keys and values together, as kept and sent. */
static inline int64_t cp_kept_width(const cp_shape *shape) {
    return shape->kv_heads * shape->head_dim + cp_value_width(shape);
}

/* Fails with CP_INVALID unless every field is at least 1, kv_heads divides
 * query_heads, and there are at most CP_HEADS_MAX heads of CP_HEAD_DIM_MAX.
 * value_dim may be 0, and with a latent must not be more than head_dim. A
 * window is 0 or a position (cp_span). */
cp_status cp_shape_check(const cp_shape *shape);

#endif
