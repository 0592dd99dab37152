/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Attention of a few rows. */
#if defined(__AVX512F__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512") /* its loops are long */
#endif

#include "reference/attend/rows.h"

#include <math.h>
#include <string.h>

enum {
    TOGETHER = 4, /* rows that share one load of a key */
    EIGHT = 8,    /* values that share one load of a row's sum */
    AHEAD = 4,    /* keys between those that are read and prefetched */
};

cp_row_buffers cp_row_buffers_lay_out(const cp_shape *shape, int64_t rows,
                                      cp_workspace *space) {
    const int64_t all = shape->kv_heads * rows;
    return (cp_row_buffers){
        .shape = shape,
        .rows = rows,
        .queries = cp_workspace_take(space, all * shape->head_dim),
        .sums = cp_workspace_take(space, all * cp_value_dim(shape)),
        .scores = cp_workspace_take(space, all * CP_ROW_KEYS),
        .level = cp_workspace_take(space, all),
        .total = cp_workspace_take(space, all),
    };
}

void cp_row_buffers_begin(const cp_row_buffers *few_rows, cp_piece queries,
                          const float *tensor) {
    const int64_t dim = few_rows->shape->head_dim;
    const int64_t all = few_rows->shape->kv_heads * few_rows->rows;
    const float scale = cp_query_scale(few_rows->shape);
    for (int64_t i = 0; i < all; i++) {
        const int64_t head = i / few_rows->rows, r = i % few_rows->rows;
        const int64_t at =
            cp_row_index(few_rows->shape, queries, head, r) * dim;
        for (int64_t d = 0; d < dim; d++)
            few_rows->queries[i * dim + d] = tensor[at + d] * scale;
        few_rows->level[i] = -INFINITY;
        few_rows->total[i] = 0.0f;
    }
    memset(few_rows->sums, 0,
           (size_t)(all * cp_value_dim(few_rows->shape)) * sizeof(float));
}

#ifdef __AVX512F__
enum { LANES = 16 }; /* of a vector */
#else
enum { LANES = 8 };
#endif
typedef float row_lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef float eight_lanes __attribute__((vector_size(8 * sizeof(float))));

static inline row_lanes load(const float *from) {
    row_lanes v;
    memcpy(&v, from, sizeof(v));
    return v;
}

static inline row_lanes multiply_add(row_lanes a, row_lanes b, row_lanes c) {
    row_lanes sum;
    for (int l = 0; l < LANES; l++)
        sum[l] = cp_fused(a[l], b[l], c[l]);
    return sum;
}

static inline eight_lanes halve(row_lanes v) {
#ifdef __AVX512F__
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return v;
#endif
}

/* Add up lanes of a, b, c and d half-way: four sums of the lower halves and
 * four of the upper. */
static inline eight_lanes fold(eight_lanes a, eight_lanes b, eight_lanes c,
                               eight_lanes d) {
    const eight_lanes ab =
        __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
        __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    const eight_lanes cd =
        __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13) +
        __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    return __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
}

/* Without a second key, b is a; b's scores go to to[second]. */
static inline __attribute__((always_inline)) void
score(int rows, int64_t dim, const float *q, const float *a, const float *b,
      float *to, int64_t second) {
    row_lanes one[TOGETHER] = {{0}}, two[TOGETHER] = {{0}};
    const int64_t full = dim - dim % LANES;
    for (int64_t d = 0; d < full; d += LANES) {
        const row_lanes x = load(a + d), y = load(b + d);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            one[r] = multiply_add(load(q + r * dim + d), x, one[r]);
            two[r] = multiply_add(load(q + r * dim + d), y, two[r]);
        }
    }
    /* Add up the lanes, and the rest of the dimension. */
    const eight_lanes x =
        fold(halve(one[0]), halve(one[1]), halve(one[2]), halve(one[3]));
    const eight_lanes y =
        fold(halve(two[0]), halve(two[1]), halve(two[2]), halve(two[3]));
    const eight_lanes sums =
        __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11) +
        __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
    for (int r = 0; r < rows; r++) {
        float first = sums[r], other = sums[TOGETHER + r];
        for (int64_t d = full; d < dim; d++) {
            first = cp_fused(q[r * dim + d], a[d], first);
            other = cp_fused(q[r * dim + d], b[d], other);
        }
        to[r * CP_ROW_KEYS] = first;
        to[r * CP_ROW_KEYS + second] = other;
    }
}

static void score_few(int64_t rows, int64_t dim, const float *q, const float *a,
                      const float *b, float *scores, int64_t second) {
    for (; rows >= TOGETHER; rows -= TOGETHER) {
        score(TOGETHER, dim, q, a, b, scores, second);
        q += TOGETHER * dim;
        scores += TOGETHER * CP_ROW_KEYS;
    }
    if (rows == 3)
        score(3, dim, q, a, b, scores, second);
    else if (rows == 2)
        score(2, dim, q, a, b, scores, second);
    else if (rows == 1)
        score(1, dim, q, a, b, scores, second);
}

/* Addresses are numbers here: they may lie past the end, nothing is read. */
static void fetch(const float *from, int64_t first, int64_t floats) {
    const uintptr_t at = (uintptr_t)from + (uintptr_t)first * sizeof(float);
    for (int64_t i = 0; i < floats; i += 16)
        __builtin_prefetch((const float *)at + i, 0, 2);
}

/* The row of number n of a tile's keys, or of the next tile's if it is past
 * the end; any row where there is none. */
static int64_t row_ahead(cp_piece keys, cp_piece next, int64_t n) {
    const int64_t past = n - keys.span.count;
    return past < 0 ? keys.row + n
                    : next.row + cp_min(past, cp_max(0, next.span.count - 1));
}

static void score_keys(const cp_row_buffers *few_rows, int64_t count,
                       cp_piece keys, cp_piece next, const cp_attention *call) {
    const int64_t dim = few_rows->shape->head_dim, row = cp_key_row(call);
    const int64_t heads = few_rows->shape->kv_heads;
    const float *first = call->keys + keys.row * row;
    for (int64_t j = 0; j < count; j += 2) {
        const int64_t second = j + 1 < count, part = (1 + second) * row / heads;
        const float *soon = call->keys + row_ahead(keys, next, j + AHEAD) * row;
        for (int64_t h = 0; h < heads; h++) {
            fetch(soon, h * part, part);
            const float *key = first + j * row + h * dim;
            score_few(few_rows->rows, dim,
                      few_rows->queries + h * few_rows->rows * dim, key,
                      key + second * row,
                      few_rows->scores + h * few_rows->rows * CP_ROW_KEYS + j,
                      second);
        }
    }
}

static float weigh_scores(const cp_row_buffers *few_rows, int64_t row,
                          const cp_reach *reach) {
    const int64_t r = row % few_rows->rows;
    float *scores = few_rows->scores + row * CP_ROW_KEYS;
    for (int64_t j = 0; j < reach->from[r]; j++)
        scores[j] = -INFINITY;
    return cp_row_weigh(scores, reach->of[r],
                        cp_ceil_divide(reach->most, CP_STRIP) * CP_STRIP,
                        &few_rows->level[row], &few_rows->total[row]);
}

/* From the first key that any query sees: the first one sees the earliest. */
static cp_piece visible_part(const cp_row_buffers *few_rows, cp_piece queries,
                             cp_piece keys) {
    const cp_seen_keys seen =
        cp_window_seen(keys.span, queries.span.start, few_rows->shape->window);
    return cp_piece_part(keys, seen.from, keys.span.count);
}

static void weigh_row(const cp_row_buffers *few_rows, int64_t row,
                      const cp_reach *reach) {
    const int64_t dim = cp_value_dim(few_rows->shape);
    const float rescale = weigh_scores(few_rows, row, reach);
    for (int64_t d = 0; rescale != 1.0f && d < dim; d++)
        few_rows->sums[row * dim + d] *= rescale;
}

static inline __attribute__((always_inline)) void
add_keys(int keys, int64_t dim, int64_t width, const float *weights,
         const float *values, float *restrict sums) {
#pragma omp simd
    for (int64_t d = 0; d < dim; d++) {
        float sum = sums[d];
#pragma GCC unroll 8
        for (int k = 0; k < keys; k++)
            sum = cp_fused(weights[k], values[k * width + d], sum);
        sums[d] = sum;
    }
}

static void add_values(const cp_row_buffers *few_rows, const cp_reach *reach,
                       int64_t h, int64_t j, const float *values, int64_t width,
                       const float *soon, int64_t part) {
    const int64_t dim = cp_value_dim(few_rows->shape);
    for (int64_t r = 0; r < few_rows->rows; r++) {
        const int64_t row = h * few_rows->rows + r;
        const int64_t first = cp_max(0, reach->from[r] - j);
        const int64_t last = cp_min(EIGHT, reach->of[r] - j);
        fetch(soon, row * part, part);
        const float *weights = few_rows->scores + row * CP_ROW_KEYS + j;
        float *sums = few_rows->sums + row * dim;
        if (last - first == EIGHT)
            add_keys(EIGHT, dim, width, weights, values, sums);
        else
            for (int64_t k = first; k < last; k++)
                add_keys(1, dim, width, weights + k, values + k * width, sums);
    }
}

void cp_row_buffers_add(const cp_row_buffers *few_rows, cp_piece queries,
                        cp_piece keys, cp_piece next,
                        const cp_attention *call) {
    const int64_t heads = few_rows->shape->kv_heads;
    const int64_t step = cp_value_step(few_rows->shape);
    const int64_t row = cp_value_row(call);
    int64_t from[CP_FEW_ROWS], each[CP_FEW_ROWS];
    cp_reach reach = {.from = from, .of = each};
    keys = visible_part(few_rows, queries, keys);
    cp_reach_find(few_rows->shape, queries.span, keys.span, 0, few_rows->rows,
                  &reach);
    score_keys(few_rows, reach.most, keys, next, call);
    for (int64_t n = 0; n < heads * few_rows->rows; n++)
        weigh_row(few_rows, n, &reach);
    const int64_t part = EIGHT * row / (heads * few_rows->rows);
    for (int64_t j = 0; j < reach.most; j += EIGHT) {
        const float *value = call->values + (keys.row + j) * row;
        const float *soon =
            call->values + row_ahead(keys, next, j + EIGHT) * row;
        for (int64_t h = 0; h < heads; h++)
            add_values(few_rows, &reach, h, j, value + h * step, row, soon,
                       part);
    }
}
