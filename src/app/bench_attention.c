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

/* What rows are held against; one without a run is not wanted. */
typedef struct {
    cp_entrant none, fma, micro, read;
} ceilings;

/* A row of ours as a share of a ceiling, in its unit, and one of inner. */
static cp_status contest(const cp_bench *bench, const cp_entrant *ours,
                         const cp_entrant *ceiling, const cp_entrant *inner) {
    cp_entrant all[3] = {*ours, *ceiling, *inner};
    const bool alone = ceiling->run == NULL, both = inner->run != NULL;
    if (!alone) {
        all[0].unit = ceiling->unit;
        all[0].scale = ceiling->scale;
    }
    CP_TRY(cp_measure_rounds(bench->rounds, alone ? 1 : both ? 3 : 2, all));
    cp_measure_report(bench, &all[0], alone ? NULL : &all[1]);
    if (!both)
        return CP_OK;
    const size_t end = strlen(all[0].what);
    snprintf(all[0].what + end, sizeof(all[0].what) - end, "/%s", inner->what);
    cp_measure_report(bench, &all[0], &all[2]);
    return CP_OK;
}

static cp_status fma_row(const cp_bench *bench, const ceilings *all,
                         int64_t size) {
    (void)size;
    return contest(bench, &all->fma, &all->none, &all->none);
}

static cp_status micro_row(const cp_bench *bench, const ceilings *all,
                           int64_t size) {
    (void)size;
    return contest(bench, &all->micro, &all->fma, &all->none);
}

static cp_status read_row(const cp_bench *bench, const ceilings *all,
                          int64_t size) {
    (void)size;
    return contest(bench, &all->read, &all->none, &all->none);
}

typedef struct {
    cp_kernel kernel;
    cp_attention call;
} attending;

static cp_status attention_run(void *context, double *seconds) {
    const attending *it = context;
    (void)seconds;
    return it->kernel(&it->call);
}

/* The row of an attention, of which all but its run is said. */
static cp_status attention_row(const cp_bench *bench, cp_entrant ours,
                               cp_span asked, cp_span seen,
                               const cp_entrant *ceiling,
                               const cp_entrant *inner) {
    const cp_shape *shape = &bench->shape;
    const int64_t wide = asked.count * shape->query_heads * shape->head_dim;
    const int64_t narrow = seen.count * shape->kv_heads * shape->head_dim;
    const int64_t sizes[] = {wide, narrow, narrow, wide,
                             asked.count * shape->query_heads};
    float *tensors[5];
    cp_piece query = {asked, 0}, key = {seen, 0};
    const cp_pieces queries = {&query, 1, 1}, keys = {&key, 1, 1};
    CP_TRY(cp_measure_tensors(bench->threads, 5, sizes, tensors));
    attending it = {bench->kernel,
                    {.shape = shape,
                     .query_pieces = &queries,
                     .queries = tensors[0],
                     .key_pieces = &keys,
                     .keys = tensors[1],
                     .values = tensors[2],
                     .threads = bench->threads,
                     .output = tensors[3],
                     .lse = tensors[4]}};
    ours.run = attention_run;
    ours.context = &it;
    const cp_status status = contest(bench, &ours, ceiling, inner);
    free(tensors[0]);
    return status;
}

static cp_status prompt_row(const cp_bench *bench, const ceilings *all,
                            const char *name, int64_t past, int64_t tokens) {
    const cp_span asked = {0, past, tokens, 1}, seen = {0, 0, tokens, 1};
    const double width =
        (double)(bench->shape.query_heads * bench->shape.head_dim);
    cp_entrant ours = {.work = 4 * width * (double)cp_span_pairs(asked, seen)};
    snprintf(ours.what, sizeof(ours.what), "%s/%ld", name, tokens);
    return attention_row(bench, ours, asked, seen, &all->fma, &all->micro);
}

static cp_status full_row(const cp_bench *bench, const ceilings *all,
                          int64_t tokens) {
    return prompt_row(bench, all, "full", tokens, tokens);
}

static cp_status causal_row(const cp_bench *bench, const ceilings *all,
                            int64_t tokens) {
    return prompt_row(bench, all, "causal", 0, tokens);
}

static cp_status decode_row(const cp_bench *bench, const ceilings *all,
                            int64_t keys) {
    const cp_span asked = {0, keys - 1, 1, 1}, seen = {0, 0, keys, 1};
    const double width =
        (double)(bench->shape.kv_heads * bench->shape.head_dim);
    cp_entrant ours = {.work = 8 * width * (double)keys};
    snprintf(ours.what, sizeof(ours.what), "decode/%ld", keys);
    return attention_row(bench, ours, asked, seen, &all->read, &all->none);
}

typedef struct {
    int threads;
    cp_partial to, add;
} merging;

static cp_partial rows_of(const cp_partial *all, int64_t first, int64_t rows) {
    return (cp_partial){rows, all->heads, all->dim,
                        all->output + first * all->heads * all->dim,
                        all->lse + first * all->heads};
}

static cp_status merge_run(void *context, double *seconds) {
    const merging *it = context;
    (void)seconds;
#pragma omp parallel for num_threads(it->threads) schedule(static, 1)
    for (int t = 0; t < it->threads; t++) {
        const int64_t first = it->to.rows * t / it->threads;
        const int64_t rows = it->to.rows * (t + 1) / it->threads - first;
        cp_partial to = rows_of(&it->to, first, rows);
        const cp_partial add = rows_of(&it->add, first, rows);
        cp_partial_merge(&to, &add);
    }
    return CP_OK;
}

static cp_status merge_row(const cp_bench *bench, const ceilings *all,
                           int64_t tokens) {
    const int64_t heads = bench->shape.query_heads;
    const int64_t dim = bench->shape.head_dim, rows = tokens * heads;
    const int64_t sizes[] = {rows * dim, rows, rows * dim, rows};
    float *tensors[4];
    CP_TRY(cp_measure_tensors(bench->threads, 4, sizes, tensors));
    merging it = {bench->threads,
                  {tokens, heads, dim, tensors[0], tensors[1]},
                  {tokens, heads, dim, tensors[2], tensors[3]}};
    cp_entrant ours = {.work = 8.0 * (double)(rows * (dim + 1)),
                       .run = merge_run,
                       .context = &it};
    snprintf(ours.what, sizeof(ours.what), "merge/%ld", tokens);
    const cp_status status = contest(bench, &ours, &all->read, &all->none);
    free(tensors[0]);
    return status;
}

static cp_status rows(const cp_bench *bench, const ceilings *all) {
    int64_t one = 1;
    const cp_counts once = {&one, 1};
    const struct {
        cp_bench_part part;
        const cp_counts *sizes;
        cp_status (*row)(const cp_bench *bench, const ceilings *all,
                         int64_t size);
    } table[] = {
        {CP_BENCH_FMA, &once, fma_row},
        {CP_BENCH_MICRO, &once, micro_row},
        {CP_BENCH_FULL, &bench->tokens, full_row},
        {CP_BENCH_CAUSAL, &bench->tokens, causal_row},
        {CP_BENCH_READ, &once, read_row},
        {CP_BENCH_DECODE, &bench->keys, decode_row},
        {CP_BENCH_MERGE, &bench->tokens, merge_row},
    };
    for (size_t p = 0; p < sizeof(table) / sizeof(table[0]); p++)
        for (int64_t i = 0; i < table[p].sizes->count; i++)
            if (bench->parts[table[p].part])
                CP_TRY(table[p].row(bench, all, table[p].sizes->items[i]));
    return CP_OK;
}

cp_status cp_bench_attention(const cp_bench *bench) {
    const bool *parts = bench->parts;
    const bool reads =
        parts[CP_BENCH_READ] || parts[CP_BENCH_DECODE] || parts[CP_BENCH_MERGE];
    ceilings all = {.fma = cp_measure_fma(&bench->threads)};
    micro_loop loop = {.memory = NULL};
    cp_reading memory = {.threads = bench->threads};
    cp_status status = CP_OK;
    if (parts[CP_BENCH_MICRO])
        status = micro_new(bench, &loop, &all.micro);
    if (status == CP_OK && reads)
        status = cp_measure_read(&memory, &all.read);
    if (status == CP_OK)
        status = rows(bench, &all);
    free(loop.memory);
    free(memory.numbers);
    return status;
}
