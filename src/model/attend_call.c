/* Tangled from book/12-model.nw; edit the chapter. */
/* Replay a past, lay out a call, and copy rows. */
#include "model/attend_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "predict/foresee.h"
#include "ring/variants.h"

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

typedef struct {
    const cp_attend_call *call;
    const cp_pieces *pieces;
    bool queries; /* rows of the job's queries, not of its keys */
    bool cached;  /* no new tokens */
} some_rows;

static void copy_rows(const some_rows *which, bool back, int64_t width,
                      const float *from, float *to) {
    const cp_attend_job *job = which->call->job;
    for (int64_t n = 0; n < which->pieces->count; n++) {
        const cp_span span = which->pieces->items[n].span;
        const int64_t base = which->queries ? query_row(job, span.sequence)
                                            : key_row(job, span.sequence);
        const int64_t past = which->call->layout->past[span.sequence];
        for (int64_t t = 0; t < span.count; t++) {
            const int64_t position = span.start + t * span.step;
            const int64_t theirs = base + position;
            const int64_t ours = which->pieces->items[n].row + t;
            if (!which->cached || position < past)
                memcpy(to + (back ? theirs : ours) * width,
                       from + (back ? ours : theirs) * width,
                       (size_t)width * sizeof(float));
        }
    }
}

static int64_t key_width(const cp_attend_job *job) {
    return job->shape.kv_heads * job->shape.head_dim;
}

static int64_t query_width(const cp_attend_job *job) {
    return job->shape.query_heads * job->shape.head_dim;
}

void cp_attend_put_cached(const cp_attend_call *call, int rank, float *keys,
                          float *values) {
    const cp_attend_job *job = call->job;
    const some_rows held = {call, &call->layout->cache[rank].pieces, false,
                            true};
    copy_rows(&held, false, key_width(job), job->keys, keys);
    copy_rows(&held, false, key_width(job), job->values, values);
}

void cp_attend_put_new(const cp_attend_call *call, int rank, float *queries,
                       float *keys, float *values) {
    const cp_attend_job *job = call->job;
    const cp_pieces *mine = &call->layout->queries[rank].pieces;
    const some_rows asked = {call, mine, true, false};
    const some_rows fresh = {call, mine, false, false};
    copy_rows(&asked, false, query_width(job), job->queries, queries);
    copy_rows(&fresh, false, key_width(job), job->keys, keys);
    copy_rows(&fresh, false, key_width(job), job->values, values);
}

void cp_attend_take(const cp_attend_call *call, int rank, const float *output,
                    const float *lse) {
    const cp_attend_job *job = call->job;
    const some_rows asked = {call, &call->layout->queries[rank].pieces, true,
                             false};
    copy_rows(&asked, true, query_width(job), output, job->output);
    copy_rows(&asked, true, job->shape.query_heads, lse, job->lse);
}

static cp_status commit_call(cp_cache *cache, const int64_t *lengths,
                             bool decode) {
    cp_layout *layout;
    cp_status status = decode ? cp_cache_decode(cache, lengths, &layout)
                              : cp_cache_prefill(cache, lengths, &layout);
    if (status != CP_OK)
        return status;
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
                                cp_cache *cache, int64_t *lengths) {
    bool any = false;
    for (int64_t s = 0; s < job->sequences; s++) {
        const cp_turn *stretch = turn_of(job, s, turn);
        lengths[s] = stretch != NULL && !stretch->decode ? stretch->tokens : 0;
        any = any || lengths[s] != 0;
    }
    return any ? commit_call(cache, lengths, false) : CP_OK;
}

static cp_status replay(const cp_attend_job *job, cp_cache *cache,
                        int64_t *lengths) {
    int64_t turns = 0;
    for (int64_t s = 0; s < job->sequences; s++)
        turns = cp_max(turns, job->turns[s]);
    cp_status status = CP_OK;
    for (int64_t turn = 0; turn < turns && status == CP_OK; turn++) {
        status = replay_prefill(job, turn, cache, lengths);
        int64_t step = 0;
        while (status == CP_OK && steps_left(job, turn, step++, lengths))
            status = commit_call(cache, lengths, true);
    }
    return status;
}

static cp_status decide_by_rule(const cp_machine *machine, cp_attend_job *job,
                                const cp_cache *cache) {
    cp_choice choice;
    const cp_status status =
        job->described != NULL
            ? cp_foresee(job->described, &job->shape, machine->element_bytes,
                         job->ranks, job->sequences, job->new_tokens,
                         cache->length, &choice)
            : cp_choose(machine, &job->shape, job->ranks, job->sequences,
                        job->new_tokens, cache->length, &choice);
    if (status == CP_OK) {
        job->chosen = choice.variant;
        snprintf(job->rule, sizeof(job->rule), "%s", choice.rule);
    }
    return status;
}

static cp_status decide(const cp_machine *machine, cp_attend_job *job,
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
        return decide_by_rule(machine, job, cache);
    }
    return CP_OK;
}

static int64_t longest_sequence(const cp_attend_job *job) {
    int64_t longest = 1;
    for (int64_t s = 0; s < job->sequences; s++)
        longest = cp_max(longest, cached_tokens(job, s) + job->new_tokens[s]);
    return longest;
}

static cp_status lay_out(const cp_machine *machine, cp_attend_call *call) {
    cp_attend_job *job = call->job;
    const cp_plan_options wanted = {machine->element_bytes, 1};
    cp_status status = decide(machine, job, call->cache);
    if (status == CP_OK)
        status =
            job->chosen == CP_DECODE
                ? cp_cache_decode(call->cache, job->new_tokens, &call->layout)
                : cp_cache_prefill(call->cache, job->new_tokens, &call->layout);
    if (status == CP_OK)
        status = cp_plan_build(job->chosen, call->layout, &job->shape, &wanted,
                               &call->plan);
    return status;
}

cp_status cp_attend_call_new(const cp_machine *machine, cp_attend_job *job,
                             cp_attend_call *call) {
    int64_t *lengths;
    *call = (cp_attend_call){.job = job, .room = longest_sequence(job)};
    cp_status status =
        cp_allocate(&lengths, job->sequences, sizeof(int64_t), "lengths");
    if (status == CP_OK)
        status =
            cp_cache_new(job->ranks, job->sequences, call->room, &call->cache);
    if (status == CP_OK)
        status = replay(job, call->cache, lengths);
    if (status == CP_OK)
        status = lay_out(machine, call);
    free(lengths);
    return status;
}

void cp_attend_call_free(cp_attend_call *call) {
    cp_plan_free(call->plan);
    cp_layout_free(call->layout);
    cp_cache_free(call->cache);
}
