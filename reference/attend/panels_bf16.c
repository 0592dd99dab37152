/* Panels whose operands are bf16. */
#include "reference/attend/bf16.h"
#include "reference/attend/panels.h"

#include <string.h>

enum {
    SIDE = CP_BF16_SIDE,
    STEP = CP_BF16_STEP,
    TILE = CP_BF16_TILE,
    HALF = TILE / 2,
    LANES = 16,
};

static const cp_micro *micro(void) {
    static const cp_micro narrow = {.slice = SIDE,
                                    .panel = SIDE,
                                    .slice_stride = SIDE / 2,
                                    .panel_stride = SIDE};
    static const cp_micro wide = {.slice = SIDE,
                                  .panel = SIDE,
                                  .slice_stride = SIDE / 2,
                                  .panel_stride = SIDE,
                                  .wide = true};
    return cp_bf16_is_wide() ? &wide : &narrow;
}

static uint16_t *numbers(float *array) {
    return (uint16_t *)(void *)array;
}

static int64_t key_steps(const cp_panels *buffers) {
    return cp_ceil_divide(buffers->shape->head_dim, STEP);
}

static void begin(const cp_panels *buffers, cp_piece queries, int64_t kv_head,
                  int64_t rows, const float *tensor) {
    const int64_t dim = buffers->shape->head_dim;
    const int64_t panels = cp_ceil_divide(rows, SIDE);
    const float *from[LANES];
    uint16_t *to = numbers(buffers->queries);
    for (int64_t r = 0; r < panels * SIDE; r += LANES) {
        for (int64_t i = 0; i < LANES; i++)
            from[i] = r + i >= rows ? NULL
                                    : tensor + cp_row_index(buffers->shape,
                                                            queries, kv_head,
                                                            r + i) *
                                                   dim;
        cp_bf16_turn(from, dim, cp_query_scale(buffers->shape),
                     to + r / SIDE * key_steps(buffers) * TILE +
                         r % SIDE / LANES * HALF);
    }
}

static void pack(const cp_panels *buffers, int64_t count, const float *keys,
                 int64_t key_row, const float *values, int64_t value_row) {
    const int64_t dim = cp_value_dim(buffers->shape);
    uint16_t *to = numbers(buffers->keys);
    for (int64_t j = 0; j < count; j += SIDE)
        cp_bf16_rows(keys + j * key_row, key_row, cp_min(SIDE, count - j),
                     buffers->shape->head_dim,
                     to + j / SIDE * key_steps(buffers) * TILE);
    to = numbers(buffers->values);
    for (int64_t d = 0; d < buffers->slices * SIDE; d += LANES)
        for (int64_t j = 0; j < count; j += STEP)
            cp_bf16_columns(
                values + j * value_row + d, value_row, cp_min(STEP, count - j),
                dim - d,
                to + (d / SIDE * buffers->most + j) / STEP * TILE +
                    d % SIDE / LANES * HALF);
}

static bool score(const cp_panels *buffers, int64_t number,
                  const cp_reach *reach, float *top) {
    const int64_t steps = key_steps(buffers);
    const uint16_t *keys = numbers(buffers->keys);
    const uint16_t *queries = numbers(buffers->queries) + number * steps * TILE;
    (void)top;
    for (int64_t j = cp_panels_first(buffers, reach); j < reach->most;
         j += SIDE)
        cp_bf16_multiply(SIDE, SIDE, steps, keys + j / SIDE * steps * TILE,
                         queries, false, buffers->scores + j * SIDE, SIDE);
    return false;
}

/* The first and the last key, in whole steps, that a panel multiplies. */
typedef struct {
    int64_t from, until;
} key_range;

static key_range range_of(const cp_panels *buffers, const cp_reach *reach) {
    return (key_range){cp_panels_first(buffers, reach),
                       cp_ceil_divide(reach->most, STEP) * STEP};
}

static bool all_see(const cp_reach *reach, key_range keys) {
    return reach->full == keys.from && reach->least == keys.until;
}

static bool weigh(const cp_panels *buffers, const cp_reach *reach,
                  const float *top, float *level, float *total,
                  float *rescale) {
    const key_range keys = range_of(buffers, reach);
    const int64_t count = reach->most - keys.from;
    uint16_t *weights = numbers(buffers->weights);
    cp_panels scored = *buffers;
    scored.scores += keys.from * SIDE;
    if (cp_bf16_is_wide())
        return cp_bf16_weigh(scored.scores, count, !all_see(reach, keys), level,
                             total, rescale, weights);
    const bool moved =
        cp_panels_weigh(&scored, count, top, level, total, rescale);
    for (int64_t j = 0; j < count; j += STEP)
        for (int64_t h = 0; h < 2; h++)
            cp_bf16_pairs(scored.scores + j * SIDE + h * LANES, SIDE,
                          cp_min(STEP, count - j),
                          weights + j * SIDE + h * HALF);
    return moved;
}

/* Is each packed value of these keys a number, so that 0 times it is 0? */
static bool are_finite(const cp_panels *buffers, key_range keys) {
    enum { EXPONENT = 0x7F80 };
    int found = 0;
    for (int64_t s = 0; s < buffers->slices; s++) {
        const uint16_t *value =
            numbers(buffers->values) + (s * buffers->most + keys.from) * SIDE;
        for (int64_t n = 0; n < (keys.until - keys.from) * SIDE; n++)
            found |= (value[n] & EXPONENT) == EXPONENT;
    }
    return !found;
}

static void add(const cp_panels *buffers, const cp_reach *reach,
                const float *values, int64_t width, float *sums) {
    const key_range all = range_of(buffers, reach);
    key_range keys = all;
    if (!all_see(reach, all) && !are_finite(buffers, all)) {
        cp_reach by_hand = *reach;
        keys.from = by_hand.full = cp_ceil_divide(reach->full, STEP) * STEP;
        keys.until = by_hand.least =
            cp_max(keys.from, reach->least / STEP * STEP);
        cp_panels_add_seen(buffers, &by_hand, values, width, sums);
    }
    const int64_t steps = (keys.until - keys.from) / STEP;
    const uint16_t *weights =
        numbers(buffers->weights) + (keys.from - all.from) * SIDE;
    for (int64_t s = 0; s < buffers->slices && steps > 0; s++)
        cp_bf16_multiply(SIDE, SIDE, steps,
                         numbers(buffers->values) +
                             (s * buffers->most + keys.from) * SIDE,
                         weights, true, sums + s * SIDE * SIDE, SIDE);
}

const cp_panel_format cp_panels_bf16 = {.micro = micro,
                                        .step = STEP,
                                        .begin = begin,
                                        .pack = pack,
                                        .score = score,
                                        .weigh = weigh,
                                        .add = add,
                                        .start = cp_bf16_begin,
                                        .end = cp_bf16_end};
