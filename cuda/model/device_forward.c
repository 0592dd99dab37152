/* Tangled from book/13-model.nw; edit the chapter. */
/* A model's layers on queues, around the walk of a plan: every layer of a pass
 * is enqueued, and only its end is waited for. Knows nothing of sessions. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/model/device_rows.h"
#include "cuda/run/graph.h"
#include "group/agree.h"

enum { MOST_ROWS = 4096 }; /* of a block, unless the runner sets it */

struct cp_device_forward {
    cp_pass base;
    const cp_device_engine *engine;
    cp_device_room *rooms;      /* [engine->count][2]: activations, slots */
    cp_device_rows *parts;      /* [engine->count], as all below */
    cp_stream_walker **walkers; /* that the parts walk with */
    void **keys, **values;      /* of the current layer */
    bool decodes, warm;         /* one step after another; has run once */
    bool eager;                 /* a step that could not be captured */
    cp_graph *graph;            /* of a step; or NULL */
    /* In a hybrid: */
    cp_state_buffers *buffers; /* [engine->count] */
    cp_device_state_call *states;
};

static cp_status each(cp_pass *base, int64_t layer, const char *name,
                      void (*program)(cp_rows *rows)) {
    cp_device_forward *pass = (cp_device_forward *)base;
    cp_device_trace *trace = pass->engine->trace;
    for (int r = 0; r < pass->engine->count; r++) {
        cp_device_rows *a = &pass->parts[r];
        const int rank = a->rank->rank;
        cp_device_trace_layer(trace, rank, layer);
        const int64_t mark = cp_device_trace_begin(
            trace, rank, CP_COMPUTING, a->stream, (cp_stretch){.name = name});
        for (int64_t first = 0; first < a->rows; first += a->block) {
            program(cp_device_rows_block(a, base, layer, first));
            CP_TRY(a->base.status);
        }
        cp_device_trace_end(trace, rank, mark);
    }
    return CP_OK;
}

static cp_status walk_states(const cp_device_forward *pass, int64_t layer,
                             int64_t attending) {
    const cp_device_engine *engine = pass->engine;
    const cp_weight taps = CP_WEIGHT_STATE_TAPS;
    for (int r = 0; r < engine->count; r++)
        pass->parts[r].mark = cp_device_trace_begin(
            engine->trace, engine->ranks[r].rank, CP_COMPUTING,
            engine->queues[r].compute, (cp_stretch){.name = "states"});
    CP_TRY(cp_device_state_call_walk(
        pass->states, layer - attending,
        engine->model->tensors[cp_weight_index(taps, layer)].values));
    for (int r = 0; r < engine->count; r++)
        cp_device_trace_end(engine->trace, engine->ranks[r].rank,
                            pass->parts[r].mark);
    return CP_OK;
}

static cp_status walk(cp_pass *base, int64_t layer) {
    cp_device_forward *pass = (cp_device_forward *)base;
    const cp_device_engine *engine = pass->engine;
    const int64_t attending = cp_facts_attending(base->facts, layer);
    if (cp_facts_has_state(base->facts, layer))
        return walk_states(pass, layer, attending);
    for (int r = 0; r < engine->count; r++) {
        pass->keys[r] =
            engine->ranks[r].cache + 2 * attending * engine->cache_bytes;
        pass->values[r] = (char *)pass->keys[r] + engine->cache_bytes;
    }
    return cp_stream_walk(pass->walkers, engine->count, engine->runner->link,
                          pass->keys, pass->values);
}

static cp_status embed(cp_pass *base) {
    const cp_device_forward *pass = (cp_device_forward *)base;
    for (int r = 0; r < pass->engine->count; r++)
        CP_TRY(cp_device_rows_send(&pass->parts[r], base));
    return CP_OK;
}

static cudaError_t query_event(const void *event) {
    return cudaEventQuery(*(const cudaEvent_t *)event);
}

static cp_status pace(cp_pass *base, int64_t layer, int64_t *done) {
    const cp_device_engine *engine = ((cp_device_forward *)base)->engine;
    const double timeout = engine->runner->timeout;
    const cp_link *link = engine->runner->link;
    bool late = false;
    *done = cp_max(0, layer - 1);
    CP_TRY(
        cp_event_record(engine->paced[layer % 2], engine->queues[0].compute));
    if (*done > 0)
        CP_TRY(cp_await(query_event, &engine->paced[*done % 2], link, timeout,
                        &late));
    if (link != NULL) /* the launches that follow may not return */
        CP_TRY(link->check(link->context));
    return late ? cp_fail(CP_BROKEN, "rank %d waited %g s for layer %ld",
                          engine->ranks[0].rank, timeout, *done - 1)
                : CP_OK;
}

static const cp_pass_ops on_queues = {.norm = cp_device_rows_norm,
                                      .multiply = cp_device_rows_multiply,
                                      .scatter = cp_device_rows_scatter,
                                      .gather = cp_device_rows_gather,
                                      .gate = cp_device_rows_gate,
                                      .add = cp_device_rows_add,
                                      .each = each,
                                      .embed = embed,
                                      .walk = walk,
                                      .pace = pace};

enum { GROWTH = 64 }; /* pieces by which lists of decode may grow */

static cp_status make_part(cp_device_forward *pass, const cp_forward *call,
                           int r) {
    const cp_device_engine *engine = pass->engine;
    const cp_device_model *model = engine->model;
    const cp_device_rank *rank = &engine->ranks[r];
    const cp_block *queries = &call->layout->queries[rank->rank];
    const int64_t rows = pass->decodes ? queries->rows : queries->tokens;
    const int64_t most =
        engine->runner->rows > 0 ? engine->runner->rows : MOST_ROWS;
    const cp_stream_options options = {.element = model->element,
                                       .growth = pass->decodes ? GROWTH : 0,
                                       .apart = engine->runner->link != NULL,
                                       .trace = engine->trace,
                                       .room = &pass->rooms[2 * r + 1]};
    cp_device_rows *a = &pass->parts[r];
    *a = (cp_device_rows){.engine = engine,
                          .rank = rank,
                          .states = &pass->buffers[r],
                          .facts = &model->base.facts,
                          .stream = engine->queues[r].compute,
                          .rows = rows,
                          .block = cp_min(most, rows)};
    CP_TRY(cp_device_rows_make(a, &pass->rooms[2 * r]));
    CP_TRY(cp_stream_walker_new(call->plan, rank->rank, engine->queues[r],
                                &options, &pass->walkers[r]));
    a->slots = cp_stream_walker_rows(pass->walkers[r]);
    return CP_OK;
}

static cp_status fill_pass(cp_device_forward *pass, const cp_forward *call) {
    for (int r = 0; r < pass->engine->count; r++)
        CP_TRY(make_part(pass, call, r));
    return CP_OK;
}

static cp_status serve_states(cp_device_forward *pass, const cp_forward *call) {
    const cp_device_engine *engine = pass->engine;
    cp_device_state_call_free(pass->states);
    pass->states = NULL;
    if (engine->states == NULL)
        return CP_OK;
    return cp_device_state_call_new(engine->states, engine->base.states,
                                    call->layout, engine->runner->link,
                                    pass->buffers, &pass->states);
}

void cp_device_forward_leave(cp_device_forward *pass) {
    cp_graph_free(pass->graph);
    cp_device_state_call_free(pass->states);
    pass->states = NULL;
    for (int r = 0; r < pass->engine->count; r++) {
        cp_stream_walker_free(pass->walkers[r]);
        free(pass->parts[r].tokens);
        pass->walkers[r] = NULL;
        pass->parts[r].tokens = NULL;
    }
    pass->graph = NULL;
    pass->warm = false;
}

void cp_device_forward_free(cp_device_forward *pass) {
    if (pass == NULL)
        return;
    if (pass->keys != NULL)
        cp_device_forward_leave(pass);
    for (int r = 0; pass->rooms != NULL && r < 2 * pass->engine->count; r++)
        cp_device_room_free(&pass->rooms[r]);
    free(pass->rooms);
    free(pass->parts);
    free(pass->walkers);
    free(pass->keys);
    free(pass->buffers);
    free(pass);
}

static cp_status make_arrays(cp_device_forward *pass) {
    const int64_t count = pass->engine->count;
    CP_TRY(
        cp_allocate(&pass->rooms, 2 * count, sizeof(cp_device_room), "rooms"));
    CP_TRY(cp_allocate(&pass->parts, count, sizeof(cp_device_rows), "parts"));
    CP_TRY(cp_allocate(&pass->walkers, count, sizeof(void *), "walkers"));
    CP_TRY(cp_allocate(&pass->buffers, count, sizeof(cp_state_buffers),
                       "buffers"));
    CP_TRY(cp_allocate(&pass->keys, 2 * count, sizeof(void *), "ranks"));
    pass->values = pass->keys + count;
    return CP_OK;
}

cp_status cp_device_forward_new(const cp_device_engine *engine, bool decodes,
                                cp_device_forward **out) {
    const cp_session_options *options = &engine->base.options;
    const bool alone = engine->runner->link == NULL;
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a forward pass"));
    (*out)->engine = engine;
    (*out)->decodes = decodes;
    (*out)->base = (cp_pass){.on = &on_queues,
                             .facts = &engine->model->base.facts,
                             .stop = alone ? options->stop : NULL,
                             .progress = options->progress,
                             .progress_context = options->progress_context};
    const cp_status status = make_arrays(*out);
    if (status == CP_OK)
        return CP_OK;
    cp_device_forward_free(*out);
    *out = NULL;
    return status;
}

static cp_status renew(cp_device_forward *pass, const cp_forward *call) {
    cp_status status = CP_OK;
    for (int r = 0; r < pass->engine->count && status == CP_OK; r++)
        status = pass->walkers[r] != NULL
                     ? cp_stream_walker_renew(pass->walkers[r], call->plan)
                     : CP_CAPACITY;
    return status;
}

cp_status cp_device_forward_serve(cp_device_forward *pass,
                                  const cp_forward *call) {
    cp_status status = renew(pass, call);
    if (status == CP_CAPACITY || status == CP_INVALID) {
        cp_device_forward_leave(pass);
        status = fill_pass(pass, call);
    }
    return status == CP_OK ? serve_states(pass, call) : status;
}

static void warn_once(void) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&warned))
        fprintf(stderr, "longring: decode goes on without a graph: %s\n",
                cp_message());
}

/* Captured walks count as walks of the call; after this none does. */
static cp_status begin_again(cp_device_forward *pass) {
    const cp_device_engine *engine = pass->engine;
    cp_graph_free(pass->graph);
    pass->graph = NULL;
    for (int r = 0; r < engine->count; r++)
        CP_TRY(
            cp_stream_walker_finish(pass->walkers[r], engine->runner->timeout));
    return CP_OK;
}

static cp_status enqueue_step(void *pass) {
    return cp_pass_run(pass, false);
}

static cp_status capture_step(cp_device_forward *pass) {
    const cp_device_engine *engine = pass->engine;
    const cp_status status =
        cp_graph_capture(engine->queues, engine->count, engine->runner->link,
                         enqueue_step, pass, &pass->graph);
    if (status != CP_OK)
        warn_once();
    pass->eager = cp_agree_to_start(engine->runner->group, status) != CP_OK;
    return pass->eager ? begin_again(pass) : CP_OK;
}

static cp_status enqueue(cp_device_forward *pass) {
    const cp_device_engine *engine = pass->engine;
    if (!pass->decodes)
        return cp_pass_run(&pass->base, true);
    if (!pass->warm || !engine->runner->graphs || engine->trace != NULL ||
        pass->states != NULL) /* which copies a step reads, a graph would fix */
        return enqueue_step(pass);
    if (pass->graph == NULL && !pass->eager)
        CP_TRY(capture_step(pass));
    return pass->eager ? enqueue_step(pass) : cp_graph_launch(pass->graph);
}

static cp_status finish(cp_device_forward *pass, const cp_hidden *hidden,
                        int64_t *bytes) {
    const cp_device_engine *engine = pass->engine;
    const int64_t layers = pass->base.facts->layers;
    const int64_t attending = cp_facts_attending(pass->base.facts, layers);
    for (int r = 0; r < engine->count; r++)
        CP_TRY(
            cp_stream_walker_finish(pass->walkers[r], engine->runner->timeout));
    for (int r = 0; r < engine->count; r++) {
        cp_device_rows *a = &pass->parts[r];
        CP_TRY(cp_device_rows_finish(a, &pass->base, hidden[r].rows));
        bytes[a->rank->rank] =
            attending * cp_stream_walker_sent(pass->walkers[r]) +
            cp_device_state_call_sent(pass->states, r);
    }
    return CP_OK;
}

cp_status cp_device_forward_run(cp_device_forward *pass, const cp_forward *call,
                                const cp_hidden *hidden) {
    for (int r = 0; r < pass->engine->count; r++)
        cp_device_rows_write(&pass->parts[r], call);
    CP_TRY(enqueue(pass));
    CP_TRY(finish(pass, hidden, call->bytes));
    pass->warm = true;
    return CP_OK;
}
