/* Tangled from book/13-model.nw; edit the chapter. */
/* A rank's rows on their way through a model's layers. */
#include "cuda/model/device_rows.h"

#include "cuda/kernels/model_kernels.h"
#include "cuda/kernels/state_kernels.h"
#include "model/arena.h"

/* The numbers of a row's products before a walk. */
static int64_t mixed_width(const cp_model_facts *f, int64_t layer) {
    const cp_mixer by = cp_facts_mixer(f, layer);
    int64_t width = 0;
    for (int n = 0; n < by.count; n++)
        width += cp_facts_out(f, (cp_weight)((int)by.first + n));
    return width;
}

static void claim(cp_device_rows *a, cp_arena *from) {
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

cp_status cp_device_rows_make(cp_device_rows *a, cp_device_room *device_room) {
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

static void *on_host(const cp_device_rows *a, void *sent) {
    return a->staging + ((char *)sent - a->memory);
}

void cp_device_rows_write(cp_device_rows *a, const cp_forward *call) {
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

cp_rows *cp_device_rows_block(cp_device_rows *a, cp_pass *pass, int64_t layer,
                              int64_t first) {
    const int64_t count = cp_min(a->block, a->rows - first);
    a->base = (cp_rows){pass, layer, first, count, CP_OK};
    return &a->base;
}

static float *x_of(const cp_device_rows *a) {
    return a->x + a->base.first * a->facts->width;
}

static void note(cp_device_rows *a, cudaError_t error, const char *what) {
    if (a->base.status == CP_OK)
        a->base.status = cp_cuda(error, "rank %d, layer %ld, %s", a->rank->rank,
                                 a->base.layer, what);
}

static const cp_device_matrix *tensor_of(const cp_device_rows *a,
                                         cp_weight weight) {
    return &a->engine->model->tensors[cp_weight_index(weight, a->base.layer)];
}

static void enqueue_product(cp_device_rows *a, cp_weight weight, bool add,
                            float *y) {
    if (a->base.status == CP_OK)
        a->base.status = cp_device_multiply(
            a->rank->multiplier, tensor_of(a, weight), a->base.count, a->input,
            a->scales, add, y, a->stream);
}

void cp_device_rows_multiply(cp_rows *rows, cp_weight first, int count) {
    (void)count; /* they are one matrix */
    cp_device_rows *a = (cp_device_rows *)rows;
    enqueue_product(a, first, false, a->wide);
}

static void add_narrow(cp_device_rows *a, cp_weight weight, int64_t count) {
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

void cp_device_rows_add(cp_rows *rows, cp_weight weight) {
    cp_device_rows *a = (cp_device_rows *)rows;
    cp_nccl *group = a->engine->runner->tensor;
    const int64_t count = rows->count * a->facts->width;
    if (a->partial != NULL) {
        add_narrow(a, weight, count);
        return;
    }
    enqueue_product(a, weight, a->engine->model->slice.part == 0, x_of(a));
    if (group != NULL && rows->status == CP_OK)
        rows->status = cp_nccl_sum(group, x_of(a), CP_F32, count, a->stream);
}

static void enqueue_norm(cp_device_rows *a, cp_weight weight, int64_t count,
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

void cp_device_rows_norm(cp_rows *rows, cp_weight weight) {
    cp_device_rows *a = (cp_device_rows *)rows;
    enqueue_norm(a, weight, rows->count, a->input, a->scales);
}

static int64_t gates_of(const cp_device_rows *a) {
    return cp_facts_out(a->facts, cp_facts_has_state(a->facts, a->base.layer)
                                      ? CP_WEIGHT_STATE_GATE
                                      : CP_WEIGHT_OUTPUT_GATE);
}

/* Gates, which are the last products of attention, and rows of states. */
static void split(cp_device_rows *a) {
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
static const float *open_gates(cp_device_rows *a) {
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

void cp_device_rows_scatter(cp_rows *rows) {
    cp_device_rows *a = (cp_device_rows *)rows;
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

void cp_device_rows_gather(cp_rows *rows) {
    cp_device_rows *a = (cp_device_rows *)rows;
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

void cp_device_rows_gate(cp_rows *rows) {
    cp_device_rows *a = (cp_device_rows *)rows;
    const cp_device_gate_args call = {rows->count, a->facts->feed_forward,
                                      a->wide,     a->engine->model->element,
                                      a->input,    a->scales};
    note(a, cp_device_gate(&call, a->stream), "a gate");
}

cp_status cp_device_rows_send(cp_device_rows *a, cp_pass *pass) {
    cp_device_rows_block(a, pass, 0, 0);
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
        return CP_OK;
    note(a,
         cudaMemcpyAsync(a->memory, a->staging, (size_t)a->staged,
                         cudaMemcpyHostToDevice, a->stream),
         "sending tokens");
    note(a, cp_device_gather(&call, a->stream), "looking up words");
    return a->base.status;
}

cp_status cp_device_rows_finish(cp_device_rows *a, cp_pass *pass, void *to) {
    cp_device_rows_block(a, pass, a->facts->layers, 0);
    enqueue_norm(a, CP_WEIGHT_OUTPUT_NORM, a->count, to, NULL);
    note(a, cudaStreamSynchronize(a->stream), "the end");
    return a->base.status;
}
