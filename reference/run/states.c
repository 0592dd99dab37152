/* Tangled from book/16-state.nw; edit the chapter. */
/* Layers with a state over ranks: walks scans, and runs a call of a layer. */
#include "reference/run/states.h"

#include <stdlib.h>
#include <string.h>

#include "plan/check.h"

static void combine_pairs(const void *monoid, const void *earlier,
                          void *later) {
    cp_pair_combine(monoid, earlier, later);
}

static void combine_tails(const void *monoid, const void *earlier,
                          void *later) {
    const cp_tail_shape *shape = monoid;
    cp_tail_combine(shape->rows, shape->channels, earlier, later);
}

cp_status cp_state_walker_new(const cp_plan *plan, int rank, const int *peers,
                              int threads, const cp_state_shape *shape,
                              cp_walker **out) {
    const cp_walk_options options = {.peers = peers,
                                     .threads = threads,
                                     .combine = combine_pairs,
                                     .monoid = shape};
    return cp_walker_new(plan, rank, &options, out);
}

cp_status cp_tail_walker_new(const cp_plan *plan, int rank, const int *peers,
                             const cp_tail_shape *shape, cp_walker **out) {
    const cp_walk_options options = {
        .peers = peers, .combine = combine_tails, .monoid = shape};
    return cp_walker_new(plan, rank, &options, out);
}

static float *slot_of(const cp_walker *walker, cp_use use) {
    return walker->buffers[2 * use.slot];
}

static cp_status answer_first(const cp_state_scan *scan, int threads,
                              float *pair) {
    cp_pair_know(&scan->chunks[0].shape, scan->before, pair);
    return cp_state_answer(&scan->chunks[0], threads, pair, scan->outputs[0]);
}

cp_status cp_state_walk(cp_walker *walker, cp_comm *comm,
                        const cp_state_scan *scan) {
    const cp_plan *plan = walker->plan;
    const cp_state_shape *shape = &scan->chunks[0].shape;
    const int threads = walker->options.threads, rank = walker->rank;
    for (int half = 0; half < 2; half++) {
        float *pair = slot_of(walker, cp_plan_own_run(plan, rank, half));
        cp_pair_identity(shape, pair);
        if (rank > 0)
            CP_TRY(cp_state_pair(&scan->chunks[half], threads, pair));
        else if (half == 0)
            CP_TRY(answer_first(scan, threads, pair));
    }
    CP_TRY(cp_walk(walker, comm, NULL, NULL));
    for (int half = rank == 0; half < 2; half++) {
        float *pair = slot_of(walker, cp_plan_prefix_run(plan, rank, half));
        CP_TRY(cp_state_answer(&scan->chunks[half], threads, pair,
                               scan->outputs[half]));
        if (rank == 0)
            cp_pair_state(shape, pair, scan->after);
    }
    return CP_OK;
}

cp_status cp_tail_walk(cp_walker *walker, cp_comm *comm,
                       const cp_tail_scan *scan) {
    static const float nothing[1];
    const cp_plan *plan = walker->plan;
    const cp_tail_shape *shape = walker->options.monoid;
    const int64_t rows = shape->rows, channels = shape->channels;
    const float *found = scan->before != NULL ? scan->before : nothing;
    const int rank = walker->rank;
    for (int half = 0; half < 2; half++) {
        float *tail = slot_of(walker, cp_plan_own_run(plan, rank, half));
        cp_tail_take(&scan->chunks[half], tail);
        if (rank == 0 && half == 0)
            cp_tail_combine(rows, channels, found, tail);
    }
    CP_TRY(cp_walk(walker, comm, NULL, NULL));
    for (int half = 0; half < 2; half++) {
        const float *before =
            rank == 0 && half == 0
                ? found
                : slot_of(walker, cp_plan_prefix_run(plan, rank, half));
        if (rank == 0 && half == 1) {
            cp_tail_take(&scan->chunks[half], scan->after);
            cp_tail_combine(rows, channels, before, scan->after);
        }
        cp_convolve(&scan->chunks[half], before, scan->outputs[half]);
    }
    return CP_OK;
}

cp_chunk cp_chunk_of(int64_t tokens, int ranks, int chunk) {
    const int64_t size = cp_ceil_divide(tokens, 2 * ranks);
    const int64_t first = cp_min(tokens, chunk * size);
    return (cp_chunk){first, cp_min(tokens - first, size)};
}

static cp_state_run chunk_of(const cp_state_run *run, cp_chunk chunk) {
    const cp_state_shape s = run->shape;
    const int64_t row = chunk.first * s.heads;
    return (cp_state_run){s,
                          chunk.count,
                          run->queries + row * s.key_dim,
                          run->keys + row * s.key_dim,
                          run->values + row * s.value_dim,
                          run->decay + row,
                          run->rate + row};
}

typedef struct {
    cp_state_job *job;
    cp_layout *layout;
    cp_plan *plan;
} state_scan;

static cp_status run_rank(cp_comm *comm, void *context) {
    const state_scan *scan = context;
    const cp_state_job *job = scan->job;
    const int64_t width = job->run.shape.heads * job->run.shape.value_dim;
    cp_state_scan one = {.before = job->state, .after = job->state};
    cp_walker *walker;
    for (int half = 0; half < 2; half++) {
        const cp_chunk chunk =
            cp_chunk_of(job->run.tokens, job->ranks,
                        cp_plan_chunk(scan->plan, comm->rank, half));
        one.chunks[half] = chunk_of(&job->run, chunk);
        one.outputs[half] = job->output + chunk.first * width;
    }
    CP_TRY(cp_state_walker_new(scan->plan, comm->rank, NULL, job->threads,
                               &job->run.shape, &walker));
    const cp_status status = cp_state_walk(walker, comm, &one);
    cp_walker_free(walker);
    return status;
}

static cp_status plan_run(state_scan *scan) {
    const int64_t token = 1;
    const cp_call call = {.ranks = scan->job->ranks,
                          .sequences = 1,
                          .new_tokens = &token,
                          .room = 2};
    cp_plan_report report;
    int64_t bytes;
    const cp_state_shape *shape = &scan->job->run.shape;
    if (!cp_multiply(shape->heads * shape->key_dim,
                     4 * (shape->key_dim + shape->value_dim), &bytes))
        return cp_refuse("pairs of %ld heads overflow 64 bits; use fewer heads "
                         "or a smaller state",
                         shape->heads);
    CP_TRY(cp_layout_new(&call, &scan->layout));
    CP_TRY(cp_plan_scan(scan->job->scan, scan->layout, bytes, &scan->plan));
    CP_TRY(cp_plan_check(scan->plan, &report));
    scan->job->bytes = scan->job->messages = 0;
    for (int k = 0; k < report.ranks; k++) {
        scan->job->bytes = cp_max(scan->job->bytes, report.bytes[k]);
        scan->job->messages = cp_max(scan->job->messages, report.messages[k]);
    }
    cp_plan_report_free(&report);
    return CP_OK;
}

cp_status cp_state_job_run(const cp_runner *runner, cp_state_job *job) {
    state_scan scan = {.job = job};
    cp_status status = plan_run(&scan);
    if (status == CP_OK)
        status = runner->run(job->ranks, run_rank, &scan);
    cp_plan_free(scan.plan);
    cp_layout_free(scan.layout);
    return status;
}
