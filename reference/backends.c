/* Tangled from book/12-model.nw; edit the chapter. */
/* The table of backends, and the one whose ranks are threads. */
#include "backend.h"

#include <omp.h>
#include <stdlib.h>

#include "attend_job.h"
#include "bench_rows.h"
#include "forward.h"
#include "linear.h"
#include "threads.h"

struct cp_engine {
    const cp_llama *model;
    cp_session_options options;
    int cores;
    cp_store *store;
    cp_trace *trace; /* or NULL */
    float *hidden;   /* [rows][width] of the last successful call */
    int64_t rows;
};

static cp_status run(cp_engine *engine, const cp_forward *call) {
    const int64_t width = engine->model->base.facts.width;
    cp_forward_job job = {.model = engine->model,
                          .options = &engine->options,
                          .call = call,
                          .store = engine->store,
                          .trace = engine->trace};
    cp_status status = cp_allocate(&job.hidden, call->count * width,
                                   sizeof(float), "hidden states");
    if (status != CP_OK)
        return status;
    job.threads = (int)cp_max(1, engine->cores / engine->options.ranks);
    const cp_threads_options threads = {.ranks = engine->options.ranks};
    status = cp_threads_run(&threads, cp_forward_rank, &job);
    /* Keep the new hidden states, or the old. */
    if (status == CP_OK) {
        free(engine->hidden);
        engine->hidden = job.hidden;
        engine->rows = call->count;
    } else {
        free(job.hidden);
    }
    return status;
}

static cp_status logits(const cp_engine *engine, int64_t first, int64_t count,
                        float *out) {
    enum { BLOCK = 256 };
    const cp_model_facts *facts = &engine->model->base.facts;
    const int64_t block = cp_min(BLOCK, count);
    float *scratch;
    const cp_status status = cp_allocate(
        &scratch, cp_linear_scratch(block, facts->width, engine->cores),
        sizeof(float), "the output layer");
    for (int64_t row = 0; status == CP_OK && row < count; row += block) {
        const cp_product product = {&engine->model->output, false,
                                    out + row * facts->vocabulary};
        cp_linear_rows(cp_min(block, count - row), facts->width,
                       engine->hidden + (first + row) * facts->width, &product,
                       1, engine->cores, scratch);
    }
    free(scratch);
    if (engine->options.ranks > 1)
        omp_pause_resource_all(omp_pause_soft);
    return status;
}

static void engine_free(cp_engine *engine) {
    cp_store_free(engine->store);
    cp_trace_free(engine->trace);
    free(engine->hidden);
    free(engine);
}

static cp_status engine_new(const cp_model *model,
                            const cp_session_options *options,
                            cp_engine **out) {
    const cp_model_facts *facts = &model->facts;
    cp_engine *engine;
    cp_status status = cp_allocate(&engine, 1, sizeof(*engine), "an engine");
    if (status != CP_OK)
        return status;
    engine->model = cp_llama_of(model);
    engine->options = *options;
    engine->cores = options->cores > 0 ? options->cores : omp_get_num_procs();
    status = cp_store_new(options->ranks, facts->layers, options->sequences,
                          options->capacity, &facts->shape, &engine->store);
    if (status == CP_OK && options->trace)
        status = cp_trace_new(options->ranks, &engine->trace);
    /* Hand over the engine, or nothing. */
    if (status == CP_OK)
        *out = engine;
    else
        engine_free(engine);
    return status;
}

static cp_status trace(const cp_engine *engine, const char *path) {
    return cp_trace_write(engine->trace, path);
}

static const cp_backend threads = {
    .name = "threads",
    .kernels = "fp32, OpenMP and BLIS",
    .communicator = "threads of one process",
    .attend = cp_attend_run,
    .bench = cp_bench_run,
    .model_open = cp_llama_open,
    .model_close = cp_llama_close,
    .engine_new = engine_new,
    .engine_free = engine_free,
    .run = run,
    .logits = logits,
    .trace = trace,
};

const cp_backend *const cp_backends[] = {&threads, NULL};
