/* Tangled from book/13-model.nw; edit the chapter. */
/* The life of an engine: the host enqueues, and looks only at the end. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "cuda/model/device_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda/kernels/device.h"
#include "cuda/model/device_forward.h"
#include "cuda/ring/graph.h"
#include "ring/agree.h"

/* A forward pass, and what is known of its last run. */
typedef struct {
    cp_device_forward *forward; /* or NULL */
    bool warm;                  /* has run once */
    cp_graph *graph;            /* of a decode step; or NULL */
} pass;

/* Where the hidden state of a token is. */
typedef struct {
    int rank;
    int64_t row;
} owner;

struct cp_engine {
    const cp_device_place *place;
    cp_session_options options;
    cp_device_ranks mine;
    cp_queues *queues; /* [mine.count] of the ranks here */
    pass decode;
    void **kept[2];   /* [mine.count] hidden states on the device */
    int64_t *room[2]; /* [mine.count] their bytes */
    int now;          /* which of the two is valid */
    owner *owners;    /* [tokens] of the last call that went well */
    int64_t tokens;
    char *scores; /* room for a few rows of logits, and their input */
    cudaEvent_t paced[2];
};

static bool wants_to_stop(const cp_engine *engine) {
    return engine->options.stop != NULL && *engine->options.stop != 0;
}

static cp_status check_peers(const cp_device_place *place, int64_t layer,
                             double waited) {
    if (place->link == NULL)
        return CP_OK;
    if (place->patience > 0 && waited > place->patience)
        return cp_fail(CP_BROKEN, "rank %d waited %g s for layer %lld",
                       place->only, place->patience, (long long)layer);
    return place->link->check(place->link->context);
}

static cp_status wait_for(const cp_engine *engine, int64_t layer) {
    const struct timespec pause = {0, 20000};
    const double began = cp_clock();
    cudaEvent_t event = engine->paced[layer % 2];
    cudaError_t error;
    cp_status status = CP_OK;
    while ((error = cudaEventQuery(event)) == cudaErrorNotReady &&
           status == CP_OK) {
        status = check_peers(engine->place, layer, cp_clock() - began);
        nanosleep(&pause, NULL);
    }
    return status == CP_OK ? cp_cuda(error, "waiting for a layer") : status;
}

static int64_t layers_of(const cp_engine *engine) {
    return engine->mine.model->base.facts.layers;
}

static cp_status pace(cp_engine *engine, int64_t layer) {
    const cp_session_options *options = &engine->options;
    const int64_t layers = layers_of(engine);
    cp_status status = CP_OK;
    if (layer >= 2)
        status = wait_for(engine, layer - 2);
    if (status == CP_OK && engine->place->crew == NULL && wants_to_stop(engine))
        return cp_fail(CP_INTERRUPTED, "stopped after %lld of %lld layers",
                       (long long)cp_max(0, layer - 1), (long long)layers);
    if (status == CP_OK && layer >= 2 && options->progress != NULL)
        options->progress(options->progress_context, layer - 1, layers);
    return status;
}

static cp_status run_prefill(cp_engine *engine, cp_device_forward *forward) {
    cp_status status = cp_device_forward_begin(forward);
    for (int64_t n = 0; n < layers_of(engine); n++) {
        if (status == CP_OK)
            status = pace(engine, n);
        if (status == CP_OK)
            status = cp_device_forward_layer(forward, n);
        if (status == CP_OK)
            status = cp_cuda(cudaEventRecord(engine->paced[n % 2],
                                             engine->queues[0].compute),
                             "recording an event");
    }
    return status;
}

static void drain(cp_engine *engine) {
    const cp_link *link = engine->place->link;
    if (link != NULL)
        link->abort(link->context);
    for (int s = 0; s < engine->mine.count; s++) {
        cudaStreamSynchronize(engine->queues[s].communication);
        cudaStreamSynchronize(engine->queues[s].compute);
    }
}

static cp_status enqueue_step(void *context) {
    const cp_engine *engine = context;
    cp_device_forward *forward = engine->decode.forward;
    cp_status status = cp_device_forward_begin(forward);
    for (int64_t n = 0; n < layers_of(engine) && status == CP_OK; n++)
        status = cp_device_forward_layer(forward, n);
    return status;
}

static cp_status run_step(cp_engine *engine) {
    pass *step = &engine->decode;
    cp_status status = CP_OK;
    if (!step->warm || !engine->place->graphs || engine->mine.trace != NULL)
        return enqueue_step(engine);
    if (step->graph == NULL)
        status = cp_graph_capture(engine->queues, engine->mine.count,
                                  enqueue_step, engine, &step->graph);
    return status == CP_OK ? cp_graph_launch(step->graph) : status;
}

enum { GROWTH = 64 }; /* tiles of keys by which lists may grow */

static void free_pass(pass *it) {
    cp_device_forward_free(it->forward);
    cp_graph_free(it->graph);
    *it = (pass){0};
}

static cp_status renew(cp_engine *engine, const cp_forward *call) {
    pass *step = &engine->decode;
    cp_status status = CP_CAPACITY;
    if (step->forward != NULL)
        status = cp_device_forward_renew(step->forward, call);
    if (status != CP_CAPACITY && status != CP_INVALID)
        return status;
    free_pass(step);
    return cp_device_forward_new(&engine->mine, call, GROWTH, &step->forward);
}

static cp_status by_crew(void *context, void *items, int64_t bytes) {
    const cp_crew *crew = context;
    return crew->collect(items, bytes);
}

static cp_status agree(const cp_engine *engine, const cp_forward *call) {
    const cp_crew *crew = engine->place->crew;
    if (crew == NULL)
        return CP_OK;
    const int64_t bytes = call->count * (int64_t)sizeof(int32_t);
    return cp_agree_by(by_crew, (void *)(uintptr_t)crew, crew->rank,
                       crew->ranks, call->plan,
                       cp_fingerprint(call->tokens, bytes, 1));
}

cp_status cp_device_all_ready(const cp_crew *crew, cp_status mine) {
    int32_t *all;
    if (crew == NULL)
        return mine;
    char why[512];
    snprintf(why, sizeof(why), "%s", cp_message());
    cp_status status =
        cp_allocate(&all, crew->ranks, sizeof(*all), "whether all are ready");
    if (status != CP_OK)
        return status;
    all[crew->rank] = (int32_t)mine;
    status = crew->collect(all, sizeof(*all));
    for (int r = 0; r < crew->ranks && status == CP_OK; r++)
        if (all[r] == CP_INTERRUPTED)
            status = cp_fail(CP_INTERRUPTED, "stopped before a call");
    for (int r = 0; r < crew->ranks && status == CP_OK; r++)
        if (all[r] != CP_OK && mine == CP_OK)
            status = cp_fail(CP_ABORTED, "rank %d could not begin", r);
    free(all);
    return mine == CP_OK || status != CP_OK ? status : cp_fail(mine, "%s", why);
}

static void list_owners(const cp_forward *call, int rank, owner *owners) {
    const cp_pieces *pieces = &call->layout->queries[rank].pieces;
    int64_t row = 0;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        for (int64_t t = 0; t < span.count; t++)
            owners[cp_forward_token(call, span.sequence,
                                    span.start + t * span.step)] =
                (owner){rank, row++};
    }
}

static int64_t row_bytes(const cp_engine *engine) {
    const cp_device_model *model = engine->mine.model;
    return model->base.facts.width * cp_element_bytes(model->element);
}

static cp_status make_room(cp_engine *engine,
                           const cp_device_forward *forward) {
    const int next = 1 - engine->now;
    cp_status status = CP_OK;
    for (int s = 0; s < engine->mine.count && status == CP_OK; s++) {
        const int64_t bytes =
            cp_device_forward_rows(forward, s) * row_bytes(engine);
        char *memory;
        if (engine->room[next][s] >= bytes)
            continue;
        cudaFree(engine->kept[next][s]);
        engine->room[next][s] = 0;
        status = cp_device_reserve(bytes, "hidden states", &memory);
        engine->kept[next][s] = memory;
        engine->room[next][s] = status == CP_OK ? bytes : 0;
    }
    return status;
}

static cp_status prepare(cp_engine *engine, const cp_forward *call, pass *it,
                         owner **owners) {
    cp_status status = agree(engine, call);
    if (status != CP_OK)
        return status;
    status =
        cp_allocate(owners, call->count, sizeof(owner), "owners of tokens");
    for (int r = 0; r < engine->options.ranks && status == CP_OK; r++)
        list_owners(call, r, *owners);
    if (status == CP_OK)
        status =
            it == &engine->decode
                ? renew(engine, call)
                : cp_device_forward_new(&engine->mine, call, 0, &it->forward);
    if (status == CP_OK)
        status = make_room(engine, it->forward);
    if (status == CP_OK && engine->place->crew != NULL && wants_to_stop(engine))
        status = CP_INTERRUPTED;
    return cp_device_all_ready(engine->place->crew, status);
}

static cp_status run_on(cp_engine *engine, const cp_forward *call, pass *it) {
    const cp_device_place *place = engine->place;
    const double patience = place->link != NULL ? place->patience : 0.0;
    cp_device_forward_write(it->forward, call);
    cp_status status = it == &engine->decode ? run_step(engine)
                                             : run_prefill(engine, it->forward);
    if (status == CP_OK)
        status = cp_device_forward_finish(it->forward, patience,
                                          engine->kept[1 - engine->now]);
    if (status != CP_OK) {
        char why[512];
        snprintf(why, sizeof(why), "%s", cp_message());
        drain(engine);
        return cp_fail(status, "%s", why);
    }
    it->warm = true;
    cp_device_forward_bytes(it->forward, call->bytes);
    return CP_OK;
}

static cp_status collect_bytes(const cp_engine *engine,
                               const cp_forward *call) {
    const cp_crew *crew = engine->place->crew;
    const int parts = engine->mine.model->share.parts;
    int64_t *all;
    cp_status status =
        cp_allocate(&all, crew->ranks, sizeof(int64_t), "bytes sent");
    if (status != CP_OK)
        return status;
    all[crew->rank] = call->bytes[engine->place->only];
    status = crew->collect(all, sizeof(int64_t));
    for (int r = 0; r < engine->options.ranks; r++)
        call->bytes[r] = 0;
    for (int r = 0; r < crew->ranks && status == CP_OK; r++)
        call->bytes[r / parts] += all[r];
    free(all);
    return status;
}

cp_status cp_device_engine_run(cp_engine *engine, const cp_forward *call) {
    const bool decode = call->plan->variant == CP_DECODE;
    pass prefill = {0};
    pass *it = decode ? &engine->decode : &prefill;
    owner *owners = NULL;
    cp_status status = prepare(engine, call, it, &owners);
    if (status == CP_OK)
        status = run_on(engine, call, it);
    if (status == CP_OK && engine->place->crew != NULL)
        status = collect_bytes(engine, call);
    if (status == CP_OK) {
        free(engine->owners);
        engine->owners = owners;
        engine->tokens = call->count;
        engine->now = 1 - engine->now;
    } else {
        free(owners);
    }
    if (status != CP_OK || !decode)
        free_pass(it);
    return status;
}

enum { SCORED = 32 }; /* rows at a time */

static cp_status bring_row(const cp_engine *engine, int seat, int64_t row,
                           void *to) {
    const int64_t bytes = row_bytes(engine);
    const char *rows = engine->kept[engine->now][seat];
    return cp_cuda(cudaMemcpyAsync(to, rows + row * bytes, (size_t)bytes,
                                   cudaMemcpyDefault,
                                   engine->queues[0].compute),
                   "bringing a row");
}

static cp_status bring_rows(const cp_engine *engine, int64_t first,
                            int64_t rows) {
    const int64_t bytes = row_bytes(engine);
    cp_status status = CP_OK;
    for (int64_t n = 0; n < rows && status == CP_OK; n++) {
        const owner from = engine->owners[first + n];
        status =
            bring_row(engine, from.rank, from.row, engine->scores + n * bytes);
    }
    return status;
}

static cp_status collect_rows(const cp_engine *engine, int64_t first,
                              int64_t rows) {
    const cp_crew *crew = engine->place->crew;
    const int64_t bytes = row_bytes(engine);
    const int parts = engine->mine.model->share.parts;
    cudaStream_t stream = engine->queues[0].compute;
    char *all;
    cp_status status =
        cp_allocate(&all, crew->ranks, rows * bytes, "hidden states");
    if (status != CP_OK)
        return status;
    for (int64_t n = 0; n < rows && status == CP_OK; n++) {
        const owner from = engine->owners[first + n];
        if (from.rank * parts == crew->rank)
            status = bring_row(engine, 0, from.row,
                               all + (crew->rank * rows + n) * bytes);
    }
    if (status == CP_OK)
        status = cp_cuda(cudaStreamSynchronize(stream), "bringing rows");
    if (status == CP_OK)
        status = crew->collect(all, rows * bytes);
    for (int64_t n = 0; n < rows && status == CP_OK; n++) {
        const char *row =
            all + (engine->owners[first + n].rank * parts * rows + n) * bytes;
        status = cp_cuda(cudaMemcpy(engine->scores + n * bytes, row,
                                    (size_t)bytes, cudaMemcpyHostToDevice),
                         "bringing a row");
    }
    free(all);
    return status;
}

static cp_status score(const cp_engine *engine, int64_t rows, float *out) {
    const cp_device_model *model = engine->mine.model;
    const int64_t words = model->base.facts.vocabulary;
    cudaStream_t stream = engine->queues[0].compute;
    float *scores =
        (float *)(void *)(engine->scores + SCORED * row_bytes(engine));
    cp_status status =
        cp_device_multiply(engine->mine.ranks[0].multiplier, &model->output,
                           rows, engine->scores, NULL, false, scores, stream);
    if (status == CP_OK)
        status =
            cp_cuda(cudaMemcpyAsync(out, scores, (size_t)(rows * words * 4),
                                    cudaMemcpyDeviceToHost, stream),
                    "bringing scores");
    return status == CP_OK
               ? cp_cuda(cudaStreamSynchronize(stream), "scoring tokens")
               : status;
}

cp_status cp_device_engine_logits(const cp_engine *engine, int64_t first,
                                  int64_t count, float *out) {
    const int64_t words = engine->mine.model->base.facts.vocabulary;
    const cp_crew *crew = engine->place->crew;
    cp_status status = CP_OK;
    for (int64_t n = 0; n < count && status == CP_OK; n += SCORED) {
        const int64_t rows = cp_min(SCORED, count - n);
        status = crew == NULL ? bring_rows(engine, first + n, rows)
                              : collect_rows(engine, first + n, rows);
        if (status == CP_OK && (crew == NULL || crew->rank == 0))
            status = score(engine, rows, out + n * words);
    }
    if (status == CP_OK && crew != NULL)
        status = crew->share(out, count * words * (int64_t)sizeof(float));
    return status;
}

static cp_status make_cache(cp_engine *engine, cp_device_rank *rank) {
    const cp_device_model *model = engine->mine.model;
    const cp_model_facts *f = &model->base.facts;
    const int64_t row = f->shape.kv_heads * f->shape.head_dim *
                        cp_element_bytes(model->element);
    int64_t rows, bytes;
    if (!cp_multiply(engine->options.sequences, engine->options.room, &rows) ||
        !cp_multiply(rows, row, &engine->mine.cache_bytes) ||
        !cp_multiply(engine->mine.cache_bytes, 2 * f->layers, &bytes))
        return cp_fail(CP_MEMORY, "%lld sequences of %lld tokens overflow",
                       (long long)engine->options.sequences,
                       (long long)engine->options.room);
    return cp_device_reserve(bytes, "a rank's cache", &rank->cache);
}

static cp_status make_rank(cp_engine *engine, int s) {
    cp_device_rank *rank = &engine->mine.ranks[s];
    const int only = engine->place->only;
    rank->rank = only == CP_NOBODY ? s : only;
    cp_status status = cp_queues_new(&rank->queues);
    engine->queues[s] = rank->queues;
    if (status == CP_OK)
        status = cp_multiplier_new(&rank->multiplier);
    if (status == CP_OK)
        status =
            cp_multiplier_check(rank->multiplier, engine->mine.model->numbers);
    return status == CP_OK ? make_cache(engine, rank) : status;
}

static cp_status make_events(cp_engine *engine) {
    cp_status status = CP_OK;
    for (int n = 0; n < 2 && status == CP_OK; n++)
        status = cp_cuda(
            cudaEventCreateWithFlags(&engine->paced[n], cudaEventDisableTiming),
            "making an event");
    return status;
}

static cp_status make_tables(cp_engine *engine) {
    const int64_t count = engine->mine.count;
    cp_status status = cp_allocate(&engine->mine.ranks, count,
                                   sizeof(cp_device_rank), "ranks");
    if (status == CP_OK)
        status =
            cp_allocate(&engine->queues, count, sizeof(cp_queues), "ranks");
    if (status == CP_OK)
        status =
            cp_allocate(&engine->kept[0], 2 * count, sizeof(void *), "ranks");
    if (status == CP_OK)
        status =
            cp_allocate(&engine->room[0], 2 * count, sizeof(int64_t), "ranks");
    if (status == CP_OK) {
        engine->kept[1] = engine->kept[0] + count;
        engine->room[1] = engine->room[0] + count;
    }
    return status;
}

static cp_status fill_engine(cp_engine *engine) {
    const int64_t words = engine->mine.model->base.facts.vocabulary;
    cp_status status = make_tables(engine);
    for (int s = 0; s < engine->mine.count && status == CP_OK; s++)
        status = make_rank(engine, s);
    if (status == CP_OK)
        status = make_events(engine);
    if (status == CP_OK && engine->options.trace)
        status =
            cp_device_trace_new(engine->options.ranks, &engine->mine.trace);
    return status == CP_OK
               ? cp_device_reserve(SCORED * (row_bytes(engine) + 4 * words),
                                   "the output layer", &engine->scores)
               : status;
}

void cp_device_engine_free(cp_engine *engine) {
    free_pass(&engine->decode);
    cp_device_trace_free(engine->mine.trace);
    for (int s = 0; engine->mine.ranks != NULL && s < engine->mine.count; s++) {
        cp_device_rank *rank = &engine->mine.ranks[s];
        cp_multiplier_free(rank->multiplier);
        cudaFree(rank->cache);
        cp_queues_free(&rank->queues);
    }
    for (int n = 0; engine->kept[0] != NULL && n < 2 * engine->mine.count; n++)
        cudaFree(engine->kept[0][n]);
    for (int n = 0; n < 2; n++)
        if (engine->paced[n] != NULL)
            cudaEventDestroy(engine->paced[n]);
    cudaFree(engine->scores);
    free(engine->mine.ranks);
    free(engine->queues);
    free(engine->kept[0]);
    free(engine->room[0]);
    free(engine->owners);
    free(engine);
}

cp_status cp_device_engine_new(const cp_device_place *place,
                               const cp_model *model,
                               const cp_session_options *options,
                               cp_engine **out) {
    cp_engine *engine;
    cp_status status = cp_allocate(&engine, 1, sizeof(*engine), "an engine");
    if (status != CP_OK)
        return status;
    engine->place = place;
    engine->options = *options;
    engine->mine = (cp_device_ranks){
        .model = cp_device_model_of(model),
        .link = place->link,
        .tensor = place->tensor,
        .block = place->rows,
        .count = place->only == CP_NOBODY ? options->ranks : 1,
    };
    status = fill_engine(engine);
    if (status == CP_OK)
        *out = engine;
    else
        cp_device_engine_free(engine);
    return status;
}

cp_status cp_device_engine_trace(const cp_engine *engine, const char *path) {
    return cp_device_trace_write(engine->mine.trace, path);
}
