/* Tangled from book/13-model.nw; edit the chapter. */
/* A transformer on queues: the host enqueues, and looks only at the end. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "device_engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device.h"
#include "graph.h"
#include "model_kernels.h"
#include "src/agree.h"

enum { MOST_ROWS = 2048 }; /* of a block, unless the place says otherwise */

typedef struct {
    int64_t rows, block; /* in all, and of a block */
    char *memory;        /* on the device; at the offsets below */
    char *staging;       /* on the host: what is sent to its beginning */
    int64_t places, cosines, sines, staged; /* tokens are at 0 */
    int64_t x, input, wide, coarse, scales, bytes;
} desk;

typedef struct {
    int rank;
    cp_queues queues;
    cp_multiplier *multiplier;
    char *cache; /* [layers][keys, values][sequences * room][N_KV][D_H] */
    char *kept[2];
    int64_t room[2]; /* their bytes */
} seat;

/* Where the hidden state of a token is. */
typedef struct {
    int rank;
    int64_t row;
} owner;

typedef struct {
    int count;         /* of seats */
    cp_layout *layout; /* of the call it was made for */
    cp_plan *plan;
    desk *desks;                /* [count] */
    cp_stream_walker **walkers; /* [count] */
    bool warm;                  /* has run once */
    cp_graph *graph;            /* of a decode step; or NULL */
} workplace;

struct cp_engine {
    const cp_device_model *model;
    cp_session_options options;
    const cp_device_place *place;
    int count; /* of seats */
    seat *seats;
    int64_t cache_bytes; /* of one layer's keys, of a rank */
    workplace decode;
    cp_device_trace *trace; /* or NULL */
    int now;                /* which of the two kept buffers is valid */
    owner *owners;          /* [tokens] of the last call that went well */
    int64_t tokens;
    char *scores; /* room for a few rows of logits, and their input */
    cudaEvent_t paced[2];
    cp_queues *queues;     /* [count] of the seats */
    void **keys, **values; /* [count] of the current layer */
};

static bool take(desk *d, int64_t rows, int64_t bytes, int64_t *at) {
    int64_t all;
    *at = d->bytes;
    return cp_multiply(rows, bytes, &all) && cp_add(d->bytes, all, &d->bytes) &&
           cp_add(d->bytes, -d->bytes & 255, &d->bytes);
}

static bool measure(desk *d, const cp_device_model *model, int64_t most) {
    const cp_model_facts *f = &model->base.facts;
    const int64_t heads = f->shape.query_heads * f->shape.head_dim;
    const int64_t keys = f->shape.kv_heads * f->shape.head_dim;
    const int64_t widest = cp_max(cp_max(f->width, f->feed_forward), heads);
    const int64_t made = cp_max(heads + 2 * keys, 2 * f->feed_forward);
    const bool coarse = model->numbers == CP_NUMBERS_F8;
    const int64_t size = coarse ? 4 : cp_element_bytes(model->element);
    int64_t tokens;
    d->block = cp_min(most > 0 ? most : MOST_ROWS, d->rows);
    if (!take(d, d->rows, 4, &tokens) || !take(d, d->rows, 8, &d->places) ||
        !take(d, d->rows, 2 * f->rotary, &d->cosines) ||
        !take(d, d->rows, 2 * f->rotary, &d->sines))
        return false;
    d->staged = d->bytes;
    return take(d, d->rows, 4 * f->width, &d->x) &&
           take(d, d->block, widest * size, &d->input) &&
           take(d, d->block, 4 * made, &d->wide) &&
           take(d, coarse ? d->block : 0, widest, &d->coarse) &&
           take(d, coarse ? d->block : 0, 4, &d->scales);
}

static void free_desk(desk *d) {
    cudaFree(d->memory);
    if (d->staging != NULL)
        cudaFreeHost(d->staging);
    *d = (desk){0};
}

static cp_status make_desk(const cp_engine *engine, int64_t rows, desk *d) {
    *d = (desk){.rows = rows};
    if (!measure(d, engine->model, engine->place->rows))
        return cp_fail(CP_MEMORY, "a desk for %lld rows overflows",
                       (long long)rows);
    void *staging = NULL;
    cp_status status = cp_device_reserve(d->bytes, "activations", &d->memory);
    if (status == CP_OK)
        status = cp_cuda(cudaMallocHost(&staging, (size_t)cp_max(d->staged, 1)),
                         "%lld bytes on the host", (long long)d->staged);
    d->staging = staging;
    if (status != CP_OK)
        free_desk(d);
    return status;
}

static void write_row(const cp_engine *engine, desk *d, int64_t row,
                      int32_t token, int64_t place, int64_t position) {
    const int64_t pairs = engine->model->base.facts.rotary / 2;
    float *cosines = (float *)(void *)(d->staging + d->cosines) + row * pairs;
    float *sines = (float *)(void *)(d->staging + d->sines) + row * pairs;
    ((int32_t *)(void *)d->staging)[row] = token;
    ((int64_t *)(void *)(d->staging + d->places))[row] = place;
    for (int64_t i = 0; i < pairs; i++) {
        const double angle = (double)position * engine->model->frequencies[i];
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

static void write_rows(const cp_engine *engine, const cp_forward *call,
                       int rank, desk *d) {
    const cp_pieces *pieces = &call->layout->queries[rank].pieces;
    int64_t row = 0;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        for (int64_t t = 0; t < span.count; t++) {
            const int64_t position = span.start + t * span.step;
            const int64_t token = call->first_row[span.sequence] + position -
                                  call->first_position[span.sequence];
            write_row(engine, d, row++, call->tokens[token],
                      pieces->items[n].row + t, position);
        }
    }
    for (; row < d->rows; row++)
        write_row(engine, d, row, -1, -1, 0);
}

static void list_owners(const cp_forward *call, int rank, owner *owners) {
    const cp_pieces *pieces = &call->layout->queries[rank].pieces;
    int64_t row = 0;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        for (int64_t t = 0; t < span.count; t++)
            owners[call->first_row[span.sequence] + span.start + t * span.step -
                   call->first_position[span.sequence]] = (owner){rank, row++};
    }
}

typedef struct {
    cp_engine *engine;
    seat *seat;
    desk *desk;
    cp_stream_walker *walker;
    int64_t layer;
} bench;

static void *at(const bench *b, int64_t offset) {
    return b->desk->memory + offset;
}

static cp_status done(const bench *b, cudaError_t error, const char *what) {
    return cp_cuda(error, "rank %d, layer %lld, %s", b->seat->rank,
                   (long long)b->layer, what);
}

static cp_status multiply(const bench *b, const cp_device_matrix *matrix,
                          int64_t rows, bool add, float *y) {
    const void *x = at(b, b->desk->input);
    const float *scales = NULL;
    if (matrix->numbers == CP_NUMBERS_F8) {
        const cp_device_quantising call = {rows, matrix->in, x,
                                           at(b, b->desk->coarse),
                                           at(b, b->desk->scales)};
        const cp_status status =
            done(b, cp_device_quantise(&call, b->seat->queues.compute),
                 "rounding to FP8");
        if (status != CP_OK)
            return status;
        x = call.y;
        scales = call.scales;
    }
    return cp_device_multiply(b->seat->multiplier, matrix, rows, x, scales, add,
                              y, b->seat->queues.compute);
}

static cp_status norm(const bench *b, int64_t first, int64_t rows,
                      const float *weight) {
    const cp_device_model *model = b->engine->model;
    const cp_model_facts *f = &model->base.facts;
    const bool coarse = model->numbers == CP_NUMBERS_F8;
    const cp_device_norming call = {rows,
                                    f->width,
                                    (const float *)at(b, b->desk->x) +
                                        first * f->width,
                                    weight,
                                    (float)f->epsilon,
                                    coarse ? CP_F32 : model->element,
                                    at(b, b->desk->input)};
    return done(b, cp_device_norm(&call, b->seat->queues.compute), "a norm");
}

static cp_status before(const bench *b, int64_t first, int64_t rows) {
    const cp_device_model *model = b->engine->model;
    const cp_model_facts *f = &model->base.facts;
    const cp_device_layer *layer = &model->layers[b->layer];
    const int64_t pairs = f->rotary / 2;
    cp_status status = norm(b, first, rows, layer->attention_norm);
    if (status == CP_OK)
        status =
            multiply(b, &layer->projected, rows, false, at(b, b->desk->wide));
    const cp_device_rotating call = {
        .rows = rows,
        .shape = f->shape,
        .pairs = pairs,
        .cosines = (const float *)at(b, b->desk->cosines) + first * pairs,
        .sines = (const float *)at(b, b->desk->sines) + first * pairs,
        .places = (const int64_t *)at(b, b->desk->places) + first,
        .projected = at(b, b->desk->wide),
        .element = model->element,
        .queries = cp_stream_walker_queries(b->walker),
        .keys = cp_stream_walker_new_keys(b->walker),
        .values = cp_stream_walker_new_values(b->walker),
    };
    return status == CP_OK
               ? done(b, cp_device_rotate(&call, b->seat->queues.compute),
                      "turning queries and keys")
               : status;
}

static cp_status add_product(const bench *b, const cp_device_matrix *matrix,
                             int64_t rows, float *x) {
    cp_nccl *group = b->engine->place->tensor;
    const int64_t width = b->engine->model->base.facts.width;
    const bool first = b->engine->model->share.part == 0;
    const cp_status status = multiply(b, matrix, rows, first, x);
    if (status != CP_OK || group == NULL)
        return status;
    return cp_nccl_sum(group, x, rows * width, b->seat->queues.compute);
}

static cp_status gather(const bench *b, int64_t first, int64_t rows) {
    const cp_device_model *model = b->engine->model;
    const cp_shape *shape = &model->base.facts.shape;
    const bool coarse = model->numbers == CP_NUMBERS_F8;
    const cp_device_gathering call = {rows,
                                      shape->query_heads * shape->head_dim,
                                      (const int64_t *)at(b, b->desk->places) +
                                          first,
                                      cp_stream_walker_output(b->walker),
                                      coarse ? CP_F32 : model->element,
                                      at(b, b->desk->input)};
    return done(b, cp_device_gather(&call, b->seat->queues.compute),
                "gathering what attention gave");
}

static cp_status after(const bench *b, int64_t first, int64_t rows) {
    const cp_device_model *model = b->engine->model;
    const cp_device_layer *layer = &model->layers[b->layer];
    const int64_t width = model->base.facts.width;
    const bool coarse = model->numbers == CP_NUMBERS_F8;
    float *x = (float *)at(b, b->desk->x) + first * width;
    const cp_device_gating gate = {
        rows, model->base.facts.feed_forward, at(b, b->desk->wide),
        coarse ? CP_F32 : model->element, at(b, b->desk->input)};
    cp_status status = gather(b, first, rows);
    if (status == CP_OK)
        status = add_product(b, &layer->attention_output, rows, x);
    if (status == CP_OK)
        status = norm(b, first, rows, layer->forward_norm);
    if (status == CP_OK)
        status =
            multiply(b, &layer->widened, rows, false, at(b, b->desk->wide));
    if (status == CP_OK)
        status =
            done(b, cp_device_gate(&gate, b->seat->queues.compute), "a gate");
    if (status == CP_OK)
        status = add_product(b, &layer->down, rows, x);
    return status;
}

typedef cp_status (*block_work)(const bench *b, int64_t first, int64_t rows);

static cp_status each_block(const bench *b, block_work work) {
    cp_status status = CP_OK;
    for (int64_t n = 0; n < b->desk->rows && status == CP_OK;
         n += b->desk->block)
        status = work(b, n, cp_min(b->desk->block, b->desk->rows - n));
    return status;
}

static cp_status each_seat(cp_engine *engine, const workplace *work,
                           int64_t layer, block_work what, const char *name) {
    cp_status status = CP_OK;
    for (int s = 0; s < work->count && status == CP_OK; s++) {
        seat *here = &engine->seats[s];
        const bench b = {engine, here, &work->desks[s], work->walkers[s],
                         layer};
        cp_device_trace_layer(engine->trace, here->rank, layer);
        cp_device_trace_begin(engine->trace, here->rank, name,
                              here->queues.compute);
        status = each_block(&b, what);
        cp_device_trace_end(engine->trace, here->rank, here->queues.compute);
    }
    return status;
}

static cp_status walk(cp_engine *engine, const workplace *work, int64_t layer) {
    for (int s = 0; s < work->count; s++) {
        engine->keys[s] =
            engine->seats[s].cache + 2 * layer * engine->cache_bytes;
        engine->values[s] = (char *)engine->keys[s] + engine->cache_bytes;
    }
    if (engine->place->link != NULL)
        return cp_stream_walk(work->walkers[0], engine->place->link,
                              engine->keys[0], engine->values[0]);
    return cp_loopback_walk(work->walkers, NULL, engine->keys, engine->values);
}

static cp_status enqueue_layer(cp_engine *engine, const workplace *work,
                               int64_t layer) {
    cp_status status = each_seat(engine, work, layer, before, "project");
    if (status == CP_OK)
        status = walk(engine, work, layer);
    return status == CP_OK
               ? each_seat(engine, work, layer, after, "feed forward")
               : status;
}

static cp_status embed(const bench *b) {
    const cp_device_model *model = b->engine->model;
    cudaStream_t stream = b->seat->queues.compute;
    const cp_device_embedding call = {b->desk->rows,  model->base.facts.width,
                                      at(b, 0),       model->embedding,
                                      model->element, at(b, b->desk->x)};
    if (b->desk->rows == 0)
        return CP_OK;
    const cp_status status =
        done(b,
             cudaMemcpyAsync(b->desk->memory, b->desk->staging,
                             (size_t)b->desk->staged, cudaMemcpyHostToDevice,
                             stream),
             "sending tokens");
    return status == CP_OK
               ? done(b, cp_device_embed(&call, stream), "looking up words")
               : status;
}

static cp_status embed_all(cp_engine *engine, const workplace *work) {
    cp_status status = CP_OK;
    for (int s = 0; s < work->count && status == CP_OK; s++) {
        const bench b = {engine, &engine->seats[s], &work->desks[s],
                         work->walkers[s], 0};
        status = embed(&b);
    }
    return status;
}

static bool wants_to_stop(const cp_engine *engine) {
    return engine->options.stop != NULL && *engine->options.stop != 0;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
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
    const double began = seconds();
    cudaEvent_t event = engine->paced[layer % 2];
    cudaError_t error;
    cp_status status = CP_OK;
    while ((error = cudaEventQuery(event)) == cudaErrorNotReady &&
           status == CP_OK) {
        status = check_peers(engine->place, layer, seconds() - began);
        nanosleep(&pause, NULL);
    }
    return status == CP_OK ? cp_cuda(error, "waiting for a layer") : status;
}

static cp_status pace(cp_engine *engine, int64_t layer) {
    const cp_session_options *options = &engine->options;
    const int64_t layers = engine->model->base.facts.layers;
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

static cp_status enqueue_paced(cp_engine *engine, const workplace *work) {
    cp_status status = embed_all(engine, work);
    for (int64_t n = 0; n < engine->model->base.facts.layers; n++) {
        if (status == CP_OK)
            status = pace(engine, n);
        if (status == CP_OK)
            status = enqueue_layer(engine, work, n);
        if (status == CP_OK)
            status = cp_cuda(cudaEventRecord(engine->paced[n % 2],
                                             engine->seats[0].queues.compute),
                             "recording an event");
    }
    return status;
}

static void drain(cp_engine *engine) {
    const cp_link *link = engine->place->link;
    if (link != NULL)
        link->abort(link->context);
    for (int s = 0; s < engine->count; s++) {
        cudaStreamSynchronize(engine->seats[s].queues.communication);
        cudaStreamSynchronize(engine->seats[s].queues.compute);
    }
}

static void free_workplace(workplace *work) {
    for (int s = 0; s < work->count; s++) {
        if (work->walkers != NULL)
            cp_stream_walker_free(work->walkers[s]);
        if (work->desks != NULL)
            free_desk(&work->desks[s]);
    }
    cp_graph_free(work->graph);
    cp_plan_free(work->plan);
    cp_layout_free(work->layout);
    free(work->desks);
    free(work->walkers);
    *work = (workplace){0};
}

static cp_status make_seat(const cp_engine *engine, const cp_forward *call,
                           int64_t growth, int s, workplace *work) {
    const int rank = engine->seats[s].rank;
    const cp_block *mine = &call->layout->queries[rank];
    const cp_stream_options options = {.element = engine->model->element,
                                       .growth = growth,
                                       .trace = engine->trace};
    const cp_status status = make_desk(
        engine, growth > 0 ? mine->rows : mine->tokens, &work->desks[s]);
    return status == CP_OK
               ? cp_stream_walker_new(work->plan, rank, engine->seats[s].queues,
                                      &options, &work->walkers[s])
               : status;
}

static cp_status make_workplace(const cp_engine *engine, const cp_forward *call,
                                int64_t growth, workplace *work) {
    const cp_plan_options wanted = {call->plan->element_bytes, 1};
    *work = (workplace){.count = engine->count};
    cp_status status = cp_layout_copy(call->layout, &work->layout);
    if (status == CP_OK)
        status = cp_plan_build(call->plan->variant, work->layout,
                               &call->plan->shape, &wanted, &work->plan);
    if (status == CP_OK)
        status = cp_allocate(&work->desks, work->count, sizeof(desk), "desks");
    if (status == CP_OK)
        status = cp_allocate(&work->walkers, work->count,
                             sizeof(work->walkers[0]), "walkers");
    for (int s = 0; s < work->count && status == CP_OK; s++)
        status = make_seat(engine, call, growth, s, work);
    if (status != CP_OK)
        free_workplace(work);
    return status;
}

static cp_status make_room(cp_engine *engine, const workplace *work) {
    const int next = 1 - engine->now;
    const int64_t width = engine->model->base.facts.width *
                          cp_element_bytes(engine->model->element);
    cp_status status = CP_OK;
    for (int s = 0; s < work->count && status == CP_OK; s++) {
        seat *here = &engine->seats[s];
        const int64_t bytes = work->desks[s].rows * width;
        if (here->room[next] >= bytes)
            continue;
        cudaFree(here->kept[next]);
        here->room[next] = 0;
        status = cp_device_reserve(bytes, "hidden states", &here->kept[next]);
        here->room[next] = status == CP_OK ? bytes : 0;
    }
    return status;
}

static cp_status keep_seat(cp_engine *engine, const workplace *work, int s) {
    const cp_model_facts *f = &engine->model->base.facts;
    const seat *here = &engine->seats[s];
    const desk *d = &work->desks[s];
    const cp_device_norming call = {d->rows,
                                    f->width,
                                    (const float *)(void *)(d->memory + d->x),
                                    engine->model->output_norm,
                                    (float)f->epsilon,
                                    engine->model->element,
                                    here->kept[1 - engine->now]};
    const cp_status status =
        cp_cuda(cp_device_norm(&call, here->queues.compute),
                "rank %d, the last norm", here->rank);
    return status == CP_OK
               ? cp_cuda(cudaStreamSynchronize(here->queues.compute), "rank %d",
                         here->rank)
               : status;
}

static cp_status finish(cp_engine *engine, const workplace *work) {
    const cp_device_place *place = engine->place;
    const double patience = place->link != NULL ? place->patience : 0.0;
    cp_status status = CP_OK;
    for (int s = 0; s < work->count && status == CP_OK; s++)
        status = cp_stream_walker_finish(work->walkers[s], patience);
    for (int s = 0; s < work->count && status == CP_OK; s++)
        status = keep_seat(engine, work, s);
    for (int s = 0; s < work->count && status == CP_OK; s++)
        cp_device_trace_collect(engine->trace, engine->seats[s].rank);
    return status;
}

typedef struct {
    cp_engine *engine;
    const workplace *work;
} step;

static cp_status enqueue_step(void *context) {
    const step *it = context;
    cp_status status = embed_all(it->engine, it->work);
    for (int64_t n = 0; n < it->engine->model->base.facts.layers; n++)
        if (status == CP_OK)
            status = enqueue_layer(it->engine, it->work, n);
    return status;
}

static cp_status run_step(cp_engine *engine, workplace *work) {
    step it = {engine, work};
    cp_status status = CP_OK;
    if (!work->warm || !engine->place->graphs || engine->trace != NULL)
        return enqueue_step(&it);
    if (work->graph == NULL)
        status = cp_graph_capture(engine->queues, engine->count, enqueue_step,
                                  &it, &work->graph);
    return status == CP_OK ? cp_graph_launch(work->graph) : status;
}

enum { GROWTH = 64 }; /* tiles of keys by which lists may grow */

static cp_status renew(cp_engine *engine, const cp_forward *call) {
    workplace *work = &engine->decode;
    cp_status status = work->count > 0 ? CP_OK : CP_CAPACITY;
    for (int s = 0; s < work->count && status == CP_OK; s++)
        status = cp_stream_walker_renew(work->walkers[s], call->plan);
    if (status != CP_CAPACITY && status != CP_INVALID)
        return status;
    free_workplace(work);
    return make_workplace(engine, call, GROWTH, work);
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

static cp_status run_on(cp_engine *engine, const cp_forward *call,
                        workplace *work) {
    cp_status status = CP_OK;
    for (int s = 0; s < work->count; s++)
        write_rows(engine, call, engine->seats[s].rank, &work->desks[s]);
    status = work == &engine->decode ? run_step(engine, work)
                                     : enqueue_paced(engine, work);
    if (status == CP_OK)
        status = finish(engine, work);
    if (status != CP_OK) {
        char why[512];
        snprintf(why, sizeof(why), "%s", cp_message());
        drain(engine);
        return cp_fail(status, "%s", why);
    }
    work->warm = true;
    for (int s = 0; s < work->count; s++) {
        const cp_traffic sent = cp_stream_walker_traffic(work->walkers[s]);
        call->bytes[engine->seats[s].rank] =
            engine->model->base.facts.layers *
            (sent.ring_bytes + sent.all_to_all_bytes + sent.all_gather_bytes);
    }
    return CP_OK;
}

static cp_status collect_bytes(const cp_engine *engine,
                               const cp_forward *call) {
    const cp_crew *crew = engine->place->crew;
    const int parts = engine->model->share.parts;
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

static cp_status prepare(cp_engine *engine, const cp_forward *call,
                         workplace *work, owner **owners) {
    cp_status status = agree(engine, call);
    if (status != CP_OK)
        return status;
    status =
        cp_allocate(owners, call->count, sizeof(owner), "owners of tokens");
    for (int r = 0; r < engine->options.ranks && status == CP_OK; r++)
        list_owners(call, r, *owners);
    if (status == CP_OK)
        status = work == &engine->decode
                     ? renew(engine, call)
                     : make_workplace(engine, call, 0, work);
    if (status == CP_OK)
        status = make_room(engine, work);
    if (status == CP_OK && engine->place->crew != NULL && wants_to_stop(engine))
        status = CP_INTERRUPTED;
    return cp_device_all_ready(engine->place->crew, status);
}

cp_status cp_device_engine_run(cp_engine *engine, const cp_forward *call) {
    const bool decode = call->plan->variant == CP_DECODE;
    workplace prefill = {0};
    workplace *work = decode ? &engine->decode : &prefill;
    owner *owners = NULL;
    cp_status status = prepare(engine, call, work, &owners);
    if (status == CP_OK)
        status = run_on(engine, call, work);
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
        free_workplace(work);
    return status;
}

enum { SCORED = 32 }; /* rows at a time */

static int64_t row_bytes(const cp_engine *engine) {
    return engine->model->base.facts.width *
           cp_element_bytes(engine->model->element);
}

static cp_status bring_row(const cp_engine *engine, int seat, int64_t row,
                           void *to) {
    const int64_t bytes = row_bytes(engine);
    return cp_cuda(
        cudaMemcpyAsync(to, engine->seats[seat].kept[engine->now] + row * bytes,
                        (size_t)bytes, cudaMemcpyDefault,
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
    const int parts = engine->model->share.parts;
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
    const int64_t words = engine->model->base.facts.vocabulary;
    cudaStream_t stream = engine->queues[0].compute;
    float *scores =
        (float *)(void *)(engine->scores + SCORED * row_bytes(engine));
    cp_status status =
        cp_device_multiply(engine->seats[0].multiplier, &engine->model->output,
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
    const int64_t words = engine->model->base.facts.vocabulary;
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

static cp_status make_cache(cp_engine *engine, seat *here) {
    const cp_model_facts *f = &engine->model->base.facts;
    const int64_t row = f->shape.kv_heads * f->shape.head_dim *
                        cp_element_bytes(engine->model->element);
    int64_t rows, bytes;
    if (!cp_multiply(engine->options.sequences, engine->options.room, &rows) ||
        !cp_multiply(rows, row, &engine->cache_bytes) ||
        !cp_multiply(engine->cache_bytes, 2 * f->layers, &bytes))
        return cp_fail(CP_MEMORY, "%lld sequences of %lld tokens overflow",
                       (long long)engine->options.sequences,
                       (long long)engine->options.room);
    return cp_device_reserve(bytes, "a rank's cache", &here->cache);
}

static cp_status make_one_seat(cp_engine *engine, int s) {
    seat *here = &engine->seats[s];
    const int only = engine->place->only;
    here->rank = only == CP_NOBODY ? s : only;
    cp_status status = cp_queues_new(&here->queues);
    engine->queues[s] = here->queues;
    if (status == CP_OK)
        status = cp_multiplier_new(&here->multiplier);
    if (status == CP_OK)
        status = cp_multiplier_check(here->multiplier, engine->model->numbers);
    return status == CP_OK ? make_cache(engine, here) : status;
}

static cp_status make_events(cp_engine *engine) {
    cp_status status = CP_OK;
    for (int n = 0; n < 2 && status == CP_OK; n++)
        status = cp_cuda(
            cudaEventCreateWithFlags(&engine->paced[n], cudaEventDisableTiming),
            "making an event");
    return status;
}

void cp_device_engine_free(cp_engine *engine) {
    free_workplace(&engine->decode);
    cp_device_trace_free(engine->trace);
    for (int s = 0; engine->seats != NULL && s < engine->count; s++) {
        seat *here = &engine->seats[s];
        cp_multiplier_free(here->multiplier);
        cudaFree(here->cache);
        cudaFree(here->kept[0]);
        cudaFree(here->kept[1]);
        cp_queues_free(&here->queues);
    }
    for (int n = 0; n < 2; n++)
        if (engine->paced[n] != NULL)
            cudaEventDestroy(engine->paced[n]);
    cudaFree(engine->scores);
    free(engine->seats);
    free(engine->queues);
    free(engine->owners);
    free(engine->keys);
    free(engine);
}

static cp_status fill_engine(cp_engine *engine) {
    const cp_model_facts *f = &engine->model->base.facts;
    const int64_t row = f->width * cp_element_bytes(engine->model->element);
    cp_status status =
        cp_allocate(&engine->seats, engine->count, sizeof(seat), "ranks");
    if (status == CP_OK)
        status = cp_allocate(&engine->queues, engine->count, sizeof(cp_queues),
                             "ranks");
    if (status == CP_OK)
        status = cp_allocate(&engine->keys, 2 * (int64_t)engine->count,
                             sizeof(void *), "ranks");
    if (status != CP_OK)
        return status;
    engine->values = engine->keys + engine->count;
    for (int s = 0; s < engine->count && status == CP_OK; s++)
        status = make_one_seat(engine, s);
    if (status == CP_OK)
        status = make_events(engine);
    if (status == CP_OK && engine->options.trace)
        status = cp_device_trace_new(engine->options.ranks, &engine->trace);
    return status == CP_OK
               ? cp_device_reserve(SCORED * (row + 4 * f->vocabulary),
                                   "the output layer", &engine->scores)
               : status;
}

cp_status cp_device_engine_new(const cp_device_place *place,
                               const cp_model *model,
                               const cp_session_options *options,
                               cp_engine **out) {
    cp_engine *engine;
    cp_status status = cp_allocate(&engine, 1, sizeof(*engine), "an engine");
    if (status != CP_OK)
        return status;
    engine->model = cp_device_model_of(model);
    engine->options = *options;
    engine->place = place;
    engine->count = place->only == CP_NOBODY ? options->ranks : 1;
    status = fill_engine(engine);
    if (status == CP_OK)
        *out = engine;
    else
        cp_device_engine_free(engine);
    return status;
}

cp_status cp_device_engine_trace(const cp_engine *engine, const char *path) {
    return cp_device_trace_write(engine->trace, path);
}
