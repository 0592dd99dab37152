/* Attention against what the machine can do: full, causal, decode, merge. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/attention_cores.h"
#include "measure/bench.h"
#include "measure/ceilings.h"
#include "measure/tensors.h"
#include "reference/attend/panels.h"
#include "reference/attend/partial.h"

/* What a row measures, at one size. */
typedef struct {
    const cp_bench *bench;
    cp_bench_part part;
    int64_t rows; /* of partials, where heads are rows; floats of a workspace */
    cp_timed_attention one; /* its tensors are any row's */
} attention_case;

enum { MICRO_TIMES = 512 };

/* Compute a block of scores and their weighted values repeatedly: everything
 * that a kernel does except packing and softmax. Each thread has a
 * workspace. */
static cp_status micro_run(void *context, double *seconds) {
    const attention_case *attention = context;
    const cp_shape *shape = &attention->bench->shape;
    const cp_micro *m = cp_micro_get();
    const int64_t stride = m->panel_stride, wide = m->slice_stride;
    const int threads = attention->bench->threads;
    (void)seconds;
#pragma omp parallel for num_threads(threads) schedule(static, MICRO_TIMES)
    for (int n = 0; n < threads * MICRO_TIMES; n++) {
        cp_workspace workspace = {
            attention->one.tensors[0] + n / MICRO_TIMES * attention->rows, 0};
        const cp_panels panels = cp_panels_lay_out(
            &cp_panels_fp32, shape, m->panel, &workspace, &workspace);
        for (int64_t j = 0; j < panels.most; j += m->slice)
            cp_micro_multiply(
                m, m->slice, m->panel, shape->head_dim,
                panels.keys + j / m->slice * shape->head_dim * wide,
                panels.queries, false, panels.scores + j * stride, stride);
        for (int64_t s = 0; s < panels.slices; s++)
            cp_micro_multiply(m, m->slice, m->panel, CP_PANEL_KEYS,
                              panels.values + s * panels.most * wide,
                              panels.scores, true,
                              panels.sums + s * m->slice * stride, stride);
    }
    return CP_OK;
}

static cp_status micro_open(attention_case *attention, cp_bench_case *out) {
    const cp_micro *m = cp_micro_get();
    const cp_shape *shape = &attention->bench->shape;
    const int64_t threads = attention->bench->threads;
    cp_workspace workspace = {NULL, 0};
    cp_panels_lay_out(&cp_panels_fp32, shape, m->panel, &workspace, &workspace);
    attention->rows = workspace.used;
    /* The last panel is read one step past its end. */
    const int64_t floats = threads * workspace.used + m->panel_stride;
    *out =
        (cp_bench_case){.what = "micro",
                        .work = 4.0 * (double)(CP_PANEL_KEYS * MICRO_TIMES) *
                                (double)(threads * shape->head_dim * m->panel),
                        .run = micro_run,
                        .context = attention};
    return cp_measure_tensors((int)threads, 1, &floats, attention->one.tensors);
}

static cp_status attention_run(void *context, double *seconds) {
    const attention_case *attention = context;
    (void)seconds;
    return attention->bench->kernel(&attention->one.call);
}

/* Full, causal, or one token of decode. */
static cp_status attention_open(attention_case *attention, int64_t size,
                                cp_bench_case *out) {
    const cp_bench *bench = attention->bench;
    attention->one.shape = bench->shape;
    out->run = attention_run;
    out->work =
        cp_bench_work(attention->part, &bench->shape, size, sizeof(float));
    return cp_timed_attention_new(&attention->one, bench->threads,
                                  cp_bench_queries(attention->part, size),
                                  (cp_span){0, 0, size, 1});
}

static cp_status merge_run(void *context, double *seconds) {
    const attention_case *attention = context;
    const int64_t dim = attention->bench->shape.head_dim,
                  threads = attention->bench->threads;
    float *const *tensors = attention->one.tensors;
    (void)seconds;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t t = 0; t < threads; t++) {
        const int64_t first = attention->rows * t / threads;
        const int64_t rows = attention->rows * (t + 1) / threads - first;
        cp_partial to = {
            rows, 1, dim, tensors[0] + first * dim, tensors[1] + first, NULL};
        const cp_partial add = {
            rows, 1, dim, tensors[2] + first * dim, tensors[3] + first, NULL};
        cp_partial_merge(&to, &add);
    }
    return CP_OK;
}

static cp_status merge_open(attention_case *attention, int64_t size,
                            cp_bench_case *out) {
    const int64_t dim = attention->bench->shape.head_dim;
    const int64_t rows = size * attention->bench->shape.query_heads;
    const int64_t sizes[] = {rows * dim, rows, rows * dim, rows};
    attention->rows = rows;
    out->run = merge_run;
    out->work = 8.0 * (double)(rows * (dim + 1));
    return cp_measure_tensors(attention->bench->threads, 4, sizes,
                              attention->one.tensors);
}

/* A kind of row, in the order of measurement: the ceiling that attention is a
 * fraction of, its sizes, and the function that prepares one. Ceilings come
 * first. */
typedef struct {
    cp_bench_part part, of;
    enum { ONCE, TOKENS, KEYS } sizes;
    cp_status (*open)(attention_case *attention, int64_t size,
                      cp_bench_case *out);
} row_kind;

static const row_kind kinds[] = {
    {CP_BENCH_FMA, CP_BENCH_FMA, ONCE, NULL},
    {CP_BENCH_MICRO, CP_BENCH_FMA, ONCE, NULL},
    {CP_BENCH_FULL, CP_BENCH_FMA, TOKENS, attention_open},
    {CP_BENCH_CAUSAL, CP_BENCH_FMA, TOKENS, attention_open},
    {CP_BENCH_READ, CP_BENCH_READ, ONCE, NULL},
    {CP_BENCH_DECODE, CP_BENCH_READ, KEYS, attention_open},
    {CP_BENCH_MERGE, CP_BENCH_READ, TOKENS, merge_open},
};

/* One row: our rate in the ceiling's unit, and as a fraction of the ceiling;
 * then a row with its fraction of the inner loop's rate, if that is measured.
 * ceilings [CP_BENCH_PARTS]. */
static cp_status row(const cp_bench *bench, const cp_bench_case *ceilings,
                     const row_kind *kind, int64_t size) {
    attention_case attention = {.bench = bench, .part = kind->part};
    cp_bench_case all[3] = {ceilings[kind->part], ceilings[kind->of],
                            ceilings[CP_BENCH_MICRO]};
    cp_bench_case *bench_case = &all[0];
    int count = kind->part == kind->of ? 1 : 2;
    cp_status status = CP_OK;
    if (kind->open != NULL) {
        snprintf(bench_case->what, sizeof(bench_case->what), "%s/%ld",
                 cp_bench_names[kind->part], size);
        bench_case->context = &attention;
        count += kind->of == CP_BENCH_FMA && all[2].run != NULL;
        status = kind->open(&attention, size, bench_case);
    }
    bench_case->unit = all[1].unit;
    bench_case->scale = all[1].scale;
    if (status == CP_OK)
        status = cp_measure_rounds(bench->rounds, count, all);
    if (status == CP_OK)
        cp_bench_report(bench, bench_case, count > 1 ? &all[1] : NULL);
    if (status == CP_OK && count > 2) {
        strcat(bench_case->what, "/micro");
        cp_bench_report(bench, bench_case, &all[2]);
    }
    free(attention.one.tensors[0]);
    return status;
}

static cp_status parts_measure(const cp_bench *bench) {
    int64_t one = 1;
    const cp_counts sizes[] = {{&one, 1}, bench->tokens, bench->keys};
    const bool *parts = bench->parts;
    attention_case micro = {.bench = bench};
    cp_reading memory = {.threads = bench->threads};
    cp_bench_case ceilings[CP_BENCH_PARTS] = {
        [CP_BENCH_FMA] = cp_measure_fma(&bench->threads)};
    cp_status status = CP_OK;
    if (parts[CP_BENCH_MICRO])
        status = micro_open(&micro, &ceilings[CP_BENCH_MICRO]);
    if (status == CP_OK && (parts[CP_BENCH_READ] || parts[CP_BENCH_DECODE] ||
                            parts[CP_BENCH_MERGE]))
        status = cp_measure_read(&memory, &ceilings[CP_BENCH_READ]);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const cp_counts *counts = &sizes[kinds[k].sizes];
        const int64_t count = parts[kinds[k].part] ? counts->count : 0;
        for (int64_t i = 0; i < count && status == CP_OK; i++)
            status = row(bench, ceilings, &kinds[k], counts->items[i]);
    }
    free(micro.one.tensors[0]);
    free(memory.numbers);
    CP_TRY(status);
    return parts[CP_BENCH_RING] ? cp_bench_ring_cores(bench) : CP_OK;
}

static cp_status model_measure(const cp_bench *bench) {
    cp_reading memory = {.threads = bench->threads};
    cp_bench_case ceilings[2] = {cp_measure_fma(&bench->threads)};
    cp_status status = cp_measure_read(&memory, &ceilings[1]);
    if (status == CP_OK)
        status = cp_bench_model(bench, ceilings, sizeof(float));
    free(memory.numbers);
    return status;
}

cp_status cp_bench_cores(const cp_bench *bench) {
    return bench->model != NULL ? model_measure(bench) : parts_measure(bench);
}
