/* The rungs of the ladder whose scores lie column by column: a row for each
 * key, so that they are the packed operand of the second product. */
#include "figures/ladder/rungs.h"

#include <string.h>

#include "reference/attend/micro.h"

enum { BLOCK_QUERIES = 256, BLOCK_KEYS = 192 };
enum { WIDEST = 64 }; /* of the panels that BLIS has */

/* What lies where in a workspace's room, in floats; keys lie at 0. */
typedef struct {
    cp_lanes slice, panel;
    int64_t values, scores, end;
} turned_room;

static turned_room find_room(const cp_micro *micro, int64_t dim) {
    turned_room room = {.slice = {micro->slice, micro->slice_stride},
                        .panel = {micro->panel, micro->panel_stride}};
    room.values = cp_lanes_floats(room.slice, BLOCK_KEYS, dim);
    room.scores = room.values + cp_lanes_floats(room.slice, dim, BLOCK_KEYS);
    room.end = room.scores + cp_lanes_floats(room.panel, 1, BLOCK_KEYS) +
               micro->panel_stride; /* read, and not used */
    return room;
}

enum { STRIP = 16 };

static inline __attribute__((always_inline)) void
find_largest(int lanes, int64_t count, int64_t stride,
             const float *restrict scores, float *restrict top) {
    for (int64_t j = 0; j < count; j++)
#pragma omp simd
        for (int i = 0; i < lanes; i++) {
            const float score = scores[j * stride + i];
            top[i] = score > top[i] ? score : top[i];
        }
}

static inline __attribute__((always_inline)) void
weigh_row(bool vector, int lanes, float *restrict scores,
          const float *restrict level, float *restrict sum) {
    if (vector)
#pragma omp simd
        for (int i = 0; i < lanes; i++)
            scores[i] = cp_exp2(scores[i] - level[i]);
    else
        for (int i = 0; i < lanes; i++)
            scores[i] = expf(scores[i] - level[i]);
#pragma omp simd
    for (int i = 0; i < lanes; i++)
        sum[i] += scores[i];
}

/* Scores become weights; keep is what the past of each row is worth. */
static inline __attribute__((always_inline)) void
weigh_strip(bool vector, int lanes, int64_t count, int64_t stride,
            float *restrict scores, float *restrict level,
            float *restrict total, float *restrict correction) {
    float top[STRIP], sum[STRIP] = {0.0f};
    memcpy(top, level, (size_t)lanes * sizeof(float));
    find_largest(lanes, count, stride, scores, top);
    /* Move the strip to its new level. */
    for (int i = 0; i < lanes; i++) {
        const float before = level[i];
        level[i] = top[i];
        top[i] = top[i] == -INFINITY ? 0.0f : top[i];
        correction[i] = cp_power(vector, before - top[i]);
    }
    for (int64_t j = 0; j < count; j++)
        weigh_row(vector, lanes, scores + j * stride, top, sum);
    for (int i = 0; i < lanes; i++)
        total[i] = total[i] * correction[i] + sum[i];
}

static void weigh_panel(const cp_rung_workspace *workspace, int64_t r,
                        cp_lanes panel, int64_t count, float *scores,
                        float *correction) {
    const int64_t width = panel.width, stride = panel.stride;
    const bool vector = workspace->recipe->vector;
    float *level = workspace->level + r, *total = workspace->total + r;
    int64_t i = 0;
    /* Hide what rows do not see. */
    for (int64_t j = workspace->reach[r]; j < count; j++)
        for (int64_t q = 0; q < width; q++)
            if (j >= workspace->reach[r + q])
                scores[j * stride + q] = -INFINITY;
    for (; i + STRIP <= width; i += STRIP)
        weigh_strip(vector, STRIP, count, stride, scores + i, level + i,
                    total + i, correction + i);
    for (; i < width; i++)
        weigh_strip(vector, 1, count, stride, scores + i, level + i, total + i,
                    correction + i);
}

static void rescale(int64_t dim, cp_lanes panel, float *sums,
                    const float *correction) {
    for (int64_t d = 0; d < dim; d++)
#pragma omp simd
        for (int64_t i = 0; i < panel.width; i++)
            sums[d * panel.stride + i] *= correction[i];
}

static void add_to_panel(const cp_micro *micro, const turned_room *room,
                         const cp_rung_workspace *workspace, int64_t count,
                         int64_t r) {
    const int64_t dim = workspace->dim, slice = micro->slice;
    const int64_t columns = micro->panel, stride = micro->panel_stride;
    const int64_t at = cp_lanes_index(room->panel, dim, r, 0);
    float *scores = workspace->room + room->scores,
          *sums = workspace->sums + at;
    float correction[WIDEST];
    /* Score the panel against all slices of keys. */
    for (int64_t j = 0; j < count; j += slice)
        cp_micro_multiply(
            micro, cp_min(slice, count - j), columns, dim,
            workspace->room + cp_lanes_index(room->slice, dim, j, 0),
            workspace->queries + at, false, scores + j * stride, stride);
    weigh_panel(workspace, r, room->panel, count, scores, correction);
    rescale(dim, room->panel, sums, correction);
    /* Add all slices of values to the panel's sums. */
    const float *values = workspace->room + room->values;
    for (int64_t d = 0; d < dim; d += slice)
        cp_micro_multiply(micro, cp_min(slice, dim - d), columns, count,
                          values + cp_lanes_index(room->slice, count, d, 0),
                          scores, true, sums + d * stride, stride);
}

static void turned_add(const cp_rung_workspace *workspace,
                       const cp_keys *block) {
    const cp_micro *micro = cp_micro_get();
    const turned_room room = find_room(micro, workspace->dim);
    cp_lanes_pack(room.slice, block->count, workspace->dim, block->keys,
                  block->width, 1, 1.0f, workspace->room);
    cp_lanes_pack(room.slice, workspace->dim, block->count, block->values, 1,
                  block->width, 1.0f, workspace->room + room.values);
    for (int64_t r = 0; r < workspace->rows; r += micro->panel)
        add_to_panel(micro, &room, workspace, block->count, r);
}

static cp_status turned(const cp_attention *call, bool vector) {
    const turned_room room = find_room(cp_micro_get(), call->shape->head_dim);
    const cp_recipe recipe = {.queries = BLOCK_QUERIES,
                              .keys = BLOCK_KEYS,
                              .query_lanes = room.panel,
                              .sum_lanes = room.panel,
                              .vector = vector,
                              .room = room.end,
                              .add = turned_add};
    return cp_climb(call, &recipe);
}

cp_status cp_rung_transposed(const cp_attention *call) {
    return turned(call, false);
}

cp_status cp_rung_exponential(const cp_attention *call) {
    return turned(call, true);
}
