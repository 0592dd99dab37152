/* Tangled from book/12-model.nw; edit the chapter. */
/* Replay a past, lay out a call, write rows and read them. */
#include "model/attend_call.h"

#include <stdlib.h>
#include <string.h>

int64_t cp_attend_row(const cp_attend_call *call, cp_span span, bool query) {
    const int64_t *cached = call->cache->length;
    int64_t row = span.start - (query ? cached[span.sequence] : 0);
    for (int64_t s = 0; s < span.sequence; s++)
        row += call->job->new_tokens[s] + (query ? 0 : cached[s]);
    return row;
}

typedef enum { CACHED_KEYS, NEW_KEYS, QUERIES, ANSWERS } which_rows;

static const cp_pieces *pieces_of(const cp_attend_call *call, int rank,
                                  which_rows which) {
    if (which == CACHED_KEYS)
        return &call->layout->cache[rank].pieces;
    if (which == NEW_KEYS)
        return &call->layout->queries[rank].pieces;
    const cp_use use = which == QUERIES ? cp_plan_begins(call->plan, rank)
                                        : cp_plan_ends(call->plan, rank);
    return &cp_plan_queries(call->plan, use.origin)->pieces;
}

/* Whether a rank reads or writes the job's row of a token. Where all ranks have
 * the answers of all tokens, only the rank that holds the token reads them. */
static bool concerns(const cp_attend_call *call, int rank, which_rows which,
                     int64_t sequence, int64_t position) {
    const cp_pieces *held = &call->layout->queries[rank].pieces;
    if (which != ANSWERS || call->plan->ends != CP_OWN_ALL)
        return true;
    for (int64_t n = 0; n < held->count; n++) {
        const cp_span span = held->items[n].span;
        const int64_t past = position - span.start;
        if (span.sequence == sequence && past >= 0 && past % span.step == 0 &&
            past / span.step < span.count)
            return true;
    }
    return false;
}

/* Copy between the arrays of a rank and those of the job; back: to the job. A
 * head has numbers numbers. */
static void copy_rows(const cp_attend_call *call, int rank, which_rows which,
                      bool back, int64_t numbers, const float *from,
                      float *to) {
    const cp_pieces *pieces = pieces_of(call, rank, which);
    const cp_plan *plan = call->plan;
    const cp_use use = which == QUERIES ? cp_plan_begins(plan, rank)
                                        : cp_plan_ends(plan, rank);
    const bool is_query = which >= QUERIES;
    const int64_t heads = is_query ? cp_plan_shape(plan, use.slot).query_heads
                                   : plan->shape.kv_heads;
    const int64_t width = heads * numbers;
    const int64_t wide = is_query ? plan->shape.query_heads * numbers : width;
    const int64_t first = is_query ? use.part * width : 0;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        const int64_t past = call->layout->past[piece.span.sequence];
        const int64_t base = cp_attend_row(call, piece.span, is_query);
        for (int64_t t = 0; t < piece.span.count; t++) {
            const int64_t further = t * piece.span.step;
            const int64_t rank_offset = (piece.row + t) * width;
            const int64_t job_offset = (base + further) * wide + first;
            const int64_t position = piece.span.start + further;
            if ((which != CACHED_KEYS || position < past) &&
                concerns(call, rank, which, piece.span.sequence, position))
                memcpy(to + (back ? job_offset : rank_offset),
                       from + (back ? rank_offset : job_offset),
                       (size_t)width * sizeof(float));
        }
    }
}

/* Copy the rows of an indexer, width numbers each. */
static void copy_index(const cp_attend_call *call, const cp_pieces *pieces,
                       bool is_query, int64_t width, const float *from,
                       float *to) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        const int64_t base = cp_attend_row(call, piece.span, is_query);
        for (int64_t t = 0; t < piece.span.count; t++)
            memcpy(to + (piece.row + t) * width,
                   from + (base + t * piece.span.step) * width,
                   (size_t)width * sizeof(float));
    }
}

static void write_index(const cp_attend_call *call, int rank,
                        const cp_attend_rows *rows) {
    const cp_attend_job *job = call->job;
    const cp_indexer *indexer = &job->indexer;
    const cp_pieces *queries = &call->layout->queries[rank].pieces;
    copy_index(call, queries, true, indexer->heads * indexer->dim,
               job->index_queries, rows->index_queries);
    copy_index(call, queries, true, indexer->heads, job->index_weights,
               rows->index_weights);
    copy_index(call, &call->layout->keys[rank].pieces, false, indexer->dim,
               job->index_keys, rows->index_keys);
}

void cp_attend_write(const cp_attend_call *call, int rank,
                     const cp_attend_rows *rows) {
    const cp_attend_job *job = call->job;
    const int64_t dim = job->shape.head_dim;
    const int64_t value_dim = cp_value_dim(&job->shape);
    copy_rows(call, rank, QUERIES, false, dim, job->queries, rows->queries);
    copy_rows(call, rank, CACHED_KEYS, false, dim, job->keys,
              rows->cached_keys);
    copy_rows(call, rank, NEW_KEYS, false, dim, job->keys, rows->keys);
    if (job->indexer.top_k > 0)
        write_index(call, rank, rows);
    if (job->shape.latent)
        return;
    copy_rows(call, rank, CACHED_KEYS, false, value_dim, job->values,
              rows->cached_values);
    copy_rows(call, rank, NEW_KEYS, false, value_dim, job->values,
              rows->values);
}

void cp_attend_read(const cp_attend_call *call, int rank, const float *output,
                    const float *lse) {
    const cp_attend_job *job = call->job;
    copy_rows(call, rank, ANSWERS, true, cp_value_dim(&job->shape), output,
              job->output);
    copy_rows(call, rank, ANSWERS, true, 1, lse, job->lse);
}

cp_status cp_attend_gather(const cp_attend_call *call,
                           const cp_process_group *group) {
    const cp_attend_job *job = call->job;
    const int64_t dim = cp_value_dim(&job->shape);
    const int64_t rows = call->plan->slots[call->plan->result].rows;
    const int64_t heads =
        cp_plan_shape(call->plan, call->plan->result).query_heads;
    const int64_t block = rows * heads * (dim + 1);
    const int64_t bytes = block * (int64_t)sizeof(float);
    float *all;
    if (group == NULL)
        return CP_OK;
    CP_TRY(cp_allocate(&all, job->ranks, bytes, "results"));
    float *rank_results = all + group->rank * block;
    copy_rows(call, group->rank, ANSWERS, false, dim, job->output,
              rank_results);
    copy_rows(call, group->rank, ANSWERS, false, 1, job->lse,
              rank_results + rows * heads * dim);
    const cp_status status = group->all_gather(all, bytes);
    for (int r = 0; r < job->ranks && status == CP_OK; r++)
        cp_attend_read(call, r, all + r * block,
                       all + r * block + rows * heads * dim);
    free(all);
    return status;
}

static cp_status commit_call(cp_cache *cache, const int64_t *lengths,
                             bool decode) {
    cp_layout *layout;
    CP_TRY(cp_cache_lay_out(cache, decode, lengths, &layout));
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

/* Put rows in an arbitrary order: the result must not change. */
static cp_status shuffle_rows(const cp_attend_call *call) {
    const int64_t block = call->job->block;
    int64_t rows;
    if (block == 0)
        return CP_OK;
    if (!cp_multiply(call->room, call->job->sequences, &rows))
        return cp_fail(CP_MEMORY,
                       "a cache of %ld rows for each of %ld "
                       "sequences overflows",
                       call->room, call->job->sequences);
    CP_TRY(cp_cache_page(call->cache, block, rows / block));
    for (int rank = 0; rank < call->job->ranks; rank++)
        cp_pages_shuffle(call->cache->pages[rank], (uint64_t)rank + 1);
    return CP_OK;
}

cp_status cp_attend_call_new(const cp_machine *machine, cp_attend_job *job,
                             cp_attend_call *call) {
    int64_t *lengths;
    *call = (cp_attend_call){.job = job, .room = 1};
    for (int64_t s = 0; s < job->sequences; s++) {
        int64_t tokens = job->new_tokens[s];
        for (int64_t n = 0; n < job->turns[s]; n++)
            tokens += job->history[s][n].tokens;
        call->room = cp_max(call->room, tokens);
    }
    if (job->block > 0)
        call->room = cp_ceil_divide(call->room, job->block) * job->block;
    CP_TRY(cp_cache_new(job->ranks, job->sequences, call->room, &call->cache));
    call->cache->dealing = job->dealing;
    call->cache->wire = job->wire;
    call->cache->indexer = job->indexer;
    CP_TRY(shuffle_rows(call));
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
