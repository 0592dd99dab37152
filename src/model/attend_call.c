/* Tangled from book/12-model.nw; edit the chapter. */
/* Replay a past, lay out a call, put rows, walk, and take rows. */
#include "model/attend_call.h"

#include <stdlib.h>
#include <string.h>

#include "ring/agree.h"

static int64_t cached_tokens(const cp_attend_job *job, int64_t sequence) {
    int64_t tokens = 0;
    for (int64_t n = 0; n < job->turns[sequence]; n++)
        tokens += job->history[sequence][n].tokens;
    return tokens;
}

static int64_t first_row(const cp_attend_job *job, int64_t sequence,
                         bool queries) {
    int64_t row = queries ? -cached_tokens(job, sequence) : 0;
    for (int64_t s = 0; s < sequence; s++)
        row += job->new_tokens[s] + (queries ? 0 : cached_tokens(job, s));
    return row;
}

typedef struct {
    const cp_attend_call *call;
    const cp_pieces *pieces;
    bool queries; /* rows of the job's queries, not of its keys */
    bool cached;  /* no new tokens */
    bool back;    /* from the rank to the job */
} some_rows;

static void copy_rows(some_rows which, int64_t width, const float *from,
                      float *to) {
    for (int64_t n = 0; n < which.pieces->count; n++) {
        const cp_piece piece = which.pieces->items[n];
        const int64_t past = which.call->layout->past[piece.span.sequence];
        const int64_t base =
            first_row(which.call->job, piece.span.sequence, which.queries);
        for (int64_t t = 0; t < piece.span.count; t++) {
            const int64_t position = piece.span.start + t * piece.span.step;
            const int64_t ours = piece.row + t, theirs = base + position;
            if (!which.cached || position < past)
                memcpy(to + (which.back ? theirs : ours) * width,
                       from + (which.back ? ours : theirs) * width,
                       (size_t)width * sizeof(float));
        }
    }
}

static void write_rows(const cp_attend_call *call, int rank,
                       const cp_attend_rows *rows) {
    const cp_attend_job *job = call->job;
    const int64_t keys = job->shape.kv_heads * job->shape.head_dim;
    const int64_t queries = job->shape.query_heads * job->shape.head_dim;
    const some_rows held = {call, &call->layout->cache[rank].pieces, false,
                            true, false};
    some_rows fresh = {call, &call->layout->queries[rank].pieces, false, false,
                       false};
    copy_rows(held, keys, job->keys, rows->cached_keys);
    copy_rows(held, keys, job->values, rows->cached_values);
    copy_rows(fresh, keys, job->keys, rows->keys);
    copy_rows(fresh, keys, job->values, rows->values);
    fresh.queries = true;
    copy_rows(fresh, queries, job->queries, rows->queries);
}

static void read_rows(const cp_attend_call *call, int rank, const float *output,
                      const float *lse) {
    const cp_attend_job *job = call->job;
    const int64_t heads = job->shape.query_heads;
    const some_rows asked = {call, &call->layout->queries[rank].pieces, true,
                             false, true};
    copy_rows(asked, heads * job->shape.head_dim, output, job->output);
    copy_rows(asked, heads, lse, job->lse);
}

static cp_status commit_call(cp_cache *cache, const int64_t *lengths,
                             bool decode) {
    cp_layout *layout;
    CP_TRY(decode ? cp_cache_decode(cache, lengths, &layout)
                  : cp_cache_prefill(cache, lengths, &layout));
    const cp_status status = cp_cache_commit(cache, layout);
    cp_layout_free(layout);
    return status;
}

static bool take_step(const cp_attend_job *job, int64_t turn, int64_t step,
                      int64_t *lengths) {
    bool any = false;
    for (int64_t s = 0; s < job->sequences; s++) {
        cp_turn stretch = {false, 0};
        if (turn < job->turns[s])
            stretch = job->history[s][turn];
        if (stretch.decode)
            lengths[s] = step > 0 && step <= stretch.tokens;
        else
            lengths[s] = step == 0 ? stretch.tokens : 0;
        any = any || lengths[s] != 0;
    }
    return any;
}

static cp_status replay(const cp_attend_job *job, cp_cache *cache,
                        int64_t *lengths) {
    int64_t turns = 0;
    for (int64_t s = 0; s < job->sequences; s++)
        turns = cp_max(turns, job->turns[s]);
    for (int64_t turn = 0; turn < turns; turn++) {
        if (take_step(job, turn, 0, lengths))
            CP_TRY(commit_call(cache, lengths, false));
        for (int64_t step = 1; take_step(job, turn, step, lengths); step++)
            CP_TRY(commit_call(cache, lengths, true));
    }
    return CP_OK;
}

static cp_status plan_call(const cp_machine *machine, cp_attend_call *call) {
    cp_attend_job *job = call->job;
    cp_choice choice = {job->variant, "as asked"};
    bool ones = true;
    for (int64_t s = 0; s < job->sequences; s++)
        ones = ones && job->new_tokens[s] == 1;
    if (job->variant == CP_AUTO && ones)
        choice = (cp_choice){CP_DECODE, "one new token per sequence"};
    CP_TRY(cp_call_plan(call->cache, job->new_tokens, machine, &job->shape,
                        &job->chooser, &choice, &call->layout, &call->plan));
    job->chosen = choice.variant;
    memcpy(job->rule, choice.rule, sizeof(job->rule));
    return CP_OK;
}

cp_status cp_attend_call_new(const cp_machine *machine, cp_attend_job *job,
                             cp_attend_call *call) {
    int64_t *lengths;
    *call = (cp_attend_call){.job = job, .room = 1};
    for (int64_t s = 0; s < job->sequences; s++)
        call->room =
            cp_max(call->room, cached_tokens(job, s) + job->new_tokens[s]);
    CP_TRY(cp_cache_new(job->ranks, job->sequences, call->room, &call->cache));
    CP_TRY(cp_allocate(&lengths, job->sequences, sizeof(int64_t), "lengths"));
    const cp_status status = replay(job, call->cache, lengths);
    free(lengths);
    return status == CP_OK ? plan_call(machine, call) : status;
}

void cp_attend_call_free(cp_attend_call *call) {
    cp_plan_free(call->plan);
    cp_layout_free(call->layout);
    cp_cache_free(call->cache);
}

typedef struct {
    const cp_attend_ops *on;
    cp_engine_place where;
    cp_attend_call call;
    void *open;
} running;

static bool is_here(const running *it, int rank) {
    return it->where.crew == NULL || it->where.only == rank;
}

static cp_status put_rows(const running *it) {
    for (int r = 0; r < it->call.job->ranks; r++) {
        cp_attend_rows rows;
        if (!is_here(it, r))
            continue;
        CP_TRY(it->on->lend(it->open, r, &rows));
        write_rows(&it->call, r, &rows);
        if (it->on->put != NULL)
            CP_TRY(it->on->put(it->open, r, &rows));
    }
    return CP_OK;
}

static cp_status take_rows(const running *it, int64_t heads, float *all) {
    const cp_crew *crew = it->where.crew;
    const int ranks = it->call.job->ranks;
    const int64_t outputs = heads * it->call.job->shape.head_dim;
    const int64_t block = outputs + heads;
    for (int r = 0; r < ranks; r++) {
        float *mine = all + (crew != NULL ? r * block : 0);
        if (is_here(it, r))
            CP_TRY(it->on->take(it->open, r, mine, mine + outputs));
        if (crew == NULL)
            read_rows(&it->call, r, mine, mine + outputs);
    }
    if (crew == NULL)
        return CP_OK;
    CP_TRY(crew->collect(all, block * (int64_t)sizeof(float)));
    for (int r = 0; r < ranks; r++)
        read_rows(&it->call, r, all + r * block, all + r * block + outputs);
    return CP_OK;
}

static cp_status take_all(const running *it) {
    const cp_shape *shape = &it->call.job->shape;
    const int64_t heads =
        it->call.plan->slots[it->call.plan->queries].rows * shape->query_heads;
    const int blocks = it->where.crew != NULL ? it->call.job->ranks : 1;
    float *all;
    CP_TRY(cp_allocate(&all, blocks,
                       heads * (shape->head_dim + 1) * (int64_t)sizeof(float),
                       "results"));
    const cp_status status = take_rows(it, heads, all);
    free(all);
    return status;
}

static cp_status put_all(running *it, const void *place) {
    CP_TRY(it->on->open(place, &it->call, &it->open));
    return put_rows(it);
}

static cp_status run(running *it, const void *place, cp_attend_job *job) {
    const cp_crew *crew = it->where.crew;
    CP_TRY(cp_attend_call_new(it->on->machine, job, &it->call));
    CP_TRY(cp_crew_all_ready(crew, put_all(it, place)));
    if (crew != NULL)
        CP_TRY(cp_crew_agree(it->call.plan, 0));
    CP_TRY(it->on->walk(it->open));
    return take_all(it);
}

cp_status cp_attend_job_run(const cp_attend_ops *on, const void *place,
                            cp_engine_place where, cp_attend_job *job) {
    running it = {.on = on, .where = where};
    const cp_status status = run(&it, place, job);
    if (it.open != NULL)
        on->close(it.open);
    cp_attend_call_free(&it.call);
    return status;
}
