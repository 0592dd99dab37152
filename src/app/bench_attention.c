/* Attention against what the machine can do: full, causal, decode, merge. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/measure.h"
#include "reference/attend/micro.h"
#include "reference/attend/partial.h"

enum { MICRO_KEYS = 192, MICRO_TIMES = 512 };

/* A block of scores and what they weigh, again and again: all of a kernel but
 * packing and softmax. */
typedef struct {
    const cp_bench *bench;
    const cp_micro *micro;
    float *memory; /* of all threads */
    int64_t slices, desk;
} micro_loop;

static void multiply_often(const micro_loop *it, float *keys) {
    const cp_micro *m = it->micro;
    const int64_t dim = it->bench->shape.head_dim, stride = m->panel_stride;
    const int64_t all = cp_ceil_divide(MICRO_KEYS, m->slice);
    float *values = keys + all * dim * m->slice_stride;
    float *queries = values + it->slices * MICRO_KEYS * m->slice_stride;
    float *scores = queries + dim * stride;
    float *sums = scores + all * m->slice * stride;
    for (int n = 0; n < MICRO_TIMES; n++) {
        for (int64_t s = 0; s < all; s++)
            cp_micro_multiply(m, m->slice, m->panel, dim,
                              keys + s * dim * m->slice_stride, queries, false,
                              scores + s * m->slice * stride, stride);
        for (int64_t s = 0; s < it->slices; s++)
            cp_micro_multiply(m, m->slice, m->panel, MICRO_KEYS,
                              values + s * MICRO_KEYS * m->slice_stride, scores,
                              true, sums + s * m->slice * stride, stride);
    }
}

static cp_status micro_run(void *context, double *seconds) {
    const micro_loop *it = context;
    const int threads = it->bench->threads;
    (void)seconds;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        multiply_often(it, it->memory + t * it->desk);
    return CP_OK;
}

static cp_status micro_new(const cp_bench *bench, micro_loop *it,
                           cp_entrant *out) {
    const cp_micro *m = cp_micro_get();
    const int64_t dim = bench->shape.head_dim;
    const int64_t slices = cp_ceil_divide(dim, m->slice);
    const int64_t all = cp_ceil_divide(MICRO_KEYS, m->slice);
    const int64_t floats = all * dim * m->slice_stride +
                           slices * MICRO_KEYS * m->slice_stride +
                           (dim + (all + slices) * m->slice) * m->panel_stride;
    const double keys = (double)MICRO_KEYS * MICRO_TIMES * bench->threads;
    *it = (micro_loop){.bench = bench,
                       .micro = m,
                       .slices = slices,
                       .desk = cp_ceil_divide(floats, 16) * 16};
    *out = (cp_entrant){.what = "micro",
                        .work = 4.0 * keys * (double)(dim * m->panel),
                        .run = micro_run,
                        .context = it};
    const int64_t desks = bench->threads * it->desk;
    return cp_measure_tensors(bench->threads, 1, &desks, &it->memory);
}

/* What a row is about, at one size. */
typedef struct {
    const cp_bench *bench;
    float *tensors[5];
    cp_piece query, key;
    cp_pieces queries, keys;
    cp_attention call;
} exercise;

static cp_status attention_run(void *context, double *seconds) {
    const exercise *it = context;
    (void)seconds;
    return it->bench->kernel(&it->call);
}

/* Full, causal, or one token of decode. */
static cp_status attention_open(exercise *it, cp_bench_part part, int64_t size,
                                cp_entrant *out) {
    const cp_shape *shape = &it->bench->shape;
    const bool decode = part == CP_BENCH_DECODE;
    const int64_t start = part == CP_BENCH_FULL ? size : decode ? size - 1 : 0;
    const cp_span seen = {0, 0, size, 1};
    const cp_span asked = {0, start, decode ? 1 : size, 1};
    const int64_t wide = shape->query_heads * shape->head_dim;
    const int64_t narrow = shape->kv_heads * shape->head_dim;
    const int64_t sizes[] = {asked.count * wide, size * narrow, size * narrow,
                             asked.count * wide,
                             asked.count * shape->query_heads};
    CP_TRY(cp_measure_tensors(it->bench->threads, 5, sizes, it->tensors));
    it->query = (cp_piece){asked, 0};
    it->key = (cp_piece){seen, 0};
    it->queries = (cp_pieces){&it->query, 1, 1};
    it->keys = (cp_pieces){&it->key, 1, 1};
    it->call = (cp_attention){.shape = shape,
                              .query_pieces = &it->queries,
                              .queries = it->tensors[0],
                              .key_pieces = &it->keys,
                              .keys = it->tensors[1],
                              .values = it->tensors[2],
                              .threads = it->bench->threads,
                              .output = it->tensors[3],
                              .lse = it->tensors[4]};
    out->run = attention_run;
    out->work = decode
                    ? 8.0 * (double)(narrow * size)
                    : 4.0 * (double)wide * (double)cp_span_pairs(asked, seen);
    return CP_OK;
}

static cp_status merge_run(void *context, double *seconds) {
    const exercise *it = context;
    const int64_t dim = it->bench->shape.head_dim, threads = it->bench->threads;
    const int64_t all = it->query.span.count;
    float *const *tensors = it->tensors;
    (void)seconds;
#pragma omp parallel for num_threads(it->bench->threads) schedule(static, 1)
    for (int64_t t = 0; t < threads; t++) {
        const int64_t first = all * t / threads;
        const int64_t rows = all * (t + 1) / threads - first;
        cp_partial to = {rows, 1, dim, tensors[0] + first * dim,
                         tensors[1] + first};
        const cp_partial add = {rows, 1, dim, tensors[2] + first * dim,
                                tensors[3] + first};
        cp_partial_merge(&to, &add);
    }
    return CP_OK;
}

/* Heads are rows here. */
static cp_status merge_open(exercise *it, cp_bench_part part, int64_t size,
                            cp_entrant *out) {
    const int64_t dim = it->bench->shape.head_dim;
    const int64_t rows = size * it->bench->shape.query_heads;
    const int64_t sizes[] = {rows * dim, rows, rows * dim, rows};
    (void)part;
    it->query.span.count = rows;
    out->run = merge_run;
    out->work = 8.0 * (double)(rows * (dim + 1));
    return cp_measure_tensors(it->bench->threads, 4, sizes, it->tensors);
}

const char *const cp_bench_names[CP_BENCH_PARTS] = {
    "fma",    "micro", "read", "full",   "causal",
    "decode", "merge", "ring", "million"};

/* A kind of rows, in the order in which they are measured: a share of what, for
 * each of which sizes, and how one is prepared. Ceilings are. */
typedef struct {
    cp_bench_part part, of;
    enum { ONCE, TOKENS, KEYS } sizes;
    cp_status (*open)(exercise *it, cp_bench_part part, int64_t size,
                      cp_entrant *out);
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

/* Our rate in the ceiling's unit, as a share of it, and of the inner loop's
 * where there is one. */
static cp_status contest(const cp_bench *bench, int count, cp_entrant all[3]) {
    cp_entrant *ours = &all[0];
    const size_t end = strlen(ours->what);
    ours->unit = all[1].unit;
    ours->scale = all[1].scale;
    CP_TRY(cp_measure_rounds(bench->rounds, count, all));
    cp_measure_report(bench, ours, count > 1 ? &all[1] : NULL);
    if (count < 3)
        return CP_OK;
    snprintf(ours->what + end, sizeof(ours->what) - end, "/micro");
    cp_measure_report(bench, ours, &all[2]);
    return CP_OK;
}

/* One row; ceilings [CP_BENCH_PARTS]. */
static cp_status row(const cp_bench *bench, const cp_entrant *ceilings,
                     const row_kind *kind, int64_t size) {
    cp_entrant all[3] = {ceilings[kind->part], ceilings[kind->of],
                         ceilings[CP_BENCH_MICRO]};
    const bool computes = kind->of == CP_BENCH_FMA && all[2].run != NULL;
    exercise it = {.bench = bench};
    if (kind->open == NULL)
        return contest(bench, kind->part == kind->of ? 1 : 2, all);
    all[0].context = &it;
    snprintf(all[0].what, sizeof(all[0].what), "%s/%ld",
             cp_bench_names[kind->part], size);
    CP_TRY(kind->open(&it, kind->part, size, &all[0]));
    const cp_status status = contest(bench, computes ? 3 : 2, all);
    free(it.tensors[0]);
    return status;
}

static cp_status rows(const cp_bench *bench, micro_loop *loop,
                      cp_reading *memory) {
    int64_t one = 1;
    const cp_counts sizes[] = {{&one, 1}, bench->tokens, bench->keys};
    const bool *parts = bench->parts;
    cp_entrant ceilings[CP_BENCH_PARTS] = {0};
    ceilings[CP_BENCH_FMA] = cp_measure_fma(&bench->threads);
    if (parts[CP_BENCH_MICRO])
        CP_TRY(micro_new(bench, loop, &ceilings[CP_BENCH_MICRO]));
    if (parts[CP_BENCH_READ] || parts[CP_BENCH_DECODE] || parts[CP_BENCH_MERGE])
        CP_TRY(cp_measure_read(memory, &ceilings[CP_BENCH_READ]));
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const cp_counts *mine = &sizes[kinds[k].sizes];
        for (int64_t i = 0; i < mine->count && parts[kinds[k].part]; i++)
            CP_TRY(row(bench, ceilings, &kinds[k], mine->items[i]));
    }
    return CP_OK;
}

cp_status cp_bench_attention(const cp_bench *bench) {
    micro_loop loop = {.memory = NULL};
    cp_reading memory = {.threads = bench->threads};
    const cp_status status = rows(bench, &loop, &memory);
    free(loop.memory);
    free(memory.numbers);
    return status;
}
