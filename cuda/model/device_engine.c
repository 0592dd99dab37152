/* Tangled from book/13-model.nw; edit the chapter. */
/* An engine on GPUs: the host enqueues, and looks at the end. */
#include "cuda/model/device_engine.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/in_order.h"
#include "cuda/kernels/model_kernels.h"
#include "model/blocks.h"

static cp_device_engine *own(const cp_engine *base) {
    return (cp_device_engine *)(uintptr_t)base;
}

static cp_device_forward **pass_of(const cp_engine *base,
                                   const cp_forward *call) {
    cp_device_engine *it = own(base);
    return call->plan->variant == CP_DECODE ? &it->decode : &it->prefill;
}

static cp_status prepare(cp_engine *base, const cp_forward *call) {
    const bool decodes = call->plan->variant == CP_DECODE;
    cp_device_forward **pass = pass_of(base, call);
    cp_device_forward **prefill = &own(base)->prefill;
    if (*pass == NULL)
        CP_TRY(cp_device_forward_new(own(base), decodes, pass));
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
    const cp_device_engine *mine = own(base);
    const cp_status status =
        cp_device_forward_run(*pass_of(base, call), call, hidden);
    if (status != CP_OK)
        cp_queues_drain(mine->queues, mine->count, mine->place->link);
    return status;
}

enum { SCORED = 32 }; /* rows at a time */

static cp_status copy(const cp_engine *base, void *to, const void *from,
                      int64_t bytes) {
    return cp_bytes_copy(to, from, bytes, own(base)->queues[0].compute, "rows");
}

static cp_status settle(const cp_engine *base) {
    return cp_cuda(cudaStreamSynchronize(own(base)->queues[0].compute),
                   "copying rows");
}

static float *scores_of(const cp_device_engine *mine) {
    return (float *)(void *)mine->scores;
}

static cp_status enqueue_scores(const cp_device_engine *mine, int64_t rows) {
    return cp_device_multiply(mine->ranks[0].multiplier,
                              &mine->model->tensors[CP_WEIGHT_OUTPUT], rows,
                              mine->base.input, NULL, false, scores_of(mine),
                              mine->queues[0].compute);
}

static cp_status score(const cp_engine *base, int64_t rows, float *out) {
    const int64_t words = base->model->facts.vocabulary;
    CP_TRY(enqueue_scores(own(base), rows));
    CP_TRY(copy(base, out, own(base)->scores, rows * words * 4));
    return settle(base);
}

static cp_status best(const cp_engine *base, int64_t rows, int32_t *tokens) {
    const cp_device_engine *mine = own(base);
    const int64_t words = base->model->facts.vocabulary;
    int32_t *there = (int32_t *)(void *)(scores_of(mine) + SCORED * words);
    const cp_device_picking call = {rows, words, scores_of(mine), there};
    CP_TRY(enqueue_scores(mine, rows));
    CP_TRY(cp_cuda(cp_device_pick(&call, mine->queues[0].compute),
                   "picking tokens"));
    CP_TRY(copy(base, tokens, there, rows * 4));
    return settle(base);
}

static cp_status trace(const cp_engine *base, const char *path, int64_t *lost) {
    return cp_device_trace_write(own(base)->trace, path, lost);
}

static cp_status make_cache(cp_device_engine *it, cp_device_rank *rank) {
    const cp_model_facts *f = &it->model->base.facts;
    const int64_t row = f->shape.kv_heads * f->shape.head_dim *
                        cp_element_bytes(it->model->element);
    const cp_session_options *options = &it->base.options;
    int64_t bytes;
    if (!cp_multiply(options->rows, row, &it->cache_bytes) ||
        !cp_multiply(it->cache_bytes, 2 * f->layers, &bytes))
        return cp_fail(CP_MEMORY, "a cache of %ld rows overflows",
                       options->rows);
    return cp_device_reserve(bytes, "a rank's cache", &rank->cache);
}

/* All layers have matrices of the same sizes; ranks share a device. */
static cp_status keep_order(const cp_device_engine *it,
                            cp_multiplier *multiplier, int r) {
    static const cp_weight kinds[] = {CP_WEIGHT_OUTPUT, CP_WEIGHT_QUERY,
                                      CP_WEIGHT_ATTENTION_OUTPUT,
                                      CP_WEIGHT_GATE, CP_WEIGHT_DOWN};
    cp_multiplier_keep_order(multiplier);
    for (int n = 0; n < 5 && r == 0; n++)
        CP_TRY(cp_multiplier_try_order(
            multiplier, &it->model->tensors[cp_weight_index(kinds[n], 0)],
            it->queues[0].compute));
    return CP_OK;
}

static cp_status make_rank(cp_device_engine *it, int r) {
    cp_device_rank *rank = &it->ranks[r];
    const int only = it->place->only;
    rank->rank = only == CP_NOBODY ? r : only;
    CP_TRY(cp_queues_new(&it->queues[r]));
    CP_TRY(cp_multiplier_new(&rank->multiplier));
    CP_TRY(cp_multiplier_check(rank->multiplier, it->model->numbers));
    if (it->base.options.dealing.leaves)
        CP_TRY(keep_order(it, rank->multiplier, r));
    return make_cache(it, rank);
}

static cp_status open_engine(cp_engine *base, const void *context) {
    const cp_device_place *place = context;
    const cp_device_model *model = (const cp_device_model *)base->model;
    const cp_model_facts *f = &model->base.facts;
    const int64_t count = place->only == CP_NOBODY ? base->options.ranks : 1;
    cp_device_engine *it = own(base);
    it->model = model;
    it->place = place;
    base->place =
        (cp_engine_place){place->crew, place->only, model->share.parts};
    base->row_bytes = f->width * cp_element_bytes(model->element);
    CP_TRY(cp_allocate(&it->queues, count, sizeof(cp_queues), "ranks"));
    CP_TRY(cp_allocate(&it->ranks, count, sizeof(cp_device_rank), "ranks"));
    it->count = (int)count;
    for (int r = 0; r < it->count; r++)
        CP_TRY(make_rank(it, r));
    for (int n = 0; n < 2; n++)
        CP_TRY(cp_event_new(&it->paced[n]));
    if (base->options.trace)
        CP_TRY(cp_device_trace_new(base->options.ranks, &it->trace));
    return cp_device_reserve(SCORED * 4 * (f->vocabulary + 1),
                             "the output layer", &it->scores);
}

static void free_passes(cp_device_engine *it) {
    cp_device_forward_free(it->decode);
    cp_device_forward_free(it->prefill);
    it->decode = it->prefill = NULL;
}

static void free_rank(cp_device_engine *it, int r) {
    cp_multiplier_free(it->ranks[r].multiplier);
    cudaFree(it->ranks[r].cache);
    cp_queues_free(&it->queues[r]);
}

static void close_engine(cp_engine *base) {
    cp_device_engine *it = own(base);
    free_passes(it);
    cp_device_trace_free(it->trace);
    for (int r = 0; r < it->count; r++)
        free_rank(it, r);
    for (int n = 0; n < 2; n++)
        cp_event_free(it->paced[n]);
    cudaFree(it->scores);
    free(it->ranks);
    free(it->queues);
}

/* Passes, and their graphs, are made for a number of ranks: they are freed
 * here, and made again when they are needed. */
static cp_status lose(cp_engine *base, int rank) {
    cp_device_engine *it = own(base);
    const int only = it->place->only;
    free_passes(it);
    if (only == CP_NOBODY) {
        const size_t after = (size_t)(--it->count - rank);
        free_rank(it, rank);
        memmove(&it->queues[rank], &it->queues[rank + 1],
                after * sizeof(it->queues[0]));
        memmove(&it->ranks[rank], &it->ranks[rank + 1],
                after * sizeof(it->ranks[0]));
    }
    for (int r = 0; r < it->count; r++)
        it->ranks[r].rank = only == CP_NOBODY ? r : only;
    base->place.only = only;
    return CP_OK;
}

static void release(void *memory) {
    cudaFree(memory);
}

static cp_status move(cp_engine *base, int n, const cp_moves *moves) {
    const cp_device_engine *mine = own(base);
    const cp_model_facts *f = &base->model->facts;
    const int64_t row = mine->cache_bytes / base->options.rows;
    for (int64_t tensor = 0; tensor < 2 * f->layers; tensor++) {
        char *rows = mine->ranks[n].cache + tensor * mine->cache_bytes;
        for (int64_t m = 0; m < moves->count; m++)
            CP_TRY(cp_bytes_copy(rows + moves->items[m].to * row,
                                 rows + moves->items[m].from * row,
                                 moves->items[m].count * row,
                                 mine->queues[n].compute, "rows of a cache"));
    }
    return CP_OK;
}

static void to_element(cp_element element, int64_t count, const float *from,
                       char *to) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], 4);
        const uint16_t half =
            (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        if (element == CP_F32)
            memcpy(to + 4 * i, &bits, 4);
        else
            memcpy(to + 2 * i, &half, 2);
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
    const cp_device_engine *mine = own(base);
    const cp_element element = mine->model->element;
    const int64_t row = mine->cache_bytes / base->options.rows;
    const int64_t bytes = call->count * row;
    const int64_t count = bytes / cp_element_bytes(element);
    float *const here[] = {call->keys, call->values};
    char *staged;
    CP_TRY(cp_allocate(&staged, bytes, 1, "rows of a cache"));
    cp_status status = CP_OK;
    for (int t = 0; t < 2 && status == CP_OK; t++) {
        char *there = mine->ranks[n].cache +
                      (2 * call->layer + t) * mine->cache_bytes +
                      call->row * row;
        if (call->writes)
            to_element(element, count, here[t], staged);
        status = cp_bytes_copy(call->writes ? there : staged,
                               call->writes ? staged : there, bytes,
                               mine->queues[n].compute, "rows of a cache");
        if (status == CP_OK)
            status = cp_cuda(cudaStreamSynchronize(mine->queues[n].compute),
                             "copying rows of a cache");
        if (!call->writes && status == CP_OK)
            from_element(element, count, staged, here[t]);
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
                                        .settle = settle,
                                        .score = score,
                                        .best = best,
                                        .trace = trace};

cp_status cp_device_engine_new(const cp_device_place *place,
                               const cp_model *model,
                               const cp_session_options *options,
                               cp_engine **out) {
    return cp_engine_new(&on_queues, place, model, options, out);
}
