/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Attention of many rows. */
#include "reference/attend/panels.h"

#include <math.h>
#include <string.h>

#include "reference/attend/exp2.h"

enum {
    STRIP = 16, /* rows whose softmax is computed together */
    WIDEST = CP_PANEL_WIDEST,
};

static int64_t whole(int64_t count, int64_t unit) {
    return cp_ceil_divide(count, unit) * unit;
}

static cp_panels plan_desk(const cp_shape *shape) {
    const cp_micro *micro = cp_micro_get();
    return (cp_panels){
        .shape = shape,
        .micro = micro,
        .group = shape->query_heads / shape->kv_heads,
        .slices = cp_ceil_divide(shape->head_dim, micro->slice),
        .most = whole(CP_PANEL_KEYS, micro->slice),
    };
}

enum { ARRAYS = 8 };

static void sizes_of(const cp_panels *desk, int64_t rows,
                     int64_t sizes[ARRAYS]) {
    const cp_micro *micro = desk->micro;
    const int64_t dim = desk->shape->head_dim, stride = micro->panel_stride;
    const int64_t lines = cp_ceil_divide(rows, micro->panel) * stride;
    const int64_t all[ARRAYS] = {
        desk->most / micro->slice * dim * micro->slice_stride,
        desk->slices * desk->most * micro->slice_stride,
        lines * dim,
        lines * desk->slices * micro->slice,
        lines,
        lines,
        desk->most * stride,
        2 * stride, /* int64_t */
    };
    for (int n = 0; n < ARRAYS; n++)
        sizes[n] = whole(all[n], 16);
}

int64_t cp_panels_floats(const cp_shape *shape, int64_t rows) {
    const cp_panels desk = plan_desk(shape);
    int64_t sizes[ARRAYS], sum = 0;
    sizes_of(&desk, rows, sizes);
    for (int n = 0; n < ARRAYS; n++)
        sum += sizes[n];
    return sum;
}

cp_panels cp_panels_lay_out(const cp_shape *shape, int64_t rows,
                            float *memory) {
    cp_panels desk = plan_desk(shape);
    float **arrays[] = {&desk.keys,  &desk.values, &desk.queries, &desk.sums,
                        &desk.level, &desk.total,  &desk.scores};
    int64_t sizes[ARRAYS];
    sizes_of(&desk, rows, sizes);
    for (int n = 0; n < ARRAYS - 1; n++) {
        *arrays[n] = memory;
        memory += sizes[n];
    }
    desk.reach = (int64_t *)(void *)memory;
    return desk;
}

void cp_panels_begin(const cp_panels *desk, cp_piece queries, int64_t kv_head,
                     const float *tensor) {
    const cp_shape *shape = desk->shape;
    const int64_t dim = shape->head_dim, group = desk->group;
    const int64_t panel = desk->micro->panel;
    const int64_t stride = desk->micro->panel_stride;
    const int64_t rows = queries.span.count * group;
    const int64_t panels = cp_ceil_divide(rows, panel);
    const float scale = (float)(1.4426950408889634 / sqrt((double)dim));
    for (int64_t r = 0; r < panels * panel; r++) {
        const int64_t head = (queries.row + r / group) * shape->query_heads +
                             kv_head * group + r % group;
        float *to = desk->queries + r / panel * dim * stride + r % panel;
        for (int64_t d = 0; d < dim; d++)
            to[d * stride] = r < rows ? tensor[head * dim + d] * scale : 0.0f;
    }
    /* Nothing has been seen. */
    const int64_t lines = desk->slices * desk->micro->slice;
    memset(desk->sums, 0, (size_t)(panels * lines * stride) * sizeof(float));
    for (int64_t i = 0; i < panels * stride; i++) {
        desk->level[i] = -INFINITY;
        desk->total[i] = 0.0f;
    }
}

static inline void turn(int64_t slice, int64_t stride, int64_t dim,
                        int64_t width, const float *keys, float *to) {
    for (int64_t d = 0; d < dim; d++)
        for (int64_t i = 0; i < slice; i++)
            to[d * stride + i] = keys[i * width + d];
}

static void pack_keys(const cp_panels *desk, int64_t count, const float *keys) {
    const int64_t dim = desk->shape->head_dim;
    const int64_t width = desk->shape->kv_heads * dim;
    const int64_t slice = desk->micro->slice;
    const int64_t stride = desk->micro->slice_stride;
    int64_t j = 0;
    for (; j + slice <= count; j += slice) {
        float *to = desk->keys + j / slice * dim * stride;
        if (slice == 6 && stride == 6)
            turn(6, 6, dim, width, keys + j * width, to);
        else
            turn(slice, stride, dim, width, keys + j * width, to);
    }
    for (; j < whole(count, slice); j++)
        for (int64_t d = 0; d < dim; d++)
            desk->keys[(j / slice * dim + d) * stride + j % slice] =
                j < count ? keys[j * width + d] : 0.0f;
}

static inline void deal(int64_t slice, int64_t stride, int64_t slices,
                        int64_t most, const float *from, float *to) {
    for (int64_t s = 0; s < slices; s++)
        memcpy(to + s * most * stride, from + s * slice,
               (size_t)slice * sizeof(float));
}

static void pack_values(const cp_panels *desk, int64_t count,
                        const float *values) {
    const int64_t dim = desk->shape->head_dim, most = desk->most;
    const int64_t slice = desk->micro->slice;
    const int64_t stride = desk->micro->slice_stride;
    const int64_t full = dim / slice, rest = dim % slice;
    for (int64_t j = 0; j < count; j++) {
        const float *from = values + j * desk->shape->kv_heads * dim;
        float *to = desk->values + j * stride;
        if (slice == 6 && stride == 6)
            deal(6, 6, full, most, from, to);
        else
            deal(slice, stride, full, most, from, to);
        for (int64_t i = 0; i < slice && rest > 0; i++)
            to[full * most * stride + i] =
                i < rest ? from[full * slice + i] : 0.0f;
    }
}

static inline __attribute__((always_inline)) void
find_largest(int lanes, int64_t stride, int64_t count, const float *scores,
             float *top) {
    for (int64_t j = 0; j < count; j++)
#pragma omp simd
        for (int i = 0; i < lanes; i++)
            top[i] = scores[j * stride + i] > top[i] ? scores[j * stride + i]
                                                     : top[i];
}

/* base: what weights are relative to; keep: what the past is now worth.
 * Returns whether any of it is worth something else than before. */
static inline __attribute__((always_inline)) bool
choose_level(int lanes, const float *top, float *restrict level,
             float *restrict base, float *restrict keep) {
    int moved = 0;
#pragma omp simd reduction(| : moved)
    for (int i = 0; i < lanes; i++) {
        const float old = level[i];
        const float fresh = top[i] > old + 8.0f ? top[i] : old;
        base[i] = fresh == -INFINITY ? 0.0f : fresh;
        keep[i] = cp_exp2(old - base[i]);
        moved |= fresh != old && old != -INFINITY;
        level[i] = fresh;
    }
    return moved != 0;
}

static inline __attribute__((always_inline)) bool
weigh_strip(int lanes, int64_t stride, int64_t count, float *restrict scores,
            float *restrict level, float *restrict total,
            float *restrict keep) {
    float top[STRIP], base[STRIP], sum[STRIP] = {0.0f};
    for (int i = 0; i < lanes; i++)
        top[i] = level[i];
    find_largest(lanes, stride, count, scores, top);
    const bool moved = choose_level(lanes, top, level, base, keep);
    for (int64_t j = 0; j < count; j++)
#pragma omp simd
        for (int i = 0; i < lanes; i++) {
            const float weight = cp_exp2(scores[j * stride + i] - base[i]);
            scores[j * stride + i] = weight;
            sum[i] += weight;
        }
    for (int i = 0; i < lanes; i++)
        total[i] = total[i] * keep[i] + sum[i];
    return moved;
}

static bool weigh(const cp_panels *desk, int64_t count, float *level,
                  float *total, float *keep) {
    const int64_t panel = desk->micro->panel;
    const int64_t stride = desk->micro->panel_stride;
    bool moved = false;
    for (int64_t i = 0; i < panel;) {
        const int64_t lanes = panel - i >= 16 ? 16 : panel - i >= 8 ? 8 : 1;
        float *scores = desk->scores + i;
        if (lanes == 16)
            moved |= weigh_strip(16, stride, count, scores, level + i,
                                 total + i, keep + i);
        else if (lanes == 8)
            moved |= weigh_strip(8, stride, count, scores, level + i, total + i,
                                 keep + i);
        else
            moved |= weigh_strip(1, stride, count, scores, level + i, total + i,
                                 keep + i);
        i += lanes;
    }
    return moved;
}

static void find_reach(const cp_panels *desk, cp_span queries, cp_span keys,
                       int64_t first, int64_t *least, int64_t *most) {
    *least = keys.count;
    *most = 0;
    for (int64_t i = 0; i < desk->micro->panel; i++) {
        const int64_t q = cp_min((first + i) / desk->group, queries.count - 1);
        const int64_t sees =
            cp_span_before(keys, queries.start + q * queries.step + 1);
        desk->reach[i] = sees;
        *least = cp_min(*least, sees);
        *most = cp_max(*most, sees);
    }
}

static void mask(const cp_panels *desk, int64_t least, int64_t most) {
    for (int64_t j = least; j < most; j++)
        for (int64_t i = 0; i < desk->micro->panel; i++)
            if (j >= desk->reach[i])
                desk->scores[j * desk->micro->panel_stride + i] = -INFINITY;
}

static void add_seen(const cp_panels *desk, int64_t least, int64_t most,
                     const float *values, float *sums) {
    const int64_t dim = desk->shape->head_dim, panel = desk->micro->panel;
    const int64_t stride = desk->micro->panel_stride;
    for (int64_t j = least; j < most; j++) {
        const float *weights = desk->scores + j * stride;
        const float *value = values + j * desk->shape->kv_heads * dim;
        uint32_t seen[WIDEST];
        for (int64_t i = 0; i < panel; i++)
            seen[i] = j < desk->reach[i] ? UINT32_MAX : 0;
        for (int64_t d = 0; d < dim; d++)
#pragma omp simd
            for (int64_t i = 0; i < panel; i++)
                sums[d * stride + i] +=
                    cp_from_bits(cp_to_bits(weights[i] * value[d]) & seen[i]);
    }
}

static void scale_sums(const cp_panels *desk, const float *keep, float *sums) {
    const int64_t panel = desk->micro->panel;
    const int64_t stride = desk->micro->panel_stride;
    for (int64_t d = 0; d < desk->shape->head_dim; d++)
#pragma omp simd
        for (int64_t i = 0; i < panel; i++)
            sums[d * stride + i] *= keep[i];
}

static void attend_panel(const cp_panels *desk, int64_t number, int64_t least,
                         int64_t most, const float *values) {
    const cp_micro *micro = desk->micro;
    const int64_t dim = desk->shape->head_dim, slice = micro->slice;
    const int64_t stride = micro->panel_stride;
    const float *queries = desk->queries + number * dim * stride;
    float *sums = desk->sums + number * desk->slices * slice * stride;
    float keep[WIDEST];
    for (int64_t j = 0; j < most; j += slice)
        cp_micro_multiply(micro, slice, micro->panel, dim,
                          desk->keys + j / slice * dim * micro->slice_stride,
                          queries, false, desk->scores + j * stride, stride);
    mask(desk, least, most);
    if (weigh(desk, most, desk->level + number * stride,
              desk->total + number * stride, keep))
        scale_sums(desk, keep, sums);
    /* Add the values that all rows see. */
    for (int64_t s = 0; s < desk->slices && least > 0; s++)
        cp_micro_multiply(micro, slice, micro->panel, least,
                          desk->values + s * desk->most * micro->slice_stride,
                          desk->scores, true, sums + s * slice * stride,
                          stride);
    add_seen(desk, least, most, values, sums);
}

void cp_panels_add(const cp_panels *desk, cp_piece queries, cp_piece keys,
                   int64_t kv_head, const float *key_rows,
                   const float *value_rows) {
    const cp_relation relation = cp_span_relate(queries.span, keys.span);
    if (relation == CP_APART)
        return;
    const int64_t dim = desk->shape->head_dim;
    const int64_t at = (keys.row * desk->shape->kv_heads + kv_head) * dim;
    pack_keys(desk, keys.span.count, key_rows + at);
    pack_values(desk, keys.span.count, value_rows + at);
    for (int64_t r = 0; r < queries.span.count * desk->group;
         r += desk->micro->panel) {
        int64_t least = keys.span.count, most = keys.span.count;
        if (relation == CP_DIAGONAL)
            find_reach(desk, queries.span, keys.span, r, &least, &most);
        if (most > 0)
            attend_panel(desk, r / desk->micro->panel, least, most,
                         value_rows + at);
    }
}

void cp_panels_row(const cp_panels *desk, int64_t r, float *sums, float *level,
                   float *total) {
    const int64_t panel = desk->micro->panel;
    const int64_t stride = desk->micro->panel_stride;
    const int64_t number = r / panel, lane = r % panel;
    const float *from =
        desk->sums + number * desk->slices * desk->micro->slice * stride + lane;
    for (int64_t d = 0; d < desk->shape->head_dim; d++)
        sums[d] = from[d * stride];
    *level = desk->level[number * stride + lane];
    *total = desk->total[number * stride + lane];
}
