/* Rings of ranks compared with one rank that has all cores. */
#include <stdio.h>

#include "measure/bench.h"
#include "measure/tensors.h"
#include "reference/run/store.h"
#include "reference/run/walk.h"
#include "variants/variants.h"

/* One ring, and its call. */
typedef struct {
    const cp_bench *bench;
    const cp_runner *runner;
    int ranks;
    bool idle; /* this process waits while another one walks */
    cp_cache *cache;
    cp_store *store;
    cp_layout *layout;
    cp_plan *plan;
    cp_walker *walkers[CP_MEASURE_RANKS]; /* NULL: in another process */
} cores_team;

/* Lay out and plan a prefill of empty caches, and make its walkers. */
static cp_status team_open(cores_team *team, cp_variant variant,
                           int64_t tokens) {
    const cp_shape *shape = &team->bench->shape;
    const int only = team->runner->only;
    const int64_t room = cp_shard_room(NULL, team->ranks, tokens);
    const cp_walk_options options = {
        .kernel = team->bench->kernel,
        .threads =
            cp_runner_cores(team->runner, team->bench->threads, team->ranks)};
    CP_TRY(cp_cache_new(team->ranks, 1, room, &team->cache));
    CP_TRY(cp_store_new(team->ranks, only, 1, 1, room, shape, &team->store));
    CP_TRY(cp_cache_lay_out(team->cache, false, &tokens, &team->layout));
    CP_TRY(cp_plan_build(variant, team->layout, shape, NULL, &team->plan));
    for (int r = 0; r < team->ranks; r++)
        if (only == CP_NO_RANK || only == r)
            CP_TRY(cp_walker_new(team->plan, r, &options, &team->walkers[r]));
    return CP_OK;
}

static void team_close(cores_team *team) {
    for (int r = 0; r < team->ranks; r++)
        cp_walker_free(team->walkers[r]);
    cp_plan_free(team->plan);
    cp_layout_free(team->layout);
    cp_store_free(team->store);
    cp_cache_free(team->cache);
}

/* Fill in a rank's new tokens; every rank has different numbers. */
static cp_status rank_prepare(cp_comm *comm, void *context) {
    const cores_team *team = context;
    const cp_shape *shape = &team->bench->shape;
    const int64_t rows = team->layout->queries[comm->rank].rows;
    const int64_t wide = rows * shape->query_heads * shape->head_dim;
    const int64_t narrow = rows * shape->kv_heads * shape->head_dim;
    cp_walker *walker = team->walkers[comm->rank];
    cp_measure_fill(walker->queries, comm->rank * wide, wide, 1);
    cp_measure_fill(walker->new_keys, comm->rank * narrow, narrow, 2);
    cp_measure_fill(walker->new_values, comm->rank * narrow, narrow, 3);
    return CP_OK;
}

static cp_status rank_walk(cp_comm *comm, void *context) {
    const cores_team *team = context;
    const int rank = comm->rank;
    return cp_walk(team->walkers[rank], comm,
                   cp_store_keys(team->store, rank, 0),
                   cp_store_values(team->store, rank, 0));
}

/* Write the call's tokens and walk. */
static cp_status team_walk(void *context, double *seconds) {
    cores_team *team = context;
    double busy[CP_MEASURE_RANKS] = {0};
    cp_common_work walk = {rank_prepare, rank_walk, team, busy, .seconds = 1};
    if (!team->idle)
        CP_TRY(cp_measure_ranks(team->runner, team->ranks, &walk));
    *seconds = walk.seconds;
    return CP_OK;
}

static cp_status ring_new(const cp_bench *bench, int n, int ranks,
                          int64_t tokens, cores_team *team,
                          cp_bench_case *out) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_KV, CP_PASS_Q};
    const bool alone = n == 0;
    *team = (cores_team){.bench = bench,
                         .runner = alone ? &cp_runner_threads : bench->runner,
                         .ranks = alone ? 1 : ranks,
                         .idle = alone && bench->runner->only > 0};
    *out = (cp_bench_case){
        .what = "one rank",
        .unit = "GFLOP/s",
        .scale = 1e9,
        .work = cp_bench_work(CP_BENCH_CAUSAL, &bench->shape, tokens, 0),
        .run = team_walk,
        .context = team};
    if (!alone)
        snprintf(out->what, sizeof(out->what), "ring/%s/%d/%ld",
                 cp_variant_name(variants[n]), ranks, tokens);
    return team_open(team, variants[n], tokens);
}

static cp_status ring_rows(const cp_bench *bench, int ranks, int64_t tokens) {
    cores_team rings[3] = {{0}};
    cp_bench_case entries[3];
    cp_status status = CP_OK;
    for (int n = 0; n < 3 && status == CP_OK; n++)
        status = ring_new(bench, n, ranks, tokens, &rings[n], &entries[n]);
    if (status == CP_OK)
        status = cp_measure_rounds(bench->rounds, 3, entries);
    for (int n = 1; n < 3 && status == CP_OK; n++)
        cp_bench_report(bench, &entries[n], &entries[0]);
    for (int n = 0; n < 3; n++)
        team_close(&rings[n]);
    return status;
}

cp_status cp_bench_ring_cores(const cp_bench *bench) {
    for (int64_t r = 0; r < bench->ranks.count; r++)
        for (int64_t i = 0; i < bench->tokens.count; i++)
            CP_TRY(ring_rows(bench, (int)bench->ranks.items[r],
                             bench->tokens.items[i]));
    return CP_OK;
}
