/* A ring of threads on this machine, to be timed. */
#include "figures/ring.h"

#include "ground/host.h"
#include "ring/variants.h"
#include "reference/attend/fast.h"
#include "reference/ring/threads.h"

void ring_open(ring *it) {
    const int64_t room = it->fresh + it->past + 16;
    const int64_t width = it->shape.kv_heads * it->shape.head_dim;
    need(cp_cache_new(it->ranks, 1, room, &it->cache));
    it->cache->dealing = it->dealing;
    need(
        cp_store_new(it->ranks, CP_NOBODY, 1, 1, room, &it->shape, &it->store));
    for (int rank = 0; rank < it->ranks; rank++) {
        fill(cp_store_keys(it->store, rank, 0), room * width, 7);
        fill(cp_store_values(it->store, rank, 0), room * width, 8);
    }
    if (it->past > 0) {
        need(cp_cache_lay_out(it->cache, false, &it->past, &it->layout));
        need(cp_cache_commit(it->cache, it->layout));
        cp_layout_free(it->layout);
    }
    need(cp_cache_lay_out(it->cache, it->variant == CP_DECODE, &it->fresh,
                          &it->layout));
    need(cp_plan_build(it->variant, it->layout, &it->shape, NULL, &it->plan));
}

void ring_close(ring *it) {
    cp_plan_free(it->plan);
    cp_layout_free(it->layout);
    cp_store_free(it->store);
    cp_cache_free(it->cache);
}

static void walker_fill(const ring *it, int rank, cp_walker *walker) {
    const cp_shape *shape = &it->shape;
    const int64_t rows = it->layout->queries[rank].rows;
    const int64_t narrow = rows * shape->kv_heads * shape->head_dim;
    fill(walker->queries, rows * shape->query_heads * shape->head_dim,
         1 + (uint64_t)rank);
    fill(walker->new_keys, narrow, 100 + (uint64_t)rank);
    fill(walker->new_values, narrow, 200 + (uint64_t)rank);
}

static cp_status rank_main(cp_comm *comm, void *context) {
    ring *it = context;
    const int rank = comm->rank;
    const cp_walk_options options = {
        .kernel = cp_attend_fast,
        .threads = (int)cp_max(cp_host_cores() / it->ranks, 1),
        .observe = it->observe,
        .context = it->contexts[rank]};
    cp_walker *walker;
    cp_status status = cp_walker_new(it->plan, rank, &options, &walker);
    if (status != CP_OK)
        return status;
    walker_fill(it, rank, walker);
    for (int n = 0; n < cp_max(it->walks, 1) && status == CP_OK; n++) {
        status = cp_comm_barrier(comm);
        if (rank == 0)
            it->start = cp_clock();
        if (status == CP_OK)
            status = cp_walk(walker, comm, cp_store_keys(it->store, rank, 0),
                             cp_store_values(it->store, rank, 0));
        if (status == CP_OK)
            status = cp_comm_barrier(comm);
        if (rank == 0)
            it->seconds = cp_clock() - it->start;
    }
    cp_walker_free(walker);
    return status;
}

double ring_run(ring *it) {
    const cp_threads_options options = {it->ranks, 0, 0};
    need(cp_threads_run(&options, rank_main, it));
    return it->seconds;
}
