/* Rings of ranks in threads against one rank with all cores. */
#include "app/bench_rows.h"

#include <stdio.h>
#include <stdlib.h>

#include "app/measure.h"
#include "reference/ring/store.h"
#include "reference/ring/threads.h"
#include "ring/variants.h"
#include "reference/ring/walk.h"

typedef struct {
    const cp_place *place;
    const cp_bench *bench;
    bool idle; /* one rank, and it is another process */
    int ranks;
    int64_t tokens;
    cp_cache *cache;
    cp_store *store;
    cp_layout *layout;
    cp_plan *plan;
    cp_walker **walkers; /* [ranks] */
    double seconds;      /* of the last run, between barriers */
} ring;

static void ring_free(ring *it) {
    for (int r = 0; it->walkers != NULL && r < it->ranks; r++)
        cp_walker_free(it->walkers[r]);
    free(it->walkers);
    cp_plan_free(it->plan);
    cp_layout_free(it->layout);
    cp_store_free(it->store);
    cp_cache_free(it->cache);
}

static cp_status ring_new(ring *it, cp_variant variant) {
    const cp_shape *shape = &it->bench->shape;
    CP_TRY(cp_cache_new(it->ranks, 1, it->tokens, &it->cache));
    CP_TRY(cp_store_new(it->ranks, it->place->only, 1, 1, it->tokens, shape,
                        &it->store));
    CP_TRY(cp_cache_prefill(it->cache, &it->tokens, &it->layout));
    CP_TRY(cp_plan_build(variant, it->layout, shape, NULL, &it->plan));
    CP_TRY(
        cp_allocate(&it->walkers, it->ranks, sizeof(cp_walker *), "walkers"));
    const cp_walk_options options = {
        .kernel = cp_measure_kernel(it->bench),
        .threads = cp_place_share(it->place, it->bench->threads, it->ranks)};
    for (int r = 0; r < it->ranks; r++)
        if (it->place->only == CP_NOBODY || it->place->only == r)
            CP_TRY(cp_walker_new(it->plan, r, &options, &it->walkers[r]));
    return CP_OK;
}

static void rank_fill(const ring *it, int rank) {
    const cp_shape *shape = &it->bench->shape;
    cp_walker *walker = it->walkers[rank];
    const int64_t rows = it->layout->queries[rank].rows;
    const int64_t narrow = rows * shape->kv_heads * shape->head_dim;
    const uint64_t seed = 10 + 3 * (uint64_t)rank;
    cp_measure_fill(cp_walker_queries(walker), 0,
                    rows * shape->query_heads * shape->head_dim, seed, 1);
    cp_measure_fill(cp_walker_new_keys(walker), 0, narrow, seed + 1, 1);
    cp_measure_fill(cp_walker_new_values(walker), 0, narrow, seed + 2, 1);
}

static cp_status rank_run(cp_comm *comm, void *context) {
    ring *it = context;
    const int rank = comm->rank;
    rank_fill(it, rank);
    cp_status status = cp_comm_barrier(comm);
    const double start = cp_clock();
    if (status == CP_OK)
        status =
            cp_walk(it->walkers[rank], comm, cp_store_keys(it->store, rank, 0),
                    cp_store_values(it->store, rank, 0));
    if (status == CP_OK)
        status = cp_comm_barrier(comm);
    if (rank == 0 || it->place->only == rank)
        it->seconds = cp_clock() - start;
    return status;
}

static cp_status ring_run(void *context, double *seconds) {
    ring *it = context;
    *seconds = 1;
    if (it->idle)
        return CP_OK;
    const cp_status status = it->place->run(it->ranks, rank_run, it);
    *seconds = it->seconds;
    return status;
}

static cp_status ring_contest(const cp_bench *bench, ring *rings,
                              const cp_entrant *entrants) {
    static const char *const names[] = {"one", "pass-kv", "pass-q"};
    for (int i = 1; i < 3; i++) {
        cp_bench_row row = {.unit = "GFLOP/s", .of = "one rank"};
        snprintf(row.what, sizeof(row.what), "ring/%s/%d/%lld", names[i],
                 rings[i].ranks, (long long)rings[i].tokens);
        cp_measure_report(bench, row, 1e9, &entrants[i], &entrants[0]);
    }
    return CP_OK;
}

static cp_status ring_rows(const cp_place *place, const cp_bench *bench,
                           int ranks, int64_t tokens) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_KV, CP_PASS_Q};
    ring rings[3] = {{0}};
    cp_entrant entrants[3];
    cp_status status = CP_OK;
    for (int i = 0; i < 3 && status == CP_OK; i++) {
        rings[i] = (ring){.place = i == 0 ? &cp_place_threads : place,
                          .bench = bench,
                          .ranks = i == 0 ? 1 : ranks,
                          .tokens = tokens,
                          .idle = i == 0 && place->only > 0};
        status = ring_new(&rings[i], variants[i]);
        entrants[i] = (cp_entrant){.run = ring_run, .context = &rings[i]};
        /* Count the operations of the ring. */
        const cp_span all = {0, 0, tokens, 1};
        entrants[i].work =
            4.0 * (double)(bench->shape.query_heads * bench->shape.head_dim) *
            (double)cp_span_pairs(all, all);
    }
    if (status == CP_OK)
        status = cp_measure_rounds(bench, 3, entrants);
    if (status == CP_OK)
        status = ring_contest(bench, rings, entrants);
    for (int i = 0; i < 3; i++)
        ring_free(&rings[i]);
    return status;
}

cp_status cp_bench_ring(const cp_place *place, const cp_bench *bench) {
    cp_status status = CP_OK;
    for (int64_t r = 0; r < bench->ranks.count; r++)
        for (int64_t i = 0; i < bench->tokens.count; i++)
            if (status == CP_OK)
                status = ring_rows(place, bench, (int)bench->ranks.items[r],
                                   bench->tokens.items[i]);
    return status;
}
