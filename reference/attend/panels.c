/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Attention of many rows. */
#if defined(__AVX512F__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512") /* its loops are long */
#endif

#include "reference/attend/panels.h"

#include <math.h>
#include <string.h>

#include "reference/attend/wide.h"

enum {
    STRIP = CP_STRIP, /* rows whose softmax is computed together */
    WIDEST = CP_PANEL_WIDEST,
};

static int64_t round_up(int64_t count, int64_t unit) {
    return cp_ceil_divide(count, unit) * unit;
}

cp_panels cp_panels_lay_out(const cp_panel_format *format,
                            const cp_shape *shape, int64_t rows,
                            cp_workspace *kept, cp_workspace *space) {
    const cp_micro *micro = format->micro();
    const int64_t dim = round_up(shape->head_dim, format->step);
    const int64_t slices = cp_ceil_divide(cp_value_dim(shape), micro->slice);
    const int64_t most = round_up(CP_PANEL_KEYS, micro->slice);
    const int64_t keys = most / micro->slice * micro->slice_stride;
    const int64_t lines =
        cp_ceil_divide(rows, micro->panel) * micro->panel_stride;
    return (cp_panels){
        .format = format,
        .shape = shape,
        .micro = micro,
        .slices = slices,
        .most = most,
        .keys = cp_workspace_take(space, keys * dim),
        .values = cp_workspace_take(space, slices * most * micro->slice_stride),
        .queries =
            cp_workspace_take(kept, lines * cp_max(dim, cp_value_dim(shape))),
        .sums = cp_workspace_take(kept, lines * slices * micro->slice),
        .level = cp_workspace_take(kept, lines),
        .total = cp_workspace_take(kept, lines),
        .scores = cp_workspace_take(space, most * micro->panel_stride),
        .weights = cp_workspace_take(space, most * format->spare),
    };
}

static void pack_queries(const cp_panels *buffers, cp_piece queries,
                         int64_t kv_head, int64_t rows, const float *tensor) {
    const int64_t dim = buffers->shape->head_dim, panel = buffers->micro->panel;
    const int64_t stride = buffers->micro->panel_stride;
    const int64_t panels = cp_ceil_divide(rows, panel);
    const float scale = cp_query_scale(buffers->shape);
    int64_t r = 0;
    for (; buffers->micro->wide && r + 16 <= rows; r += 16) {
        const float *from[16];
        float *to = buffers->queries + r / panel * dim * stride + r % panel;
        for (int i = 0; i < 16; i++)
            from[i] =
                tensor +
                cp_row_index(buffers->shape, queries, kv_head, r + i) * dim;
        cp_wide_turn(from, dim, scale, to, to + 8, stride);
    }
    for (; r < panels * panel; r++) {
        const int64_t at =
            cp_row_index(buffers->shape, queries, kv_head, r) * dim;
        float *to = buffers->queries + r / panel * dim * stride + r % panel;
        for (int64_t d = 0; d < dim; d++)
            to[d * stride] = r < rows ? tensor[at + d] * scale : 0.0f;
    }
}

void cp_panels_begin(const cp_panels *buffers, cp_piece queries,
                     int64_t kv_head, int64_t rows, const float *tensor) {
    const int64_t stride = buffers->micro->panel_stride;
    const int64_t panels = cp_ceil_divide(rows, buffers->micro->panel);
    buffers->format->begin(buffers, queries, kv_head, rows, tensor);
    /* No key has been seen. */
    const int64_t lines = buffers->slices * buffers->micro->slice;
    memset(buffers->sums, 0, (size_t)(panels * lines * stride) * sizeof(float));
    for (int64_t i = 0; i < panels * stride; i++) {
        buffers->level[i] = -INFINITY;
        buffers->total[i] = 0.0f;
    }
}

static inline void turn(int64_t slice, int64_t stride, int64_t dim,
                        int64_t width, const float *keys, float *to) {
    for (int64_t d = 0; d < dim; d++)
        for (int64_t i = 0; i < slice; i++)
            to[d * stride + i] = keys[i * width + d];
}

static void pack_keys(const cp_panels *buffers, int64_t count,
                      const float *keys, int64_t width) {
    const int64_t dim = buffers->shape->head_dim;
    const int64_t slice = buffers->micro->slice;
    const int64_t stride = buffers->micro->slice_stride;
    int64_t j = 0;
    for (; buffers->micro->wide && j + 16 <= count; j += 16) {
        const float *from[16];
        float *to = buffers->keys + j * dim;
        for (int i = 0; i < 16; i++)
            from[i] = keys + (j + i) * width;
        cp_wide_turn(from, dim, 1.0f, to, to + 8 * dim, 8);
    }
    for (; j + slice <= count; j += slice) {
        float *to = buffers->keys + j / slice * dim * stride;
        if (slice == 6 && stride == 6)
            turn(6, 6, dim, width, keys + j * width, to);
        else
            turn(slice, stride, dim, width, keys + j * width, to);
    }
    for (; j < round_up(count, slice); j++)
        for (int64_t d = 0; d < dim; d++)
            buffers->keys[(j / slice * dim + d) * stride + j % slice] =
                j < count ? keys[j * width + d] : 0.0f;
}

static inline __attribute__((always_inline)) void
deal(int64_t slice, int64_t stride, int64_t slices, int64_t most,
     const float *from, float *to) {
    for (int64_t s = 0; s < slices; s++)
        memcpy(to + s * most * stride, from + s * slice,
               (size_t)slice * sizeof(float));
}

static void pack_values(const cp_panels *buffers, int64_t count,
                        const float *values, int64_t width) {
    const int64_t dim = cp_value_dim(buffers->shape), most = buffers->most;
    const int64_t slice = buffers->micro->slice;
    const int64_t stride = buffers->micro->slice_stride;
    const int64_t full = dim / slice, remainder = dim % slice;
    for (int64_t j = 0; j < count; j++) {
        const float *from = values + j * width;
        float *to = buffers->values + j * stride;
        if (slice == 6 && stride == 6)
            deal(6, 6, full, most, from, to);
        else if (slice == 8 && stride == 8)
            deal(8, 8, full, most, from, to);
        else
            deal(slice, stride, full, most, from, to);
        for (int64_t i = 0; i < slice && remainder > 0; i++)
            to[full * most * stride + i] =
                i < remainder ? from[full * slice + i] : 0.0f;
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

/* base: the level that weights are relative to; rescale: the factor by which
 * the past is now multiplied. Returns whether any of the factors is not 1. */
static inline __attribute__((always_inline)) bool
choose_level(int lanes, const float *top, float *restrict level,
             float *restrict base, float *restrict rescale) {
    int moved = 0;
#pragma omp simd reduction(| : moved)
    for (int i = 0; i < lanes; i++) {
        const float old = level[i];
        const float fresh = top[i] > old + 8.0f ? top[i] : old;
        base[i] = fresh == -INFINITY ? 0.0f : fresh;
        rescale[i] = cp_exp2(old - base[i]);
        moved |= fresh != old && old != -INFINITY;
        level[i] = fresh;
    }
    return moved != 0;
}

static inline __attribute__((always_inline)) bool
weigh_strip(int lanes, int64_t stride, int64_t count, const float *known,
            float *restrict scores, float *restrict level,
            float *restrict total, float *restrict rescale) {
    float top[STRIP], base[STRIP], sum[STRIP] = {0.0f};
    for (int i = 0; i < lanes; i++)
        top[i] = known != NULL ? known[i] : level[i];
    if (known == NULL)
        find_largest(lanes, stride, count, scores, top);
    const bool moved = choose_level(lanes, top, level, base, rescale);
    for (int64_t j = 0; j < count; j++)
#pragma omp simd
        for (int i = 0; i < lanes; i++) {
            const float weight = cp_exp2(scores[j * stride + i] - base[i]);
            scores[j * stride + i] = weight;
            sum[i] += weight;
        }
    for (int i = 0; i < lanes; i++)
        total[i] = total[i] * rescale[i] + sum[i];
    return moved;
}

bool cp_panels_weigh(const cp_panels *buffers, int64_t count, const float *top,
                     float *level, float *total, float *rescale) {
    const int64_t panel = buffers->micro->panel;
    const int64_t stride = buffers->micro->panel_stride;
    bool moved = false;
    for (int64_t i = 0; i < panel;) {
        const int64_t lanes = panel - i >= 16 ? 16 : panel - i >= 8 ? 8 : 1;
        const float *known = top != NULL ? top + i : NULL;
        float *scores = buffers->scores + i;
        if (lanes == 16)
            moved |= weigh_strip(16, stride, count, known, scores, level + i,
                                 total + i, rescale + i);
        else if (lanes == 8)
            moved |= weigh_strip(8, stride, count, known, scores, level + i,
                                 total + i, rescale + i);
        else
            moved |= weigh_strip(1, stride, count, known, scores, level + i,
                                 total + i, rescale + i);
        i += lanes;
    }
    return moved;
}

int64_t cp_panels_first(const cp_panels *buffers, const cp_reach *reach) {
    return reach->begin / buffers->micro->slice * buffers->micro->slice;
}

/* Key j, or the next one that not all rows see. */
static int64_t next_mixed(const cp_reach *reach, int64_t j) {
    return j < reach->full || j >= reach->least ? j : reach->least;
}

static void mask(const cp_panels *buffers, const cp_reach *reach) {
    for (int64_t j = next_mixed(reach, cp_panels_first(buffers, reach));
         j < reach->most; j = next_mixed(reach, j + 1))
        for (int64_t i = 0; i < buffers->micro->panel; i++)
            if (j < reach->from[i] || j >= reach->of[i])
                buffers->scores[j * buffers->micro->panel_stride + i] =
                    -INFINITY;
}

static void add_seen(const cp_panels *buffers, const cp_reach *reach,
                     const float *values, int64_t width, float *sums) {
    const int64_t dim = cp_value_dim(buffers->shape),
                  panel = buffers->micro->panel;
    const int64_t stride = buffers->micro->panel_stride;
    for (int64_t j = next_mixed(reach, reach->begin); j < reach->most;
         j = next_mixed(reach, j + 1)) {
        const float *weights = buffers->scores + j * stride;
        const float *value = values + j * width;
        uint32_t seen[WIDEST];
        for (int64_t i = 0; i < panel; i++)
            seen[i] = j >= reach->from[i] && j < reach->of[i] ? UINT32_MAX : 0;
        for (int64_t d = 0; d < dim; d++)
#pragma omp simd
            for (int64_t i = 0; i < panel; i++)
                sums[d * stride + i] +=
                    cp_from_bits(cp_to_bits(weights[i] * value[d]) & seen[i]);
    }
}

/* What the next panel needs of an array, and how many floats of it to ask for
 * with each slice of keys. */
typedef struct {
    const float *at;
    int64_t share;
} next_part;

static next_part next_of(const cp_panels *buffers, const float *array,
                         int64_t floats, int64_t number) {
    const int64_t slices = buffers->most / buffers->micro->slice;
    return (next_part){array + (number + 1) * floats,
                       round_up(cp_ceil_divide(floats, slices), STRIP)};
}

static inline void fetch(next_part *part) {
    for (int64_t i = 0; i < part->share; i += STRIP)
        __builtin_prefetch(part->at + i, 0, 2);
    part->at += part->share;
}

static bool score_panel(const cp_panels *buffers, int64_t number,
                        const cp_reach *reach, float *top) {
    const cp_micro *micro = buffers->micro;
    const int64_t dim = buffers->shape->head_dim, slice = micro->slice;
    const int64_t stride = micro->panel_stride;
    const float *queries = buffers->queries + number * dim * stride;
    next_part next[2] = {
        next_of(buffers, buffers->queries, dim * stride, number),
        next_of(buffers, buffers->sums, buffers->slices * slice * stride,
                number)};
    const int64_t start = cp_panels_first(buffers, reach);
    const bool known = micro->wide && reach->full == start &&
                       reach->least == reach->most && reach->most % slice == 0;
    for (int64_t j = start; j < reach->most; j += slice) {
        const float *keys =
            buffers->keys + j / slice * dim * micro->slice_stride;
        float *scores = buffers->scores + j * stride;
        fetch(&next[0]);
        fetch(&next[1]);
        if (known)
            cp_wide_multiply(slice, micro->panel, dim, keys, queries, false,
                             scores, stride, top);
        else
            cp_micro_multiply(micro, slice, micro->panel, dim, keys, queries,
                              false, scores, stride);
    }
    return known;
}

static int64_t seen_by_all(const cp_reach *reach) {
    return reach->least - reach->full;
}

/* Slice s of the packed values, from that key on. */
static const float *values_from(const cp_panels *buffers, int64_t s,
                                int64_t key) {
    return buffers->values +
           (s * buffers->most + key) * buffers->micro->slice_stride;
}

static void add_values(const cp_panels *buffers, const cp_reach *reach,
                       const float *values, int64_t width, float *sums) {
    const cp_micro *micro = buffers->micro;
    const int64_t slice = micro->slice, stride = micro->panel_stride;
    /* Add the values that all rows see. */
    for (int64_t s = 0; s < buffers->slices && seen_by_all(reach) > 0; s++)
        cp_micro_multiply(micro, slice, micro->panel, seen_by_all(reach),
                          values_from(buffers, s, reach->full),
                          buffers->scores + reach->full * stride, true,
                          sums + s * slice * stride, stride);
    add_seen(buffers, reach, values, width, sums);
}

static void pack_tile(const cp_panels *buffers, int64_t count,
                      const float *keys, int64_t key_row, const float *values,
                      int64_t value_row) {
    pack_keys(buffers, count, keys, key_row);
    pack_values(buffers, count, values, value_row);
}

static bool weigh_scores(const cp_panels *buffers, const cp_reach *reach,
                         const float *top, float *level, float *total,
                         float *rescale) {
    const int64_t start = cp_panels_first(buffers, reach);
    cp_panels scored = *buffers;
    scored.scores += start * buffers->micro->panel_stride;
    return cp_panels_weigh(&scored, reach->most - start, top, level, total,
                           rescale);
}

const cp_panel_format cp_panels_fp32 = {.micro = cp_micro_get,
                                        .rows = 2048,
                                        .step = 1,
                                        .begin = pack_queries,
                                        .pack = pack_tile,
                                        .score = score_panel,
                                        .weigh = weigh_scores,
                                        .add = add_values};

void cp_panels_scale(const cp_panels *buffers, const float *rescale,
                     float *sums) {
    const int64_t panel = buffers->micro->panel;
    const int64_t stride = buffers->micro->panel_stride;
    for (int64_t d = 0; d < cp_value_dim(buffers->shape); d++)
#pragma omp simd
        for (int64_t i = 0; i < panel; i++)
            sums[d * stride + i] *= rescale[i];
}

static void attend_panel(const cp_panels *buffers, int64_t number,
                         const cp_reach *reach, const float *values,
                         int64_t width) {
    const cp_micro *micro = buffers->micro;
    const int64_t lines = buffers->slices * micro->slice;
    const int64_t stride = micro->panel_stride;
    float *sums = buffers->sums + number * lines * stride;
    float *level = buffers->level + number * stride;
    float rescale[WIDEST], top[WIDEST];
    memcpy(top, level, (size_t)stride * sizeof(float));
    const bool known = buffers->format->score(buffers, number, reach, top);
    mask(buffers, reach);
    if (buffers->format->weigh(buffers, reach, known ? top : NULL, level,
                               buffers->total + number * stride, rescale))
        cp_panels_scale(buffers, rescale, sums);
    buffers->format->add(buffers, reach, values, width, sums);
}

void cp_panels_pack(const cp_panels *buffers, int64_t count, const float *keys,
                    int64_t key_row, const float *values, int64_t value_row) {
    buffers->format->pack(buffers, count, keys, key_row, values, value_row);
}

void cp_panels_add(const cp_panels *buffers, cp_piece queries, cp_piece keys,
                   int64_t kv_head, int64_t rows, const cp_attention *call) {
    const cp_shape *shape = buffers->shape;
    const int64_t key_row = cp_key_row(call), value_row = cp_value_row(call);
    const float *key =
        call->keys + keys.row * key_row + kv_head * shape->head_dim;
    const float *value =
        call->values + keys.row * value_row + kv_head * cp_value_step(shape);
    const int64_t panel = buffers->micro->panel;
    int64_t from[WIDEST], each[WIDEST];
    cp_reach reach = {.from = from, .of = each};
    if (cp_window_relate(queries.span, keys.span, shape->window) == CP_APART)
        return;
    cp_panels_pack(buffers, keys.span.count, key, key_row, value, value_row);
    for (int64_t r = 0; r < rows; r += panel) {
        cp_reach_find(shape, queries.span, keys.span, r, panel, &reach);
        if (reach.most > reach.begin)
            attend_panel(buffers, r / panel, &reach, value, value_row);
    }
}

static const float *sums_of(const cp_panels *buffers, int64_t r) {
    const cp_micro *micro = buffers->micro;
    const int64_t lines = buffers->slices * micro->slice;
    return buffers->sums + r / micro->panel * lines * micro->panel_stride +
           r % micro->panel;
}

void cp_panels_end(const cp_panels *buffers, int64_t rows) {
    const int64_t dim = cp_value_dim(buffers->shape);
    const int64_t stride = buffers->micro->panel_stride;
    const int64_t turned = buffers->micro->wide ? dim - dim % 16 : 0;
    for (int64_t r = 0; r < rows && turned > 0; r += 16)
        for (int64_t d = 0; d < turned; d += 16) {
            const float *from[16];
            float *to = buffers->queries + r * dim + d;
            for (int i = 0; i < 16; i++)
                from[i] = sums_of(buffers, r) + (d + i) * stride;
            cp_wide_turn(from, 16, 1.0f, to, to + 8, dim);
        }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = turned; d < dim; d++)
            buffers->queries[r * dim + d] = sums_of(buffers, r)[d * stride];
}

const float *cp_panels_row(const cp_panels *buffers, int64_t r, float *level,
                           float *total) {
    const cp_micro *micro = buffers->micro;
    const int64_t at =
        r / micro->panel * micro->panel_stride + r % micro->panel;
    *level = buffers->level[at];
    *total = buffers->total[at];
    return buffers->queries + r * cp_value_dim(buffers->shape);
}
