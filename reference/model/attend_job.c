/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention on cores: walkers, and the cache of one layer. */
#define _POSIX_C_SOURCE 200809L
#include "reference/model/engine.h"

#include <pthread.h>

#include "model/attend_call.h"
#include "reference/attend/fast.h"
#include "reference/ring/store.h"
#include "reference/ring/walk.h"
#include "ring/agree.h"

typedef struct {
    const cp_place *place;
    cp_attend_call call;
    cp_store *store;
    pthread_mutex_t lock; /* one observer at a time */
} running;

typedef struct {
    running *it;
    int rank;
    int64_t seen; /* attends */
} seat;

static void watch_op(void *context, const cp_walker *walker, const cp_op *op,
                     double start, double end) {
    (void)start, (void)end;
    if (op->kind != CP_OP_ATTEND)
        return;
    seat *mine = context;
    const cp_attend_call *call = &mine->it->call;
    const cp_layout *layout = call->layout;
    const cp_block *keys =
        op->keys.slot == call->plan->cache ? layout->cache : layout->keys;
    const cp_partial partial = cp_walker_partial(walker, op->out.slot);
    pthread_mutex_lock(&mine->it->lock);
    call->job->partial(call->job->partial_context, mine->rank, mine->seen++,
                       &cp_plan_queries(call->plan, op->in.origin)->pieces,
                       &keys[op->keys.origin].pieces, partial.heads,
                       partial.output, partial.lse);
    pthread_mutex_unlock(&mine->it->lock);
}

static cp_status walk_rank(const running *it, cp_comm *comm,
                           cp_walker *walker) {
    float *const keys = cp_store_keys(it->store, comm->rank, 0);
    float *const values = cp_store_values(it->store, comm->rank, 0);
    const cp_attend_rows rows = {keys,
                                 values,
                                 walker->queries,
                                 walker->new_keys,
                                 walker->new_values,
                                 walker->index_queries,
                                 walker->index_weights,
                                 walker->index_keys};
    cp_attend_write(&it->call, comm->rank, &rows);
    CP_TRY(cp_walk(walker, comm, keys, values));
    const cp_partial *result = &walker->result;
    cp_attend_read(&it->call, comm->rank, result->output, result->lse);
    return CP_OK;
}

static cp_status attend_rank(cp_comm *comm, void *context) {
    running *it = context;
    const cp_attend_job *job = it->call.job;
    seat mine = {it, comm->rank, 0};
    const cp_walk_options options = {
        .kernel = cp_attend_fast,
        .threads = cp_place_share(it->place, job->cores, job->ranks),
        .observe = job->partial != NULL ? watch_op : NULL,
        .context = &mine};
    cp_walker *walker;
    CP_TRY(cp_walker_new(it->call.plan, comm->rank, &options, &walker));
    const cp_status status = walk_rank(it, comm, walker);
    cp_walker_free(walker);
    return status;
}

static cp_status run(running *it, cp_attend_job *job) {
    const cp_place *place = it->place;
    CP_TRY(cp_attend_call_new(place->machine, job, &it->call));
    CP_TRY(
        cp_crew_agree(place->crew, it->call.plan, 0,
                      cp_store_new(job->ranks, place->only, 1, job->sequences,
                                   it->call.room, &job->shape, &it->store)));
    CP_TRY(place->run(job->ranks, attend_rank, it));
    return cp_attend_share(&it->call, place->crew);
}

cp_status cp_attend_run(const cp_place *place, cp_attend_job *job) {
    running it = {.place = place, .lock = PTHREAD_MUTEX_INITIALIZER};
    const cp_status status = run(&it, job);
    cp_store_free(it.store);
    cp_attend_call_free(&it.call);
    return status;
}
