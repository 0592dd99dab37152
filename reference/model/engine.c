/* Tangled from book/12-model.nw; edit the chapter. */
/* An engine on the ranks of this machine, or of which one is here. */
#include "reference/model/engine.h"

#include <omp.h>
#include <stdlib.h>

#include "reference/model/forward.h"
#include "reference/model/linear.h"
#include "reference/ring/together.h"

struct cp_engine {
    const cp_place *place;
    cp_threads *threads; /* the ranks, if they are all here */
    const cp_llama *model;
    cp_session_options options;
    int cores;
    cp_store *store;
    cp_trace *trace; /* or NULL */
    float *hidden;   /* [rows][width] of the last successful call */
    int *owners;     /* [rows] whose they are, if ranks are apart */
    int64_t rows;
};

static cp_status list_owners(const cp_forward *call, int ranks, int **out) {
    const cp_status status =
        cp_allocate(out, call->count, sizeof(int), "owners of tokens");
    for (int r = 0; r < ranks && status == CP_OK; r++) {
        const cp_pieces *pieces = &call->layout->queries[r].pieces;
        for (int64_t n = 0; n < pieces->count; n++) {
            const cp_span span = pieces->items[n].span;
            for (int64_t t = 0; t < span.count; t++)
                (*out)[cp_forward_token(call, span.sequence,
                                        span.start + t * span.step)] = r;
        }
    }
    return status;
}

static int busy_ranks(const cp_engine *engine, const cp_layout *layout) {
    int busy = 0;
    for (int r = 0; r < engine->options.ranks; r++)
        busy += layout->queries[r].tokens > 0;
    return engine->place->local > 0 ? engine->options.ranks : busy;
}

static cp_status run_ranks(const cp_engine *engine, cp_rank_main function,
                           void *context) {
    if (engine->threads != NULL)
        return cp_threads_work(engine->threads, function, context);
    return engine->place->run(engine->options.ranks, function, context);
}
typedef struct {
    cp_forward_job job;
    const cp_place *place;
} running;

static cp_status run_rank(cp_comm *comm, void *context) {
    running *it = context;
    const cp_forward *call = it->job.call;
    const bool apart = it->place->only != CP_NOBODY;
    cp_status status = CP_OK;
    if (apart)
        status = cp_agree(comm, call->plan,
                          cp_fingerprint(call->tokens,
                                         call->count * (int64_t)sizeof(int32_t),
                                         (uint64_t)call->count));
    if (status == CP_OK)
        status = cp_forward_rank(comm, &it->job);
    if (status == CP_OK && apart)
        status = cp_collect(comm, call->bytes, sizeof(int64_t));
    return status;
}

cp_status cp_engine_run(cp_engine *engine, const cp_forward *call) {
    const int64_t width = engine->model->base.facts.width;
    const int ranks = engine->options.ranks;
    running it = {.job = {.model = engine->model,
                          .options = &engine->options,
                          .call = call,
                          .store = engine->store,
                          .trace = engine->trace},
                  .place = engine->place};
    cp_forward_job *job = &it.job;
    int *owners = NULL;
    cp_status status = cp_allocate(&job->hidden, call->count * width,
                                   sizeof(float), "hidden states");
    if (status == CP_OK && engine->place->only != CP_NOBODY)
        status = list_owners(call, ranks, &owners);
    job->attending =
        cp_place_share(engine->place, engine->options.cores, ranks);
    job->threads = cp_place_share(engine->place, engine->options.cores,
                                  busy_ranks(engine, call->layout));
    if (status == CP_OK)
        status = run_ranks(engine, run_rank, &it);
    /* Keep the new hidden states, or the old. */
    if (status == CP_OK) {
        free(engine->hidden);
        free(engine->owners);
        engine->hidden = job->hidden;
        engine->owners = owners;
        engine->rows = call->count;
    } else {
        free(job->hidden);
        free(owners);
    }
    return status;
}

static cp_status score(const cp_engine *engine, int64_t first, int64_t count,
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
    return status;
}

typedef struct {
    const cp_engine *engine;
    int64_t first, count;
    float *out;
} scoring;

static cp_status bring_rows(cp_comm *comm, const scoring *it) {
    const cp_engine *engine = it->engine;
    const int64_t width = engine->model->base.facts.width;
    cp_status status = CP_OK;
    for (int64_t n = it->first; n < it->first + it->count; n++) {
        const int owner = engine->owners[n];
        float *row = engine->hidden + n * width;
        const int64_t bytes = width * (int64_t)sizeof(float);
        if (owner == 0 || (comm->rank != 0 && comm->rank != owner))
            continue;
        if (status == CP_OK && comm->rank == 0)
            status =
                cp_comm_exchange(comm, CP_NOBODY, NULL, 0, owner, row, bytes);
        else if (status == CP_OK)
            status = cp_comm_exchange(comm, 0, row, bytes, CP_NOBODY, NULL, 0);
        if (status == CP_OK)
            status = cp_comm_wait(comm);
    }
    return status;
}

static cp_status score_rank(cp_comm *comm, void *context) {
    const scoring *it = context;
    const int64_t words = it->engine->model->base.facts.vocabulary;
    cp_status status = bring_rows(comm, it);
    if (status == CP_OK && comm->rank == 0)
        status = score(it->engine, it->first, it->count, it->out);
    return status == CP_OK
               ? cp_share(comm, it->out,
                          it->count * words * (int64_t)sizeof(float))
               : status;
}

cp_status cp_engine_logits(const cp_engine *engine, int64_t first,
                           int64_t count, float *out) {
    if (engine->place->only == CP_NOBODY)
        return score(engine, first, count, out);
    scoring it = {engine, first, count, out};
    return run_ranks(engine, score_rank, &it);
}

void cp_engine_free(cp_engine *engine) {
    cp_threads_end(engine->threads);
    cp_store_free(engine->store);
    cp_trace_free(engine->trace);
    free(engine->hidden);
    free(engine->owners);
    free(engine);
}

cp_status cp_engine_new(const cp_place *place, const cp_model *model,
                        const cp_session_options *options, cp_engine **out) {
    const cp_model_facts *facts = &model->facts;
    cp_engine *engine;
    cp_status status = cp_allocate(&engine, 1, sizeof(*engine), "an engine");
    if (status != CP_OK)
        return status;
    engine->place = place;
    engine->model = cp_llama_of(model);
    engine->options = *options;
    engine->cores = options->cores > 0 ? options->cores : omp_get_num_procs();
    status = cp_store_new_of(options->ranks, place->only, facts->layers,
                             options->sequences, options->room, &facts->shape,
                             &engine->store);
    if (status == CP_OK && options->trace)
        status = cp_trace_new(options->ranks, &engine->trace);
    if (status == CP_OK && place->only == CP_NOBODY)
        status = cp_threads_start(&(cp_threads_options){options->ranks, 0, 0},
                                  &engine->threads);
    /* Hand over the engine, or nothing. */
    if (status == CP_OK)
        *out = engine;
    else
        cp_engine_free(engine);
    return status;
}

cp_status cp_engine_trace(const cp_engine *engine, const char *path) {
    return cp_trace_write(engine->trace, path);
}
