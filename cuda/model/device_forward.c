/* Tangled from book/13-model.nw; edit the chapter. */
/* A model's layers on queues, around the walk of a plan. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "cuda/model/device_forward.h"

#include <stdlib.h>
#include <time.h>

#include "cuda/kernels/device.h"
#include "cuda/kernels/model_kernels.h"
#include "model/arena.h"
#include "model/pass.h"
#include "ring/variants.h"

enum { MOST_ROWS = 2048 }; /* of a block, unless the ranks say otherwise */

/* What the host knows of each row. */
typedef struct {
    int32_t *words;         /* [rows]; -1: no token */
    int64_t *places;        /* [rows] in the walker's slots */
    float *cosines, *sines; /* [rows][rotary / 2] */
} known;

/* A rank's activations, and what works on them. */
typedef struct {
    const cp_device_ranks *mine;
    const cp_device_rank *rank;
    const cp_model_facts *facts;
    cp_element element;  /* of the input */
    int64_t rows, block; /* in all, and of a block */
    int64_t count;       /* rows that have a token in this call */
    cp_token *tokens;    /* [rows] */
    char *staging;       /* on the host: what is sent, */
    int64_t staged;      /* and its bytes */
    known written, sent; /* there, and on the device */
    char *memory;        /* on the device: holds sent and the following */
    float *x;            /* [rows][width] */
    char *input;         /* [block][widest] what the next matrix meets */
    float *wide;         /* [block] its products */
    char *coarse;        /* [block][widest] the input in FP8, */
    float *scales;       /* [block] and what its rows are divided by */
} part;

struct cp_device_forward {
    cp_pass base;
    const cp_device_ranks *mine;
    cp_layout *layout; /* of the call it was made for */
    cp_plan *plan;
    part *parts;                /* [mine->count], as all below */
    cp_stream_walker **walkers; /* that the parts walk with */
    void **keys, **values;      /* of the current layer */
};

static void claim_known(cp_arena *from, int64_t rows, int64_t rotary,
                        known *to) {
    to->words = cp_arena_claim(from, rows, sizeof(int32_t));
    to->places = cp_arena_claim(from, rows, sizeof(int64_t));
    to->cosines = cp_arena_claim(from, rows, rotary / 2 * 4);
    to->sines = cp_arena_claim(from, rows, rotary / 2 * 4);
}

static void claim(part *a, cp_arena *from) {
    const cp_model_facts *f = a->facts;
    const int64_t heads = f->shape.query_heads * f->shape.head_dim;
    const int64_t keys = f->shape.kv_heads * f->shape.head_dim;
    const int64_t widest = cp_max(cp_max(f->width, f->feed_forward), heads);
    const int64_t made = cp_max(heads + 2 * keys, 2 * f->feed_forward);
    const int64_t coarse =
        a->mine->model->numbers == CP_NUMBERS_F8 ? a->block : 0;
    claim_known(from, a->rows, f->rotary, &a->sent);
    a->staged = from->used;
    a->x = cp_arena_claim(from, a->rows, 4 * f->width);
    a->input =
        cp_arena_claim(from, a->block, widest * cp_element_bytes(a->element));
    a->wide = cp_arena_claim(from, a->block, 4 * made);
    a->coarse = cp_arena_claim(from, coarse, widest);
    a->scales = cp_arena_claim(from, coarse, 4);
}

static cp_status make_activations(part *a) {
    enum { ALIGN = 256 };
    cp_arena room = {.align = ALIGN};
    void *staging = NULL;
    claim(a, &room);
    if (room.overflows)
        return cp_fail(CP_MEMORY, "activations of %lld rows overflow",
                       (long long)a->rows);
    CP_TRY(cp_allocate(&a->tokens, a->rows, sizeof(cp_token), "tokens"));
    CP_TRY(cp_device_reserve(room.used, "activations", &a->memory));
    CP_TRY(cp_cuda(cudaMallocHost(&staging, (size_t)cp_max(a->staged, 1)),
                   "%lld bytes on the host", (long long)a->staged));
    a->staging = staging;
    room = (cp_arena){.align = ALIGN, .memory = a->memory};
    claim(a, &room);
    room = (cp_arena){.align = ALIGN, .memory = a->staging};
    claim_known(&room, a->rows, a->facts->rotary, &a->written);
    return CP_OK;
}

static void free_activations(part *a) {
    cudaFree(a->memory);
    if (a->staging != NULL)
        cudaFreeHost(a->staging);
    free(a->tokens);
}

static void write_rows(const cp_forward *call, part *a) {
    const int64_t pairs = a->facts->rotary / 2;
    const known *to = &a->written;
    a->count = call->layout->queries[a->rank->rank].tokens;
    cp_forward_list(call, a->rank->rank, a->tokens);
    for (int64_t t = a->count; t < a->rows; t++)
        a->tokens[t] = (cp_token){.row = -1};
    for (int64_t t = 0; t < a->rows; t++) {
        const cp_token token = a->tokens[t];
        to->words[t] = t < a->count ? call->tokens[token.index] : -1;
        to->places[t] = token.row;
        cp_angles_at(token.position, pairs, a->mine->model->frequencies,
                     to->cosines + t * pairs, to->sines + t * pairs);
    }
}

void cp_device_forward_write(cp_device_forward *pass, const cp_forward *call) {
    for (int r = 0; r < pass->mine->count; r++)
        write_rows(call, &pass->parts[r]);
}

/* A block of one rank's rows. */
typedef struct {
    cp_rows base;
    const part *of;
    cp_stream_walker *walker;
    cudaStream_t stream;
    float *x;
    const int64_t *places;
} task;

static task task_of(cp_device_forward *pass, int r, int64_t layer,
                    int64_t first) {
    const part *of = &pass->parts[r];
    const int64_t count = cp_min(of->block, of->rows - first);
    return (task){.base = {&pass->base, layer, first, count, CP_OK},
                  .of = of,
                  .walker = pass->walkers[r],
                  .stream = of->rank->queues.compute,
                  .x = of->x + first * of->facts->width,
                  .places = of->sent.places + first};
}

static void note(task *t, cudaError_t error, const char *what) {
    if (t->base.status == CP_OK)
        t->base.status =
            cp_cuda(error, "rank %d, layer %lld, %s", t->of->rank->rank,
                    (long long)t->base.layer, what);
}

static const cp_device_matrix *tensor_of(const task *t, cp_weight weight) {
    return &t->of->mine->model->tensors[cp_weight_index(weight, t->base.layer)];
}

static void enqueue_product(task *t, cp_weight weight, bool add, float *y) {
    const cp_device_matrix *matrix = tensor_of(t, weight);
    const part *a = t->of;
    const bool coarse = matrix->numbers == CP_NUMBERS_F8;
    const cp_device_quantising call = {t->base.count, matrix->in,
                                       (const float *)(const void *)a->input,
                                       a->coarse, a->scales};
    if (coarse)
        note(t, cp_device_quantise(&call, t->stream), "rounding to FP8");
    if (t->base.status == CP_OK)
        t->base.status =
            cp_device_multiply(t->of->rank->multiplier, matrix, t->base.count,
                               coarse ? a->coarse : a->input,
                               coarse ? a->scales : NULL, add, y, t->stream);
}

static void multiply(cp_rows *rows, cp_weight first, int count) {
    (void)count; /* they are one matrix */
    task *t = (task *)rows;
    enqueue_product(t, first, false, t->of->wide);
}

static void add(cp_rows *rows, cp_weight weight) {
    task *t = (task *)rows;
    cp_nccl *group = t->of->mine->tensor;
    enqueue_product(t, weight, t->of->mine->model->share.part == 0, t->x);
    if (group != NULL && rows->status == CP_OK)
        rows->status = cp_nccl_sum(
            group, t->x, rows->count * t->of->facts->width, t->stream);
}

static void norm(cp_rows *rows, cp_weight weight) {
    task *t = (task *)rows;
    const cp_device_norming call = {rows->count,
                                    t->of->facts->width,
                                    t->x,
                                    tensor_of(t, weight)->values,
                                    (float)t->of->facts->epsilon,
                                    t->of->element,
                                    t->of->input};
    note(t, cp_device_norm(&call, t->stream), "a norm");
}

static void place(cp_rows *rows) {
    task *t = (task *)rows;
    const int64_t pairs = t->of->facts->rotary / 2;
    const cp_device_rotating call = {
        .rows = rows->count,
        .shape = t->of->facts->shape,
        .pairs = pairs,
        .cosines = t->of->sent.cosines + rows->first * pairs,
        .sines = t->of->sent.sines + rows->first * pairs,
        .places = t->places,
        .projected = t->of->wide,
        .element = t->of->mine->model->element,
        .queries = cp_stream_walker_queries(t->walker),
        .keys = cp_stream_walker_new_keys(t->walker),
        .values = cp_stream_walker_new_values(t->walker),
    };
    note(t, cp_device_rotate(&call, t->stream), "turning queries and keys");
}

static void gather(cp_rows *rows) {
    task *t = (task *)rows;
    const cp_shape *shape = &t->of->facts->shape;
    const cp_device_gathering call = {
        rows->count,    shape->query_heads * shape->head_dim,
        t->places,      cp_stream_walker_output(t->walker),
        t->of->element, t->of->input};
    note(t, cp_device_gather(&call, t->stream),
         "gathering what attention gave");
}

static void gate(cp_rows *rows) {
    task *t = (task *)rows;
    const cp_device_gating call = {rows->count, t->of->facts->feed_forward,
                                   t->of->wide, t->of->element, t->of->input};
    note(t, cp_device_gate(&call, t->stream), "a gate");
}

static cp_status each_block(cp_device_forward *pass, int r, int64_t layer,
                            void (*program)(cp_rows *rows)) {
    const part *a = &pass->parts[r];
    for (int64_t n = 0; n < a->rows; n += a->block) {
        task t = task_of(pass, r, layer, n);
        program(&t.base);
        CP_TRY(t.base.status);
    }
    return CP_OK;
}

static cp_status each(cp_pass *base, int64_t layer, const char *name,
                      void (*program)(cp_rows *rows)) {
    cp_device_forward *pass = (cp_device_forward *)base;
    cp_device_trace *trace = pass->mine->trace;
    for (int r = 0; r < pass->mine->count; r++) {
        const cp_device_rank *rank = &pass->mine->ranks[r];
        cp_device_trace_layer(trace, rank->rank, layer);
        cp_device_trace_begin(trace, rank->rank, name, rank->queues.compute);
        CP_TRY(each_block(pass, r, layer, program));
        cp_device_trace_end(trace, rank->rank, rank->queues.compute);
    }
    return CP_OK;
}

static cp_status walk(cp_pass *base, int64_t layer) {
    cp_device_forward *pass = (cp_device_forward *)base;
    const cp_device_ranks *mine = pass->mine;
    for (int r = 0; r < mine->count; r++) {
        pass->keys[r] = mine->ranks[r].cache + 2 * layer * mine->cache_bytes;
        pass->values[r] = (char *)pass->keys[r] + mine->cache_bytes;
    }
    if (mine->link != NULL)
        return cp_stream_walk(pass->walkers[0], mine->link, pass->keys[0],
                              pass->values[0]);
    return cp_loopback_walk(pass->walkers, NULL, pass->keys, pass->values);
}

static cp_status embed(cp_pass *base) {
    cp_device_forward *pass = (cp_device_forward *)base;
    const cp_device_matrix *table =
        &pass->mine->model->tensors[CP_WEIGHT_EMBEDDING];
    for (int r = 0; r < pass->mine->count; r++) {
        task t = task_of(pass, r, 0, 0);
        const part *a = t.of;
        const cp_device_embedding call = {
            a->rows,       t.of->facts->width,         a->sent.words,
            table->values, t.of->mine->model->element, a->x};
        if (a->rows == 0)
            continue;
        note(&t,
             cudaMemcpyAsync(a->memory, a->staging, (size_t)a->staged,
                             cudaMemcpyHostToDevice, t.stream),
             "sending tokens");
        note(&t, cp_device_embed(&call, t.stream), "looking up words");
        CP_TRY(t.base.status);
    }
    return CP_OK;
}

static cp_status check_peers(const cp_device_ranks *mine, int64_t layer,
                             double waited) {
    if (mine->link == NULL)
        return CP_OK;
    if (mine->patience > 0 && waited > mine->patience)
        return cp_fail(CP_BROKEN, "rank %d waited %g s for layer %lld",
                       mine->ranks[0].rank, mine->patience, (long long)layer);
    return mine->link->check(mine->link->context);
}

static cp_status wait_for(const cp_device_ranks *mine, int64_t layer) {
    const struct timespec pause = {0, 20000};
    const double began = cp_clock();
    cudaError_t error;
    while ((error = cudaEventQuery(mine->paced[layer % 2])) ==
           cudaErrorNotReady) {
        CP_TRY(check_peers(mine, layer - 1, cp_clock() - began));
        nanosleep(&pause, NULL);
    }
    return cp_cuda(error, "waiting for a layer");
}

static cp_status pace(cp_pass *base, int64_t layer, int64_t *done) {
    const cp_device_ranks *mine = ((cp_device_forward *)base)->mine;
    CP_TRY(cp_cuda(
        cudaEventRecord(mine->paced[layer % 2], mine->ranks[0].queues.compute),
        "recording an event"));
    *done = cp_max(0, layer - 1);
    return *done > 0 ? wait_for(mine, *done) : CP_OK;
}

static const cp_pass_ops on_queues = {.norm = norm,
                                      .multiply = multiply,
                                      .place = place,
                                      .gather = gather,
                                      .gate = gate,
                                      .add = add,
                                      .each = each,
                                      .embed = embed,
                                      .walk = walk,
                                      .pace = pace};

static cp_status make_part(cp_device_forward *pass, const cp_forward *call,
                           int64_t growth, int r) {
    const cp_device_ranks *mine = pass->mine;
    const cp_device_model *model = mine->model;
    const cp_device_rank *rank = &mine->ranks[r];
    const cp_block *queries = &call->layout->queries[rank->rank];
    const int64_t rows = growth > 0 ? queries->rows : queries->tokens;
    const cp_stream_options options = {
        .element = model->element, .growth = growth, .trace = mine->trace};
    pass->parts[r] = (part){
        .mine = mine,
        .rank = rank,
        .facts = &model->base.facts,
        .element = model->numbers == CP_NUMBERS_F8 ? CP_F32 : model->element,
        .rows = rows,
        .block = cp_min(mine->block > 0 ? mine->block : MOST_ROWS, rows)};
    CP_TRY(make_activations(&pass->parts[r]));
    return cp_stream_walker_new(pass->plan, rank->rank, rank->queues, &options,
                                &pass->walkers[r]);
}

static cp_status fill_pass(cp_device_forward *pass, const cp_forward *call,
                           int64_t growth) {
    const cp_plan_options wanted = {call->plan->element_bytes, 1};
    const int64_t count = pass->mine->count;
    CP_TRY(cp_layout_copy(call->layout, &pass->layout));
    CP_TRY(cp_plan_build(call->plan->variant, pass->layout, &call->plan->shape,
                         &wanted, &pass->plan));
    CP_TRY(cp_allocate(&pass->parts, count, sizeof(part), "parts"));
    CP_TRY(cp_allocate(&pass->walkers, count, sizeof(pass->walkers[0]),
                       "walkers"));
    CP_TRY(cp_allocate(&pass->keys, 2 * count, sizeof(void *), "ranks"));
    pass->values = pass->keys + count;
    for (int r = 0; r < count; r++)
        CP_TRY(make_part(pass, call, growth, r));
    return CP_OK;
}

void cp_device_forward_free(cp_device_forward *pass) {
    if (pass == NULL)
        return;
    for (int r = 0; r < pass->mine->count; r++) {
        if (pass->walkers != NULL)
            cp_stream_walker_free(pass->walkers[r]);
        if (pass->parts != NULL)
            free_activations(&pass->parts[r]);
    }
    cp_plan_free(pass->plan);
    cp_layout_free(pass->layout);
    free(pass->parts);
    free(pass->walkers);
    free(pass->keys);
    free(pass);
}

cp_status cp_device_forward_new(const cp_device_ranks *mine,
                                const cp_forward *call, int64_t growth,
                                cp_device_forward **out) {
    const cp_session_options *options = mine->options;
    cp_device_forward *pass;
    *out = NULL;
    CP_TRY(cp_allocate(&pass, 1, sizeof(*pass), "a forward pass"));
    pass->mine = mine;
    pass->base = (cp_pass){.on = &on_queues,
                           .layers = mine->model->base.facts.layers,
                           .stop = mine->link == NULL ? options->stop : NULL,
                           .progress = options->progress,
                           .progress_context = options->progress_context};
    const cp_status status = fill_pass(pass, call, growth);
    if (status == CP_OK)
        *out = pass;
    else
        cp_device_forward_free(pass);
    return status;
}

cp_status cp_device_forward_renew(cp_device_forward *pass,
                                  const cp_forward *call) {
    for (int r = 0; r < pass->mine->count; r++)
        CP_TRY(cp_stream_walker_renew(pass->walkers[r], call->plan));
    return CP_OK;
}

cp_status cp_device_forward_run(cp_device_forward *pass, bool watched) {
    return cp_pass_run(&pass->base, watched);
}

static cp_status last_norm(cp_device_forward *pass, int r, char *hidden) {
    const task t = task_of(pass, r, 0, 0);
    const cp_device_model *model = t.of->mine->model;
    const cp_device_norming call = {
        t.of->count,
        t.of->facts->width,
        t.x,
        tensor_of(&t, CP_WEIGHT_OUTPUT_NORM)->values,
        (float)t.of->facts->epsilon,
        model->element,
        hidden};
    CP_TRY(cp_cuda(cp_device_norm(&call, t.stream), "rank %d, the last norm",
                   t.of->rank->rank));
    return cp_cuda(cudaStreamSynchronize(t.stream), "rank %d",
                   t.of->rank->rank);
}

cp_status cp_device_forward_finish(cp_device_forward *pass,
                                   const cp_hidden *hidden, int64_t *bytes) {
    const cp_device_ranks *mine = pass->mine;
    const double patience = mine->link != NULL ? mine->patience : 0.0;
    for (int r = 0; r < mine->count; r++)
        CP_TRY(cp_stream_walker_finish(pass->walkers[r], patience));
    for (int r = 0; r < mine->count; r++) {
        const cp_traffic sent = cp_stream_walker_traffic(pass->walkers[r]);
        CP_TRY(last_norm(pass, r, hidden[r].rows));
        cp_device_trace_collect(mine->trace, mine->ranks[r].rank);
        bytes[mine->ranks[r].rank] =
            mine->model->base.facts.layers *
            (sent.ring_bytes + sent.all_to_all_bytes + sent.all_gather_bytes);
    }
    return CP_OK;
}
