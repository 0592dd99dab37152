/* Tangled from book/13-model.nw; edit the chapter. */
/* An engine on GPUs: the host enqueues, and looks at the end. */
#include "cuda/model/device_engine.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/in_order.h"
#include "cuda/kernels/model_kernels.h"
#include "model/blocks.h"
#include "tokens/encoding.h"

static cp_device_engine *engine_of(const cp_engine *base) {
    return (cp_device_engine *)(uintptr_t)base;
}

static cp_device_forward **pass_of(const cp_engine *base,
                                   const cp_forward *call) {
    cp_device_engine *engine = engine_of(base);
    return call->plan->variant == CP_DECODE ? &engine->decode
                                            : &engine->prefill;
}

static cp_status prepare(cp_engine *base, const cp_forward *call) {
    const bool decodes = call->plan->variant == CP_DECODE;
    cp_device_forward **pass = pass_of(base, call);
    cp_device_forward **prefill = &engine_of(base)->prefill;
    if (*pass == NULL)
        CP_TRY(cp_device_forward_new(engine_of(base), decodes, pass));
    const cp_status status = cp_device_forward_serve(*pass, call);
    if (status != CP_MEMORY || !decodes || *prefill == NULL)
        return status;
    cp_device_forward_free(*prefill);
    *prefill = NULL;
    cp_device_forward_leave(*pass);
    return cp_device_forward_serve(*pass, call);
}

static void ended(cp_engine *base, const cp_forward *call, cp_status status) {
    cp_device_forward *pass = *pass_of(base, call);
    if (pass != NULL && (status != CP_OK || call->plan->variant != CP_DECODE))
        cp_device_forward_leave(pass);
}

static cp_status run(cp_engine *base, const cp_forward *call,
                     const cp_hidden *hidden) {
    const cp_device_engine *engine = engine_of(base);
    const cp_status status =
        cp_device_forward_run(*pass_of(base, call), call, hidden);
    if (status != CP_OK)
        cp_queues_drain(engine->queues, engine->count, engine->runner->link);
    return status;
}

enum { SCORED = 32 }; /* rows at a time */

static cp_status copy(const cp_engine *base, void *to, const void *from,
                      int64_t bytes) {
    return cp_bytes_copy(to, from, bytes, engine_of(base)->queues[0].compute,
                         "rows");
}

static cp_status synchronize(const cp_engine *base) {
    return cp_cuda(cudaStreamSynchronize(engine_of(base)->queues[0].compute),
                   "copying rows");
}

static float *scores_of(const cp_device_engine *engine) {
    return (float *)(void *)engine->scores;
}

static cp_status enqueue_scores(const cp_device_engine *engine, int64_t rows) {
    return cp_device_multiply(engine->ranks[0].multiplier,
                              &engine->model->tensors[CP_WEIGHT_OUTPUT], rows,
                              engine->base.input, NULL, false,
                              scores_of(engine), engine->queues[0].compute);
}

static cp_status score(const cp_engine *base, int64_t rows, float *out) {
    const int64_t words = base->model->facts.vocabulary;
    CP_TRY(enqueue_scores(engine_of(base), rows));
    CP_TRY(copy(base, out, engine_of(base)->scores, rows * words * 4));
    return synchronize(base);
}

static cp_status best(const cp_engine *base, int64_t rows, int32_t *tokens) {
    const cp_device_engine *engine = engine_of(base);
    const int64_t words = base->model->facts.vocabulary;
    int32_t *best_tokens =
        (int32_t *)(void *)(scores_of(engine) + SCORED * words);
    const cp_device_argmax_args call = {rows, words, scores_of(engine),
                                        best_tokens};
    CP_TRY(enqueue_scores(engine, rows));
    CP_TRY(cp_cuda(cp_device_argmax(&call, engine->queues[0].compute),
                   "picking tokens"));
    CP_TRY(copy(base, tokens, best_tokens, rows * 4));
    return synchronize(base);
}

static cp_status trace(const cp_engine *base, const char *path, int64_t *lost) {
    return cp_device_trace_write(engine_of(base)->trace, path, lost);
}

static cp_status make_cache(cp_device_engine *engine, cp_device_rank *rank) {
    const cp_model_facts *f = &engine->model->base.facts;
    const int64_t row = f->shape.kv_heads * f->shape.head_dim *
                        cp_element_bytes(engine->model->element);
    const cp_session_options *options = &engine->base.options;
    int64_t bytes;
    if (!cp_multiply(options->rows, row, &engine->cache_bytes) ||
        !cp_multiply(engine->cache_bytes, 2 * cp_facts_attending(f, f->layers),
                     &bytes))
        return cp_fail(CP_MEMORY, "a cache of %ld rows overflows",
                       options->rows);
    return cp_device_reserve(bytes, "a rank's cache", &rank->cache);
}

/* Matrices of a kind have one size in all layers; ranks share a device. A
 * hybrid's first layer has a state, and does not attend. */
static cp_status keep_order(const cp_device_engine *engine,
                            cp_multiplier *multiplier, int r) {
    const cp_model_facts *f = &engine->model->base.facts;
    const int64_t last = cp_facts_is_hybrid(f) ? f->states.period - 1 : 0;
    const cp_mixer mixers[] = {cp_facts_mixer(f, 0), cp_facts_mixer(f, last)};
    const int64_t kinds[] = {
        CP_WEIGHT_OUTPUT,
        cp_weight_index(CP_WEIGHT_GATE, 0),
        cp_weight_index(CP_WEIGHT_DOWN, 0),
        cp_weight_index(mixers[0].first, 0),
        cp_weight_index(mixers[0].output, 0),
        cp_weight_index(mixers[1].first, last),
        cp_weight_index(mixers[1].output, last),
    };
    cp_multiplier_keep_order(multiplier);
    for (int n = 0; n < (last > 0 ? 7 : 5) && r == 0; n++)
        CP_TRY(cp_multiplier_try_order(multiplier,
                                       &engine->model->tensors[kinds[n]],
                                       engine->queues[0].compute));
    return CP_OK;
}

static cp_status make_rank(cp_device_engine *engine, int r) {
    cp_device_rank *rank = &engine->ranks[r];
    const int only = engine->runner->only;
    rank->rank = only == CP_NO_RANK ? r : only;
    CP_TRY(cp_queues_new(&engine->queues[r]));
    CP_TRY(cp_multiplier_new(&rank->multiplier));
    CP_TRY(cp_multiplier_check(rank->multiplier, engine->model->numbers));
    if (engine->base.options.dealing.leaves)
        CP_TRY(keep_order(engine, rank->multiplier, r));
    return make_cache(engine, rank);
}

static cp_status open_engine(cp_engine *base, const void *context) {
    const cp_device_runner *runner = context;
    const cp_device_model *model = (const cp_device_model *)base->model;
    const cp_model_facts *f = &model->base.facts;
    const int64_t count = runner->only == CP_NO_RANK ? base->options.ranks : 1;
    cp_device_engine *engine = engine_of(base);
    engine->model = model;
    engine->runner = runner;
    base->local =
        (cp_local_ranks){runner->group, runner->only, model->slice.parts};
    base->row_bytes = f->width * cp_element_bytes(model->element);
    CP_TRY(cp_allocate(&engine->queues, count, sizeof(cp_queues), "ranks"));
    CP_TRY(cp_allocate(&engine->ranks, count, sizeof(cp_device_rank), "ranks"));
    engine->count = (int)count;
    for (int r = 0; r < engine->count; r++)
        CP_TRY(make_rank(engine, r));
    for (int n = 0; n < 2; n++)
        CP_TRY(cp_event_new(&engine->paced[n]));
    if (base->options.trace)
        CP_TRY(cp_device_trace_new(base->options.ranks, &engine->trace));
    const cp_queued_ranks ranks = {runner->only, engine->count, engine->queues};
    if (cp_facts_is_hybrid(f))
        CP_TRY(cp_device_states_new(&ranks, &engine->states));
    return cp_device_reserve(SCORED * 4 * (f->vocabulary + 1),
                             "the output layer", &engine->scores);
}

static void free_passes(cp_device_engine *engine) {
    cp_device_forward_free(engine->decode);
    cp_device_forward_free(engine->prefill);
    engine->decode = engine->prefill = NULL;
}

static void free_rank(cp_device_engine *engine, int r) {
    cp_multiplier_free(engine->ranks[r].multiplier);
    cudaFree(engine->ranks[r].cache);
    cp_queues_free(&engine->queues[r]);
}

static void close_engine(cp_engine *base) {
    cp_device_engine *engine = engine_of(base);
    free_passes(engine);
    cp_device_states_free(engine->states);
    cp_device_trace_free(engine->trace);
    for (int r = 0; r < engine->count; r++)
        free_rank(engine, r);
    for (int n = 0; n < 2; n++)
        cp_event_free(engine->paced[n]);
    cudaFree(engine->scores);
    free(engine->ranks);
    free(engine->queues);
}

/* Passes, and their graphs, are made for a number of ranks: they are freed
 * here, and made again when they are needed. */
static cp_status lose(cp_engine *base, int rank) {
    cp_device_engine *engine = engine_of(base);
    const int only = engine->runner->only;
    free_passes(engine);
    cp_device_states_lose(engine->states, only);
    if (only == CP_NO_RANK) {
        const size_t after = (size_t)(--engine->count - rank);
        free_rank(engine, rank);
        memmove(&engine->queues[rank], &engine->queues[rank + 1],
                after * sizeof(engine->queues[0]));
        memmove(&engine->ranks[rank], &engine->ranks[rank + 1],
                after * sizeof(engine->ranks[0]));
    }
    for (int r = 0; r < engine->count; r++)
        engine->ranks[r].rank = only == CP_NO_RANK ? r : only;
    base->local.only = only;
    return CP_OK;
}

static void release(void *memory) {
    cudaFree(memory);
}

static cp_status move(cp_engine *base, int n, const cp_moves *moves) {
    const cp_device_engine *engine = engine_of(base);
    const cp_model_facts *f = &base->model->facts;
    const int64_t row = engine->cache_bytes / base->options.rows;
    const int64_t tensors = 2 * cp_facts_attending(f, f->layers);
    for (int64_t tensor = 0; tensor < tensors; tensor++) {
        char *rows = engine->ranks[n].cache + tensor * engine->cache_bytes;
        for (int64_t m = 0; m < moves->count; m++)
            CP_TRY(cp_bytes_copy(rows + moves->items[m].to * row,
                                 rows + moves->items[m].from * row,
                                 moves->items[m].count * row,
                                 engine->queues[n].compute, "rows of a cache"));
    }
    return CP_OK;
}

static void to_element(cp_element element, int64_t count, const float *from,
                       char *to) {
    for (int64_t i = 0; i < count; i++) {
        const uint16_t rounded = (uint16_t)cp_bf16_of(from[i]);
        if (element == CP_F32)
            memcpy(to + 4 * i, &from[i], 4);
        else
            memcpy(to + 2 * i, &rounded, 2);
    }
}

static void from_element(cp_element element, int64_t count, const char *from,
                         float *to) {
    for (int64_t i = 0; i < count; i++)
        if (element == CP_F32)
            memcpy(&to[i], from + 4 * i, 4);
        else
            to[i] = cp_value_bf16((const unsigned char *)from + 2 * i, 0);
}

static cp_status rows(cp_engine *base, int n, const cp_row_copy *call) {
    const cp_device_engine *engine = engine_of(base);
    const cp_element element = engine->model->element;
    const int64_t row = engine->cache_bytes / base->options.rows;
    const int64_t bytes = call->count * row;
    const int64_t count = bytes / cp_element_bytes(element);
    float *const buffers[] = {call->keys, call->values};
    char *staged;
    CP_TRY(cp_allocate(&staged, bytes, 1, "rows of a cache"));
    cp_status status = CP_OK;
    for (int t = 0; t < 2 && status == CP_OK; t++) {
        char *cached = engine->ranks[n].cache +
                       (2 * call->layer + t) * engine->cache_bytes +
                       call->row * row;
        if (call->writes)
            to_element(element, count, buffers[t], staged);
        status = cp_bytes_copy(call->writes ? cached : staged,
                               call->writes ? staged : cached, bytes,
                               engine->queues[n].compute, "rows of a cache");
        if (status == CP_OK)
            status = cp_cuda(cudaStreamSynchronize(engine->queues[n].compute),
                             "copying rows of a cache");
        if (!call->writes && status == CP_OK)
            from_element(element, count, staged, buffers[t]);
    }
    free(staged);
    return status;
}

static const cp_engine_ops on_queues = {.size = sizeof(cp_device_engine),
                                        .scored = SCORED,
                                        .open = open_engine,
                                        .close = close_engine,
                                        .reserve = cp_device_reserve,
                                        .release = release,
                                        .prepare = prepare,
                                        .run = run,
                                        .move = move,
                                        .rows = rows,
                                        .lose = lose,
                                        .ended = ended,
                                        .copy = copy,
                                        .synchronize = synchronize,
                                        .score = score,
                                        .best = best,
                                        .trace = trace};

cp_status cp_device_engine_new(const cp_device_runner *runner,
                               const cp_model *model,
                               const cp_session_options *options,
                               cp_engine **out) {
    return cp_engine_new(&on_queues, runner, model, options, out);
}
