/* Tangled from book/12-model.nw; edit the chapter. */
/* One rank's forward pass over its own tokens: every layer of the model, with
 * attention handed to the walker of a plan. */
#include "reference/model/cores_engine.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "model/arena.h"
#include "model/pass.h"
#include "reference/attend/micro.h"
#include "reference/model/layers.h"
#include "reference/model/linear.h"
#include "reference/model/model.h"
#include "reference/model/state_layers.h"
#include "reference/run/walk.h"

/* A block of rows, and one thread's workspace for it. */
typedef struct {
    cp_rows base;
    float *normed;           /* [block rows][width] */
    float *made[CP_WEIGHTS]; /* products; NULL for most weights */
    const float *input;      /* of the next product: one of these */
    float *scratch;          /* for products */
    int threads;             /* to share one block */
} workspace;

enum { MOST_ROWS = 256, LEAST_ROWS = 128 };

typedef struct {
    cp_pass base;
    const cp_cores_engine *engine;
    const cp_llama *model;
    const cp_model_facts *facts;
    cp_comm *comm;
    cp_walker *walker;
    int threads; /* between walks */
    int64_t count;
    char *memory;           /* holds all of the following */
    cp_token *tokens;       /* [count] */
    float *x;               /* [count][width] */
    float *cosines, *sines; /* [count][rotary / 2] */
    float *gates;           /* [count][gate_width], over a walk; or NULL */
    int64_t gate_width;
    cp_state_layers *states; /* its layers with a state, or NULL */
    workspace *workspaces;   /* [helpers] threads that take blocks */
    int helpers;
    int64_t block; /* rows of a block */
    cp_trace_context tracing;
} state;

static state *state_of(const cp_rows *rows) {
    return (state *)rows->pass;
}

static const cp_llama_tensor *tensor_of(const state *s, cp_weight weight,
                                        int64_t layer) {
    return &s->model->tensors[cp_weight_index(weight, layer)];
}

static void plan_blocks(state *s) {
    const int64_t slice = cp_micro_get()->slice;
    const bool many = s->count >= (int64_t)LEAST_ROWS * s->threads;
    s->helpers = many ? s->threads : 1;
    const int64_t each = cp_max(1, cp_ceil_divide(s->count, s->helpers));
    s->block = cp_ceil_divide(each, cp_ceil_divide(each, MOST_ROWS));
    if (s->block > slice)
        s->block = slice * cp_ceil_divide(s->block, slice);
}

static void claim_workspace(const state *s, cp_arena *from, int n) {
    static const cp_weight kept_weights[] = {
        CP_WEIGHT_QUERY,       CP_WEIGHT_KEY,        CP_WEIGHT_VALUE,
        CP_WEIGHT_OUTPUT_GATE, CP_WEIGHT_GATE,       CP_WEIGHT_UP,
        CP_WEIGHT_STATE_INPUT, CP_WEIGHT_STATE_GATE, CP_WEIGHT_STATE_DECAY,
        CP_WEIGHT_STATE_RATE};
    workspace made = {.threads = s->helpers > 1 ? 1 : s->threads};
    int64_t widest = s->facts->width;
    made.normed = cp_arena_claim(from, s->block, 4 * widest);
    for (int n = 0; n < 10; n++) {
        const int64_t width = cp_facts_out(s->facts, kept_weights[n]);
        made.made[kept_weights[n]] = cp_arena_claim(from, s->block, 4 * width);
        widest = cp_max(widest, width);
    }
    made.scratch = cp_arena_claim(
        from, cp_linear_scratch(s->block, widest, made.threads), 4);
    if (from->memory != NULL)
        s->workspaces[n] = made;
}

static void claim_all(state *s, cp_arena *from) {
    const cp_model_facts *f = s->facts;
    const int64_t size = sizeof(float);
    s->tokens = cp_arena_claim(from, s->count, sizeof(cp_token));
    s->x = cp_arena_claim(from, s->count, size * f->width);
    s->cosines = cp_arena_claim(from, s->count, size * f->rotary / 2);
    s->sines = cp_arena_claim(from, s->count, size * f->rotary / 2);
    s->gate_width = cp_max(cp_facts_out(f, CP_WEIGHT_OUTPUT_GATE),
                           cp_facts_out(f, CP_WEIGHT_STATE_GATE));
    s->gates = cp_arena_claim(from, s->count, size * s->gate_width);
    s->workspaces = cp_arena_claim(from, s->helpers, sizeof(workspace));
    for (int n = 0; n < s->helpers; n++)
        claim_workspace(s, from, n);
}

static cp_status make_room(state *s) {
    cp_arena room = {.align = 64};
    plan_blocks(s);
    claim_all(s, &room);
    if (room.overflows)
        return cp_fail(CP_MEMORY, "activations of %ld rows overflow", s->count);
    CP_TRY(cp_allocate_lines(&s->memory, room.used, 1, "activations"));
    room = (cp_arena){.align = 64, .memory = s->memory};
    claim_all(s, &room);
    return CP_OK;
}

static cp_status embed(cp_pass *pass) {
    const state *s = (state *)pass;
    const int64_t width = s->facts->width, pairs = s->facts->rotary / 2;
    for (int64_t t = 0; t < s->count; t++) {
        const int64_t word = s->engine->call->tokens[s->tokens[t].index];
        cp_matrix_row(&tensor_of(s, CP_WEIGHT_EMBEDDING, 0)->matrix, word,
                      s->x + t * width);
        cp_angles_at(s->tokens[t].position, pairs, s->model->frequencies,
                     s->cosines + t * pairs, s->sines + t * pairs);
    }
    return CP_OK;
}

static void norm(cp_rows *rows, cp_weight weight) {
    workspace *at = (workspace *)rows;
    const state *s = state_of(rows);
    const int64_t width = s->facts->width;
    cp_norm_rows(rows->count, width, s->x + rows->first * width,
                 tensor_of(s, weight, rows->layer)->vector, s->facts->epsilon,
                 at->threads, at->normed);
    at->input = at->normed;
}

static cp_linear *linear_of(const state *s) {
    return s->engine->runner->bf16 ? cp_linear_bf16 : cp_linear_rows;
}

static void multiply(cp_rows *rows, cp_weight first, int count) {
    const workspace *at = (workspace *)rows;
    const cp_llama_tensor *tensors =
        tensor_of(state_of(rows), first, rows->layer);
    cp_product products[4];
    for (int n = 0; n < count; n++)
        products[n] =
            (cp_product){&tensors[n].matrix, false, at->made[(int)first + n]};
    linear_of(state_of(rows))(rows->count, tensors->matrix.in, at->input,
                              products, count, at->threads, at->scratch);
}

static void add(cp_rows *rows, cp_weight weight) {
    const workspace *at = (workspace *)rows;
    const state *s = state_of(rows);
    const cp_matrix *matrix = &tensor_of(s, weight, rows->layer)->matrix;
    const cp_product onto_x = {matrix, true,
                               s->x + rows->first * s->facts->width};
    linear_of(s)(rows->count, matrix->in, at->input, &onto_x, 1, at->threads,
                 at->scratch);
}

static void gate(cp_rows *rows) {
    workspace *at = (workspace *)rows;
    cp_gate_values(rows->count * state_of(rows)->facts->feed_forward,
                   at->made[CP_WEIGHT_UP], at->threads,
                   at->made[CP_WEIGHT_GATE]);
    at->input = at->made[CP_WEIGHT_GATE];
}

static void put_rows(const state *s, const workspace *at, cp_weight weight,
                     int64_t heads, float *to) {
    const int64_t width = heads * s->facts->shape.head_dim;
    for (int64_t t = 0; t < at->base.count; t++)
        memcpy(to + s->tokens[at->base.first + t].row * width,
               at->made[weight] + t * width, (size_t)width * sizeof(float));
}

static void add_bias_and_norm(const state *s, const workspace *at, int product,
                              int64_t heads) {
    const int64_t rows = at->base.count, dim = s->facts->shape.head_dim;
    const cp_llama_tensor *biases =
        tensor_of(s, CP_WEIGHT_QUERY_BIAS, at->base.layer);
    const cp_llama_tensor *norms =
        tensor_of(s, CP_WEIGHT_QUERY_NORM, at->base.layer);
    float *x = at->made[CP_WEIGHT_QUERY + product];
    if (biases[product].vector != NULL)
        cp_add_to_rows(rows, heads * dim, biases[product].vector, at->threads,
                       x);
    if (product < 2 && norms[product].vector != NULL)
        cp_norm_rows(rows * heads, dim, x, norms[product].vector,
                     s->facts->epsilon, at->threads, x);
}

/* log(1 + exp(x)). */
static float softplus(float x) {
    return x > 20 ? x : log1pf(expf(x));
}

static float *gates_of(const state *s, const workspace *at) {
    return s->gates + at->base.first * s->gate_width;
}

static void keep_gates(const state *s, const workspace *at) {
    const cp_weight weight = cp_facts_has_state(s->facts, at->base.layer)
                                 ? CP_WEIGHT_STATE_GATE
                                 : CP_WEIGHT_OUTPUT_GATE;
    const int64_t width = cp_facts_out(s->facts, weight);
    memcpy(gates_of(s, at), at->made[weight],
           (size_t)(at->base.count * width) * sizeof(float));
}

static void scatter_states(const state *s, const workspace *at) {
    const cp_state_facts *f = &s->facts->states;
    const int64_t channels = cp_state_channels(f), heads = f->heads,
                  stride = cp_state_row(f), layer = at->base.layer;
    float *rows = cp_state_layers_buffers(s->states)->rows;
    const float *factor = tensor_of(s, CP_WEIGHT_STATE_FACTOR, layer)->vector;
    const float *bias = tensor_of(s, CP_WEIGHT_STATE_BIAS, layer)->vector;
    for (int64_t t = 0; t < at->base.count; t++) {
        float *row = rows + (at->base.first + t) * stride;
        float *decay = row + channels, *rate = decay + heads;
        memcpy(row, at->made[CP_WEIGHT_STATE_INPUT] + t * channels,
               (size_t)channels * sizeof(float));
        for (int64_t h = 0; h < heads; h++) {
            const float a = at->made[CP_WEIGHT_STATE_DECAY][t * heads + h];
            const float b = at->made[CP_WEIGHT_STATE_RATE][t * heads + h];
            decay[h] = factor[h] * softplus(a + bias[h]);
            rate[h] = 1 / (1 + expf(-b));
        }
    }
}

static void gather_states(const state *s, workspace *at) {
    const cp_state_facts *f = &s->facts->states;
    const int64_t width = cp_state_answer_row(f), dim = f->value_dim;
    const float *answers = cp_state_layers_buffers(s->states)->answers;
    const int64_t count = at->base.count;
    float *normed = at->made[CP_WEIGHT_STATE_GATE], *gates = gates_of(s, at);
    cp_norm_rows(count * width / dim, dim, answers + at->base.first * width,
                 tensor_of(s, CP_WEIGHT_STATE_NORM, at->base.layer)->vector,
                 s->facts->epsilon, at->threads, normed);
    cp_gate_values(count * width, normed, at->threads, gates);
    at->input = gates;
}
static void scatter(cp_rows *rows) {
    const workspace *at = (workspace *)rows;
    const state *s = state_of(rows);
    const cp_shape *shape = &s->facts->shape;
    if (s->gate_width > 0)
        keep_gates(s, at);
    if (cp_facts_has_state(s->facts, rows->layer)) {
        scatter_states(s, at);
        return;
    }
    const int64_t pairs = s->facts->rotary / 2;
    for (int n = 0; n < 3; n++)
        add_bias_and_norm(s, at, n,
                          n == 0 ? shape->query_heads : shape->kv_heads);
    const cp_angles angles = {pairs, s->cosines + rows->first * pairs,
                              s->sines + rows->first * pairs};
    cp_rotate_rows(rows->count, shape->query_heads, shape->head_dim, angles,
                   at->threads, at->made[CP_WEIGHT_QUERY]);
    cp_rotate_rows(rows->count, shape->kv_heads, shape->head_dim, angles,
                   at->threads, at->made[CP_WEIGHT_KEY]);
    put_rows(s, at, CP_WEIGHT_QUERY, shape->query_heads, s->walker->queries);
    put_rows(s, at, CP_WEIGHT_KEY, shape->kv_heads, s->walker->new_keys);
    put_rows(s, at, CP_WEIGHT_VALUE, shape->kv_heads, s->walker->new_values);
}

static void gather(cp_rows *rows) {
    workspace *at = (workspace *)rows;
    const state *s = state_of(rows);
    const cp_shape *shape = &s->facts->shape;
    const int64_t width = shape->query_heads * shape->head_dim;
    if (cp_facts_has_state(s->facts, rows->layer)) {
        gather_states(s, at);
        return;
    }
    const float *output = s->walker->result.output;
    float *to = at->made[CP_WEIGHT_QUERY];
    for (int64_t t = 0; t < rows->count; t++)
        memcpy(to + t * width, output + s->tokens[rows->first + t].row * width,
               (size_t)width * sizeof(float));
    if (cp_facts_out(s->facts, CP_WEIGHT_OUTPUT_GATE) > 0)
        cp_open_gates(rows->count * width, gates_of(s, at), at->threads, to);
    at->input = to;
}

static void take_block(state *s, workspace *at, int64_t layer, int64_t block,
                       void (*program)(cp_rows *rows)) {
    const int64_t first = block * s->block;
    at->base = (cp_rows){.pass = &s->base,
                         .layer = layer,
                         .first = first,
                         .count = cp_min(s->block, s->count - first)};
    program(&at->base);
}

static cp_status each(cp_pass *pass, int64_t layer, const char *name,
                      void (*program)(cp_rows *rows)) {
    state *s = (state *)pass;
    const int64_t blocks = cp_ceil_divide(s->count, s->block);
    const double start = cp_clock();
    s->tracing.layer = layer;
    if (s->helpers == 1) {
        for (int64_t n = 0; n < blocks; n++)
            take_block(s, &s->workspaces[0], layer, n, program);
    } else {
#pragma omp parallel for num_threads(s->helpers) schedule(dynamic)
        for (int64_t n = 0; n < blocks; n++)
            take_block(s, &s->workspaces[omp_get_thread_num()], layer, n,
                       program);
    }
    cp_trace_layers(&s->tracing, name, start);
    return CP_OK;
}

static cp_status walk(cp_pass *pass, int64_t layer) {
    state *s = (state *)pass;
    cp_store *store = s->engine->store;
    const int rank = s->comm->rank;
    const int64_t attending = cp_facts_attending(s->facts, layer);
    if (cp_facts_has_state(s->facts, layer))
        return cp_state_layers_walk(
            s->states, layer - attending,
            tensor_of(s, CP_WEIGHT_STATE_TAPS, layer)->vector);
    return cp_walk(s->walker, s->comm, cp_store_keys(store, rank, attending),
                   cp_store_values(store, rank, attending));
}

static const cp_pass_ops on_cores = {.norm = norm,
                                     .multiply = multiply,
                                     .scatter = scatter,
                                     .gather = gather,
                                     .gate = gate,
                                     .add = add,
                                     .each = each,
                                     .embed = embed,
                                     .walk = walk};

static void write_hidden(const state *s) {
    const cp_local_ranks *local = &s->engine->base.local;
    const int index = local->group != NULL ? 0 : s->comm->rank;
    cp_norm_rows(s->count, s->facts->width, s->x,
                 tensor_of(s, CP_WEIGHT_OUTPUT_NORM, 0)->vector,
                 s->facts->epsilon, s->threads,
                 (float *)(void *)s->engine->hidden[index].rows);
}

static cp_status run(state *s, const cp_walk_options *options) {
    const cp_forward *call = s->engine->call;
    const int rank = s->comm->rank;
    CP_TRY(cp_walker_new(call->plan, rank, options, &s->walker));
    CP_TRY(make_room(s));
    cp_forward_list(call, rank, s->tokens);
    if (s->engine->base.states != NULL)
        CP_TRY(cp_state_layers_new(s->engine->base.states, call->layout,
                                   s->comm, s->threads, &s->states));
    CP_TRY(cp_pass_run(&s->base, true));
    write_hidden(s);
    return CP_OK;
}
cp_status cp_forward_rank(cp_comm *comm, void *context) {
    const cp_cores_engine *engine = context;
    const cp_session_options *options = &engine->base.options;
    const cp_model_facts *facts = &engine->base.model->facts;
    state s = {.base = {.on = &on_cores,
                        .facts = facts,
                        .stop = options->stop,
                        .progress = comm->rank == 0 ? options->progress : NULL,
                        .progress_context = options->progress_context},
               .engine = engine,
               .model = cp_llama_of(engine->base.model),
               .facts = facts,
               .comm = comm,
               .threads = engine->helpers,
               .count = engine->call->layout->queries[comm->rank].tokens,
               .tracing = {engine->trace, engine->began, comm->rank, 0}};
    const cp_walk_options walking = {
        .kernel = cp_runner_kernel(engine->runner),
        .threads = engine->helpers,
        .observe = engine->trace != NULL ? cp_trace_observe : NULL,
        .context = &s.tracing};
    const cp_status status = run(&s, &walking);
    const cp_traffic sent = comm->sent;
    engine->call->bytes[comm->rank] =
        sent.ring_bytes + sent.all_to_all_bytes + sent.all_gather_bytes;
    if (!comm->kept) {
        cp_walker_free(s.walker);
        cp_state_layers_free(s.states);
    }
    free(s.memory);
    return status;
}
