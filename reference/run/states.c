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
    const cp_convolution *call = monoid;
    cp_tail_combine(call->width - 1, call->channels, earlier, later);
}

cp_status cp_state_walker_new(const cp_plan *plan, int rank, int threads,
                              const cp_state_shape *shape, cp_walker **out) {
    const cp_walk_options options = {
        .threads = threads, .combine = combine_pairs, .monoid = shape};
    return cp_walker_new(plan, rank, &options, out);
}

cp_status cp_tail_walker_new(const cp_plan *plan, int rank,
                             const cp_convolution *call, cp_walker **out) {
    const cp_walk_options options = {.combine = combine_tails, .monoid = call};
    return cp_walker_new(plan, rank, &options, out);
}

static float *slot_of(const cp_walker *walker, cp_use use) {
    return walker->buffers[2 * use.slot];
}

cp_status cp_state_walk(cp_walker *walker, cp_comm *comm,
                        const cp_state_run chunks[2], float *state,
                        float *const outputs[2]) {
    const cp_plan *plan = walker->plan;
    const cp_state_shape *shape = &chunks[0].shape;
    const int threads = walker->options.threads, rank = walker->rank;
    for (int half = 0; half < 2; half++) {
        float *pair = slot_of(walker, cp_plan_own_run(plan, rank, half));
        if (rank == 0 && half == 0)
            cp_pair_know(shape, state, pair);
        else
            cp_pair_identity(shape, pair);
        CP_TRY(cp_state_pair(&chunks[half], threads, pair));
    }
    CP_TRY(cp_walk(walker, comm, NULL, NULL));
    for (int half = 0; half < 2; half++) {
        float *before = slot_of(walker, cp_plan_prefix_run(plan, rank, half));
        if (rank == 0 && half == 0)
            cp_pair_know(shape, state, before);
        CP_TRY(cp_state_answer(&chunks[half], threads, before, outputs[half]));
        if (rank == 0 && half == 1)
            cp_pair_state(shape, before, state);
    }
    return CP_OK;
}

cp_status cp_tail_walk(cp_walker *walker, cp_comm *comm,
                       const cp_convolution chunks[2], float *tail,
                       float *const outputs[2]) {
    const cp_plan *plan = walker->plan;
    const int64_t rows = chunks[0].width - 1, channels = chunks[0].channels;
    const size_t bytes = (size_t)plan->run_bytes;
    const int rank = walker->rank;
    for (int half = 0; half < 2; half++) {
        float *local_tail = slot_of(walker, cp_plan_own_run(plan, rank, half));
        cp_tail_take(&chunks[half], local_tail);
        if (rank == 0 && half == 0)
            cp_tail_combine(rows, channels, tail, local_tail);
    }
    CP_TRY(cp_walk(walker, comm, NULL, NULL));
    for (int half = 0; half < 2; half++) {
        float *before = slot_of(walker, cp_plan_prefix_run(plan, rank, half));
        if (rank == 0 && half == 0)
            memcpy(before, tail, bytes);
        cp_convolve(&chunks[half], before, outputs[half]);
        if (rank == 0 && half == 1) {
            cp_tail_take(&chunks[half], tail);
            cp_tail_combine(rows, channels, before, tail);
        }
    }
    return CP_OK;
}

cp_status cp_state_hand(cp_comm *comm, int from, int to, float *state,
                        int64_t floats) {
    const int64_t bytes = floats * (int64_t)sizeof(float);
    const bool gives = comm->rank == from, takes = comm->rank == to;
    if (gives == takes)
        return CP_OK;
    CP_TRY(cp_comm_exchange(comm, gives ? to : CP_NO_RANK, state, bytes,
                            takes ? from : CP_NO_RANK, state, bytes));
    return cp_comm_wait(comm);
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
    cp_state_run chunks[2];
    float *outputs[2];
    cp_walker *walker;
    for (int half = 0; half < 2; half++) {
        const cp_chunk chunk =
            cp_chunk_of(job->run.tokens, job->ranks,
                        cp_plan_chunk(scan->plan, comm->rank, half));
        chunks[half] = chunk_of(&job->run, chunk);
        outputs[half] = job->output + chunk.first * width;
    }
    CP_TRY(cp_state_walker_new(scan->plan, comm->rank, job->threads,
                               &job->run.shape, &walker));
    const cp_status status =
        cp_state_walk(walker, comm, chunks, job->state, outputs);
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
