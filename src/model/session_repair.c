/* Tangled from book/17-repair.nw; edit the chapter. */
/* Continuing a conversation without a lost rank. */
#include "model/session_repair.h"

#include <stdlib.h>
#include <string.h>

#include "model/session_own.h"
#include "tokens/repair.h"

/* The weights of the surviving ranks. */
static cp_status drop_weight(cp_session *session, int rank) {
    cp_session_options *options = &session->options;
    const int64_t *before = options->dealing.weights;
    int64_t *left;
    if (before == NULL)
        return CP_OK;
    CP_TRY(cp_allocate(&left, options->ranks, sizeof(*left), "weights"));
    for (int r = 0, n = 0; r < options->ranks; r++)
        if (r != rank)
            left[n++] = before[r];
    free(session->weights);
    options->dealing.weights = session->cache->dealing.weights = left;
    session->weights = left;
    return CP_OK;
}

cp_status cp_session_lose(cp_session *session, int rank) {
    cp_session_options *options = &session->options;
    CP_TRY(cp_cache_lose(session->cache, rank,
                         cp_max(session->cache->room, options->capacity)));
    if (cp_facts_is_hybrid(&session->model->facts))
        CP_TRY(cp_cache_lose_all(session->cache));
    CP_TRY(drop_weight(session, rank));
    CP_TRY(cp_engine_lose(session->engine, rank));
    options->ranks--;
    session->last.rows = 0;
    return CP_OK;
}

/* All tokens of all sequences, concatenated. */
static cp_status gather(const cp_session *session, const int32_t *const *tokens,
                        int64_t *first_row, int32_t **all, int64_t *count) {
    const cp_cache *cache = session->cache;
    *count = 0;
    for (int64_t s = 0; s < cache->sequences; s++) {
        first_row[s] = *count;
        *count += cache->length[s];
    }
    CP_TRY(cp_allocate(all, *count, sizeof(**all), "tokens"));
    for (int64_t s = 0; s < cache->sequences; s++)
        memcpy(*all + first_row[s], tokens[s],
               (size_t)cache->length[s] * sizeof(**all));
    return CP_OK;
}

/* One call: these numbers of tokens, at the positions that were lost. */
static cp_status fill_holes(cp_session *session, const int64_t *lengths,
                            cp_forward *forward) {
    const cp_model *model = session->model;
    const cp_session_options *options = &session->options;
    cp_choice choice = {options->variant, "as asked"};
    cp_layout *layout = NULL;
    cp_plan *plan = NULL;
    cp_status status = cp_call_plan(
        session->cache, lengths, model->backend->machine, &model->facts.shape,
        &options->chooser, &choice, &layout, &plan);
    forward->plan = plan;
    forward->layout = layout;
    if (status == CP_OK)
        status = cp_engine_run(session->engine, forward);
    if (status == CP_OK)
        status = cp_cache_commit(session->cache, layout);
    if (status == CP_OK)
        cp_cache_refilled(session->cache);
    cp_plan_free(plan);
    cp_layout_free(layout);
    return status;
}

enum { PIECE = 4096 }; /* tokens that a call reads again, per rank */

static cp_status refill(cp_session *session, int64_t *lengths,
                        cp_forward *forward, cp_repair_report *report) {
    const int64_t most = PIECE * (int64_t)session->options.ranks;
    for (;;) {
        int64_t count;
        CP_TRY(cp_cache_refill(session->cache, most, lengths, &count));
        if (count == 0)
            return CP_OK;
        CP_TRY(fill_holes(session, lengths, forward));
        report->tokens += count;
        report->calls++;
    }
}

static cp_status repair(cp_session *session, const int32_t *const *tokens,
                        int64_t *numbers, cp_repair_report *report) {
    const int64_t sequences = session->options.sequences;
    int32_t *all = NULL;
    cp_forward forward = {.first_row = numbers,
                          .first_position = numbers + sequences,
                          .bytes = numbers + 3 * sequences};
    cp_status status = gather(session, tokens, numbers, &all, &forward.count);
    forward.tokens = all;
    if (status == CP_OK)
        status = refill(session, numbers + 2 * sequences, &forward, report);
    free(all);
    return status;
}

cp_status cp_session_repair(cp_session *session, int rank,
                            const int32_t *const *tokens,
                            cp_repair_report *report) {
    const int64_t sequences = session->options.sequences;
    const double start = cp_clock();
    int64_t *numbers; /* rows, positions, lengths; bytes by rank */
    *report = (cp_repair_report){0};
    CP_TRY(cp_session_lose(session, rank));
    CP_TRY(cp_allocate(&numbers, 3 * sequences + session->options.ranks, 8,
                       "a repair"));
    const cp_status status = repair(session, tokens, numbers, report);
    free(numbers);
    report->seconds = cp_clock() - start;
    if (status == CP_CAPACITY)
        return cp_fail(status,
                       "%s; the ranks left have %ld cache rows each: try more "
                       "rows, or rows 0 with least %d",
                       cp_message(), session->options.rows,
                       session->options.ranks);
    return status;
}
