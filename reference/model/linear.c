/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Linear layers over matrices in tiles. */
#include "reference/model/linear.h"

#include <omp.h>
#include <string.h>

#include "reference/attend/micro.h"

enum { FEW_ROWS = 6, MOST_DEPTH = 2048 };

typedef struct {
    int64_t rows, in;
    const float *x;
    const cp_product *products;
    int count;
    const cp_micro *micro;
    int64_t span;  /* columns that are whole groups and whole panels */
    int64_t panel; /* floats of one packed panel */
    float *slices; /* x, packed */
} work;

static void multiply_pair(const work *w, const cp_product *product,
                          int64_t group) {
    const int64_t first = group * CP_LANES, out = product->matrix->out;
    const int64_t count = cp_min(2 * CP_LANES, out - first);
    float sums[2][CP_LANES];
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t from = 0; from < w->in; from += MOST_DEPTH) {
            float *y = product->y + r * out + first;
            const bool add = product->add || from > 0;
            cp_matrix_pair(product->matrix, group, from,
                           cp_min(MOST_DEPTH, w->in - from), w->x + r * w->in,
                           sums);
            for (int64_t i = 0; i < count; i++) {
                const float sum = sums[i / CP_LANES][i % CP_LANES];
                y[i] = add ? y[i] + sum : sum;
            }
        }
}

static void few_rows(const work *w, int thread, int threads) {
    for (int n = 0; n < w->count; n++) {
        const cp_product *product = &w->products[n];
        const int64_t pairs =
            cp_ceil_divide(product->matrix->out, 2 * CP_LANES);
        for (int64_t p = pairs * thread / threads;
             p < pairs * (thread + 1) / threads; p++)
            multiply_pair(w, product, 2 * p);
    }
}

static void pack_slice(const work *w, int64_t s) {
    const cp_micro *micro = w->micro;
    const int64_t first = s * micro->slice, step = micro->slice_stride;
    const int64_t rows = cp_min(micro->slice, w->rows - first);
    float *slice = w->slices + s * w->in * step;
    for (int64_t r = 0; r < step; r++)
        for (int64_t k = 0; k < w->in; k++)
            slice[k * step + r] =
                r < rows ? w->x[(first + r) * w->in + k] : 0.0f;
}

static void pack_tile(const work *w, int64_t column, const float *tile,
                      float *panels) {
    const int64_t wide = w->micro->panel, step = w->micro->panel_stride;
    for (int64_t i = 0, count; i < CP_LANES; i += count) {
        const int64_t lane = (column + i) % wide;
        float *panel = panels + (column + i) / wide * w->panel + lane;
        count = cp_min(CP_LANES - i, wide - lane);
        for (int64_t k = 0; k < CP_DEPTH; k++)
            memcpy(panel + k * step, tile + k * CP_LANES + i,
                   (size_t)count * sizeof(float));
    }
}

static void expand_span(const work *w, const cp_matrix *matrix, int64_t column,
                        int64_t from, int64_t depth, float *panels) {
    const cp_micro *micro = w->micro;
    const bool same =
        micro->panel == CP_LANES && micro->panel_stride == CP_LANES;
    float tile[CP_DEPTH * CP_LANES];
    const int64_t columns = cp_min(w->span, matrix->out - column);
    for (int64_t c = 0; c < columns; c += CP_LANES)
        for (int64_t k = 0; k < depth; k += CP_DEPTH) {
            float *to = panels + k * micro->panel_stride;
            cp_matrix_expand(matrix, (column + c) / CP_LANES,
                             (from + k) / CP_DEPTH, same ? to : tile);
            if (!same)
                pack_tile(w, c, tile, to);
        }
}

static void multiply_span(const work *w, const cp_product *product,
                          int64_t column, int64_t from, float *panels) {
    const cp_micro *micro = w->micro;
    const int64_t out = product->matrix->out;
    const int64_t depth = cp_min(MOST_DEPTH, w->in - from);
    const int64_t end = cp_min(column + w->span, out);
    expand_span(w, product->matrix, column, from, depth, panels);
    for (int64_t c = column; c < end; c += micro->panel) {
        const float *panel = panels + (c - column) / micro->panel * w->panel;
        for (int64_t r = 0; r < w->rows; r += micro->slice)
            cp_micro_multiply(micro, cp_min(micro->slice, w->rows - r),
                              cp_min(micro->panel, out - c), depth,
                              w->slices + (r / micro->slice * w->in + from) *
                                              micro->slice_stride,
                              panel, product->add || from > 0,
                              product->y + r * out + c, out);
    }
}

static void many_rows(const work *w, int thread, int threads, float *panels) {
    for (int64_t from = 0; from < w->in; from += MOST_DEPTH)
        for (int n = 0; n < w->count; n++) {
            const cp_product *product = &w->products[n];
            const int64_t spans = cp_ceil_divide(product->matrix->out, w->span);
            for (int64_t s = spans * thread / threads;
                 s < spans * (thread + 1) / threads; s++)
                multiply_span(w, product, s * w->span, from, panels);
        }
}

enum { ALIGNED = 16 }; /* floats */

static int64_t span_of(const cp_micro *micro) {
    int64_t span = micro->panel;
    while (span % CP_LANES != 0)
        span += micro->panel;
    return span;
}

static int64_t panel_of(const cp_micro *micro, int64_t in) {
    const int64_t tiles = cp_ceil_divide(cp_min(in, MOST_DEPTH), CP_DEPTH);
    return ALIGNED *
           cp_ceil_divide(tiles * CP_DEPTH * micro->panel_stride, ALIGNED);
}

static int64_t workspace_of(const cp_micro *micro, int64_t in) {
    return span_of(micro) / micro->panel * panel_of(micro, in) +
           micro->panel_stride + ALIGNED;
}

static float *align(float *memory) {
    const uintptr_t past = (uintptr_t)memory / sizeof(float) % ALIGNED;
    return past == 0 ? memory : memory + ALIGNED - past;
}

static int64_t slices_of(const cp_micro *micro, int64_t rows) {
    return cp_ceil_divide(rows, micro->slice);
}

int64_t cp_linear_scratch(int64_t rows, int64_t in, int threads) {
    const cp_micro *micro = cp_micro_get();
    int64_t floats, panels;
    if (!cp_multiply(slices_of(micro, rows), micro->slice_stride, &floats) ||
        !cp_multiply(floats, in, &floats) ||
        !cp_multiply(workspace_of(micro, in), threads, &panels) ||
        !cp_add(floats, panels, &floats))
        return -1;
    return floats;
}

static void rows_together(const work *w, int threads) {
    const cp_micro *micro = w->micro;
    const int64_t slices = slices_of(micro, w->rows);
    float *workspaces = w->slices + slices * micro->slice_stride * w->in;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t s = 0; s < slices; s++)
            pack_slice(w, s);
        const int thread = omp_get_thread_num();
        many_rows(w, thread, omp_get_num_threads(),
                  align(workspaces + thread * workspace_of(micro, w->in)));
    }
}

void cp_linear_rows(int64_t rows, int64_t in, const float *x,
                    const cp_product *products, int count, int threads,
                    float *scratch) {
    const cp_micro *micro = cp_micro_get();
    const int64_t span = span_of(micro), panel = panel_of(micro, in);
    const work w = {rows, in, x, products, count, micro, span, panel, scratch};
    if (rows > FEW_ROWS) {
        rows_together(&w, threads);
        return;
    }
#pragma omp parallel num_threads(threads)
    few_rows(&w, omp_get_thread_num(), omp_get_num_threads());
}
