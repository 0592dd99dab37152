/* Tangled from book/13-model.nw; edit the chapter. */
/* A model's layers on queues, around the walk of a plan: every layer of a pass
 * is enqueued, and only its end is waited for. Knows nothing of sessions. */
#include "cuda/model/device_engine.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/kernels/model_kernels.h"
#include "cuda/kernels/state_kernels.h"
#include "cuda/run/graph.h"
#include "model/arena.h"
#include "model/pass.h"
#include "group/agree.h"

enum { MOST_ROWS = 4096 }; /* of a block, unless the runner sets it */

/* A rank's activations, the objects that work on them, and a block of rows. */
typedef struct {
    cp_rows base; /* the block that is being enqueued */
    const cp_device_engine *engine;
    const cp_device_rank *rank;
    const cp_model_facts *facts;
    cudaStream_t stream;  /* the rank's compute queue */
    cp_stream_rows slots; /* of its walker */
    int64_t rows, block;  /* in all, and of a block at most */
    int64_t count;        /* rows that have a token in this call */
    cp_token *tokens;     /* [rows] */
    char *staging;        /* on the host: what is sent, */
    int64_t staged;       /* and its bytes */
    char *memory;         /* on the device: all that follows */
    int64_t *words;       /* [rows] sent; -1: no token */
    int64_t *indices;     /* [rows] sent: indices in the walker's slots */
    int64_t *positions;   /* [rows] sent */
    float *x;             /* [rows][width] */
    char *input;          /* [block][widest] of the next product, */
    float *scales;        /* [block] divisors of its rows; or NULL */
    float *wide;          /* [block] its products */
    char *partial;        /* [block][width] of a sum, bf16; or NULL */
    /* In a hybrid: */
    float *gates; /* [rows], over a walk */
    cp_state_buffers *states;
    int64_t mark; /* in a trace, of a walk */
} rank_rows;

struct cp_device_forward {
    cp_pass base;
    const cp_device_engine *engine;
    cp_device_room *rooms;      /* [engine->count][2]: activations, slots */
    rank_rows *parts;           /* [engine->count], as all below */
    cp_stream_walker **walkers; /* that the parts walk with */
    void **keys, **values;      /* of the current layer */
    bool decodes, warm;         /* one step after another; has run once */
    bool eager;                 /* a step that could not be captured */
    cp_graph *graph;            /* of a step; or NULL */
    /* In a hybrid: */
    cp_state_buffers *buffers; /* [engine->count] */
    cp_device_state_call *states;
};

/* The numbers of a row's products before a walk. */
static int64_t mixed_width(const cp_model_facts *f, int64_t layer) {
    const cp_mixer by = cp_facts_mixer(f, layer);
    int64_t width = 0;
    for (int n = 0; n < by.count; n++)
        width += cp_facts_out(f, (cp_weight)((int)by.first + n));
    return width;
}

static void claim(rank_rows *a, cp_arena *from) {
    const cp_model_facts *f = a->facts;
    const int64_t heads = f->shape.query_heads * f->shape.head_dim;
    const int64_t mixed =
        cp_max(mixed_width(f, 0), mixed_width(f, f->layers - 1));
    const int64_t gates = cp_max(cp_facts_out(f, CP_WEIGHT_OUTPUT_GATE),
                                 cp_facts_out(f, CP_WEIGHT_STATE_GATE));
    const int64_t widest =
        cp_max(cp_max(f->width, f->feed_forward), cp_max(heads, gates));
    const int64_t made = cp_max(mixed, 2 * f->feed_forward);
    const cp_numbers numbers = a->engine->model->numbers;
    a->words = cp_arena_claim(from, a->rows, sizeof(int64_t));
    a->indices = cp_arena_claim(from, a->rows, sizeof(int64_t));
    a->positions = cp_arena_claim(from, a->rows, sizeof(int64_t));
    a->staged = from->used;
    a->x = cp_arena_claim(from, a->rows, 4 * f->width);
    a->input =
        cp_arena_claim(from, a->block, widest * cp_number_bytes(numbers));
    if (numbers == CP_NUMBERS_F8)
        a->scales = cp_arena_claim(from, a->block, 4);
    a->wide = cp_arena_claim(from, a->block, 4 * made);
    if (a->engine->runner->tensor != NULL && numbers != CP_NUMBERS_F32)
        a->partial = cp_arena_claim(from, a->block, 2 * f->width);
    a->gates = cp_arena_claim(from, a->rows, 4 * gates);
    cp_state_buffers_claim(&f->states, a->rows,
                           a->engine->base.options.sequences, from, a->states);
}

static cp_status make_activations(rank_rows *a, cp_device_room *device_room) {
    cp_arena room = {.align = 256};
    claim(a, &room);
    if (room.overflows)
        return cp_fail(CP_MEMORY, "activations of %ld rows overflow", a->rows);
    CP_TRY(cp_allocate(&a->tokens, a->rows, sizeof(cp_token), "tokens"));
    CP_TRY(
        cp_device_room_grow(device_room, room.used, a->staged, "activations"));
    a->memory = device_room->device;
    a->staging = device_room->host;
    room = (cp_arena){.align = 256, .memory = a->memory};
    claim(a, &room);
    return CP_OK;
}

static void *on_host(const rank_rows *a, void *sent) {
    return a->staging + ((char *)sent - a->memory);
}

static void write_rows(const cp_forward *call, rank_rows *a) {
    int64_t *words = on_host(a, a->words), *indices = on_host(a, a->indices);
    int64_t *positions = on_host(a, a->positions);
    a->count = call->layout->queries[a->rank->rank].tokens;
    cp_forward_list(call, a->rank->rank, a->tokens);
    for (int64_t t = a->count; t < a->rows; t++)
        a->tokens[t] = (cp_token){.row = -1};
    for (int64_t t = 0; t < a->rows; t++) {
        const cp_token token = a->tokens[t];
        words[t] = t < a->count ? call->tokens[token.index] : -1;
        indices[t] = token.row;
        positions[t] = token.position;
    }
}

static rank_rows *block_at(cp_device_forward *pass, int r, int64_t layer,
                           int64_t first) {
    rank_rows *a = &pass->parts[r];
    const int64_t count = cp_min(a->block, a->rows - first);
    a->base = (cp_rows){&pass->base, layer, first, count, CP_OK};
    return a;
}

static float *x_of(const rank_rows *a) {
    return a->x + a->base.first * a->facts->width;
}

static void note(rank_rows *a, cudaError_t error, const char *what) {
    if (a->base.status == CP_OK)
        a->base.status = cp_cuda(error, "rank %d, layer %ld, %s", a->rank->rank,
                                 a->base.layer, what);
}

static const cp_device_matrix *tensor_of(const rank_rows *a, cp_weight weight) {
    return &a->engine->model->tensors[cp_weight_index(weight, a->base.layer)];
}

static void enqueue_product(rank_rows *a, cp_weight weight, bool add,
                            float *y) {
    if (a->base.status == CP_OK)
        a->base.status = cp_device_multiply(
            a->rank->multiplier, tensor_of(a, weight), a->base.count, a->input,
            a->scales, add, y, a->stream);
}

static void multiply(cp_rows *rows, cp_weight first, int count) {
    (void)count; /* they are one matrix */
    rank_rows *a = (rank_rows *)rows;
    enqueue_product(a, first, false, a->wide);
}

static void add_narrow(rank_rows *a, cp_weight weight, int64_t count) {
    const cp_device_add_args call = {count, a->partial, x_of(a)};
    cp_rows *rows = &a->base;
    if (rows->status == CP_OK)
        rows->status = cp_device_multiply_bf16(
            a->rank->multiplier, tensor_of(a, weight), rows->count, a->input,
            a->scales, a->partial, a->stream);
    if (rows->status == CP_OK)
        rows->status = cp_nccl_sum(a->engine->runner->tensor, a->partial,
                                   CP_BF16, count, a->stream);
    note(a, cp_device_add(&call, a->stream), "adding a sum");
}

static void add(cp_rows *rows, cp_weight weight) {
    rank_rows *a = (rank_rows *)rows;
    cp_nccl *group = a->engine->runner->tensor;
    const int64_t count = rows->count * a->facts->width;
    if (a->partial != NULL) {
        add_narrow(a, weight, count);
        return;
    }
    enqueue_product(a, weight, a->engine->model->share.part == 0, x_of(a));
    if (group != NULL && rows->status == CP_OK)
        rows->status = cp_nccl_sum(group, x_of(a), CP_F32, count, a->stream);
}

static void enqueue_norm(rank_rows *a, cp_weight weight, int64_t count,
                         void *to, float *scales) {
    const cp_device_norm_args call = {
        .rows = count,
        .width = a->facts->width,
        .x = x_of(a),
        .weight = tensor_of(a, weight)->values,
        .epsilon = (float)a->facts->epsilon,
        .element = a->engine->model->element,
        .y = to,
        .scales = scales,
    };
    note(a, cp_device_norm(&call, a->stream), "a norm");
}

static void norm(cp_rows *rows, cp_weight weight) {
    rank_rows *a = (rank_rows *)rows;
    enqueue_norm(a, weight, rows->count, a->input, a->scales);
}

static int64_t gates_of(const rank_rows *a) {
    return cp_facts_out(a->facts, cp_facts_has_state(a->facts, a->base.layer)
                                      ? CP_WEIGHT_STATE_GATE
                                      : CP_WEIGHT_OUTPUT_GATE);
}

/* Gates, which are the last products of attention, and rows of states. */
static void split(rank_rows *a) {
    const cp_state_facts *f = &a->facts->states;
    const bool state = cp_facts_has_state(a->facts, a->base.layer);
    const int64_t width = mixed_width(a->facts, a->base.layer);
    const int64_t gates = gates_of(a), channels = cp_state_channels(f);
    const int64_t first = a->base.first;
    const cp_device_split_args call = {
        .rows = a->base.count,
        .stride = width,
        .channels = state ? channels : 0,
        .gates = gates,
        .heads = state ? f->heads : 0,
        .from = a->wide + (state ? 0 : width - gates),
        .factor = tensor_of(a, CP_WEIGHT_STATE_FACTOR)->values,
        .bias = tensor_of(a, CP_WEIGHT_STATE_BIAS)->values,
        .to = a->states->rows + first * (channels + 2 * f->heads),
        .kept = a->gates + first * gates,
    };
    note(a, cp_device_split(&call, a->stream), "keeping gates");
}

/* What the walk left, gated. */
static const float *open_gates(rank_rows *a) {
    const cp_state_facts *f = &a->facts->states;
    const bool state = cp_facts_has_state(a->facts, a->base.layer);
    const int64_t first = a->base.first, width = gates_of(a);
    const int64_t dim = state ? f->value_dim : a->facts->shape.head_dim;
    const cp_device_open_args call = {
        .rows = a->base.count,
        .heads = width / dim,
        .dim = dim,
        .indices = a->indices + first,
        .placed = !state,
        .answers = state ? a->states->answers + first * width : a->slots.output,
        .weight = tensor_of(a, CP_WEIGHT_STATE_NORM)->values,
        .epsilon = (float)a->facts->epsilon,
        .gates = a->gates + first * width,
    };
    note(a, cp_device_open(&call, a->stream), "opening gates");
    return call.gates;
}

static void scatter(cp_rows *rows) {
    rank_rows *a = (rank_rows *)rows;
    if (cp_facts_is_hybrid(a->facts))
        split(a);
    if (cp_facts_has_state(a->facts, rows->layer))
        return;
    const cp_device_rotate_args call = {
        .rows = rows->count,
        .shape = a->facts->shape,
        .bias = tensor_of(a, CP_WEIGHT_QUERY_BIAS)->values,
        .query_norm = tensor_of(a, CP_WEIGHT_QUERY_NORM)->values,
        .key_norm = tensor_of(a, CP_WEIGHT_KEY_NORM)->values,
        .epsilon = (float)a->facts->epsilon,
        .pairs = a->facts->rotary / 2,
        .positions = a->positions + rows->first,
        .frequencies = a->engine->model->frequencies,
        .indices = a->indices + rows->first,
        .projected = a->wide,
        .behind = gates_of(a),
        .element = a->engine->model->element,
        .queries = a->slots.queries,
        .keys = a->slots.keys,
        .values = a->slots.values,
    };
    note(a, cp_device_rotate(&call, a->stream), "rotating queries and keys");
}

static void gather(cp_rows *rows) {
    rank_rows *a = (rank_rows *)rows;
    const cp_shape *shape = &a->facts->shape;
    const bool gated = cp_facts_is_hybrid(a->facts);
    const cp_device_gather_args call = {
        .rows = rows->count,
        .width = gated ? gates_of(a) : shape->query_heads * shape->head_dim,
        .indices = gated ? NULL : a->indices + rows->first,
        .from = gated ? open_gates(a) : a->slots.output,
        .stored = CP_F32,
        .element = a->engine->model->element,
        .to = a->input,
        .scales = a->scales,
    };
    note(a, cp_device_gather(&call, a->stream), "gathering attention's output");
}

static void gate(cp_rows *rows) {
    rank_rows *a = (rank_rows *)rows;
    const cp_device_gate_args call = {rows->count, a->facts->feed_forward,
                                      a->wide,     a->engine->model->element,
                                      a->input,    a->scales};
    note(a, cp_device_gate(&call, a->stream), "a gate");
}

static cp_status each(cp_pass *base, int64_t layer, const char *name,
                      void (*program)(cp_rows *rows)) {
    cp_device_forward *pass = (cp_device_forward *)base;
    cp_device_trace *trace = pass->engine->trace;
    for (int r = 0; r < pass->engine->count; r++) {
        rank_rows *a = &pass->parts[r];
        const int rank = a->rank->rank;
        cp_device_trace_layer(trace, rank, layer);
        const int64_t mark = cp_device_trace_begin(
            trace, rank, CP_COMPUTING, a->stream, (cp_stretch){.name = name});
        for (int64_t first = 0; first < a->rows; first += a->block) {
            program(&block_at(pass, r, layer, first)->base);
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
    cp_device_forward *pass = (cp_device_forward *)base;
    for (int r = 0; r < pass->engine->count; r++) {
        rank_rows *a = block_at(pass, r, 0, 0);
        const cp_device_gather_args call = {
            .rows = a->rows,
            .width = a->facts->width,
            .indices = a->words,
            .from = tensor_of(a, CP_WEIGHT_EMBEDDING)->values,
            .stored = a->engine->model->element,
            .element = CP_F32,
            .to = a->x,
        };
        if (a->rows == 0)
            continue;
        note(a,
             cudaMemcpyAsync(a->memory, a->staging, (size_t)a->staged,
                             cudaMemcpyHostToDevice, a->stream),
             "sending tokens");
        note(a, cp_device_gather(&call, a->stream), "looking up words");
        CP_TRY(a->base.status);
    }
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

static const cp_pass_ops on_queues = {.norm = norm,
                                      .multiply = multiply,
                                      .scatter = scatter,
                                      .gather = gather,
                                      .gate = gate,
                                      .add = add,
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
    rank_rows *a = &pass->parts[r];
    *a = (rank_rows){.engine = engine,
                     .rank = rank,
                     .states = &pass->buffers[r],
                     .facts = &model->base.facts,
                     .stream = engine->queues[r].compute,
                     .rows = rows,
                     .block = cp_min(most, rows)};
    CP_TRY(make_activations(a, &pass->rooms[2 * r]));
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
    CP_TRY(cp_allocate(&pass->parts, count, sizeof(rank_rows), "parts"));
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
        rank_rows *a = block_at(pass, r, layers, 0);
        enqueue_norm(a, CP_WEIGHT_OUTPUT_NORM, a->count, hidden[r].rows, NULL);
        note(a, cudaStreamSynchronize(a->stream), "the end");
        CP_TRY(a->base.status);
        bytes[a->rank->rank] =
            attending * cp_stream_walker_sent(pass->walkers[r]) +
            cp_device_state_call_sent(pass->states, r);
    }
    return CP_OK;
}

cp_status cp_device_forward_run(cp_device_forward *pass, const cp_forward *call,
                                const cp_hidden *hidden) {
    for (int r = 0; r < pass->engine->count; r++)
        write_rows(call, &pass->parts[r]);
    CP_TRY(enqueue(pass));
    CP_TRY(finish(pass, hidden, call->bytes));
    pass->warm = true;
    return CP_OK;
}
