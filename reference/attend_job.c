/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention over ranks, after a replayed past. */
#define _POSIX_C_SOURCE 200809L
#include "attend_job.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choose.h"
#include "store.h"
#include "together.h"
#include "walk.h"

static int64_t cached_tokens(const cp_attend_job *job, int64_t sequence) {
    int64_t tokens = 0;
    for (int64_t n = 0; n < job->turns[sequence]; n++)
        tokens += job->history[sequence][n].tokens;
    return tokens;
}

static int64_t key_row(const cp_attend_job *job, int64_t sequence) {
    int64_t row = 0;
    for (int64_t s = 0; s < sequence; s++)
        row += cached_tokens(job, s) + job->new_tokens[s];
    return row;
}

static int64_t query_row(const cp_attend_job *job, int64_t sequence) {
    int64_t row = -cached_tokens(job, sequence);
    for (int64_t s = 0; s < sequence; s++)
        row += job->new_tokens[s];
    return row;
}

static void put_rows(const cp_attend_job *job, const cp_pieces *to,
                     const float *from, int64_t width, float *target) {
    for (int64_t n = 0; n < to->count; n++) {
        const cp_span span = to->items[n].span;
        const int64_t first = key_row(job, span.sequence) + span.start;
        for (int64_t t = 0; t < span.count; t++)
            memcpy(target + (to->items[n].row + t) * width,
                   from + (first + t * span.step) * width,
                   (size_t)width * sizeof(float));
    }
}

static cp_status place_call(const cp_attend_job *job, cp_cache *cache,
                            cp_store *store, const int64_t *lengths,
                            bool decode) {
    cp_layout *layout;
    cp_status status = decode ? cp_cache_decode(cache, lengths, &layout)
                              : cp_cache_prefill(cache, lengths, &layout);
    if (status != CP_OK)
        return status;
    const int64_t width = job->shape.kv_heads * job->shape.head_dim;
    for (int rank = 0; rank < job->ranks; rank++) {
        const cp_pieces *to = &layout->appended[rank].pieces;
        if (cp_store_keys(store, rank, 0) == NULL)
            continue; /* of another process */
        put_rows(job, to, job->keys, width, cp_store_keys(store, rank, 0));
        put_rows(job, to, job->values, width, cp_store_values(store, rank, 0));
    }
    status = cp_cache_commit(cache, layout);
    cp_layout_free(layout);
    return status;
}

static const cp_turn *turn_of(const cp_attend_job *job, int64_t sequence,
                              int64_t turn) {
    if (turn >= job->turns[sequence])
        return NULL;
    return &job->history[sequence][turn];
}

static bool steps_left(const cp_attend_job *job, int64_t turn, int64_t step,
                       int64_t *lengths) {
    bool any = false;
    for (int64_t s = 0; s < job->sequences; s++) {
        const cp_turn *stretch = turn_of(job, s, turn);
        lengths[s] =
            stretch != NULL && stretch->decode && step < stretch->tokens;
        any = any || lengths[s] > 0;
    }
    return any;
}

static cp_status replay_prefill(const cp_attend_job *job, int64_t turn,
                                cp_cache *cache, cp_store *store,
                                int64_t *lengths) {
    bool any = false;
    for (int64_t s = 0; s < job->sequences; s++) {
        const cp_turn *stretch = turn_of(job, s, turn);
        lengths[s] = stretch != NULL && !stretch->decode ? stretch->tokens : 0;
        any = any || lengths[s] != 0;
    }
    return any ? place_call(job, cache, store, lengths, false) : CP_OK;
}

static cp_status replay(const cp_attend_job *job, cp_cache *cache,
                        cp_store *store, int64_t *lengths) {
    int64_t turns = 0;
    for (int64_t s = 0; s < job->sequences; s++)
        turns = cp_max(turns, job->turns[s]);
    cp_status status = CP_OK;
    for (int64_t turn = 0; turn < turns && status == CP_OK; turn++) {
        status = replay_prefill(job, turn, cache, store, lengths);
        int64_t step = 0;
        while (status == CP_OK && steps_left(job, turn, step++, lengths))
            status = place_call(job, cache, store, lengths, true);
    }
    return status;
}

typedef struct {
    const cp_place *place;
    cp_attend_job *job;
    const cp_layout *layout;
    const cp_plan *plan;
    cp_store *store;
    int threads;
    pthread_mutex_t lock; /* one observer at a time */
} attend_call;

typedef struct {
    attend_call *call;
    int rank;
    int64_t seen;
} observer;

static void fill_rows(const attend_call *call, int rank, cp_walker *walker) {
    const cp_attend_job *job = call->job;
    const int64_t kv = job->shape.kv_heads * job->shape.head_dim;
    const int64_t width = job->shape.query_heads * job->shape.head_dim;
    const cp_pieces *mine = &call->layout->queries[rank].pieces;
    put_rows(job, mine, job->keys, kv, cp_walker_new_keys(walker));
    put_rows(job, mine, job->values, kv, cp_walker_new_values(walker));
    for (int64_t n = 0; n < mine->count; n++) {
        const cp_span span = mine->items[n].span;
        const int64_t first = query_row(job, span.sequence) + span.start;
        for (int64_t t = 0; t < span.count; t++)
            memcpy(cp_walker_queries(walker) + (mine->items[n].row + t) * width,
                   job->queries + (first + t * span.step) * width,
                   (size_t)width * sizeof(float));
    }
}

static void read_rows(const attend_call *call, int rank,
                      const cp_partial *result) {
    const cp_attend_job *job = call->job;
    const int64_t heads = job->shape.query_heads;
    const int64_t width = heads * job->shape.head_dim;
    const cp_pieces *mine = &call->layout->queries[rank].pieces;
    for (int64_t n = 0; n < mine->count; n++) {
        const cp_span span = mine->items[n].span;
        const int64_t first = query_row(job, span.sequence) + span.start;
        for (int64_t t = 0; t < span.count; t++) {
            const int64_t from = mine->items[n].row + t;
            const int64_t to = first + t * span.step;
            memcpy(job->output + to * width, result->output + from * width,
                   (size_t)width * sizeof(float));
            memcpy(job->lse + to * heads, result->lse + from * heads,
                   (size_t)heads * sizeof(float));
        }
    }
}

static void watch_op(void *context, const cp_walker *walker, const cp_op *op,
                     double start, double end) {
    (void)start, (void)end;
    if (op->kind != CP_OP_ATTEND)
        return;
    observer *watch = context;
    const attend_call *call = watch->call;
    const cp_layout *layout = call->layout;
    const cp_block *keys =
        op->keys.slot == call->plan->cache ? layout->cache : layout->keys;
    const cp_partial partial = cp_walker_partial(walker, op->out.slot);
    pthread_mutex_lock(&watch->call->lock);
    call->job->partial(call->job->partial_context, watch->rank, watch->seen++,
                       op->hop, &layout->queries[op->in.origin].pieces,
                       &keys[op->keys.origin].pieces, partial.output,
                       partial.lse);
    pthread_mutex_unlock(&watch->call->lock);
}

static cp_status read_all_rows(const attend_call *call, cp_comm *comm,
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
        read_rows(call, r, &theirs);
    }
    free(memory);
    return status;
}

static cp_status attend_rank(cp_comm *comm, void *context) {
    attend_call *call = context;
    observer watch = {call, comm->rank, 0};
    const cp_walk_options options = {
        .threads = call->threads,
        .observe = call->job->partial != NULL ? watch_op : NULL,
        .context = &watch};
    const bool apart = call->place->only != CP_NOBODY;
    cp_walker *walker;
    cp_status status = apart ? cp_agree(comm, call->plan, 0) : CP_OK;
    if (status == CP_OK)
        status = cp_walker_new(call->plan, comm->rank, &options, &walker);
    if (status != CP_OK)
        return status;
    fill_rows(call, comm->rank, walker);
    status = cp_walk(walker, comm, cp_store_keys(call->store, comm->rank, 0),
                     cp_store_values(call->store, comm->rank, 0));
    if (status == CP_OK && apart)
        status = read_all_rows(call, comm, cp_walker_result(walker));
    else if (status == CP_OK)
        read_rows(call, comm->rank, cp_walker_result(walker));
    cp_walker_free(walker);
    return status;
}

static cp_status run_ranks(const cp_place *place, cp_attend_job *job,
                           const cp_layout *layout, const cp_plan *plan,
                           cp_store *store) {
    attend_call call = {.place = place,
                        .job = job,
                        .layout = layout,
                        .plan = plan,
                        .store = store,
                        .threads =
                            cp_place_share(place, job->cores, job->ranks)};
    pthread_mutex_init(&call.lock, NULL);
    const cp_status status = place->run(job->ranks, attend_rank, &call);
    pthread_mutex_destroy(&call.lock);
    return status;
}

static cp_status decide_by_rule(const cp_place *place, cp_attend_job *job,
                                const cp_cache *cache) {
    cp_choice choice;
    const cp_status status =
        cp_choose(place->machine, &job->shape, job->ranks, job->sequences,
                  job->new_tokens, cache->length, &choice);
    if (status == CP_OK) {
        job->chosen = choice.variant;
        snprintf(job->rule, sizeof(job->rule), "%s", choice.rule);
    }
    return status;
}

static cp_status decide(const cp_place *place, cp_attend_job *job,
                        const cp_cache *cache) {
    bool ones = true;
    for (int64_t s = 0; s < job->sequences; s++)
        ones = ones && job->new_tokens[s] == 1;
    job->chosen = job->variant;
    snprintf(job->rule, sizeof(job->rule), "as asked");
    if (job->variant == CP_AUTO && ones) {
        job->chosen = CP_DECODE;
        snprintf(job->rule, sizeof(job->rule), "one new token per sequence");
    } else if (job->variant == CP_AUTO) {
        return decide_by_rule(place, job, cache);
    }
    return CP_OK;
}

static cp_status final_call(const cp_place *place, cp_attend_job *job,
                            cp_cache *cache, cp_store *store) {
    cp_layout *layout = NULL;
    cp_plan *plan = NULL;
    cp_status status = decide(place, job, cache);
    if (status == CP_OK)
        status = job->chosen == CP_DECODE
                     ? cp_cache_decode(cache, job->new_tokens, &layout)
                     : cp_cache_prefill(cache, job->new_tokens, &layout);
    if (status == CP_OK)
        status = cp_plan_build(job->chosen, layout, &job->shape, NULL, &plan);
    if (status == CP_OK)
        status = run_ranks(place, job, layout, plan, store);
    cp_plan_free(plan);
    cp_layout_free(layout);
    return status;
}

static int64_t longest_sequence(const cp_attend_job *job) {
    int64_t longest = 1;
    for (int64_t s = 0; s < job->sequences; s++)
        longest = cp_max(longest, cached_tokens(job, s) + job->new_tokens[s]);
    return longest;
}

cp_status cp_attend_run(const cp_place *place, cp_attend_job *job) {
    const int64_t room = longest_sequence(job);
    cp_cache *cache = NULL;
    cp_store *store = NULL;
    int64_t *lengths = NULL;
    cp_status status = cp_cache_new(job->ranks, job->sequences, room, &cache);
    if (status == CP_OK)
        status = cp_store_new_of(job->ranks, place->only, 1, job->sequences,
                                 room, &job->shape, &store);
    if (status == CP_OK)
        status =
            cp_allocate(&lengths, job->sequences, sizeof(int64_t), "lengths");
    if (status == CP_OK)
        status = replay(job, cache, store, lengths);
    if (status == CP_OK)
        status = final_call(place, job, cache, store);
    /* Free what the call used. */
    free(lengths);
    cp_store_free(store);
    cp_cache_free(cache);
    return status;
}
