/* Rings of ranks that share a GPU, compared with one rank that has the GPU
 * alone. */
#include <stdio.h>

#include "measure/bench.h"
#include "measure/timed_device.h"
#include "cuda/kernels/device.h"
#include "cuda/run/streams.h"
#include "predict/calibrate.h"
#include "tokens/cache.h"
#include "variants/variants.h"

enum { MOST_RANKS = 16 };
#define PATIENCE 60.0 /* seconds */

/* A ring of ranks in one process, and its call. */
typedef struct {
    const cp_bench *bench;
    cp_element element;
    int ranks;
    cp_cache *cache;
    cp_layout *layout;
    cp_plan *plan;
    cp_queues queues[MOST_RANKS];
    cp_stream_walker *walkers[MOST_RANKS];
    void *keys[MOST_RANKS], *values[MOST_RANKS];
} device_team;

static cp_status rank_open(device_team *team, int rank, int64_t bytes) {
    const cp_stream_options options = {.element = team->element};
    const cp_shape *shape = &team->bench->shape;
    const int64_t narrow = team->plan->slots[team->plan->queries].rows *
                           shape->head_dim * cp_element_bytes(team->element);
    char *memory;
    CP_TRY(cp_queues_new(&team->queues[rank]));
    CP_TRY(cp_stream_walker_new(team->plan, rank, team->queues[rank], &options,
                                &team->walkers[rank]));
    CP_TRY(cp_device_reserve(2 * bytes, "a rank's cache", &memory));
    team->keys[rank] = memory;
    team->values[rank] = memory + bytes;
    const cp_stream_rows rows = cp_stream_walker_rows(team->walkers[rank]);
    const cudaStream_t stream = team->queues[rank].compute;
    CP_TRY(
        cp_device_numbers(rows.queries, narrow * shape->query_heads, stream));
    CP_TRY(cp_device_numbers(rows.keys, narrow * shape->kv_heads, stream));
    return cp_device_numbers(rows.values, narrow * shape->kv_heads, stream);
}

/* Lay out and plan a prefill of empty caches, and give each rank its tokens. */
static cp_status team_open(device_team *team, cp_variant variant,
                           int64_t tokens) {
    const cp_shape *shape = &team->bench->shape;
    const cp_plan_options options = {
        .element_bytes = cp_element_bytes(team->element), .spare = 1};
    const int64_t room = cp_shard_room(NULL, team->ranks, tokens);
    const int64_t bytes = room * shape->kv_heads * shape->head_dim *
                          cp_element_bytes(team->element);
    CP_TRY(cp_cache_new(team->ranks, 1, room, &team->cache));
    CP_TRY(cp_cache_lay_out(team->cache, false, &tokens, &team->layout));
    CP_TRY(cp_plan_build(variant, team->layout, shape, &options, &team->plan));
    for (int r = 0; r < team->ranks; r++)
        CP_TRY(rank_open(team, r, bytes));
    return CP_OK;
}

static void team_close(device_team *team) {
    for (int r = 0; r < team->ranks; r++) {
        cp_stream_walker_free(team->walkers[r]);
        cudaFree(team->keys[r]);
        cp_queues_free(&team->queues[r]);
    }
    cp_plan_free(team->plan);
    cp_layout_free(team->layout);
    cp_cache_free(team->cache);
}

/* Timed by the host's clock, because each rank has its own queues. */
static cp_status team_walk(void *context, double *seconds) {
    device_team *team = context;
    (void)seconds;
    cp_status status = cp_stream_walk(team->walkers, team->ranks, NULL,
                                      team->keys, team->values);
    for (int r = 0; r < team->ranks && status == CP_OK; r++)
        status = cp_stream_walker_finish(team->walkers[r], PATIENCE);
    if (status != CP_OK)
        cp_queues_drain(team->queues, team->ranks, NULL);
    return status;
}

static cp_status ring_rows(const cp_bench *bench, cp_element element, int ranks,
                           int64_t tokens) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_KV, CP_PASS_Q};
    device_team teams[3] = {{0}};
    cp_bench_case entries[3];
    cp_status status = CP_OK;
    for (int n = 0; n < 3 && status == CP_OK; n++) {
        teams[n] = (device_team){
            .bench = bench, .element = element, .ranks = n == 0 ? 1 : ranks};
        entries[n] = (cp_bench_case){
            .what = "one rank",
            .unit = "TFLOP/s",
            .scale = 1e12,
            .work = cp_bench_work(CP_BENCH_CAUSAL, &bench->shape, tokens, 0),
            .run = team_walk,
            .context = &teams[n]};
        if (n > 0)
            snprintf(entries[n].what, sizeof(entries[n].what), "ring/%s/%d/%ld",
                     cp_variant_name(variants[n]), ranks, tokens);
        status = team_open(&teams[n], variants[n], tokens);
    }
    if (status == CP_OK)
        status = cp_measure_rounds(bench->rounds, 3, entries);
    for (int n = 1; n < 3 && status == CP_OK; n++)
        cp_bench_report(bench, &entries[n], &entries[0]);
    for (int n = 0; n < 3; n++)
        team_close(&teams[n]);
    return status;
}

cp_status cp_bench_ring_device(const cp_bench *bench, bool fp32) {
    const cp_element element = fp32 ? CP_F32 : CP_BF16;
    const int64_t tokens = cp_largest(&bench->tokens);
    for (int64_t n = 0; n < bench->ranks.count; n++) {
        const int64_t ranks = bench->ranks.items[n];
        if (ranks > MOST_RANKS)
            return cp_refuse("--ranks %ld: at most %d are measured on a GPU",
                             ranks, MOST_RANKS);
        CP_TRY(ring_rows(bench, element, (int)ranks, tokens));
    }
    return CP_OK;
}
