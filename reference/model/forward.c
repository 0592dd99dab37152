/* Tangled from book/12-model.nw; edit the chapter. */
/* One rank's forward pass. */
#include "reference/model/forward.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "reference/model/layers.h"
#include "reference/model/linear.h"
#include "reference/attend/micro.h"
#include "reference/ring/walk.h"

typedef struct {
    int64_t row, position, token;
} place;

enum { MOST_ROWS = 256, LEAST_ROWS = 128 };

typedef struct {
    const cp_forward_job *job;
    const cp_model_facts *facts;
    cp_comm *comm;
    cp_walker *walker;
    int64_t layer, count;
    place *places;          /* [count] */
    float *x;               /* [count][width] */
    float *cosines, *sines; /* [count][rotary / 2] */
    int helpers;            /* threads that take blocks */
    int64_t block;          /* rows of a block */
    int64_t desk_floats;
    float *desks; /* [helpers][desk_floats] */
    cp_trace_context tracing;
} state;

typedef struct {
    float *normed, *queries, *keys, *values, *gate, *up; /* [block rows] each */
    float *scratch;                                      /* for products */
    int threads; /* to share one block */
} desk;

static int64_t desk_width(const cp_model_facts *f) {
    return f->width +
           (f->shape.query_heads + 2 * f->shape.kv_heads) * f->shape.head_dim +
           2 * f->feed_forward;
}

static desk desk_of(const state *s, int helper) {
    const cp_model_facts *f = s->facts;
    const int64_t rows = s->block, dim = f->shape.head_dim;
    desk at = {.threads = s->helpers > 1 ? 1 : s->job->threads};
    at.normed = s->desks + helper * s->desk_floats;
    at.queries = at.normed + rows * f->width;
    at.keys = at.queries + rows * f->shape.query_heads * dim;
    at.values = at.keys + rows * f->shape.kv_heads * dim;
    at.gate = at.values + rows * f->shape.kv_heads * dim;
    at.up = at.gate + rows * f->feed_forward;
    at.scratch = at.up + rows * f->feed_forward;
    return at;
}

static void plan_blocks(state *s) {
    const int64_t slice = cp_micro_get()->slice;
    const int threads = s->job->threads;
    s->helpers = s->count >= (int64_t)LEAST_ROWS * threads ? threads : 1;
    const int64_t each = cp_max(1, cp_ceil_divide(s->count, s->helpers));
    s->block = cp_ceil_divide(each, cp_ceil_divide(each, MOST_ROWS));
    if (s->block > slice)
        s->block = slice * cp_ceil_divide(s->block, slice);
}

static cp_status size_desk(state *s) {
    const cp_model_facts *f = s->facts;
    const int64_t heads = f->shape.query_heads * f->shape.head_dim;
    const int64_t widest = cp_max(cp_max(f->width, f->feed_forward), heads);
    const int threads = s->helpers > 1 ? 1 : s->job->threads;
    const int64_t scratch = cp_linear_scratch(s->block, widest, threads);
    if (scratch < 0 || !cp_multiply(s->block, desk_width(f), &s->desk_floats) ||
        !cp_add(s->desk_floats, scratch, &s->desk_floats))
        return cp_fail(CP_MEMORY, "a block of %lld rows overflows",
                       (long long)s->block);
    return CP_OK;
}

static cp_status allocate_state(state *s) {
    const cp_model_facts *f = s->facts;
    plan_blocks(s);
    cp_status status = size_desk(s);
    const struct {
        float **where;
        int64_t rows, width;
    } list[] = {
        {&s->x, s->count, f->width},
        {&s->cosines, s->count, f->rotary / 2},
        {&s->sines, s->count, f->rotary / 2},
        {&s->desks, s->helpers, s->desk_floats},
    };
    if (status == CP_OK)
        status = cp_allocate(&s->places, s->count, sizeof(place),
                             "a list of tokens");
    /* Allocate the tensors of the list. */
    for (size_t n = 0; n < sizeof(list) / sizeof(list[0]); n++) {
        int64_t count = 0;
        if (status == CP_OK &&
            !cp_multiply(list[n].rows, list[n].width, &count))
            status = cp_fail(CP_MEMORY, "%lld activations overflow",
                             (long long)list[n].rows);
        if (status == CP_OK)
            status =
                cp_allocate(list[n].where, count, sizeof(float), "activations");
    }
    return status;
}

static void free_state(state *s) {
    cp_walker_free(s->walker);
    free(s->places);
    free(s->x);
    free(s->cosines);
    free(s->sines);
    free(s->desks);
}

static void list_places(const cp_forward *call, int rank, place *places) {
    const cp_pieces *pieces = &call->layout->queries[rank].pieces;
    int64_t count = 0;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        for (int64_t t = 0; t < span.count; t++) {
            const int64_t position = span.start + t * span.step;
            places[count++] = (place){
                .row = pieces->items[n].row + t,
                .position = position,
                .token = cp_forward_token(call, span.sequence, position),
            };
        }
    }
}

static void embed(state *s) {
    const cp_llama *model = s->job->model;
    const int64_t width = s->facts->width, pairs = s->facts->rotary / 2;
    for (int64_t t = 0; t < s->count; t++) {
        const int64_t word = s->job->call->tokens[s->places[t].token];
        cp_matrix_row(&model->embedding, word, s->x + t * width);
        cp_angles_at(s->places[t].position, pairs, model->frequencies,
                     s->cosines + t * pairs, s->sines + t * pairs);
    }
}

static void place_rows(const state *s, int64_t first, int64_t rows,
                       int64_t width, const float *from, float *to) {
    for (int64_t t = 0; t < rows; t++)
        memcpy(to + s->places[first + t].row * width, from + t * width,
               (size_t)width * sizeof(float));
}

static void before_attention(state *s, const desk *at, int64_t first,
                             int64_t rows) {
    const cp_layer_weights *layer = &s->job->model->layers[s->layer];
    const cp_shape *shape = &s->facts->shape;
    const int64_t width = s->facts->width, pairs = s->facts->rotary / 2;
    const int64_t dim = shape->head_dim, kv = shape->kv_heads;
    const cp_angles angles = {pairs, s->cosines + first * pairs,
                              s->sines + first * pairs};
    const cp_product products[] = {{&layer->query, false, at->queries},
                                   {&layer->key, false, at->keys},
                                   {&layer->value, false, at->values}};
    cp_norm_rows(rows, width, s->x + first * width, layer->attention_norm,
                 s->facts->epsilon, at->threads, at->normed);
    cp_linear_rows(rows, width, at->normed, products, 3, at->threads,
                   at->scratch);
    cp_rotate_rows(rows, shape->query_heads, dim, angles, at->threads,
                   at->queries);
    cp_rotate_rows(rows, kv, dim, angles, at->threads, at->keys);
    place_rows(s, first, rows, shape->query_heads * dim, at->queries,
               cp_walker_queries(s->walker));
    place_rows(s, first, rows, kv * dim, at->keys,
               cp_walker_new_keys(s->walker));
    place_rows(s, first, rows, kv * dim, at->values,
               cp_walker_new_values(s->walker));
}

static int64_t gather_output(const state *s, const desk *at, int64_t first,
                             int64_t rows) {
    const cp_shape *shape = &s->facts->shape;
    const int64_t width = shape->query_heads * shape->head_dim;
    const float *output = cp_walker_result(s->walker)->output;
    for (int64_t t = 0; t < rows; t++)
        memcpy(at->queries + t * width,
               output + s->places[first + t].row * width,
               (size_t)width * sizeof(float));
    return width;
}

static void after_attention(state *s, const desk *at, int64_t first,
                            int64_t rows) {
    const cp_layer_weights *layer = &s->job->model->layers[s->layer];
    const int64_t width = s->facts->width, inner = s->facts->feed_forward;
    float *x = s->x + first * width;
    const int64_t heads = gather_output(s, at, first, rows);
    const cp_product attended = {&layer->attention_output, true, x};
    const cp_product widened[] = {{&layer->gate, false, at->gate},
                                  {&layer->up, false, at->up}};
    const cp_product narrowed = {&layer->down, true, x};
    cp_linear_rows(rows, heads, at->queries, &attended, 1, at->threads,
                   at->scratch);
    cp_norm_rows(rows, width, x, layer->forward_norm, s->facts->epsilon,
                 at->threads, at->normed);
    cp_linear_rows(rows, width, at->normed, widened, 2, at->threads,
                   at->scratch);
    cp_gate_values(rows * inner, at->up, at->threads, at->gate);
    cp_linear_rows(rows, inner, at->gate, &narrowed, 1, at->threads,
                   at->scratch);
}

typedef void (*block_work)(state *s, const desk *at, int64_t first,
                           int64_t rows);

static void each_block(state *s, block_work work) {
    const int64_t blocks =
        s->count == 0 ? 0 : cp_ceil_divide(s->count, s->block);
    if (s->helpers == 1) {
        const desk only = desk_of(s, 0);
        for (int64_t n = 0; n < blocks; n++)
            work(s, &only, n * s->block,
                 cp_min(s->block, s->count - n * s->block));
        return;
    }
#pragma omp parallel for num_threads(s->helpers) schedule(dynamic)
    for (int64_t n = 0; n < blocks; n++) {
        const desk mine = desk_of(s, omp_get_thread_num());
        work(s, &mine, n * s->block, cp_min(s->block, s->count - n * s->block));
    }
}

static cp_status run_layer(state *s) {
    const cp_forward_job *job = s->job;
    const int rank = s->comm->rank;
    s->tracing.layer = s->layer;
    double start = cp_trace_now(job->trace);
    each_block(s, before_attention);
    cp_trace_layers(&s->tracing, "project", start);
    const cp_status status =
        cp_walk(s->walker, s->comm, cp_store_keys(job->store, rank, s->layer),
                cp_store_values(job->store, rank, s->layer));
    if (status != CP_OK)
        return status;
    start = cp_trace_now(job->trace);
    each_block(s, after_attention);
    cp_trace_layers(&s->tracing, "feed forward", start);
    return CP_OK;
}

static cp_status run_layers(state *s) {
    const cp_session_options *options = s->job->options;
    const int64_t layers = s->facts->layers;
    for (s->layer = 0; s->layer < layers; s->layer++) {
        if (options->stop != NULL && *options->stop != 0)
            return cp_fail(CP_INTERRUPTED, "stopped after %lld of %lld layers",
                           (long long)s->layer, (long long)layers);
        const cp_status status = run_layer(s);
        if (status != CP_OK)
            return status;
        if (options->progress != NULL && s->comm->rank == 0)
            options->progress(options->progress_context, s->layer + 1, layers);
    }
    return CP_OK;
}

static void write_hidden(const state *s) {
    const int64_t width = s->facts->width;
    for (int64_t t = 0; t < s->count; t++)
        cp_norm_rows(1, width, s->x + t * width, s->job->model->output_norm,
                     s->facts->epsilon, 1,
                     s->job->hidden + s->places[t].token * width);
}

cp_status cp_forward_rank(cp_comm *comm, void *context) {
    const cp_forward_job *job = context;
    const cp_forward *call = job->call;
    state s = {.job = job, .comm = comm, .facts = &job->model->base.facts};
    s.count = call->layout->queries[comm->rank].tokens;
    s.tracing = (cp_trace_context){job->trace, comm->rank, 0};
    const cp_walk_options walk = {
        .threads = job->attending,
        .observe = job->trace != NULL ? cp_trace_observe : NULL,
        .context = &s.tracing,
    };
    cp_status status = cp_walker_new(call->plan, comm->rank, &walk, &s.walker);
    if (status == CP_OK)
        status = allocate_state(&s);
    /* Embed, run the layers, and keep the result. */
    if (status == CP_OK) {
        list_places(call, comm->rank, s.places);
        embed(&s);
        status = run_layers(&s);
    }
    if (status == CP_OK)
        write_hidden(&s);
    const cp_traffic sent = comm->sent;
    call->bytes[comm->rank] =
        sent.ring_bytes + sent.all_to_all_bytes + sent.all_gather_bytes;
    free_state(&s);
    return status;
}
