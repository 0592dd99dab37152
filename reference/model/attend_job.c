/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention on cores: walkers, and the cache of one layer. */
#define _POSIX_C_SOURCE 200809L
#include "reference/model/attend_job.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/attend_call.h"
#include "reference/ring/store.h"
#include "reference/ring/walk.h"

typedef struct running running;

typedef struct {
    running *it;
    int rank;
    int64_t seen; /* attends */
    cp_walker *walker;
} seat;

struct running {
    const cp_place *place;
    const cp_attend_call *call;
    cp_store *store;
    seat *seats;          /* [ranks]; those elsewhere have no walker */
    pthread_mutex_t lock; /* one observer at a time */
};

static void watch_op(void *context, const cp_walker *walker, const cp_op *op,
                     double start, double end) {
    (void)start, (void)end;
    if (op->kind != CP_OP_ATTEND)
        return;
    seat *mine = context;
    const cp_attend_call *call = mine->it->call;
    const cp_layout *layout = call->layout;
    const cp_block *keys =
        op->keys.slot == call->plan->cache ? layout->cache : layout->keys;
    const cp_partial partial = cp_walker_partial(walker, op->out.slot);
    pthread_mutex_lock(&mine->it->lock);
    call->job->partial(call->job->partial_context, mine->rank, mine->seen++,
                       op->hop, &layout->queries[op->in.origin].pieces,
                       &keys[op->keys.origin].pieces, partial.output,
                       partial.lse);
    pthread_mutex_unlock(&mine->it->lock);
}

static cp_status seat_rank(running *it, int rank) {
    const cp_attend_job *job = it->call->job;
    seat *mine = &it->seats[rank];
    const cp_walk_options options = {
        .threads = cp_place_share(it->place, job->cores, job->ranks),
        .observe = job->partial != NULL ? watch_op : NULL,
        .context = mine};
    *mine = (seat){.it = it, .rank = rank};
    return cp_walker_new(it->call->plan, rank, &options, &mine->walker);
}

static cp_status open_call(const void *place, const cp_attend_call *call,
                           void **out) {
    const cp_attend_job *job = call->job;
    running *it;
    CP_TRY(cp_allocate(&it, 1, sizeof(*it), "an attention call"));
    pthread_mutex_init(&it->lock, NULL);
    it->place = place;
    it->call = call;
    *out = it;
    CP_TRY(cp_store_new(job->ranks, it->place->only, 1, job->sequences,
                        call->room, &job->shape, &it->store));
    CP_TRY(cp_allocate(&it->seats, job->ranks, sizeof(seat), "ranks"));
    for (int r = 0; r < job->ranks; r++)
        if (it->place->only == CP_NOBODY || it->place->only == r)
            CP_TRY(seat_rank(it, r));
    return CP_OK;
}

static void close_call(void *open) {
    running *it = open;
    for (int r = 0; it->seats != NULL && r < it->call->job->ranks; r++)
        cp_walker_free(it->seats[r].walker);
    pthread_mutex_destroy(&it->lock);
    cp_store_free(it->store);
    free(it->seats);
    free(it);
}

static cp_status lend(void *open, int rank, cp_attend_rows *rows) {
    running *it = open;
    cp_walker *walker = it->seats[rank].walker;
    *rows =
        (cp_attend_rows){.cached_keys = cp_store_keys(it->store, rank, 0),
                         .cached_values = cp_store_values(it->store, rank, 0),
                         .queries = cp_walker_queries(walker),
                         .keys = cp_walker_new_keys(walker),
                         .values = cp_walker_new_values(walker)};
    return CP_OK;
}

static cp_status walk_rank(cp_comm *comm, void *context) {
    running *it = context;
    return cp_walk(it->seats[comm->rank].walker, comm,
                   cp_store_keys(it->store, comm->rank, 0),
                   cp_store_values(it->store, comm->rank, 0));
}

static cp_status walk(void *open) {
    const running *it = open;
    return it->place->run(it->call->job->ranks, walk_rank, open);
}

static cp_status take(void *open, int rank, float *output, float *lse) {
    const running *it = open;
    const cp_partial *result = cp_walker_result(it->seats[rank].walker);
    const int64_t heads = result->rows * result->heads;
    memcpy(output, result->output, (size_t)(heads * result->dim) * 4);
    memcpy(lse, result->lse, (size_t)heads * 4);
    return CP_OK;
}

cp_status cp_attend_run(const cp_place *place, cp_attend_job *job) {
    const cp_attend_ops on_cores = {place->machine, open_call, close_call, lend,
                                    NULL,           walk,      take};
    const cp_engine_place where = {place->crew, place->only, 1};
    return cp_attend_job_run(&on_cores, place, where, job);
}
