/* Tangled from book/11-bf16.nw; edit the chapter. */
/* Panels whose operands are bf16. */
#include "reference/attend/bf16.h"
#include "reference/attend/panels.h"

#include "ground/bits.h"

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
            from[i] = r + i >= rows
                          ? NULL
                          : tensor + cp_row_index(buffers->shape, queries,
                                                  kv_head, r + i) *
                                         dim;
        cp_bf16_turn(from, dim, cp_query_scale(buffers->shape),
                     to + r / SIDE * key_steps(buffers) * TILE +
                         r % SIDE / LANES * HALF);
    }
}

/* A key with a value that is not finite is set aside: for it there are zeros,
 * since 0 times NaN is not 0. Behind the weights stand whether there is any such
 * key, and which. */
static float *aside(const cp_panels *buffers) {
    return buffers->weights + buffers->most * SIDE / 2;
}

static bool is_finite(uint32_t bf16) {
    enum { EXPONENT = 0x7F80 };
    return (bf16 & EXPONENT) != EXPONENT;
}

static void set_aside(const cp_panels *buffers, int64_t count,
                      const float *values, int64_t width) {
    uint16_t *packed = numbers(buffers->values);
    float *marks = aside(buffers);
    int spoilt = 0;
    for (int64_t s = 0; s < buffers->slices; s++)
        for (int64_t n = 0; n < count * SIDE; n++)
            spoilt |= !is_finite(packed[s * buffers->most * SIDE + n]);
    marks[0] = (float)spoilt;
    if (!spoilt)
        return;
    for (int64_t n = 0; n < buffers->slices * buffers->most * SIDE; n++)
        packed[n] = is_finite(packed[n]) ? packed[n] : 0;
    for (int64_t j = 0; j < count; j++) {
        marks[1 + j] = 0;
        for (int64_t d = 0; d < cp_value_dim(buffers->shape); d++)
            if (!is_finite(cp_bf16_of(values[j * width + d])))
                marks[1 + j] = 1;
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
            cp_bf16_columns(values + j * value_row + d, value_row,
                            cp_min(STEP, count - j), dim - d,
                            to + (d / SIDE * buffers->most + j) / STEP * TILE +
                                d % SIDE / LANES * HALF);
    set_aside(buffers, count, values, value_row);
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

static bool weigh(const cp_panels *buffers, const cp_reach *reach,
                  const float *top, float *level, float *total,
                  float *rescale) {
    const int64_t from = cp_panels_first(buffers, reach);
    const int64_t count = reach->most - from;
    uint16_t *weights = numbers(buffers->weights);
    cp_panels scored = *buffers;
    scored.scores += from * SIDE;
    if (cp_bf16_is_wide())
        return cp_bf16_weigh(scored.scores, count, level, total, rescale,
                             weights);
    const bool moved =
        cp_panels_weigh(&scored, count, top, level, total, rescale);
    for (int64_t j = 0; j < count; j += STEP)
        for (int64_t h = 0; h < 2; h++)
            cp_bf16_pairs(scored.scores + j * SIDE + h * LANES, SIDE,
                          cp_min(STEP, count - j),
                          weights + j * SIDE + h * HALF);
    return moved;
}

/* Add the values of a key that was set aside to the rows that see it. */
static void add_aside(const uint16_t *weights, const cp_reach *reach,
                      int64_t key, const float *value, int64_t dim,
                      float *sums) {
    for (int64_t i = 0; i < SIDE; i++) {
        if (key < reach->from[i] || key >= reach->of[i])
            continue;
        const uint32_t bf16 = weights[i / LANES * HALF + i % LANES * 2];
        for (int64_t d = 0; d < dim; d++)
            if (!is_finite(cp_bf16_of(value[d])))
                sums[d * SIDE + i] += cp_from_bits(bf16 << 16) * value[d];
    }
}

static void add(const cp_panels *buffers, const cp_reach *reach,
                const float *values, int64_t width, float *sums) {
    const int64_t from = cp_panels_first(buffers, reach);
    const int64_t steps = cp_ceil_divide(reach->most - from, STEP);
    const uint16_t *weights = numbers(buffers->weights);
    for (int64_t s = 0; s < buffers->slices; s++)
        cp_bf16_multiply(SIDE, SIDE, steps,
                         numbers(buffers->values) +
                             (s * buffers->most + from) * SIDE,
                         weights, true, sums + s * SIDE * SIDE, SIDE);
    if (aside(buffers)[0] == 0)
        return;
    for (int64_t j = reach->begin; j < reach->most; j++) {
        const int64_t at = j - from;
        if (aside(buffers)[1 + j] != 0)
            add_aside(weights + at / STEP * TILE + at % STEP / 2 * SIDE +
                          at % 2,
                      reach, j, values + j * width,
                      cp_value_dim(buffers->shape), sums);
    }
}

/* Weights take half a float each; a mark for each key, and one for all. */
const cp_panel_format cp_panels_bf16 = {.micro = micro,
                                        .rows = 1024,
                                        .step = STEP,
                                        .spare = SIDE / 2 + 2,
                                        .begin = begin,
                                        .start = cp_bf16_begin,
                                        .pack = pack,
                                        .score = score,
                                        .weigh = weigh,
                                        .add = add,
                                        .end = cp_bf16_end};
