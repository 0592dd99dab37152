/* Attention against what the machine can do: full, causal, decode, merge. */
#include "app/bench_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/measure.h"
#include "reference/attend/micro.h"
#include "reference/attend/partial.h"

typedef struct {
    const cp_bench *bench;
    cp_kernel kernel;
    cp_attention call;
    cp_span query_span, key_span;
    cp_piece query_piece, key_piece;
    cp_pieces query_pieces, key_pieces;
    float *queries, *keys, *values, *output, *lse;
} exercise;

static void exercise_free(exercise *it) {
    free(it->queries);
    free(it->keys);
    free(it->values);
    free(it->output);
    free(it->lse);
}

static cp_status exercise_allocate(exercise *it) {
    const cp_shape *shape = &it->bench->shape;
    const int64_t rows = it->query_span.count, keys = it->key_span.count;
    const int64_t wide = shape->query_heads * shape->head_dim;
    const int64_t narrow = shape->kv_heads * shape->head_dim;
    CP_TRY(cp_allocate(&it->queries, rows, wide * 4, "queries of a bench"));
    CP_TRY(cp_allocate(&it->output, rows, wide * 4, "a bench's output"));
    CP_TRY(cp_allocate(&it->lse, rows, shape->query_heads * 4, "LSE"));
    CP_TRY(cp_allocate(&it->keys, keys, narrow * 4, "keys of a bench"));
    CP_TRY(cp_allocate(&it->values, keys, narrow * 4, "values"));
    const int threads = it->bench->threads;
    cp_measure_fill(it->queries, 0, rows * wide, 1, threads);
    cp_measure_fill(it->keys, 0, keys * narrow, 2, threads);
    cp_measure_fill(it->values, 0, keys * narrow, 3, threads);
    return CP_OK;
}

static void exercise_prepare(exercise *it) {
    it->query_piece = (cp_piece){it->query_span, 0};
    it->key_piece = (cp_piece){it->key_span, 0};
    it->query_pieces = (cp_pieces){&it->query_piece, 1, 1};
    it->key_pieces = (cp_pieces){&it->key_piece, 1, 1};
    it->kernel = cp_measure_kernel(it->bench);
    it->call = (cp_attention){.shape = &it->bench->shape,
                              .query_pieces = &it->query_pieces,
                              .queries = it->queries,
                              .key_pieces = &it->key_pieces,
                              .keys = it->keys,
                              .values = it->values,
                              .threads = it->bench->threads,
                              .output = it->output,
                              .lse = it->lse};
}

static cp_status exercise_run(void *context, double *seconds) {
    exercise *it = context;
    const double start = cp_clock();
    const cp_status status = it->kernel(&it->call);
    *seconds = cp_clock() - start;
    return status;
}

static double operations(const exercise *it) {
    const cp_shape *shape = &it->bench->shape;
    return 4.0 * (double)(shape->query_heads * shape->head_dim) *
           (double)cp_span_pairs(it->query_span, it->key_span);
}

static double bytes(const exercise *it) {
    const cp_shape *shape = &it->bench->shape;
    return 8.0 * (double)(shape->kv_heads * shape->head_dim) *
           (double)it->key_span.count;
}

enum { MICRO_KEYS = 192, MICRO_TIMES = 512 };

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
    const double start = cp_clock();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        multiply_often(it, it->memory + t * it->desk);
    *seconds = cp_clock() - start;
    return CP_OK;
}

static cp_status micro_new(const cp_bench *bench, micro_loop *it,
                           cp_entrant *out) {
    *it = (micro_loop){.bench = bench, .micro = cp_micro_get()};
    const int64_t dim = bench->shape.head_dim, slice = it->micro->slice;
    const int64_t wide = it->micro->slice_stride;
    it->slices = cp_ceil_divide(dim, slice);
    const int64_t all = cp_ceil_divide(MICRO_KEYS, slice);
    const int64_t floats =
        all * dim * wide + it->slices * MICRO_KEYS * wide +
        (dim + (all + it->slices) * slice) * it->micro->panel_stride;
    it->desk = cp_ceil_divide(floats, 16) * 16;
    const cp_status status = cp_allocate_lines(
        &it->memory, bench->threads * it->desk, sizeof(float), "operands");
    if (status == CP_OK)
        cp_measure_fill(it->memory, 0, bench->threads * it->desk, 6,
                        bench->threads);
    const double keys = (double)MICRO_KEYS * MICRO_TIMES * bench->threads;
    *out = (cp_entrant){.run = micro_run,
                        .context = it,
                        .work = 4.0 * keys * (double)(dim * it->micro->panel)};
    return status;
}

static void report_inner(const cp_bench *bench, cp_bench_row row,
                         const cp_entrant *ours, const cp_entrant *inner) {
    const size_t end = strlen(row.what);
    snprintf(row.what + end, sizeof(row.what) - end, "/micro");
    row.of = "micro";
    cp_measure_report(bench, row, 1e9, ours, inner);
}

static cp_status contest(exercise *it, cp_bench_row row, double work,
                         const cp_entrant *ceiling, const cp_entrant *inner) {
    cp_entrant entrants[3] = {
        *ceiling, {.run = exercise_run, .context = it, .work = work}};
    if (inner != NULL)
        entrants[2] = *inner;
    cp_status status = exercise_allocate(it);
    if (status == CP_OK) {
        exercise_prepare(it);
        status = cp_measure_rounds(it->bench, inner != NULL ? 3 : 2, entrants);
    }
    if (status == CP_OK)
        cp_measure_report(it->bench, row, 1e9, &entrants[1], &entrants[0]);
    if (status == CP_OK && inner != NULL)
        report_inner(it->bench, row, &entrants[1], &entrants[2]);
    exercise_free(it);
    return status;
}

static cp_status prefill_row(const cp_bench *bench, const cp_entrant *inner,
                             bool causal, int64_t tokens) {
    exercise it = {.bench = bench,
                   .query_span = {0, causal ? 0 : tokens, tokens, 1},
                   .key_span = {0, 0, tokens, 1}};
    cp_bench_row row = {.unit = "GFLOP/s", .of = "fma"};
    snprintf(row.what, sizeof(row.what), "%s/%lld", causal ? "causal" : "full",
             (long long)tokens);
    const cp_entrant ceiling = cp_measure_fma(&bench->threads);
    return contest(&it, row, operations(&it), &ceiling, inner);
}

static cp_status decode_row(const cp_bench *bench, const cp_entrant *read,
                            int64_t keys) {
    exercise it = {.bench = bench,
                   .query_span = {0, keys - 1, 1, 1},
                   .key_span = {0, 0, keys, 1}};
    cp_bench_row row = {.unit = "GB/s", .of = "read"};
    snprintf(row.what, sizeof(row.what), "decode/%lld", (long long)keys);
    return contest(&it, row, bytes(&it), read, NULL);
}

typedef struct {
    const cp_bench *bench;
    cp_partial ours, other;
} merging;

static cp_status merge_run(void *context, double *seconds) {
    const merging *it = context;
    const int64_t heads = it->ours.heads, dim = it->ours.dim;
    const int threads = it->bench->threads;
    const double start = cp_clock();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        const int64_t first = it->ours.rows * t / threads;
        const int64_t rows = it->ours.rows * (t + 1) / threads - first;
        cp_partial ours = {rows, heads, dim,
                           it->ours.output + first * heads * dim,
                           it->ours.lse + first * heads};
        const cp_partial other = {rows, heads, dim,
                                  it->other.output + first * heads * dim,
                                  it->other.lse + first * heads};
        cp_partial_merge(&ours, &other);
    }
    *seconds = cp_clock() - start;
    return CP_OK;
}

static cp_status partial_new(const cp_bench *bench, int64_t rows,
                             cp_partial *out) {
    const int64_t heads = bench->shape.query_heads;
    const int64_t dim = bench->shape.head_dim;
    *out = (cp_partial){rows, heads, dim, NULL, NULL};
    CP_TRY(cp_allocate(&out->output, rows, heads * dim * 4, "a partial"));
    CP_TRY(cp_allocate(&out->lse, rows, heads * 4, "LSE"));
    cp_measure_fill(out->output, 0, rows * heads * dim, 4, bench->threads);
    cp_measure_fill(out->lse, 0, rows * heads, 5, bench->threads);
    return CP_OK;
}

static cp_status merge_row(const cp_bench *bench, const cp_entrant *read,
                           int64_t tokens) {
    merging it = {.bench = bench};
    cp_bench_row row = {.unit = "GB/s", .of = "read"};
    snprintf(row.what, sizeof(row.what), "merge/%lld", (long long)tokens);
    cp_status status = partial_new(bench, tokens, &it.ours);
    if (status == CP_OK)
        status = partial_new(bench, tokens, &it.other);
    const double moved = 8.0 * (double)(tokens * bench->shape.query_heads) *
                         (double)(bench->shape.head_dim + 1);
    cp_entrant entrants[2] = {
        *read, {.run = merge_run, .context = &it, .work = moved}};
    if (status == CP_OK)
        status = cp_measure_rounds(bench, 2, entrants);
    if (status == CP_OK)
        cp_measure_report(bench, row, 1e9, &entrants[1], &entrants[0]);
    free(it.ours.output);
    free(it.ours.lse);
    free(it.other.output);
    free(it.other.lse);
    return status;
}

static cp_status ceiling_row(const cp_bench *bench, const char *what,
                             const char *unit, cp_entrant *ceiling) {
    cp_bench_row row = {.unit = unit, .of = ""};
    snprintf(row.what, sizeof(row.what), "%s", what);
    CP_TRY(cp_measure_rounds(bench, 1, ceiling));
    cp_measure_report(bench, row, 1e9, ceiling, NULL);
    return CP_OK;
}

static cp_status micro_row(const cp_bench *bench, const cp_entrant *inner) {
    const cp_bench_row row = {.what = "micro", .unit = "GFLOP/s", .of = "fma"};
    cp_entrant entrants[2] = {cp_measure_fma(&bench->threads), *inner};
    CP_TRY(cp_measure_rounds(bench, 2, entrants));
    cp_measure_report(bench, row, 1e9, &entrants[1], &entrants[0]);
    return CP_OK;
}

static cp_status reading_rows(const cp_bench *bench) {
    const bool *parts = bench->parts;
    if (!parts[CP_BENCH_READ] && !parts[CP_BENCH_DECODE] &&
        !parts[CP_BENCH_MERGE])
        return CP_OK;
    cp_entrant read;
    cp_status status = cp_measure_read(bench->threads, &read);
    if (status == CP_OK && parts[CP_BENCH_READ])
        status = ceiling_row(bench, "read", "GB/s", &read);
    for (int64_t i = 0; parts[CP_BENCH_DECODE] && i < bench->keys.count; i++)
        if (status == CP_OK)
            status = decode_row(bench, &read, bench->keys.items[i]);
    for (int64_t i = 0; parts[CP_BENCH_MERGE] && i < bench->tokens.count; i++)
        if (status == CP_OK)
            status = merge_row(bench, &read, bench->tokens.items[i]);
    cp_measure_read_free(&read);
    return status;
}

static cp_status computing_rows(const cp_bench *bench) {
    const bool *parts = bench->parts;
    micro_loop loop;
    cp_entrant fma = cp_measure_fma(&bench->threads), inner;
    cp_status status = micro_new(bench, &loop, &inner);
    if (status == CP_OK && parts[CP_BENCH_FMA])
        status = ceiling_row(bench, "fma", "GFLOP/s", &fma);
    if (status == CP_OK && parts[CP_BENCH_MICRO])
        status = micro_row(bench, &inner);
    for (int causal = 0; causal < 2; causal++)
        for (int64_t i = 0; i < bench->tokens.count; i++)
            if (status == CP_OK &&
                parts[causal ? CP_BENCH_CAUSAL : CP_BENCH_FULL])
                status =
                    prefill_row(bench, parts[CP_BENCH_MICRO] ? &inner : NULL,
                                causal, bench->tokens.items[i]);
    free(loop.memory);
    return status;
}

cp_status cp_bench_attention(const cp_bench *bench) {
    CP_TRY(computing_rows(bench));
    return reading_rows(bench);
}
