/* What a calibration times on CPUs: one case at a time, on all ranks at
 * once. */
#define _GNU_SOURCE
#include "measure/calibrate_cores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure/attention_cores.h"
#include "measure/ceilings.h"
#include "measure/tensors.h"
#include "model/gguf.h"
#include "reference/model/linear.h"

/* A rank's memory, which begins with an attention's. A linear layer's output is not the input of the next one, or
 * the numbers would grow from round to round. */
enum { QUERIES, KEYS, VALUES, OUTPUT, LSE, SCRATCH, FROM, TO, TENSORS };

typedef struct {
    const cp_runner *runner;
    const cp_calibration *calibration;
    int threads;  /* threads of each rank */
    double cores; /* cores that all ranks, with a thread each, can keep busy */
    float *memory[CP_CALIBRATE_RANKS][TENSORS]; /* of this process's ranks */
    cp_matrix matrix;                           /* of the linear layer */
    void *tiles;
    const cp_timed_work *timed; /* the current case, */
    int64_t times;              /* repetitions in a run */
    double peak;                /* the peak's seconds, if that is timed */
} cores_timing;

static void progress(void *comm) {
    cp_comm_progress(comm);
}

/* Attend as a walker does, with progress calls to its communicator. */
static cp_status attend(const cores_timing *timing, cp_comm *comm,
                        float *const *memory) {
    const int64_t rows = timing->timed->rows, seen = timing->timed->keys;
    cp_timed_attention one = {.shape = timing->calibration->shape};
    memcpy(one.tensors, memory, sizeof(one.tensors));
    cp_timed_attention_set(&one, timing->threads, (cp_span){0, seen, rows, 1},
                           (cp_span){0, 0, seen, 1});
    one.call.progress = comm->ops->progress != NULL ? progress : NULL;
    one.call.progress_context = comm;
    return cp_runner_kernel(timing->runner)(&one.call);
}

/* The n-th part goes to the n-th rank ahead, whose part arrives as the n-th. */
static cp_status all_to_all(cp_comm *comm, int64_t bytes,
                            float *const *memory) {
    const int64_t each = cp_ceil_divide(bytes, comm->ranks - 1);
    const void *send[CP_CALIBRATE_RANKS];
    void *receive[CP_CALIBRATE_RANKS];
    for (int n = 0; n < comm->ranks; n++) {
        const int peer = (comm->rank + 1 + n) % comm->ranks;
        send[peer] = (char *)memory[FROM] + n * each;
        receive[peer] = (char *)memory[TO] + n * each;
    }
    return cp_comm_all_to_all(comm, send, receive, each);
}

/* Each rank measures its own ceiling, all at the same time. */
static cp_status peak(cores_timing *timing, cp_comm *comm) {
    const cp_bench_case ceiling = cp_measure_fma(&timing->threads);
    double seconds;
    CP_TRY(ceiling.run(ceiling.context, &seconds));
    if (comm->rank == 0)
        timing->peak =
            cp_calibration_work(timing->calibration, timing->timed->rows, 0) *
            seconds / ceiling.work;
    return CP_OK;
}

static cp_status once(cores_timing *timing, cp_comm *comm,
                      float *const *memory) {
    const cp_timed_work *timed = timing->timed;
    const int next = (comm->rank + 1) % comm->ranks;
    const int last = (comm->rank + comm->ranks - 1) % comm->ranks;
    const int64_t bytes = timed->bytes;
    const cp_product product = {&timing->matrix, false, memory[OUTPUT]};
    if (timed->kind == CP_TIME_PEAK)
        return peak(timing, comm);
    if (timed->kind == CP_TIME_ALL_TO_ALL)
        return all_to_all(comm, bytes, memory);
    if (timed->kind == CP_TIME_COPY)
        memcpy(memory[TO], memory[FROM], (size_t)bytes);
    if (timed->kind >= CP_TIME_EXCHANGE)
        CP_TRY(cp_comm_exchange(comm, next, memory[FROM], bytes, last,
                                memory[TO], bytes));
    if (timed->keys > 0)
        CP_TRY(attend(timing, comm, memory));
    else if (timed->rows > 0)
        (timing->runner->bf16 ? cp_linear_bf16 : cp_linear_rows)(
            timed->rows, timing->matrix.in, memory[QUERIES], &product, 1,
            timing->threads, memory[SCRATCH]);
    return timed->kind >= CP_TIME_EXCHANGE ? cp_comm_wait(comm) : CP_OK;
}

/* Messages go from one buffer into the other, and back the next time, as the
 * blocks of a ring do. */
static cp_status rank_main(cp_comm *comm, void *context) {
    cores_timing *timing = context;
    float **memory = timing->memory[comm->rank];
    for (int64_t n = 0; n < timing->times; n++) {
        float *const filled = memory[TO];
        CP_TRY(once(timing, comm, memory));
        memory[TO] = memory[FROM];
        memory[FROM] = filled;
    }
    return CP_OK;
}

/* A run should last some milliseconds. All ranks must agree on its number of
 * repetitions, so an estimate from the sizes decides that, not a clock. If the
 * ranks did not get nearly all of the cores that they can keep busy, the run is
 * repeated. Messages run once: a rank that waits for a message looks as if it
 * had no core, and the fastest of three runs would be faster than the average
 * message. */
static cp_status time_work(void *context, const cp_timed_work *timed,
                           double *seconds) {
    cores_timing *timing = context;
    const bool peak = timed->kind == CP_TIME_PEAK;
    const int tries = peak || timed->kind >= CP_TIME_EXCHANGE ? 1 : 3;
    double best = INFINITY;
    bool alone = false;
    const double work =
        cp_calibration_work(timing->calibration, timed->rows, timed->keys);
    const double guess = 2e-6 + (double)timed->bytes / 5e9 + work / 3e10;
    timing->timed = timed;
    timing->times = peak ? 1 : (int64_t)fmin(fmax(0.003 / guess, 1), 400);
    for (int n = 0; n < tries && !alone; n++) {
        double busy[CP_CALIBRATE_RANKS] = {0}, sum = 0;
        cp_common_work common = {NULL, rank_main, timing, .busy = busy};
        CP_TRY(cp_measure_ranks(timing->runner, (int)timing->calibration->ranks,
                                &common));
        for (int r = 0; r < timing->calibration->ranks; r++)
            sum += busy[r];
        alone = sum >= 0.95 * timing->cores * common.seconds;
        best = fmin(best, common.seconds / (double)timing->times);
    }
    *seconds = peak ? timing->peak : best;
    return CP_OK;
}

static cp_status stage_set(cores_timing *timing) {
    const cp_calibration *calibration = timing->calibration;
    const int64_t rows = cp_largest(&calibration->rows);
    const int64_t width = cp_calibration_width(calibration);
    const int64_t wider = CP_CALIBRATE_WIDER * width, layer = width * wider;
    const int64_t keys = cp_largest(&calibration->keys) *
                         calibration->shape.kv_heads *
                         calibration->shape.head_dim;
    /* A buffer can be cut into parts for all other ranks of an all-to-all. */
    const int64_t buffer =
        cp_ceil_divide(cp_largest(&calibration->bytes) + calibration->ranks, 4);
    const int64_t sizes[TENSORS] = {
        rows * width,
        keys,
        keys,
        rows * wider,
        rows * calibration->shape.query_heads,
        cp_linear_scratch(rows, width, timing->threads),
        buffer,
        buffer};
    float *weights;
    int64_t bytes;
    for (int r = 0; r < calibration->ranks; r++)
        if (timing->runner->only == CP_NO_RANK || timing->runner->only == r)
            CP_TRY(cp_measure_tensors(1, TENSORS, sizes, timing->memory[r]));
    CP_TRY(cp_matrix_bytes(CP_GGUF_F32, width, wider, &bytes));
    CP_TRY(cp_allocate_lines(&timing->tiles, bytes, 1, "a linear layer"));
    CP_TRY(cp_measure_tensors(1, 1, &layer, &weights));
    cp_matrix_fill(CP_GGUF_F32, width, wider, weights, timing->tiles,
                   &timing->matrix);
    free(weights);
    return CP_OK;
}

cp_timing_backend cp_timing_on_cores(const cp_runner *runner,
                                     const cp_calibration *calibration) {
    const double ranks = (double)calibration->ranks,
                 cores = (double)calibration->cores;
    const int threads = cp_runner_cores(runner, (int)calibration->cores,
                                        (int)calibration->ranks);
    const bool shared =
        runner->local == 0 || runner->local == calibration->ranks;
    return (cp_timing_backend){.cores = shared ? (int)calibration->cores : 0,
                               .speed =
                                   shared ? fmin(threads, cores / ranks) : 1,
                               .memory = (double)sysconf(_SC_PHYS_PAGES) *
                                         (double)sysconf(_SC_PAGESIZE),
                               .element_bytes = sizeof(float)};
}

cp_status cp_calibrate_cores(const cp_runner *runner,
                             const cp_calibration *calibration) {
    cp_timing_backend timed = cp_timing_on_cores(runner, calibration);
    cores_timing timing = {
        .runner = runner,
        .calibration = calibration,
        .peak = 1,
        .threads = cp_runner_cores(runner, (int)calibration->cores,
                                   (int)calibration->ranks),
        .cores = fmin(1, timed.speed) * (double)calibration->ranks};
    timed.time = time_work;
    timed.context = &timing;
    cp_status status = stage_set(&timing);
    if (status == CP_OK)
        status = cp_calibrate(&timed, calibration);
    for (int64_t r = 0; r < calibration->ranks; r++)
        free(timing.memory[r][0]);
    free(timing.tiles);
    return status;
}
