/* Tangled from book/13-model.nw; edit the chapter. */
/* A model's layers on queues, around the walk of a plan. */
#include "cuda/model/device_forward.h"

#include <math.h>
#include <stdlib.h>

#include "cuda/kernels/device.h"
#include "cuda/kernels/model_kernels.h"
#include "ring/variants.h"

enum { MOST_ROWS = 2048 }; /* of a block, unless the ranks say otherwise */

typedef struct {
    int64_t rows, block; /* in all, and of a block */
    char *memory;        /* on the device; at the offsets below */
    char *staging;       /* on the host: what is sent to its beginning */
    int64_t places, cosines, sines, staged; /* tokens are at 0 */
    int64_t x, input, wide, coarse, scales, bytes;
} activations;

struct cp_device_forward {
    const cp_device_ranks *mine;
    cp_layout *layout; /* of the call it was made for */
    cp_plan *plan;
    activations *activations;   /* [mine->count] */
    cp_stream_walker **walkers; /* [mine->count] */
    void **keys, **values;      /* [mine->count] of the current layer */
};

static bool take(activations *a, int64_t rows, int64_t bytes, int64_t *at) {
    int64_t all;
    *at = a->bytes;
    return cp_multiply(rows, bytes, &all) && cp_add(a->bytes, all, &a->bytes) &&
           cp_add(a->bytes, -a->bytes & 255, &a->bytes);
}

static bool measure(activations *a, const cp_device_model *model,
                    int64_t most) {
    const cp_model_facts *f = &model->base.facts;
    const int64_t heads = f->shape.query_heads * f->shape.head_dim;
    const int64_t keys = f->shape.kv_heads * f->shape.head_dim;
    const int64_t widest = cp_max(cp_max(f->width, f->feed_forward), heads);
    const int64_t made = cp_max(heads + 2 * keys, 2 * f->feed_forward);
    const bool coarse = model->numbers == CP_NUMBERS_F8;
    const int64_t size = coarse ? 4 : cp_element_bytes(model->element);
    int64_t tokens;
    a->block = cp_min(most > 0 ? most : MOST_ROWS, a->rows);
    if (!take(a, a->rows, 4, &tokens) || !take(a, a->rows, 8, &a->places) ||
        !take(a, a->rows, 2 * f->rotary, &a->cosines) ||
        !take(a, a->rows, 2 * f->rotary, &a->sines))
        return false;
    a->staged = a->bytes;
    return take(a, a->rows, 4 * f->width, &a->x) &&
           take(a, a->block, widest * size, &a->input) &&
           take(a, a->block, 4 * made, &a->wide) &&
           take(a, coarse ? a->block : 0, widest, &a->coarse) &&
           take(a, coarse ? a->block : 0, 4, &a->scales);
}

static void free_activations(activations *a) {
    cudaFree(a->memory);
    if (a->staging != NULL)
        cudaFreeHost(a->staging);
    *a = (activations){0};
}

static cp_status make_activations(const cp_device_ranks *mine, int64_t rows,
                                  activations *a) {
    *a = (activations){.rows = rows};
    if (!measure(a, mine->model, mine->block))
        return cp_fail(CP_MEMORY, "activations of %lld rows overflow",
                       (long long)rows);
    void *staging = NULL;
    cp_status status = cp_device_reserve(a->bytes, "activations", &a->memory);
    if (status == CP_OK)
        status = cp_cuda(cudaMallocHost(&staging, (size_t)cp_max(a->staged, 1)),
                         "%lld bytes on the host", (long long)a->staged);
    a->staging = staging;
    if (status != CP_OK)
        free_activations(a);
    return status;
}

static void write_row(const cp_device_model *model, activations *a, int64_t row,
                      int32_t token, int64_t place, int64_t position) {
    const int64_t pairs = model->base.facts.rotary / 2;
    float *cosines = (float *)(void *)(a->staging + a->cosines) + row * pairs;
    float *sines = (float *)(void *)(a->staging + a->sines) + row * pairs;
    ((int32_t *)(void *)a->staging)[row] = token;
    ((int64_t *)(void *)(a->staging + a->places))[row] = place;
    for (int64_t i = 0; i < pairs; i++) {
        const double angle = (double)position * model->frequencies[i];
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

static void write_rows(const cp_device_model *model, const cp_forward *call,
                       int rank, activations *a) {
    const cp_pieces *pieces = &call->layout->queries[rank].pieces;
    int64_t row = 0;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        for (int64_t t = 0; t < span.count; t++) {
            const int64_t position = span.start + t * span.step;
            const int64_t token =
                cp_forward_token(call, span.sequence, position);
            write_row(model, a, row++, call->tokens[token],
                      pieces->items[n].row + t, position);
        }
    }
    for (; row < a->rows; row++)
        write_row(model, a, row, -1, -1, 0);
}

void cp_device_forward_write(cp_device_forward *pass, const cp_forward *call) {
    for (int r = 0; r < pass->mine->count; r++)
        write_rows(pass->mine->model, call, pass->mine->ranks[r].rank,
                   &pass->activations[r]);
}

typedef struct {
    const cp_device_ranks *mine;
    const cp_device_rank *rank;
    const activations *activations;
    cp_stream_walker *walker;
    int64_t layer;
} task;

static task task_of(const cp_device_forward *pass, int r, int64_t layer) {
    return (task){pass->mine, &pass->mine->ranks[r], &pass->activations[r],
                  pass->walkers[r], layer};
}

static void *at(const task *t, int64_t offset) {
    return t->activations->memory + offset;
}

static cp_status done(const task *t, cudaError_t error, const char *what) {
    return cp_cuda(error, "rank %d, layer %lld, %s", t->rank->rank,
                   (long long)t->layer, what);
}

static cp_status multiply(const task *t, const cp_device_matrix *matrix,
                          int64_t rows, bool add, float *y) {
    const void *x = at(t, t->activations->input);
    const float *scales = NULL;
    if (matrix->numbers == CP_NUMBERS_F8) {
        const cp_device_quantising call = {rows, matrix->in, x,
                                           at(t, t->activations->coarse),
                                           at(t, t->activations->scales)};
        const cp_status status =
            done(t, cp_device_quantise(&call, t->rank->queues.compute),
                 "rounding to FP8");
        if (status != CP_OK)
            return status;
        x = call.y;
        scales = call.scales;
    }
    return cp_device_multiply(t->rank->multiplier, matrix, rows, x, scales, add,
                              y, t->rank->queues.compute);
}

static cp_status norm(const task *t, int64_t first, int64_t rows,
                      const float *weight) {
    const cp_device_model *model = t->mine->model;
    const cp_model_facts *f = &model->base.facts;
    const bool coarse = model->numbers == CP_NUMBERS_F8;
    const cp_device_norming call = {rows,
                                    f->width,
                                    (const float *)at(t, t->activations->x) +
                                        first * f->width,
                                    weight,
                                    (float)f->epsilon,
                                    coarse ? CP_F32 : model->element,
                                    at(t, t->activations->input)};
    return done(t, cp_device_norm(&call, t->rank->queues.compute), "a norm");
}

static cp_status before(const task *t, int64_t first, int64_t rows) {
    const cp_device_model *model = t->mine->model;
    const activations *a = t->activations;
    const cp_model_facts *f = &model->base.facts;
    const cp_device_layer *layer = &model->layers[t->layer];
    const int64_t pairs = f->rotary / 2;
    cp_status status = norm(t, first, rows, layer->attention_norm);
    if (status == CP_OK)
        status = multiply(t, &layer->projected, rows, false, at(t, a->wide));
    const cp_device_rotating call = {
        .rows = rows,
        .shape = f->shape,
        .pairs = pairs,
        .cosines = (const float *)at(t, a->cosines) + first * pairs,
        .sines = (const float *)at(t, a->sines) + first * pairs,
        .places = (const int64_t *)at(t, a->places) + first,
        .projected = at(t, a->wide),
        .element = model->element,
        .queries = cp_stream_walker_queries(t->walker),
        .keys = cp_stream_walker_new_keys(t->walker),
        .values = cp_stream_walker_new_values(t->walker),
    };
    return status == CP_OK
               ? done(t, cp_device_rotate(&call, t->rank->queues.compute),
                      "turning queries and keys")
               : status;
}

static cp_status add_product(const task *t, const cp_device_matrix *matrix,
                             int64_t rows, float *x) {
    cp_nccl *group = t->mine->tensor;
    const int64_t width = t->mine->model->base.facts.width;
    const bool first = t->mine->model->share.part == 0;
    const cp_status status = multiply(t, matrix, rows, first, x);
    if (status != CP_OK || group == NULL)
        return status;
    return cp_nccl_sum(group, x, rows * width, t->rank->queues.compute);
}

static cp_status gather(const task *t, int64_t first, int64_t rows) {
    const cp_device_model *model = t->mine->model;
    const cp_shape *shape = &model->base.facts.shape;
    const bool coarse = model->numbers == CP_NUMBERS_F8;
    const cp_device_gathering call = {
        rows,
        shape->query_heads * shape->head_dim,
        (const int64_t *)at(t, t->activations->places) + first,
        cp_stream_walker_output(t->walker),
        coarse ? CP_F32 : model->element,
        at(t, t->activations->input)};
    return done(t, cp_device_gather(&call, t->rank->queues.compute),
                "gathering what attention gave");
}

static cp_status after(const task *t, int64_t first, int64_t rows) {
    const cp_device_model *model = t->mine->model;
    const activations *a = t->activations;
    const cp_device_layer *layer = &model->layers[t->layer];
    const int64_t width = model->base.facts.width;
    const bool coarse = model->numbers == CP_NUMBERS_F8;
    float *x = (float *)at(t, a->x) + first * width;
    const cp_device_gating gate = {
        rows, model->base.facts.feed_forward, at(t, a->wide),
        coarse ? CP_F32 : model->element, at(t, a->input)};
    cp_status status = gather(t, first, rows);
    if (status == CP_OK)
        status = add_product(t, &layer->attention_output, rows, x);
    if (status == CP_OK)
        status = norm(t, first, rows, layer->forward_norm);
    if (status == CP_OK)
        status = multiply(t, &layer->widened, rows, false, at(t, a->wide));
    if (status == CP_OK)
        status =
            done(t, cp_device_gate(&gate, t->rank->queues.compute), "a gate");
    if (status == CP_OK)
        status = add_product(t, &layer->down, rows, x);
    return status;
}

typedef cp_status (*block_work)(const task *t, int64_t first, int64_t rows);

static cp_status each_block(const task *t, block_work work) {
    const activations *a = t->activations;
    cp_status status = CP_OK;
    for (int64_t n = 0; n < a->rows && status == CP_OK; n += a->block)
        status = work(t, n, cp_min(a->block, a->rows - n));
    return status;
}

static cp_status each_rank(const cp_device_forward *pass, int64_t layer,
                           block_work what, const char *name) {
    cp_device_trace *trace = pass->mine->trace;
    cp_status status = CP_OK;
    for (int r = 0; r < pass->mine->count && status == CP_OK; r++) {
        const task t = task_of(pass, r, layer);
        const int rank = t.rank->rank;
        cp_device_trace_layer(trace, rank, layer);
        cp_device_trace_begin(trace, rank, name, t.rank->queues.compute);
        status = each_block(&t, what);
        cp_device_trace_end(trace, rank, t.rank->queues.compute);
    }
    return status;
}

static cp_status walk(const cp_device_forward *pass, int64_t layer) {
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

cp_status cp_device_forward_layer(cp_device_forward *pass, int64_t layer) {
    cp_status status = each_rank(pass, layer, before, "project");
    if (status == CP_OK)
        status = walk(pass, layer);
    return status == CP_OK ? each_rank(pass, layer, after, "feed forward")
                           : status;
}

static cp_status embed(const task *t) {
    const cp_device_model *model = t->mine->model;
    const activations *a = t->activations;
    cudaStream_t stream = t->rank->queues.compute;
    const cp_device_embedding call = {a->rows,        model->base.facts.width,
                                      at(t, 0),       model->embedding,
                                      model->element, at(t, a->x)};
    if (a->rows == 0)
        return CP_OK;
    const cp_status status =
        done(t,
             cudaMemcpyAsync(a->memory, a->staging, (size_t)a->staged,
                             cudaMemcpyHostToDevice, stream),
             "sending tokens");
    return status == CP_OK
               ? done(t, cp_device_embed(&call, stream), "looking up words")
               : status;
}

cp_status cp_device_forward_begin(cp_device_forward *pass) {
    cp_status status = CP_OK;
    for (int r = 0; r < pass->mine->count && status == CP_OK; r++) {
        const task t = task_of(pass, r, 0);
        status = embed(&t);
    }
    return status;
}

static cp_status make_part(cp_device_forward *pass, const cp_forward *call,
                           int64_t growth, int r) {
    const cp_device_ranks *mine = pass->mine;
    const int rank = mine->ranks[r].rank;
    const cp_block *queries = &call->layout->queries[rank];
    const cp_stream_options options = {.element = mine->model->element,
                                       .growth = growth,
                                       .trace = mine->trace};
    const cp_status status =
        make_activations(mine, growth > 0 ? queries->rows : queries->tokens,
                         &pass->activations[r]);
    return status == CP_OK
               ? cp_stream_walker_new(pass->plan, rank, mine->ranks[r].queues,
                                      &options, &pass->walkers[r])
               : status;
}

static cp_status fill_pass(cp_device_forward *pass, const cp_forward *call,
                           int64_t growth) {
    const cp_plan_options wanted = {call->plan->element_bytes, 1};
    const int64_t count = pass->mine->count;
    cp_status status = cp_layout_copy(call->layout, &pass->layout);
    if (status == CP_OK)
        status = cp_plan_build(call->plan->variant, pass->layout,
                               &call->plan->shape, &wanted, &pass->plan);
    if (status == CP_OK)
        status = cp_allocate(&pass->activations, count, sizeof(activations),
                             "activations");
    if (status == CP_OK)
        status = cp_allocate(&pass->walkers, count, sizeof(pass->walkers[0]),
                             "walkers");
    if (status == CP_OK)
        status = cp_allocate(&pass->keys, 2 * count, sizeof(void *), "ranks");
    if (status == CP_OK)
        pass->values = pass->keys + count;
    for (int r = 0; r < count && status == CP_OK; r++)
        status = make_part(pass, call, growth, r);
    return status;
}

void cp_device_forward_free(cp_device_forward *pass) {
    if (pass == NULL)
        return;
    for (int r = 0; r < pass->mine->count; r++) {
        if (pass->walkers != NULL)
            cp_stream_walker_free(pass->walkers[r]);
        if (pass->activations != NULL)
            free_activations(&pass->activations[r]);
    }
    cp_plan_free(pass->plan);
    cp_layout_free(pass->layout);
    free(pass->activations);
    free(pass->walkers);
    free(pass->keys);
    free(pass);
}

cp_status cp_device_forward_new(const cp_device_ranks *mine,
                                const cp_forward *call, int64_t growth,
                                cp_device_forward **out) {
    cp_device_forward *pass;
    cp_status status = cp_allocate(&pass, 1, sizeof(*pass), "a forward pass");
    *out = NULL;
    if (status != CP_OK)
        return status;
    pass->mine = mine;
    status = fill_pass(pass, call, growth);
    if (status == CP_OK)
        *out = pass;
    else
        cp_device_forward_free(pass);
    return status;
}

cp_status cp_device_forward_renew(cp_device_forward *pass,
                                  const cp_forward *call) {
    cp_status status = CP_OK;
    for (int r = 0; r < pass->mine->count && status == CP_OK; r++)
        status = cp_stream_walker_renew(pass->walkers[r], call->plan);
    return status;
}

int64_t cp_device_forward_rows(const cp_device_forward *pass, int r) {
    return pass->activations[r].rows;
}

static cp_status last_norm(const cp_device_forward *pass, int r, void *hidden) {
    const cp_device_model *model = pass->mine->model;
    const cp_device_rank *rank = &pass->mine->ranks[r];
    const activations *a = &pass->activations[r];
    const cp_device_norming call = {a->rows,
                                    model->base.facts.width,
                                    (const float *)(void *)(a->memory + a->x),
                                    model->output_norm,
                                    (float)model->base.facts.epsilon,
                                    model->element,
                                    hidden};
    const cp_status status =
        cp_cuda(cp_device_norm(&call, rank->queues.compute),
                "rank %d, the last norm", rank->rank);
    return status == CP_OK
               ? cp_cuda(cudaStreamSynchronize(rank->queues.compute), "rank %d",
                         rank->rank)
               : status;
}

cp_status cp_device_forward_finish(cp_device_forward *pass, double patience,
                                   void *const *hidden) {
    const cp_device_ranks *mine = pass->mine;
    cp_status status = CP_OK;
    for (int r = 0; r < mine->count && status == CP_OK; r++)
        status = cp_stream_walker_finish(pass->walkers[r], patience);
    for (int r = 0; r < mine->count && status == CP_OK; r++)
        status = last_norm(pass, r, hidden[r]);
    for (int r = 0; r < mine->count && status == CP_OK; r++)
        cp_device_trace_collect(mine->trace, mine->ranks[r].rank);
    return status;
}

void cp_device_forward_bytes(const cp_device_forward *pass, int64_t *bytes) {
    const cp_device_ranks *mine = pass->mine;
    for (int r = 0; r < mine->count; r++) {
        const cp_traffic sent = cp_stream_walker_traffic(pass->walkers[r]);
        bytes[mine->ranks[r].rank] =
            mine->model->base.facts.layers *
            (sent.ring_bytes + sent.all_to_all_bytes + sent.all_gather_bytes);
    }
}
