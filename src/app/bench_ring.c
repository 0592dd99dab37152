/* Calls of ranks over a cache of one layer; and rings against one rank with
 * all cores. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/measure.h"
#include "reference/attend/oracle.h"
#include "ring/variants.h"

/* Where a rank's rows begin in the tensors. */
static int64_t place_of(const cp_bench_ranks *it, int rank) {
    const cp_shape *shape = &it->bench->shape;
    const int64_t row = shape->kv_heads * shape->head_dim;
    return it->place->only == CP_NOBODY ? rank * it->room * row : 0;
}

cp_status cp_bench_ranks_open(cp_bench_ranks *it) {
    const cp_shape *shape = &it->bench->shape;
    const int64_t row = shape->kv_heads * shape->head_dim * 4;
    const int64_t rows =
        (it->place->only == CP_NOBODY ? it->ranks : 1) * it->room;
    CP_TRY(cp_cache_new(it->ranks, 1, it->room, &it->cache));
    CP_TRY(cp_allocate_lines(&it->keys, rows, row, "keys of a bench"));
    CP_TRY(cp_allocate_lines(&it->values, rows, row, "values of a bench"));
    return cp_allocate(&it->busy, it->ranks, sizeof(double), "times");
}

void cp_bench_ranks_close(cp_bench_ranks *it) {
    cp_bench_call_end(it);
    free(it->busy);
    free(it->keys);
    free(it->values);
    cp_cache_free(it->cache);
}

cp_status cp_bench_call_begin(cp_bench_ranks *it, cp_variant variant,
                              int64_t tokens) {
    const int only = it->place->only;
    const cp_walk_options options = {
        .kernel = it->bench->kernel,
        .threads = cp_place_share(it->place, it->bench->threads, it->ranks)};
    CP_TRY(cp_cache_lay_out(it->cache, variant == CP_DECODE, &tokens,
                            &it->layout));
    CP_TRY(
        cp_plan_build(variant, it->layout, &it->bench->shape, NULL, &it->plan));
    CP_TRY(
        cp_allocate(&it->walkers, it->ranks, sizeof(cp_walker *), "walkers"));
    for (int r = 0; r < it->ranks; r++)
        if (only == CP_NOBODY || only == r)
            CP_TRY(cp_walker_new(it->plan, r, &options, &it->walkers[r]));
    return CP_OK;
}

void cp_bench_call_end(cp_bench_ranks *it) {
    for (int r = 0; it->walkers != NULL && r < it->ranks; r++)
        cp_walker_free(it->walkers[r]);
    free(it->walkers);
    cp_plan_free(it->plan);
    cp_layout_free(it->layout);
    it->walkers = NULL;
    it->plan = NULL;
    it->layout = NULL;
}

typedef enum { QUERIES = 1, KEYS, VALUES } seed;

/* Write what the tokens of some pieces have in a tensor, width numbers a row. */
static void fill(const cp_pieces *pieces, seed seed, int64_t width, int threads,
                 float *tensor) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        float *rows = tensor + pieces->items[n].row * width;
        const int64_t run = span.step == 1 ? span.count : 1;
        for (int64_t i = 0; i < span.count; i += run)
            cp_measure_fill(rows + i * width,
                            (span.start + i * span.step) * width, run * width,
                            seed, run > 1 ? threads : 1);
    }
}

static cp_status rank_prepare(cp_comm *comm, void *context) {
    cp_bench_ranks *it = context;
    const cp_shape *shape = &it->bench->shape;
    const int64_t wide = shape->query_heads * shape->head_dim;
    const int64_t narrow = shape->kv_heads * shape->head_dim;
    const cp_pieces *mine = &it->layout->queries[comm->rank].pieces;
    cp_walker *walker = it->walkers[comm->rank];
    fill(mine, QUERIES, wide, 1, walker->queries);
    fill(mine, KEYS, narrow, 1, walker->new_keys);
    fill(mine, VALUES, narrow, 1, walker->new_values);
    return CP_OK;
}

static cp_status rank_walk(cp_comm *comm, void *context) {
    cp_bench_ranks *it = context;
    const int64_t place = place_of(it, comm->rank);
    return cp_walk(it->walkers[comm->rank], comm, it->keys + place,
                   it->values + place);
}

cp_status cp_bench_call_walk(void *context, double *seconds) {
    cp_bench_ranks *it = context;
    cp_common_work walk = {rank_prepare, rank_walk, it, .busy = it->busy};
    CP_TRY(cp_measure_ranks(it->place, it->ranks, &walk));
    *seconds = walk.seconds;
    return CP_OK;
}

cp_status cp_bench_past(cp_bench_ranks *it, int64_t tokens) {
    const cp_bench *bench = it->bench;
    const int64_t width = bench->shape.kv_heads * bench->shape.head_dim;
    CP_TRY(cp_cache_lay_out(it->cache, false, &tokens, &it->layout));
    for (int r = 0; r < it->ranks; r++) {
        const cp_pieces *rows = &it->layout->appended[r].pieces;
        fill(rows, KEYS, width, bench->threads, it->keys + place_of(it, r));
        fill(rows, VALUES, width, bench->threads, it->values + place_of(it, r));
    }
    CP_TRY(cp_cache_commit(it->cache, it->layout));
    cp_bench_call_end(it);
    return CP_OK;
}

static double distance(double a, double b) {
    const double d = fabs(a - b);
    return isnan(d) ? INFINITY : d;
}

static cp_bench_errors errors_of(const cp_shape *shape, const double *truth,
                                 const float *result) {
    const int64_t wide = shape->query_heads * shape->head_dim;
    double difference = 0, size = 0, largest = 0;
    for (int64_t c = 0; c < wide; c++) {
        const double d = distance((double)result[c], truth[c]);
        difference += d * d;
        size += truth[c] * truth[c];
    }
    for (int64_t h = wide; h < wide + shape->query_heads; h++)
        largest = fmax(largest, distance((double)result[h], truth[h]));
    return (cp_bench_errors){sqrt(difference / size), largest};
}

/* The rows of all ranks, which lie one after the other. */
static cp_status held_by_all(const cp_bench_ranks *it, cp_pieces *all) {
    for (int r = 0; r < it->ranks; r++) {
        const cp_pieces *held = cp_cache_held(it->cache, r, 0);
        for (int64_t n = 0; n < held->count; n++) {
            cp_piece piece = held->items[n];
            piece.row += r * it->room;
            CP_TRY(cp_pieces_append(all, piece));
        }
    }
    return CP_OK;
}

cp_status cp_bench_judge(const cp_bench_ranks *it, int64_t position,
                         const float *result, cp_bench_errors *errors) {
    const cp_shape *shape = &it->bench->shape;
    const int64_t wide = shape->query_heads * shape->head_dim;
    cp_piece piece = {{0, position, 1, 1}, 0};
    const cp_pieces asked = {&piece, 1, 1};
    cp_pieces all = {0};
    double *truth = NULL;
    float *query;
    CP_TRY(cp_allocate(&query, wide, sizeof(float), "a query"));
    fill(&asked, QUERIES, wide, 1, query);
    cp_status status = held_by_all(it, &all);
    if (status == CP_OK)
        status = cp_allocate(&truth, wide + shape->query_heads, sizeof(double),
                             "the truth");
    if (status == CP_OK)
        status = cp_oracle(shape, &asked, query, &all, it->keys, it->values,
                           truth, truth + wide);
    if (status == CP_OK)
        *errors = errors_of(shape, truth, result);
    cp_pieces_free(&all);
    free(truth);
    free(query);
    return status;
}

/* One rank of one process, seen from another one. */
static cp_status elsewhere(void *context, double *seconds) {
    (void)context;
    *seconds = 1;
    return CP_OK;
}

static cp_status ring_new(const cp_bench *bench, int n, int ranks,
                          int64_t tokens, cp_bench_ranks *it, cp_entrant *out) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_KV, CP_PASS_Q};
    const bool alone = n == 0, idle = alone && bench->place->only > 0;
    const cp_span all = {0, 0, tokens, 1};
    *it = (cp_bench_ranks){.bench = bench,
                           .place = alone ? &cp_place_threads : bench->place,
                           .ranks = alone ? 1 : ranks,
                           .room = tokens};
    *out = (cp_entrant){
        .what = "one rank",
        .unit = "GFLOP/s",
        .scale = 1e9,
        .work = 4.0 *
                (double)(bench->shape.query_heads * bench->shape.head_dim) *
                (double)cp_span_pairs(all, all),
        .run = idle ? elsewhere : cp_bench_call_walk,
        .context = it};
    if (!alone)
        snprintf(out->what, sizeof(out->what), "ring/%s/%d/%ld",
                 cp_variant_name(variants[n]), ranks, tokens);
    CP_TRY(cp_bench_ranks_open(it));
    return cp_bench_call_begin(it, variants[n], tokens);
}

static cp_status ring_rows(const cp_bench *bench, int ranks, int64_t tokens) {
    cp_bench_ranks rings[3] = {{0}};
    cp_entrant entrants[3];
    cp_status status = CP_OK;
    for (int n = 0; n < 3 && status == CP_OK; n++)
        status = ring_new(bench, n, ranks, tokens, &rings[n], &entrants[n]);
    if (status == CP_OK)
        status = cp_measure_rounds(bench->rounds, 3, entrants);
    for (int n = 1; n < 3 && status == CP_OK; n++)
        cp_measure_report(bench, &entrants[n], &entrants[0]);
    for (int n = 0; n < 3; n++)
        cp_bench_ranks_close(&rings[n]);
    return status;
}

cp_status cp_bench_ring(const cp_bench *bench) {
    for (int64_t r = 0; r < bench->ranks.count; r++)
        for (int64_t i = 0; i < bench->tokens.count; i++)
            CP_TRY(ring_rows(bench, (int)bench->ranks.items[r],
                             bench->tokens.items[i]));
    return CP_OK;
}
