/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention over ranks, after a replayed past. */
#define _POSIX_C_SOURCE 200809L
#include "reference/model/attend_job.h"

#include <pthread.h>
#include <stdlib.h>

#include "model/attend_call.h"
#include "reference/ring/store.h"
#include "reference/ring/together.h"
#include "reference/ring/walk.h"

typedef struct {
    const cp_place *place;
    cp_attend_call *call;
    cp_store *store;
    int threads;
    pthread_mutex_t lock; /* one observer at a time */
} running;

typedef struct {
    running *it;
    int rank;
    int64_t seen;
} observer;

static void watch_op(void *context, const cp_walker *walker, const cp_op *op,
                     double start, double end) {
    (void)start, (void)end;
    if (op->kind != CP_OP_ATTEND)
        return;
    observer *watch = context;
    const cp_attend_call *call = watch->it->call;
    const cp_layout *layout = call->layout;
    const cp_block *keys =
        op->keys.slot == call->plan->cache ? layout->cache : layout->keys;
    const cp_partial partial = cp_walker_partial(walker, op->out.slot);
    pthread_mutex_lock(&watch->it->lock);
    call->job->partial(call->job->partial_context, watch->rank, watch->seen++,
                       op->hop, &layout->queries[op->in.origin].pieces,
                       &keys[op->keys.origin].pieces, partial.output,
                       partial.lse);
    pthread_mutex_unlock(&watch->it->lock);
}

static cp_status take_from_all(const running *it, cp_comm *comm,
                               const cp_partial *mine) {
    const int64_t floats = mine->rows * mine->heads * (mine->dim + 1);
    void *blocks[CP_TOGETHER_MOST];
    float *memory;
    cp_status status = cp_allocate(&memory, comm->ranks * floats, sizeof(float),
                                   "the others' results");
    for (int r = 0; r < comm->ranks; r++)
        blocks[r] = memory + r * floats;
    if (status == CP_OK)
        status = cp_comm_all_gather(comm, mine->output, blocks,
                                    floats * (int64_t)sizeof(float));
    for (int r = 0; r < comm->ranks && status == CP_OK; r++) {
        cp_partial theirs = *mine;
        if (r != comm->rank) {
            theirs.output = blocks[r];
            theirs.lse = theirs.output + mine->rows * mine->heads * mine->dim;
        }
        cp_attend_take(it->call, r, theirs.output, theirs.lse);
    }
    free(memory);
    return status;
}

static cp_status attend_rank(cp_comm *comm, void *context) {
    running *it = context;
    const cp_attend_call *call = it->call;
    observer watch = {it, comm->rank, 0};
    const cp_walk_options options = {
        .threads = it->threads,
        .observe = call->job->partial != NULL ? watch_op : NULL,
        .context = &watch};
    const bool apart = it->place->only != CP_NOBODY;
    cp_walker *walker;
    cp_status status = apart ? cp_agree(comm, call->plan, 0) : CP_OK;
    if (status == CP_OK)
        status = cp_walker_new(call->plan, comm->rank, &options, &walker);
    if (status != CP_OK)
        return status;
    float *keys = cp_store_keys(it->store, comm->rank, 0);
    float *values = cp_store_values(it->store, comm->rank, 0);
    cp_attend_put_cached(call, comm->rank, keys, values);
    cp_attend_put_new(call, comm->rank, cp_walker_queries(walker),
                      cp_walker_new_keys(walker), cp_walker_new_values(walker));
    status = cp_walk(walker, comm, keys, values);
    const cp_partial *result = cp_walker_result(walker);
    if (status == CP_OK && apart)
        status = take_from_all(it, comm, result);
    else if (status == CP_OK)
        cp_attend_take(call, comm->rank, result->output, result->lse);
    cp_walker_free(walker);
    return status;
}

static cp_status run_ranks(const cp_place *place, cp_attend_call *call,
                           cp_store *store) {
    const cp_attend_job *job = call->job;
    running it = {.place = place,
                  .call = call,
                  .store = store,
                  .threads = cp_place_share(place, job->cores, job->ranks)};
    pthread_mutex_init(&it.lock, NULL);
    const cp_status status = place->run(job->ranks, attend_rank, &it);
    pthread_mutex_destroy(&it.lock);
    return status;
}

cp_status cp_attend_run(const cp_place *place, cp_attend_job *job) {
    cp_attend_call call;
    cp_store *store = NULL;
    cp_status status = cp_attend_call_new(place->machine, job, &call);
    if (status == CP_OK)
        status = cp_store_new_of(job->ranks, place->only, 1, job->sequences,
                                 call.room, &job->shape, &store);
    if (status == CP_OK)
        status = run_ranks(place, &call, store);
    cp_store_free(store);
    cp_attend_call_free(&call);
    return status;
}
