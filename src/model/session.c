/* Tangled from book/12-model.nw; edit the chapter. */
/* Conversations over ranks: check, choose, lay out, plan, run, commit. */
#include "model/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/engine.h"
#include "ring/cache.h"
#include "ring/check.h"

struct cp_session {
    const cp_model *model;
    cp_session_options options;
    cp_cache *cache;
    cp_engine *engine;
    cp_layout *layout; /* of the last successful call, like all below */
    cp_plan *plan;
    int64_t rows;
    int64_t *figures; /* [4][ranks]: queries, keys, bytes, pairs */
};

typedef struct {
    cp_layout *layout;
    cp_plan *plan;
    int64_t *figures;
    int64_t *lengths, *first_row, *first_position; /* [sequences] */
    cp_plan_report counted;
    cp_turn_report report;
    cp_forward forward;
} making;

static void swap(int64_t **a, int64_t **b) {
    int64_t *const kept = *a;
    *a = *b;
    *b = kept;
}

static cp_status check_tokens(const cp_session *session, int64_t count,
                              const int32_t *tokens) {
    const int64_t words = session->model->facts.vocabulary;
    if (count < 1)
        return cp_fail(CP_INVALID, "a call without tokens");
    for (int64_t t = 0; t < count; t++)
        if (tokens[t] < 0 || tokens[t] >= words)
            return cp_fail(CP_INVALID,
                           "token %lld is id %d; the model has %lld",
                           (long long)t, tokens[t], (long long)words);
    return CP_OK;
}

static cp_status check_lengths(const cp_session *session,
                               const int64_t *lengths, int64_t *count) {
    const int64_t most = session->options.capacity;
    *count = 0;
    for (int64_t s = 0; s < session->options.sequences; s++) {
        const int64_t held = session->cache->length[s];
        if (lengths[s] < 0)
            return cp_fail(CP_INVALID, "sequence %lld: %lld new tokens",
                           (long long)s, (long long)lengths[s]);
        if (lengths[s] > most - held)
            return cp_fail(CP_CAPACITY,
                           "sequence %lld has %lld tokens, and %lld more "
                           "would pass its %lld positions",
                           (long long)s, (long long)held, (long long)lengths[s],
                           (long long)most);
        *count += lengths[s];
    }
    return CP_OK;
}

static cp_status decide(const cp_session *session, bool decode, making *call) {
    cp_turn_report *report = &call->report;
    const cp_session_options *options = &session->options;
    report->variant = decode ? CP_DECODE : options->variant;
    snprintf(report->rule, sizeof(report->rule), "%s",
             decode ? "one new token per sequence (Algorithm 4)" : "as asked");
    if (report->variant != CP_AUTO)
        return CP_OK;
    cp_choice choice;
    CP_TRY(cp_choose_by(&options->chooser, session->model->backend->machine,
                        &session->model->facts.shape, options->ranks,
                        options->sequences, call->lengths,
                        session->cache->length, &choice));
    report->variant = choice.variant;
    memcpy(report->rule, choice.rule, sizeof(choice.rule));
    return CP_OK;
}

static cp_status prepare(const cp_session *session, bool decode, making *call) {
    const cp_shape *shape = &session->model->facts.shape;
    const cp_plan_options wanted = {
        session->model->backend->machine->element_bytes, 1};
    CP_TRY(decide(session, decode, call));
    CP_TRY(
        decode
            ? cp_cache_decode(session->cache, call->lengths, &call->layout)
            : cp_cache_prefill(session->cache, call->lengths, &call->layout));
    CP_TRY(cp_plan_build(call->report.variant, call->layout, shape, &wanted,
                         &call->plan));
    return cp_allocate(&call->figures, 4 * session->options.ranks,
                       sizeof(int64_t), "figures of a call");
}

static cp_status run_call(cp_session *session, making *call, int64_t count,
                          const int32_t *tokens) {
    const int ranks = session->options.ranks;
    call->forward = (cp_forward){.plan = call->plan,
                                 .layout = call->layout,
                                 .count = count,
                                 .tokens = tokens,
                                 .first_row = call->first_row,
                                 .first_position = session->cache->length,
                                 .bytes = call->figures + 2 * ranks};
    const double start = cp_clock();
    const cp_status status = cp_engine_run(session->engine, &call->forward);
    call->report.seconds = cp_clock() - start;
    return status;
}

static cp_status adopt(cp_session *session, making *call) {
    const cp_status status = cp_cache_commit(session->cache, call->layout);
    if (status != CP_OK) {
        session->rows = 0;
        return status;
    }
    session->rows = call->forward.count;
    swap(&session->figures, &call->figures);
    cp_plan *plan = session->plan;
    cp_layout *layout = session->layout;
    session->plan = call->plan;
    session->layout = call->layout;
    call->plan = plan;
    call->layout = layout;
    return CP_OK;
}

static void fill_report(const cp_session *session, const making *call,
                        cp_turn_report *report) {
    const int ranks = session->options.ranks;
    const cp_layout *layout = session->layout;
    int64_t *figures = session->figures;
    for (int r = 0; r < ranks; r++) {
        figures[r] = layout->queries[r].tokens;
        figures[ranks + r] = layout->keys[r].tokens;
        figures[3 * ranks + r] = call->counted.pairs[r];
    }
    *report = call->report;
    report->ranks = ranks;
    report->queries = figures;
    report->keys = figures + ranks;
    report->bytes = figures + 2 * ranks;
    report->pairs = figures + 3 * ranks;
    /* Fill in the sums of the report. */
    report->new_tokens = layout->new_tokens;
    report->cached_tokens = layout->cached_tokens;
    report->hops = call->counted.hops;
    report->balance = call->counted.balance;
    for (int64_t s = 0; s < session->options.sequences; s++)
        report->sequences += call->lengths[s] > 0;
}

static cp_status make_call(cp_session *session, bool decode, int64_t count,
                           const int32_t *tokens, making *call,
                           cp_turn_report *report) {
    CP_TRY(check_tokens(session, count, tokens));
    CP_TRY(prepare(session, decode, call));
    if (report != NULL)
        CP_TRY(cp_plan_check(call->plan, &call->counted));
    CP_TRY(run_call(session, call, count, tokens));
    CP_TRY(adopt(session, call));
    if (report != NULL)
        fill_report(session, call, report);
    return CP_OK;
}

static cp_status begin(const cp_session *session, making *call) {
    const int64_t sequences = session->options.sequences;
    *call = (making){.layout = NULL};
    cp_status status = cp_allocate(&call->lengths, 2 * sequences,
                                   sizeof(int64_t), "lengths of a call");
    call->first_row = call->lengths + sequences;
    return status;
}

static void end(making *call) {
    cp_plan_report_free(&call->counted);
    cp_plan_free(call->plan);
    cp_layout_free(call->layout);
    free(call->figures);
    free(call->lengths);
}

cp_status cp_session_prefill(cp_session *session, const int64_t *lengths,
                             const int32_t *tokens, cp_turn_report *report) {
    making call;
    int64_t count = 0;
    cp_status status = begin(session, &call);
    if (status == CP_OK)
        status = check_lengths(session, lengths, &count);
    for (int64_t s = 0, row = 0;
         status == CP_OK && s < session->options.sequences; s++) {
        call.lengths[s] = lengths[s];
        call.first_row[s] = row;
        row += lengths[s];
    }
    if (status == CP_OK)
        status = make_call(session, false, count, tokens, &call, report);
    end(&call);
    return status;
}

static cp_status enter_batch(const cp_session *session, int64_t batch,
                             const int64_t *sequences, making *call) {
    for (int64_t i = 0; i < batch; i++) {
        const int64_t s = sequences[i];
        if (s < 0 || s >= session->options.sequences)
            return cp_fail(CP_INVALID, "sequence %lld of %lld", (long long)s,
                           (long long)session->options.sequences);
        if (call->lengths[s] != 0)
            return cp_fail(CP_INVALID, "sequence %lld is twice in a batch",
                           (long long)s);
        call->lengths[s] = 1;
        call->first_row[s] = i;
    }
    int64_t count;
    return check_lengths(session, call->lengths, &count);
}

cp_status cp_session_decode(cp_session *session, int64_t batch,
                            const int64_t *sequences, const int32_t *tokens,
                            cp_turn_report *report) {
    making call;
    cp_status status = begin(session, &call);
    if (status == CP_OK)
        status = enter_batch(session, batch, sequences, &call);
    if (status == CP_OK)
        status = make_call(session, true, batch, tokens, &call, report);
    end(&call);
    return status;
}

cp_status cp_session_logits(const cp_session *session, int64_t first,
                            int64_t count, float *logits) {
    if (first < 0 || count < 1 || first > session->rows - count)
        return cp_fail(CP_INVALID, "logits %lld..%lld of a call of %lld tokens",
                       (long long)first, (long long)(first + count - 1),
                       (long long)session->rows);
    return cp_engine_logits(session->engine, first, count, logits);
}

cp_status cp_session_choose(cp_session *session, cp_variant variant) {
    if (variant == CP_DECODE)
        return cp_fail(CP_INVALID, "decode is not a variant of a prefill");
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
    return session->plan;
}

cp_status cp_session_trace(const cp_session *session, const char *path) {
    if (!session->options.trace)
        return cp_fail(CP_INVALID, "this session keeps no trace");
    return cp_engine_trace(session->engine, path);
}

static cp_status check_options(const cp_model *model,
                               cp_session_options *options) {
    const int64_t positions = model->facts.positions;
    if (options->capacity == 0)
        options->capacity = positions;
    if (options->capacity < 1 || options->capacity > positions)
        return cp_fail(CP_INVALID, "%lld positions where the model has %lld",
                       (long long)options->capacity, (long long)positions);
    if (options->ranks < 1 || options->sequences < 1 || options->cores < 0)
        return cp_fail(CP_INVALID, "%d ranks, %lld sequences, %d cores",
                       options->ranks, (long long)options->sequences,
                       options->cores);
    if (options->variant == CP_DECODE)
        return cp_fail(CP_INVALID, "decode is not a variant of a prefill");
    return CP_OK;
}

static int64_t rows_of_sequence(const cp_model *model,
                                const cp_session_options *options) {
    const int64_t share = cp_ceil_divide(options->capacity, options->ranks);
    if (!model->backend->reserves)
        return options->capacity;
    return cp_min(options->capacity, share + share / 8 + 64);
}

static cp_status fill_session(const cp_model *model,
                              const cp_session_options *options,
                              cp_session *session) {
    session->model = model;
    session->options = *options;
    cp_session_options *own = &session->options;
    cp_status status = check_options(model, own);
    own->room = status == CP_OK ? rows_of_sequence(model, own) : 0;
    if (status == CP_OK)
        status = cp_cache_new(own->ranks, own->sequences, own->room,
                              &session->cache);
    if (status == CP_OK)
        status = model->backend->engine_new(model, own, &session->engine);
    return status;
}

cp_status cp_session_open(const cp_model *model,
                          const cp_session_options *options, cp_session **out) {
    *out = NULL;
    cp_session *session;
    cp_status status = cp_allocate(&session, 1, sizeof(*session), "a session");
    if (status != CP_OK)
        return status;
    status = fill_session(model, options, session);
    if (status == CP_OK)
        *out = session;
    else
        cp_session_close(session);
    return status;
}

void cp_session_close(cp_session *session) {
    if (session == NULL)
        return;
    if (session->engine != NULL)
        cp_engine_free(session->engine);
    cp_plan_free(session->plan);
    cp_layout_free(session->layout);
    cp_cache_free(session->cache);
    free(session->figures);
    free(session);
}

const cp_backend *cp_backend_find(const char *name) {
    for (int n = 0; cp_backends[n] != NULL; n++)
        if (strcmp(cp_backends[n]->name, name) == 0)
            return cp_backends[n];
    return NULL;
}

cp_status cp_model_open(const cp_backend *backend, const cp_gguf *file,
                        cp_model **model) {
    CP_TRY(backend->model_open(file, model));
    (*model)->backend = backend;
    return CP_OK;
}

void cp_model_close(cp_model *model) {
    if (model != NULL)
        model->backend->model_close(model);
}

const cp_model_facts *cp_model_describe(const cp_model *model) {
    return &model->facts;
}
