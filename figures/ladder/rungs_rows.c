/* The rungs of the ladder whose scores lie row by row, a row for each query:
 * by a library's matrix product, and by its micro-kernel. */
#define _POSIX_C_SOURCE 200809L /* blis.h wants pthread barriers */
#include "figures/ladder/rungs.h"

#include <blis.h>

#include "reference/attend/micro.h"

static const cp_lanes one_by_one = {1, 1};

enum { STRIP = 16 };

static float largest_of(const float *scores, int64_t count, float before) {
    float lane[STRIP], largest = before;
    for (int l = 0; l < STRIP; l++)
        lane[l] = before;
    for (int64_t j = 0; j < count; j += STRIP)
#pragma omp simd
        for (int l = 0; l < STRIP; l++)
            lane[l] = scores[j + l] > lane[l] ? scores[j + l] : lane[l];
    for (int l = 0; l < STRIP; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

static float weigh_scores(bool vector, float *scores, int64_t count,
                          float level) {
    float lane[STRIP] = {0.0f}, sum = 0.0f;
    if (vector)
#pragma omp simd
        for (int64_t j = 0; j < count; j++)
            scores[j] = cp_exp2(scores[j] - level);
    else
        for (int64_t j = 0; j < count; j++)
            scores[j] = expf(scores[j] - level);
    for (int64_t j = 0; j < count; j += STRIP)
#pragma omp simd
        for (int l = 0; l < STRIP; l++)
            lane[l] += scores[j + l];
    for (int l = 0; l < STRIP; l++)
        sum += lane[l];
    return sum;
}

/* The scores of row r become weights, online. */
static void weigh_row(const cp_rung_workspace *workspace, int64_t r,
                      int64_t count, float *scores) {
    const int64_t padded = cp_ceil_divide(count, STRIP) * STRIP;
    const bool vector = workspace->recipe->vector;
    for (int64_t j = workspace->reach[r]; j < padded; j++)
        scores[j] = -INFINITY;
    const float before = workspace->level[r];
    const float largest = largest_of(scores, padded, before);
    const float level = largest == -INFINITY ? 0.0f : largest;
    const float correction = cp_power(vector, before - level);
    workspace->level[r] = largest;
    workspace->total[r] = workspace->total[r] * correction +
                          weigh_scores(vector, scores, padded, level);
    /* Rescale the row's sums. */
    float *sums =
        workspace->sums + cp_lanes_index(one_by_one, workspace->dim, r, 0);
    for (int64_t d = 0; d < workspace->dim && correction != 1.0f; d++)
        sums[d] *= correction;
}

/* c = a b or, with add, c += a b. A step is what lies between two rows; the
 * columns of a and of c lie side by side. */
static void multiply(bool small, int64_t rows, int64_t columns, int64_t depth,
                     const float *a, int64_t a_step, const float *b,
                     int64_t b_step, int64_t b_column_step, bool add, float *c,
                     int64_t c_step) {
    rntm_t settings = BLIS_RNTM_INITIALIZER;
    bli_rntm_set_num_threads(1, &settings);
    if (!small)
        bli_rntm_disable_l3_sup(&settings);
    float one = 1.0f, beta = add ? 1.0f : 0.0f;
    bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, rows, columns, depth,
                 &one, (float *)(uintptr_t)a, a_step, 1, (float *)(uintptr_t)b,
                 b_step, b_column_step, &beta, c, c_step, 1, NULL, &settings);
}

enum { LIBRARY_QUERIES = 256, LIBRARY_KEYS = 512 };

static void library_add(const cp_rung_workspace *workspace,
                        const cp_keys *block) {
    const bool small = workspace->recipe->small;
    const int64_t dim = workspace->dim, step = cp_lanes_group(one_by_one, dim);
    float *scores = workspace->room;
    multiply(small, workspace->rows, block->count, dim, workspace->queries,
             step, block->keys, 1, block->width, false, scores, LIBRARY_KEYS);
    for (int64_t r = 0; r < workspace->rows; r++)
        weigh_row(workspace, r, block->count, scores + r * LIBRARY_KEYS);
    multiply(small, workspace->rows, dim, block->count, scores, LIBRARY_KEYS,
             block->values, block->width, 1, true, workspace->sums, step);
}

static cp_status library(const cp_attention *call, bool small, bool vector) {
    const cp_recipe recipe = {.queries = LIBRARY_QUERIES,
                              .keys = LIBRARY_KEYS,
                              .query_lanes = one_by_one,
                              .sum_lanes = one_by_one,
                              .vector = vector,
                              .small = small,
                              .room = LIBRARY_QUERIES * LIBRARY_KEYS,
                              .add = library_add};
    return cp_climb(call, &recipe);
}

cp_status cp_rung_library(const cp_attention *call) {
    return library(call, false, false);
}

cp_status cp_rung_library_small(const cp_attention *call) {
    return library(call, true, false);
}

cp_status cp_rung_library_exp2(const cp_attention *call) {
    return library(call, false, true);
}

enum { BLOCK_QUERIES = 256, BLOCK_KEYS = 192, WIDE_KEYS = BLOCK_KEYS + 64 };

/* What lies where in a workspace's room, in floats; keys lie at 0. */
typedef struct {
    cp_lanes slice, panel;
    int64_t values, scores, weights, end;
} packed_room;

static packed_room find_room(const cp_micro *micro, int64_t dim) {
    packed_room room = {.slice = {micro->slice, micro->slice_stride},
                        .panel = {micro->panel, micro->panel_stride}};
    room.values = cp_lanes_floats(room.panel, BLOCK_KEYS, dim);
    room.scores = room.values + cp_lanes_floats(room.panel, dim, BLOCK_KEYS);
    room.weights = room.scores + room.slice.width * WIDE_KEYS;
    room.end = room.weights + cp_lanes_floats(room.slice, 1, BLOCK_KEYS);
    return room;
}

static void add_to_slice(const cp_micro *micro, const packed_room *room,
                         const cp_rung_workspace *workspace, int64_t count,
                         int64_t r) {
    const int64_t dim = workspace->dim, panel = micro->panel;
    const int64_t rows = cp_min(micro->slice, workspace->rows - r);
    const float *queries =
        workspace->queries + cp_lanes_index(room->slice, dim, r, 0);
    float *sums = workspace->sums + cp_lanes_index(one_by_one, dim, r, 0);
    float *scores = workspace->room + room->scores;
    float *weights = workspace->room + room->weights;
    /* Score the slice against all panels of keys. */
    for (int64_t j = 0; j < count; j += panel)
        cp_micro_multiply(micro, rows, cp_min(panel, count - j), dim, queries,
                          workspace->room +
                              cp_lanes_index(room->panel, dim, j, 0),
                          false, scores + j, WIDE_KEYS);
    for (int64_t i = 0; i < rows; i++)
        weigh_row(workspace, r + i, count, scores + i * WIDE_KEYS);
    cp_lanes_pack(room->slice, rows, count, scores, WIDE_KEYS, 1, 1.0f,
                  weights);
    /* Add all panels of values to the slice's sums. */
    const float *values = workspace->room + room->values;
    for (int64_t d = 0; d < dim; d += panel)
        cp_micro_multiply(micro, rows, cp_min(panel, dim - d), count, weights,
                          values + cp_lanes_index(room->panel, count, d, 0),
                          true, sums + d, cp_lanes_group(one_by_one, dim));
}

static void packed_add(const cp_rung_workspace *workspace,
                       const cp_keys *block) {
    const cp_micro *micro = cp_micro_get();
    const packed_room room = find_room(micro, workspace->dim);
    cp_lanes_pack(room.panel, block->count, workspace->dim, block->keys,
                  block->width, 1, 1.0f, workspace->room);
    cp_lanes_pack(room.panel, workspace->dim, block->count, block->values, 1,
                  block->width, 1.0f, workspace->room + room.values);
    for (int64_t r = 0; r < workspace->rows; r += micro->slice)
        add_to_slice(micro, &room, workspace, block->count, r);
}

cp_status cp_rung_packed(const cp_attention *call) {
    const cp_micro *micro = cp_micro_get();
    const packed_room room = find_room(micro, call->shape->head_dim);
    const cp_recipe recipe = {.queries = BLOCK_QUERIES,
                              .keys = BLOCK_KEYS,
                              .query_lanes = room.slice,
                              .sum_lanes = one_by_one,
                              .room = room.end,
                              .add = packed_add};
    return cp_climb(call, &recipe);
}
