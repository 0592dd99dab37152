/* Tangled from book/12-model.nw; edit the chapter. */
/* Conversations over ranks: check, choose, lay out, plan, run, commit. */
#include "model/session.h"

#include <stdlib.h>
#include <string.h>

#include "model/elastic.h"
#include "model/session_own.h"
#include "plan/check.h"

/* The tokens that a call appends, and whether as a step of decode. */
typedef struct {
    bool decode;
    const int64_t *lengths; /* [sequences] */
    const int32_t *tokens;
} call_request;

typedef struct {
    int64_t *lengths, *first_row; /* [sequences] */
    int64_t count;                /* of tokens */
    cp_choice choice;
    cp_plan_report counted;
    double seconds;
    call_outcome made;
} call_draft;

static cp_status enter(const cp_session *session, int64_t s, int64_t length,
                       call_draft *call) {
    const int64_t most = session->options.capacity;
    const int64_t held = session->cache->length[s];
    if (length < 0)
        return cp_refuse("sequence %ld: %ld new tokens; it must be >= 0", s,
                         length);
    if (length > most - held)
        return cp_fail(CP_CAPACITY,
                       "sequence %ld has %ld tokens, and %ld more would pass "
                       "its %ld positions",
                       s, held, length, most);
    call->lengths[s] = length;
    call->first_row[s] = call->count;
    call->count += length;
    return CP_OK;
}

static cp_status enter_all(const cp_session *session,
                           const call_request *request, call_draft *call) {
    const int64_t sequences = session->options.sequences;
    CP_TRY(cp_allocate(&call->lengths, 2 * sequences, sizeof(int64_t),
                       "lengths of a call"));
    call->first_row = call->lengths + sequences;
    for (int64_t s = 0; s < sequences; s++)
        CP_TRY(enter(session, s, request->lengths[s], call));
    return CP_OK;
}

static cp_status check_tokens(const cp_session *session, int64_t count,
                              const int32_t *tokens) {
    const int64_t words = session->model->facts.vocabulary;
    if (count < 1)
        return cp_refuse("a call without tokens");
    for (int64_t t = 0; t < count; t++)
        if (tokens[t] < 0 || tokens[t] >= words)
            return cp_refuse("token %ld is id %d; the model has %ld ids", t,
                             tokens[t], words);
    return CP_OK;
}

static cp_status prepare(const cp_session *session, const call_request *request,
                         call_draft *call) {
    const cp_session_options *options = &session->options;
    call->choice = (cp_choice){options->variant, "as asked"};
    if (request->decode)
        call->choice =
            (cp_choice){CP_DECODE, "few new tokens per sequence (Algorithm 4)"};
    CP_TRY(cp_call_plan(session->cache, call->lengths,
                        session->model->backend->machine,
                        &session->model->facts.shape, &options->chooser,
                        &call->choice, &call->made.layout, &call->made.plan));
    return cp_allocate(&call->made.figures, 4 * options->ranks, sizeof(int64_t),
                       "figures of a call");
}

static cp_status run(cp_session *session, const call_request *request,
                     call_draft *call) {
    const cp_forward forward = {.plan = call->made.plan,
                                .layout = call->made.layout,
                                .count = call->count,
                                .tokens = request->tokens,
                                .first_row = call->first_row,
                                .first_position = session->cache->length,
                                .bytes = call->made.figures +
                                         2 * session->options.ranks};
    const double start = cp_clock();
    const cp_status status = cp_engine_run(session->engine, &forward);
    call->made.rows = call->count;
    call->seconds = cp_clock() - start;
    return status;
}

static cp_status adopt(cp_session *session, call_draft *call) {
    const call_outcome before = session->last;
    session->last.rows = 0;
    CP_TRY(cp_cache_commit(session->cache, call->made.layout));
    session->last = call->made;
    call->made = before; /* to be freed */
    return CP_OK;
}

static void fill_report(const cp_session *session, const call_draft *call,
                        cp_turn_report *report) {
    const int ranks = session->options.ranks;
    const cp_layout *layout = session->last.layout;
    int64_t *figures = session->last.figures;
    for (int r = 0; r < ranks; r++) {
        figures[r] = layout->queries[r].tokens;
        figures[ranks + r] = layout->keys[r].tokens;
        figures[3 * ranks + r] = call->counted.pairs[r];
    }
    *report = (cp_turn_report){.variant = call->choice.variant,
                               .ranks = ranks,
                               .new_tokens = layout->new_tokens,
                               .cached_tokens = layout->cached_tokens,
                               .queries = figures,
                               .keys = figures + ranks,
                               .bytes = figures + 2 * ranks,
                               .pairs = figures + 3 * ranks,
                               .hops = call->counted.hops,
                               .balance = call->counted.balance,
                               .seconds = call->seconds};
    memcpy(report->rule, call->choice.rule, sizeof(report->rule));
    for (int64_t s = 0; s < session->options.sequences; s++)
        report->sequences += call->lengths[s] > 0;
}

static cp_status make_call(cp_session *session, const call_request *request,
                           call_draft *call, cp_turn_report *report) {
    CP_TRY(enter_all(session, request, call));
    CP_TRY(check_tokens(session, call->count, request->tokens));
    CP_TRY(prepare(session, request, call));
    if (report != NULL)
        CP_TRY(cp_plan_check(call->made.plan, &call->counted));
    CP_TRY(run(session, request, call));
    CP_TRY(adopt(session, call));
    if (report != NULL)
        fill_report(session, call, report);
    return CP_OK;
}

static void free_outcome(const call_outcome *left) {
    cp_plan_free(left->plan);
    cp_layout_free(left->layout);
    free(left->figures);
}

static cp_status answer(cp_session *session, const call_request *request,
                        cp_turn_report *report) {
    call_draft call = {.count = 0};
    const cp_status status = make_call(session, request, &call, report);
    cp_plan_report_free(&call.counted);
    free_outcome(&call.made);
    free(call.lengths);
    return status;
}

cp_status cp_session_prefill(cp_session *session, const int64_t *lengths,
                             const int32_t *tokens, cp_turn_report *report) {
    const call_request request = {false, lengths, tokens};
    return answer(session, &request, report);
}

cp_status cp_session_decode(cp_session *session, const int64_t *lengths,
                            const int32_t *tokens, cp_turn_report *report) {
    const call_request request = {true, lengths, tokens};
    for (int64_t s = 0; s < session->options.sequences; s++)
        if (lengths[s] > 1 && cp_facts_is_hybrid(&session->model->facts))
            return cp_refuse("a model with states cannot take tokens back: it "
                             "takes one at a time, not %ld",
                             lengths[s]);
    return answer(session, &request, report);
}

cp_status cp_session_truncate(cp_session *session, int64_t sequence,
                              int64_t length) {
    if (sequence < 0 || sequence >= session->options.sequences)
        return cp_refuse("sequence %ld of %ld", sequence,
                         session->options.sequences);
    if (length > 0 && length != session->cache->length[sequence] &&
        cp_facts_is_hybrid(&session->model->facts))
        return cp_refuse("sequence %ld cannot be cut to %ld tokens: its states "
                         "are those after %ld",
                         sequence, length, session->cache->length[sequence]);
    return cp_cache_truncate(session->cache, sequence, length);
}

cp_status cp_session_fork(cp_session *session, int64_t from, int64_t to,
                          int64_t tokens) {
    if (cp_facts_is_hybrid(&session->model->facts))
        return cp_refuse("sequence %ld cannot begin as sequence %ld: it has "
                         "states of its own",
                         to, from);
    return cp_cache_fork(session->cache, from, to, tokens);
}

cp_status cp_session_logits(const cp_session *session, int64_t first,
                            int64_t count, float *logits) {
    if (first < 0 || count < 1 || first > session->last.rows - count)
        return cp_refuse("logits %ld..%ld of a call of %ld tokens", first,
                         first + count - 1, session->last.rows);
    return cp_engine_logits(session->engine, first, count, logits);
}

cp_status cp_session_draw(const cp_session *session, int64_t count,
                          const int64_t *after, const cp_sampler *samplers,
                          int32_t *tokens) {
    for (int64_t n = 0; n < count; n++)
        if (after[n] < 0 || after[n] >= session->last.rows)
            return cp_refuse("a token after %ld of a call of %ld tokens",
                             after[n], session->last.rows);
    return cp_engine_draw(session->engine, count, after, samplers, tokens);
}

static cp_status check_variant(cp_variant variant) {
    if (cp_variant_decodes(variant))
        return cp_refuse("%s is not a variant of a prefill",
                         cp_variant_name(variant));
    return CP_OK;
}

cp_status cp_session_choose(cp_session *session, cp_variant variant) {
    CP_TRY(check_variant(variant));
    session->options.variant = variant;
    return CP_OK;
}

int64_t cp_session_length(const cp_session *session, int64_t sequence) {
    return session->cache->length[sequence];
}

int64_t cp_session_capacity(const cp_session *session) {
    return session->options.capacity;
}

const cp_plan *cp_session_plan(const cp_session *session) {
    return session->last.plan;
}

cp_status cp_session_trace(const cp_session *session, const char *path,
                           int64_t *lost) {
    if (!session->options.trace)
        return cp_refuse("this session keeps no trace; try options.trace");
    return session->engine->on->trace(session->engine, path, lost);
}

enum { PAGE = 64 }; /* rows */

/* Cache rows of a survivor: a loss makes ranks more uneven than they may be
 * anyway. */
static int64_t rows_left(const cp_session_options *options, int least) {
    const int64_t leaf = cp_ceil_divide(options->capacity, CP_LEAVES);
    if (options->dealing.leaves)
        return cp_ceil_divide(CP_LEAVES, least) * (leaf + CP_LEAF_BLOCK);
    return cp_shard_room(&options->dealing, least, options->capacity) +
           cp_shard_spread(options->ranks) + 3 * options->dealing.block;
}

static cp_status open_cache(cp_session_options *options, cp_cache **out) {
    const int64_t room =
        cp_shard_room(&options->dealing, options->ranks, options->capacity);
    const int least = options->least > 0 ? options->least : options->ranks;
    int64_t most = room, blocks;
    if (least < options->ranks)
        most = options->dealing.weights != NULL
                   ? options->capacity
                   : cp_min(options->capacity, rows_left(options, least));
    if (options->block < 0 || options->rows < 0)
        return cp_refuse("a cache of %ld rows, in pages of %ld; both must be "
                         ">= 0",
                         options->rows, options->block);
    options->block = options->block > 0 ? options->block : PAGE;
    if (!cp_multiply(cp_ceil_divide(most, options->block), options->sequences,
                     &blocks))
        return cp_fail(CP_MEMORY, "%ld sequences of %ld rows overflow",
                       options->sequences, most);
    if (options->rows > 0)
        blocks = cp_min(blocks, options->rows / options->block);
    options->rows = blocks * options->block;
    CP_TRY(cp_cache_new(options->ranks, options->sequences, room, out));
    (*out)->dealing = options->dealing;
    (*out)->wire = options->wire;
    return cp_cache_page(*out, options->block, blocks);
}

/* A state is of consecutive tokens, which only some placements deal out. */
static cp_status check_states(const cp_model_facts *facts,
                              const cp_dealing *how) {
    const cp_placement expected = how->leaves ? CP_INTERLEAVE : CP_ZIGZAG;
    if (cp_facts_is_hybrid(facts) &&
        (how->placement != expected || how->weights != NULL))
        return cp_refuse("a model with states takes equal shares, by zigzag or "
                         "in exact order");
    return CP_OK;
}

cp_status cp_session_open(const cp_model *model,
                          const cp_session_options *options, cp_session **out) {
    const int64_t positions = model->facts.positions;
    CP_TRY(cp_allocate(out, 1, sizeof(cp_session), "a session"));
    cp_session *session = *out;
    session->model = model;
    session->options = *options;
    session->rows = options->rows;
    cp_session_options *resolved = &session->options;
    if (resolved->capacity == 0)
        resolved->capacity = positions;
    if (resolved->capacity < 1 || resolved->capacity > positions)
        return cp_refuse("%ld positions where the model has %ld",
                         resolved->capacity, positions);
    if (resolved->ranks < 1 || resolved->sequences < 1 || resolved->cores < 0)
        return cp_refuse("%d ranks, %ld sequences, %d cores; expected at least "
                         "1, 1 and 0",
                         resolved->ranks, resolved->sequences, resolved->cores);
    CP_TRY(check_variant(resolved->variant));
    CP_TRY(check_states(&model->facts, &resolved->dealing));
    CP_TRY(open_cache(resolved, &session->cache));
    return model->backend->engine_new(model, resolved, &session->engine);
}

void cp_session_close(cp_session *session) {
    if (session == NULL)
        return;
    if (session->engine != NULL)
        cp_engine_free(session->engine);
    free_outcome(&session->last);
    cp_cache_free(session->cache);
    free(session->weights);
    free(session);
}

static cp_status check_elastic(const cp_session *session) {
    const cp_local_ranks *local = &session->engine->local;
    if (local->group != NULL && local->group->ranks > 1)
        return cp_refuse("ranks are %d processes; their number cannot change",
                         local->group->ranks);
    if (session->options.dealing.weights != NULL)
        return cp_refuse("shares are for %d ranks", session->options.ranks);
    if (session->options.trace)
        return cp_refuse("a trace is of %d ranks; try without a trace",
                         session->options.ranks);
    return CP_OK;
}

static cp_status move_to(cp_session *session, cp_session *next,
                         cp_ranks_report *report) {
    CP_TRY(cp_cache_assign_near(next->cache, session->cache));
    CP_TRY(cp_elastic_move(session->cache, session->engine, next->cache,
                           next->engine, report));
    const cp_session before = *session;
    session->options = next->options;
    session->cache = next->cache;
    session->engine = next->engine;
    session->last.rows = 0;
    next->cache = before.cache;
    next->engine = before.engine;
    return CP_OK;
}

cp_status cp_session_ranks(cp_session *session, int ranks,
                           cp_ranks_report *report) {
    const double start = cp_clock();
    cp_session_options options = session->options;
    cp_session *next = NULL;
    options.ranks = ranks;
    options.rows = session->rows;
    CP_TRY(check_elastic(session));
    cp_status status = cp_session_open(session->model, &options, &next);
    if (status == CP_OK)
        status = move_to(session, next, report);
    cp_session_close(next);
    report->seconds = cp_clock() - start;
    return status;
}

cp_status cp_session_assign(cp_session *session, const int64_t *lengths) {
    return cp_cache_assign(session->cache, lengths);
}

cp_status cp_session_rows(cp_session *session, const cp_row_copy *copy) {
    return cp_elastic_rows(session->cache, session->engine, copy);
}

cp_status cp_session_states(cp_session *session, int64_t sequence, bool writes,
                            float *numbers) {
    return cp_engine_states(session->engine, sequence,
                            session->cache->length[sequence], writes, numbers);
}

cp_status cp_model_open(const cp_backend *backend, const cp_gguf *file,
                        cp_model **model) {
    const cp_status status = backend->model_open(file, model);
    if (*model != NULL)
        (*model)->backend = backend;
    return status;
}

void cp_model_close(cp_model *model) {
    if (model != NULL)
        model->backend->model_close(model);
}
