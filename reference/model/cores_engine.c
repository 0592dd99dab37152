/* Tangled from book/12-model.nw; edit the chapter. */
/* What an engine on cores keeps, and its scores. */
#include "reference/model/cores_engine.h"

#include <stdlib.h>
#include <string.h>

#include "ground/host.h"
#include "reference/model/linear.h"
#include "reference/model/model.h"
#include "reference/run/walk.h"

static cp_cores_engine *engine_of(const cp_engine *base) {
    return (cp_cores_engine *)(uintptr_t)base;
}

static cp_status open_engine(cp_engine *base, const void *context) {
    const cp_runner *runner = context;
    const cp_session_options *options = &base->options;
    const cp_model_facts *facts = &base->model->facts;
    cp_cores_engine *engine = engine_of(base);
    engine->runner = runner;
    base->local = (cp_local_ranks){runner->group, runner->only, 1};
    base->row_bytes = facts->width * (int64_t)sizeof(float);
    CP_TRY(cp_store_new(options->ranks, runner->only,
                        cp_facts_attending(facts, facts->layers), 1,
                        options->rows, &facts->shape, &engine->store));
    if (options->trace)
        CP_TRY(cp_history_new(options->ranks, 1, NULL, &engine->trace));
    engine->began = cp_clock();
    if (runner->only != CP_NO_RANK)
        return CP_OK;
    return cp_threads_start(&(cp_threads_options){options->ranks, 0, 0},
                            &engine->threads);
}

static void close_engine(cp_engine *base) {
    cp_threads_end(engine_of(base)->threads);
    cp_store_free(engine_of(base)->store);
    cp_history_free(engine_of(base)->trace);
}

static cp_status reserve(int64_t bytes, const char *what, char **out) {
    return cp_allocate_lines(out, bytes, 1, what);
}

static int busy_ranks(const cp_runner *runner, const cp_layout *layout) {
    int busy = 0;
    for (int r = 0; r < layout->ranks; r++)
        busy += layout->queries[r].tokens > 0;
    return runner->local > 0 ? layout->ranks : busy;
}

static cp_status run(cp_engine *base, const cp_forward *call,
                     const cp_hidden *hidden) {
    cp_cores_engine *engine = engine_of(base);
    const int busy = busy_ranks(engine->runner, call->layout);
    engine->call = call;
    engine->hidden = hidden;
    engine->helpers =
        cp_runner_cores(engine->runner, base->options.cores, busy);
    if (engine->threads != NULL)
        return cp_threads_work(engine->threads, busy, cp_forward_rank, engine);
    return engine->runner->run(base->options.ranks, cp_forward_rank, engine);
}

static cp_status copy(const cp_engine *base, void *to, const void *from,
                      int64_t bytes) {
    (void)base;
    memcpy(to, from, (size_t)bytes);
    return CP_OK;
}

static cp_status score(const cp_engine *base, int64_t rows, float *out) {
    const int64_t width = base->model->facts.width;
    const cp_llama *model = cp_llama_of(base->model);
    const cp_product product = {&model->tensors[CP_WEIGHT_OUTPUT].matrix, false,
                                out};
    const int requested_cores = base->options.cores;
    const int cores = requested_cores > 0 ? requested_cores : cp_host_cores();
    float *scratch;
    CP_TRY(cp_allocate(&scratch, cp_linear_scratch(rows, width, cores),
                       sizeof(float), "the output layer"));
    cp_linear_rows(rows, width, (const float *)(const void *)base->input,
                   &product, 1, cores, scratch);
    free(scratch);
    return CP_OK;
}

static cp_status trace(const cp_engine *base, const char *path, int64_t *lost) {
    return cp_history_write(engine_of(base)->trace, path, lost);
}

static cp_status move(cp_engine *base, int n, const cp_moves *moves) {
    const cp_model_facts *facts = &base->model->facts;
    const int only = engine_of(base)->runner->only;
    const int rank = only == CP_NO_RANK ? n : only;
    const int64_t layers = cp_facts_attending(facts, facts->layers);
    for (int64_t layer = 0; layer < layers; layer++)
        cp_store_move(engine_of(base)->store, rank, layer, moves);
    return CP_OK;
}

static cp_status rows(cp_engine *base, int n, const cp_row_copy *copy) {
    const cp_shape *shape = &base->model->facts.shape;
    cp_store *store = engine_of(base)->store;
    const int only = engine_of(base)->runner->only;
    const int rank = only == CP_NO_RANK ? n : only;
    const int64_t widths[] = {shape->kv_heads * shape->head_dim,
                              cp_value_width(shape)};
    float *const caches[] = {cp_store_keys(store, rank, copy->layer),
                             cp_store_values(store, rank, copy->layer)};
    float *const buffers[] = {copy->keys, copy->values};
    for (int t = 0; t < 2; t++) {
        const size_t bytes = (size_t)(copy->count * widths[t]) * sizeof(float);
        float *cache = caches[t] + copy->row * widths[t];
        if (bytes > 0)
            memcpy(copy->writes ? cache : buffers[t],
                   copy->writes ? buffers[t] : cache, bytes);
    }
    return CP_OK;
}

typedef struct {
    cp_cores_engine *from, *to;
    const cp_plan *plan;
} migration_job;

static void layer_of(const cp_cores_engine *engine, int rank, int64_t layer,
                     float **keys, float **values) {
    const bool is_local = rank < engine->base.options.ranks;
    *keys = is_local ? cp_store_keys(engine->store, rank, layer) : NULL;
    *values = is_local ? cp_store_values(engine->store, rank, layer) : NULL;
}

static cp_status move_out(cp_comm *comm, void *context) {
    const migration_job *job = context;
    float *keys, *values;
    cp_walker *walker;
    CP_TRY(cp_walker_new(job->plan, comm->rank, NULL, &walker));
    cp_status status = CP_OK;
    const cp_model_facts *facts = &job->to->base.model->facts;
    const int64_t layers = cp_facts_attending(facts, facts->layers);
    for (int64_t layer = 0; layer < layers && status == CP_OK; layer++) {
        layer_of(job->from, comm->rank, layer, &keys, &values);
        layer_of(job->to, comm->rank, layer, &walker->new_keys,
                 &walker->new_values);
        status = cp_walk(walker, comm, keys, values);
    }
    cp_walker_free(walker);
    return status;
}

static cp_status migrate(cp_engine *base, cp_engine *from,
                         const cp_plan *plan) {
    migration_job job = {engine_of(from), engine_of(base), plan};
    const cp_threads_options threads = {.ranks = plan->layout->ranks};
    return cp_threads_run(&threads, move_out, &job);
}

static cp_status lose(cp_engine *base, int rank) {
    cp_cores_engine *engine = engine_of(base);
    cp_store_lose(engine->store, rank);
    base->local.only = engine->runner->only;
    if (engine->threads == NULL)
        return CP_OK;
    cp_threads_end(engine->threads);
    engine->threads = NULL;
    return cp_threads_start(&(cp_threads_options){base->options.ranks, 0, 0},
                            &engine->threads);
}

static const cp_engine_ops on_cores = {.size = sizeof(cp_cores_engine),
                                       .scored = 256,
                                       .open = open_engine,
                                       .close = close_engine,
                                       .reserve = reserve,
                                       .release = free,
                                       .run = run,
                                       .move = move,
                                       .rows = rows,
                                       .migrate = migrate,
                                       .lose = lose,
                                       .copy = copy,
                                       .score = score,
                                       .trace = trace};

cp_status cp_cores_engine_new(const cp_runner *runner, const cp_model *model,
                              const cp_session_options *options,
                              cp_engine **out) {
    return cp_engine_new(&on_cores, runner, model, options, out);
}
