/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention on cores: walkers, and the cache of one layer. */
#define _POSIX_C_SOURCE 200809L
#include "reference/model/cores_engine.h"

#include <pthread.h>

#include "model/attend_call.h"
#include "reference/run/store.h"
#include "reference/run/walk.h"
#include "group/agree.h"

typedef struct {
    const cp_runner *runner;
    cp_attend_call call;
    cp_store *store;
    pthread_mutex_t lock; /* one observer at a time */
} attend_call;

typedef struct {
    attend_call *call;
    int rank;
    int64_t seen; /* attends */
} rank_call;

static void watch_op(void *context, const cp_walker *walker, const cp_op *op,
                     double start, double end) {
    (void)start, (void)end;
    if (op->kind != CP_OP_ATTEND)
        return;
    rank_call *observer = context;
    const cp_attend_call *call = &observer->call->call;
    const cp_layout *layout = call->layout;
    const cp_block *keys =
        op->keys.slot == call->plan->cache ? layout->cache : layout->keys;
    const cp_partial partial = cp_walker_partial(walker, op->out.slot);
    pthread_mutex_lock(&observer->call->lock);
    call->job->partial(call->job->partial_context, observer->rank,
                       observer->seen++,
                       &cp_plan_queries(call->plan, op->in.origin)->pieces,
                       &keys[op->keys.origin].pieces, partial.heads,
                       partial.output, partial.lse);
    pthread_mutex_unlock(&observer->call->lock);
}

static cp_status walk_rank(const attend_call *call, cp_comm *comm,
                           cp_walker *walker) {
    float *const keys = cp_store_keys(call->store, comm->rank, 0);
    float *const values = cp_store_values(call->store, comm->rank, 0);
    const cp_attend_rows rows = {keys,
                                 values,
                                 walker->queries,
                                 walker->new_keys,
                                 walker->new_values,
                                 walker->index_queries,
                                 walker->index_weights,
                                 walker->index_keys};
    cp_attend_write(&call->call, comm->rank, &rows);
    CP_TRY(cp_walk(walker, comm, keys, values));
    const cp_partial *result = &walker->result;
    cp_attend_read(&call->call, comm->rank, result->output, result->lse);
    return CP_OK;
}

static cp_status attend_rank(cp_comm *comm, void *context) {
    attend_call *call = context;
    const cp_attend_job *job = call->call.job;
    rank_call observer = {call, comm->rank, 0};
    const cp_walk_options options = {
        .kernel = cp_runner_kernel(call->runner),
        .threads = cp_runner_cores(call->runner, job->cores, job->ranks),
        .observe = job->partial != NULL ? watch_op : NULL,
        .context = &observer};
    cp_walker *walker;
    CP_TRY(cp_walker_new(call->call.plan, comm->rank, &options, &walker));
    const cp_status status = walk_rank(call, comm, walker);
    cp_walker_free(walker);
    return status;
}

static cp_status run(attend_call *call, cp_attend_job *job) {
    const cp_runner *runner = call->runner;
    CP_TRY(cp_attend_call_new(runner->machine, job, &call->call));
    CP_TRY(cp_agree_on_plan(runner->group, call->call.plan, 0,
                            cp_store_new(job->ranks, runner->only, 1,
                                         job->sequences, call->call.room,
                                         &job->shape, &call->store)));
    CP_TRY(runner->run(job->ranks, attend_rank, call));
    return cp_attend_gather(&call->call, runner->group);
}

cp_status cp_attend_run(const cp_runner *runner, cp_attend_job *job) {
    attend_call call = {.runner = runner, .lock = PTHREAD_MUTEX_INITIALIZER};
    const cp_status status = run(&call, job);
    cp_store_free(call.store);
    cp_attend_call_free(&call.call);
    return status;
}
