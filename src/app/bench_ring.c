/* Calls of ranks over a cache of one layer; and rings against one rank with
 * all cores. */
#include "app/bench_ring.h"

#include <stdio.h>
#include <stdlib.h>

#include "app/measure.h"
#include "ring/variants.h"

cp_status cp_bench_ranks_open(cp_bench_ranks *it, int64_t room) {
    CP_TRY(cp_cache_new(it->ranks, 1, room, &it->cache));
    CP_TRY(cp_store_new_of(it->ranks, it->place->only, 1, 1, room,
                           &it->bench->shape, &it->store));
    return cp_allocate(&it->busy, it->ranks, sizeof(double), "times");
}

void cp_bench_ranks_close(cp_bench_ranks *it) {
    cp_bench_call_end(it);
    free(it->busy);
    cp_store_free(it->store);
    cp_cache_free(it->cache);
}

cp_status cp_bench_call_begin(cp_bench_ranks *it, cp_variant variant,
                              int64_t tokens) {
    const int only = it->place->only;
    const cp_walk_options options = {
        .kernel = it->bench->kernel,
        .threads = cp_place_share(it->place, it->bench->threads, it->ranks)};
    CP_TRY(variant == CP_DECODE
               ? cp_cache_decode(it->cache, &tokens, &it->layout)
               : cp_cache_prefill(it->cache, &tokens, &it->layout));
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

void cp_bench_fill(const cp_pieces *pieces, cp_seed seed, int64_t width,
                   int threads, float *tensor) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        float *rows = tensor + pieces->items[n].row * width;
        if (span.step == 1)
            cp_measure_fill(rows, span.start * width, span.count * width, seed,
                            threads);
        for (int64_t i = 0; i < span.count && span.step > 1; i++)
            cp_measure_fill(rows + i * width,
                            (span.start + i * span.step) * width, width, seed,
                            1);
    }
}

static cp_status rank_walk(cp_comm *comm, void *context) {
    cp_bench_ranks *it = context;
    const int rank = comm->rank;
    const cp_shape *shape = &it->bench->shape;
    const int64_t narrow = shape->kv_heads * shape->head_dim;
    const cp_pieces *mine = &it->layout->queries[rank].pieces;
    cp_walker *walker = it->walkers[rank];
    cp_bench_fill(mine, CP_BENCH_QUERIES, shape->query_heads * shape->head_dim,
                  1, cp_walker_queries(walker));
    cp_bench_fill(mine, CP_BENCH_KEYS, narrow, 1, cp_walker_new_keys(walker));
    cp_bench_fill(mine, CP_BENCH_VALUES, narrow, 1,
                  cp_walker_new_values(walker));
    CP_TRY(cp_comm_barrier(comm));
    const double start = cp_clock(), busy = cp_measure_busy();
    CP_TRY(cp_walk(walker, comm, cp_store_keys(it->store, rank, 0),
                   cp_store_values(it->store, rank, 0)));
    it->busy[rank] += cp_measure_busy() - busy;
    CP_TRY(cp_comm_barrier(comm));
    if (rank == 0 || it->place->only == rank)
        it->seconds = cp_clock() - start;
    return CP_OK;
}

cp_status cp_bench_call_walk(void *context, double *seconds) {
    cp_bench_ranks *it = context;
    CP_TRY(it->place->run(it->ranks, rank_walk, it));
    *seconds = it->seconds;
    return CP_OK;
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
                           .ranks = alone ? 1 : ranks};
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
    CP_TRY(cp_bench_ranks_open(it, tokens));
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
