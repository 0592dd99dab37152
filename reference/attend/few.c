/* Tangled from book/17-exact.nw; edit the chapter. */
/* Few rows in exact order. Keys are transposed, so that a vector has one number
 * of each of several keys. */
#include "reference/attend/few.h"

#include <math.h>
#include <string.h>

#include "reference/attend/panels.h"

enum {
    LANES = 8,        /* in a vector */
    KEYS = 2 * LANES, /* transposed at a time */
};
_Static_assert((int)CP_LEAF_BLOCK == (int)CP_ROW_KEYS, "scores per block");

cp_few cp_few_lay_out(const cp_shape *shape, int64_t rows,
                      cp_workspace *space) {
    cp_few a = {.few_rows = cp_row_buffers_lay_out(shape, rows, space),
                .all = shape->kv_heads * rows};
    a.lanes = cp_ceil_divide(a.all, LANES) * LANES;
    a.turned = cp_workspace_take(space, shape->head_dim * KEYS);
    a.weights = cp_workspace_take(space, CP_LEAF_BLOCK * a.lanes);
    a.added = cp_workspace_take(space, a.all * cp_value_dim(shape));
    a.rescale = cp_workspace_take(space, a.lanes);
    a.seen = (cp_seen_keys *)(void *)cp_workspace_take(space, 4 * rows);
    return a;
}

void cp_few_begin(const cp_few *a, cp_piece queries, const float *tensor) {
    const int64_t dim = cp_value_dim(a->few_rows.shape);
    cp_row_buffers_begin(&a->few_rows, queries, tensor);
    for (int64_t i = a->all; i < a->lanes; i++) { /* without a row */
        a->few_rows.level[i] = -INFINITY;
        a->few_rows.total[i] = 0.0f;
    }
    memset(a->added, 0, (size_t)(a->all * dim) * sizeof(float));
}

typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

static inline vector load(const float *from) {
    vector v;
    memcpy(&v, from, sizeof(v));
    return v;
}

/* Numbers 2i and 2i + 1 of each half of two pairs of rows. */
static inline void pair_up(const float *const *rows, int64_t first,
                           vector to[4]) {
    const vector a = load(rows[0] + first), b = load(rows[1] + first);
    const vector c = load(rows[2] + first), d = load(rows[3] + first);
    const vector low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    const vector up = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    const vector next = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
    const vector last =
        __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    to[0] = __builtin_shufflevector(low, next, 0, 1, 8, 9, 4, 5, 12, 13);
    to[1] = __builtin_shufflevector(low, next, 2, 3, 10, 11, 6, 7, 14, 15);
    to[2] = __builtin_shufflevector(up, last, 0, 1, 8, 9, 4, 5, 12, 13);
    to[3] = __builtin_shufflevector(up, last, 2, 3, 10, 11, 6, 7, 14, 15);
}

/* Transpose eight numbers of eight rows: lane k of line n is number n of row k;
 * lines are stride apart. */
static inline void turn(const float *const *rows, int64_t first, float *to,
                        int64_t stride) {
    vector one[4], two[4];
    pair_up(rows, first, one);
    pair_up(rows + 4, first, two);
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        const vector low =
            __builtin_shufflevector(one[n], two[n], 0, 1, 2, 3, 8, 9, 10, 11);
        const vector up =
            __builtin_shufflevector(one[n], two[n], 4, 5, 6, 7, 12, 13, 14, 15);
        memcpy(to + n * stride, &low, sizeof(low));
        memcpy(to + (n + 4) * stride, &up, sizeof(up));
    }
}

/* Transpose KEYS keys to [dim][KEYS]. Meanwhile prefetch the first `wide`
 * numbers of each of their values. */
static void turn_keys(const float *const *keys, int64_t first, int64_t dim,
                      float *to, const float *const *values, int64_t wide) {
    const int64_t full = dim - dim % LANES;
    for (int64_t d = 0; d < full; d += LANES)
        for (int64_t k = 0; k < KEYS; k += LANES) {
            for (int64_t i = d % CP_STRIP; i < LANES && d < wide; i++)
                __builtin_prefetch(values[k + i] + d, 0, 2);
            turn(keys + k, first + d, to + d * KEYS + k, KEYS);
        }
    for (int64_t d = full; d < dim; d++)
        for (int64_t k = 0; k < KEYS; k++)
            to[d * KEYS + k] = keys[k][first + d];
}

static inline vector fused(vector a, vector b, vector c) {
    vector sum;
    for (int l = 0; l < LANES; l++)
        sum[l] = cp_fused(a[l], b[l], c[l]);
    return sum;
}

/* Transposed keys times up to four rows, product after product. */
static inline __attribute__((always_inline)) void score(int rows, int64_t dim,
                                                        const float *keys,
                                                        const float *queries,
                                                        float *scores) {
    vector one[4] = {{0}}, two[4] = {{0}};
    for (int64_t d = 0; d < dim; d++, keys += KEYS) {
        const vector x = load(keys), y = load(keys + LANES);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const vector q = queries[r * dim + d] - (vector){0};
            one[r] = fused(x, q, one[r]);
            two[r] = fused(y, q, two[r]);
        }
    }
    for (int r = 0; r < rows; r++) {
        memcpy(scores + r * CP_LEAF_BLOCK, &one[r], sizeof(vector));
        memcpy(scores + r * CP_LEAF_BLOCK + LANES, &two[r], sizeof(vector));
    }
}

static void score_rows(int64_t rows, int64_t dim, const float *keys,
                       const float *queries, float *scores) {
    for (; rows >= 4;
         rows -= 4, queries += 4 * dim, scores += 4 * CP_LEAF_BLOCK)
        score(4, dim, keys, queries, scores);
    if (rows == 3)
        score(3, dim, keys, queries, scores);
    else if (rows == 2)
        score(2, dim, keys, queries, scores);
    else if (rows == 1)
        score(1, dim, keys, queries, scores);
}

static void fetch(const float *from, int64_t floats) {
    for (int64_t i = 0; i < floats; i += CP_STRIP)
        __builtin_prefetch(from + i, 0, 2);
}

static void score_few(const cp_few *a, const cp_leaf_block *keys) {
    const cp_shape *shape = a->few_rows.shape;
    const int64_t dim = shape->head_dim, rows = a->few_rows.rows;
    const int64_t wide = cp_value_step(shape);
    for (int64_t j = 0; j < keys->count; j += KEYS) {
        for (int64_t h = 0; h < shape->kv_heads; h++) {
            const float *key_rows[KEYS], *values[KEYS];
            for (int64_t k = 0; k < KEYS; k++) {
                const int64_t at = cp_min(j + k, keys->count - 1);
                key_rows[k] = keys->keys[at];
                values[k] = keys->values[at] + h * wide;
            }
            turn_keys(key_rows, h * dim, dim, a->turned, values, wide);
            score_rows(rows, dim, a->turned,
                       a->few_rows.queries + h * rows * dim,
                       a->few_rows.scores + h * rows * CP_LEAF_BLOCK + j);
        }
    }
}

/* The weights of a block, [CP_LEAF_BLOCK][lanes]; 0 for keys that a row does
 * not see. */
static void weigh_few(const cp_few *a) {
    const cp_micro micro = {.panel = a->lanes, .panel_stride = a->lanes};
    const cp_panels buffers = {.micro = &micro, .scores = a->weights};
    for (int64_t row = 0; row < a->all; row++) {
        const cp_seen_keys seen = a->seen[row % a->few_rows.rows];
        float *scores = a->few_rows.scores + row * CP_LEAF_BLOCK;
        for (int64_t j = 0; j < seen.from; j++)
            scores[j] = -INFINITY;
        for (int64_t j = seen.end; j < CP_LEAF_BLOCK; j++)
            scores[j] = -INFINITY;
    }
    for (int64_t i = 0; i < a->lanes; i += LANES)
        for (int64_t j = 0; j < CP_LEAF_BLOCK; j += LANES) {
            const float *rows[LANES];
            for (int64_t k = 0; k < LANES; k++)
                rows[k] = a->few_rows.scores +
                          cp_min(i + k, a->all - 1) * CP_LEAF_BLOCK;
            turn(rows, j, a->weights + j * a->lanes + i, a->lanes);
        }
    cp_panels_weigh(&buffers, CP_LEAF_BLOCK, NULL, a->few_rows.level,
                    a->few_rows.total, a->rescale);
}

static inline __attribute__((always_inline)) void
add_keys(int keys, int64_t dim, const float *const *values,
         const float *weights, int64_t stride, float *restrict sums) {
#pragma omp simd
    for (int64_t d = 0; d < dim; d++) {
        float sum = sums[d];
#pragma GCC unroll 8
        for (int k = 0; k < keys; k++)
            sum = cp_fused(weights[k * stride], values[k][d], sum);
        sums[d] = sum;
    }
}

/* Add the values of eight keys to each row that sees them. Meanwhile prefetch
 * eight keys of the next block. */
static void add_few(const cp_few *a, const cp_leaf_block *keys,
                    const cp_leaf_block *next, int64_t j) {
    const cp_shape *shape = a->few_rows.shape;
    const int64_t dim = cp_value_dim(shape), soon = next->count - j;
    const float *values[LANES];
    for (int64_t h = 0; h < shape->kv_heads; h++) {
        for (int64_t k = 0; k < LANES; k++)
            values[k] = keys->values[cp_min(j + k, keys->count - 1)] +
                        h * cp_value_step(shape);
        for (int64_t r = 0; r < a->few_rows.rows; r++) {
            const int64_t row = h * a->few_rows.rows + r;
            const int64_t first = cp_max(0, a->seen[r].from - j);
            const int64_t end = cp_min(LANES, a->seen[r].end - j);
            const float *weights = a->weights + j * a->lanes + row;
            for (int64_t k = r; k < cp_min(LANES, soon); k += a->few_rows.rows)
                fetch(next->keys[j + k] + h * shape->head_dim, shape->head_dim);
            if (end - first == LANES)
                add_keys(LANES, dim, values, weights, a->lanes,
                         a->added + row * dim);
            for (int64_t k = first; k < end && end - first < LANES; k++)
                add_keys(1, dim, values + k, weights + k * a->lanes, a->lanes,
                         a->added + row * dim);
        }
    }
}

/* Add this block's sums to the earlier ones, which may weigh less now. */
static void join_few(const cp_few *a) {
    const int64_t dim = cp_value_dim(a->few_rows.shape);
    for (int64_t n = 0; n < a->all; n++) {
        float *sums = a->few_rows.sums + n * dim, *added = a->added + n * dim;
        const float rescale = a->rescale[n];
#pragma omp simd
        for (int64_t d = 0; d < dim; d++) {
            sums[d] = sums[d] * rescale + added[d];
            added[d] = 0.0f;
        }
    }
}

void cp_few_add(const cp_few *a, const cp_leaf_block *keys,
                const cp_leaf_block *next) {
    score_few(a, keys);
    weigh_few(a);
    for (int64_t j = 0; j < keys->count; j += LANES)
        add_few(a, keys, next, j);
    join_few(a);
}
