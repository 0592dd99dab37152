/* A ring of threads on this machine, to be timed. */
#include "figures/ring.h"

#include "ground/host.h"
#include "variants/variants.h"
#include "reference/attend/fast.h"
#include "reference/run/threads.h"

void ring_open(ring *ring) {
    const int64_t room = ring->fresh + ring->past + 16;
    const int64_t width = ring->shape.kv_heads * ring->shape.head_dim;
    need(cp_cache_new(ring->ranks, 1, room, &ring->cache));
    ring->cache->dealing = ring->dealing;
    need(cp_store_new(ring->ranks, CP_NO_RANK, 1, 1, room, &ring->shape,
                      &ring->store));
    for (int rank = 0; rank < ring->ranks; rank++) {
        fill(cp_store_keys(ring->store, rank, 0), room * width, 7);
        fill(cp_store_values(ring->store, rank, 0), room * width, 8);
    }
    if (ring->past > 0) {
        need(cp_cache_lay_out(ring->cache, false, &ring->past, &ring->layout));
        need(cp_cache_commit(ring->cache, ring->layout));
        cp_layout_free(ring->layout);
    }
    need(cp_cache_lay_out(ring->cache, ring->variant == CP_DECODE, &ring->fresh,
                          &ring->layout));
    need(cp_plan_build(ring->variant, ring->layout, &ring->shape, NULL,
                       &ring->plan));
}

void ring_close(ring *ring) {
    cp_plan_free(ring->plan);
    cp_layout_free(ring->layout);
    cp_store_free(ring->store);
    cp_cache_free(ring->cache);
}

static void walker_fill(const ring *ring, int rank, cp_walker *walker) {
    const cp_shape *shape = &ring->shape;
    const int64_t rows = ring->layout->queries[rank].rows;
    const int64_t narrow = rows * shape->kv_heads * shape->head_dim;
    fill(walker->queries, rows * shape->query_heads * shape->head_dim,
         1 + (uint64_t)rank);
    fill(walker->new_keys, narrow, 100 + (uint64_t)rank);
    fill(walker->new_values, narrow, 200 + (uint64_t)rank);
}

static cp_status rank_main(cp_comm *comm, void *context) {
    ring *ring = context;
    const int rank = comm->rank;
    const cp_walk_options options = {
        .kernel = cp_attend_fast,
        .threads = (int)cp_max(cp_host_cores() / ring->ranks, 1),
        .observe = ring->observe,
        .context = ring->contexts[rank]};
    cp_walker *walker;
    cp_status status = cp_walker_new(ring->plan, rank, &options, &walker);
    if (status != CP_OK)
        return status;
    walker_fill(ring, rank, walker);
    for (int n = 0; n < cp_max(ring->walks, 1) && status == CP_OK; n++) {
        status = cp_comm_barrier(comm);
        if (rank == 0)
            ring->start = cp_clock();
        if (status == CP_OK)
            status = cp_walk(walker, comm, cp_store_keys(ring->store, rank, 0),
                             cp_store_values(ring->store, rank, 0));
        if (status == CP_OK)
            status = cp_comm_barrier(comm);
        if (rank == 0)
            ring->seconds = cp_clock() - ring->start;
    }
    cp_walker_free(walker);
    return status;
}

double ring_run(ring *ring) {
    const cp_threads_options options = {ring->ranks, 0, 0};
    need(cp_threads_run(&options, rank_main, ring));
    return ring->seconds;
}
