/* What a calibration times on GPUs: one case at a time, on all ranks at
 * once. */
#include "app/device_calibrate.h"
#include "app/meter.h"

#include <math.h>
#include <stdlib.h>

#include "cuda/kernels/device.h"
#include "cuda/kernels/kernels.h"
#include "ground/random.h"
#include "group/agree.h"

/* All keys are one piece of sequence 0; queries are in tiles. */
typedef struct {
    int64_t first[2], count;
    cp_piece keys, tiles[];
} timing_lists;

/* A rank's memory on the device: inputs, messages among them, then the rest. A
 * linear layer reads queries and writes outputs. */
enum { QUERIES, KEYS, VALUES, WEIGHTS, SCALES, FROM, TO, INPUTS };
enum { LISTS = INPUTS, OUTPUT, LSE, UNFINISHED, TICKETS, TENSORS };

typedef struct {
    cp_queues queues;
    cudaEvent_t begun, sent, over; /* sent has no timestamp */
    cp_multiplier *multiplier;
    char *memory[TENSORS];
} device_workspace;

typedef struct {
    const cp_device_runner *runner;
    const cp_calibration *calibration;
    const cp_timed_work *timed; /* the current case */
    cp_numbers numbers;
    cp_element element;
    int64_t width;           /* of all query heads */
    int blocks;              /* that should be running */
    cp_attend_kernel kernel; /* for the current case */
    int first, end;          /* ranks of this process */
    timing_lists *lists;     /* sent to each workspace */
    int64_t bytes[TENSORS];
    device_workspace workspaces[CP_CALIBRATE_RANKS];
} device_timing;

static cp_status choose_kernel(device_timing *timing, int64_t rows) {
    return cp_cuda(cp_device_choose(&timing->calibration->shape,
                                    timing->element, rows, &timing->kernel),
                   "choosing a kernel");
}

/* The lists have at most one tile for each query. */
static cp_status measure_memory(device_timing *timing) {
    const cp_calibration *calibration = timing->calibration;
    const cp_shape *shape = &calibration->shape;
    const int64_t rows = cp_largest(&calibration->rows);
    const int64_t keys = cp_largest(&calibration->keys);
    const int64_t wider = CP_CALIBRATE_WIDER * timing->width;
    const int64_t element = cp_element_bytes(timing->element);
    int64_t left = 0; /* rows of partials, over all splits */
    for (int64_t n = 0; n < calibration->rows.count; n++) {
        const int64_t row_count = calibration->rows.items[n];
        CP_TRY(choose_kernel(timing, row_count));
        left = cp_max(
            left, row_count * cp_device_most_splits(timing->kernel, shape,
                                                    timing->blocks, row_count));
    }
    timing->bytes[QUERIES] = rows * timing->width * element;
    timing->bytes[KEYS] = keys * shape->kv_heads * shape->head_dim * element;
    timing->bytes[VALUES] = timing->bytes[KEYS];
    timing->bytes[WEIGHTS] =
        wider * timing->width * cp_number_bytes(timing->numbers);
    timing->bytes[SCALES] = cp_max(rows, wider) * 4;
    timing->bytes[FROM] = cp_largest(&calibration->bytes) + calibration->ranks;
    timing->bytes[TO] = timing->bytes[FROM];
    timing->bytes[LISTS] =
        (int64_t)sizeof(timing_lists) + rows * (int64_t)sizeof(cp_piece);
    timing->bytes[OUTPUT] = rows * wider * 4;
    timing->bytes[LSE] = rows * shape->query_heads * 4;
    timing->bytes[UNFINISHED] = left * (timing->width + shape->query_heads) * 4;
    timing->bytes[TICKETS] = timing->bytes[LSE];
    return CP_OK;
}

enum { PATTERN = 1 << 15 };

/* The upper byte of each two or four gives magnitudes of 0.5 to 2, and no
 * single byte is a NaN. */
cp_status cp_device_numbers(char *memory, int64_t bytes, cudaStream_t stream) {
    uint64_t pattern[PATTERN], state = 1;
    for (int n = 0; n < PATTERN; n++)
        pattern[n] =
            (cp_random(&state) & 0x80BF80BF80BF80BF) | 0x3F003F003F003F00;
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof(pattern))
        CP_TRY(cp_bytes_copy(memory + at, pattern,
                             cp_min(sizeof(pattern), bytes - at), stream,
                             "numbers"));
    return CP_OK;
}

static cp_status workspace_set(const device_timing *timing,
                               device_workspace *space) {
    CP_TRY(cp_queues_new(&space->queues));
    CP_TRY(cp_cuda(cudaEventCreate(&space->begun), "an event"));
    CP_TRY(cp_cuda(cudaEventCreate(&space->over), "an event"));
    CP_TRY(cp_event_new(&space->sent));
    CP_TRY(cp_multiplier_new(&space->multiplier));
    CP_TRY(cp_multiplier_check(space->multiplier, timing->numbers));
    for (int n = 0; n < TENSORS; n++)
        CP_TRY(cp_device_reserve(timing->bytes[n], "what is measured",
                                 &space->memory[n]));
    CP_TRY(cp_cuda(cudaMemsetAsync(space->memory[TICKETS], 0,
                                   (size_t)timing->bytes[TICKETS],
                                   space->queues.compute),
                   "tickets"));
    for (int n = 0; n < INPUTS; n++)
        CP_TRY(cp_device_numbers(space->memory[n], timing->bytes[n],
                                 space->queues.compute));
    return CP_OK;
}

static void workspace_clear(device_workspace *space) {
    if (space->queues.compute != NULL)
        cudaStreamSynchronize(space->queues.compute);
    cp_multiplier_free(space->multiplier);
    for (int n = 0; n < TENSORS; n++)
        cudaFree(space->memory[n]);
    cp_event_free(space->begun);
    cp_event_free(space->sent);
    cp_event_free(space->over);
    cp_queues_free(&space->queues);
}

/* Attention needs its tiles on the device. A walker also sends them once a
 * call. */
static cp_status send_lists(const device_timing *timing) {
    const int64_t rows = timing->timed->rows, keys = timing->timed->keys;
    const cp_piece all = {{0, keys, rows, 1}, 0};
    const int64_t longest =
        cp_device_query_tile(timing->kernel, &timing->calibration->shape);
    timing_lists *lists = timing->lists;
    if (keys == 0)
        return CP_OK;
    *lists = (timing_lists){.first = {0, 1}, .keys = {{0, 0, keys, 1}, 0}};
    for (int64_t i = 0; i < rows; i += longest)
        lists->tiles[lists->count++] = cp_piece_part(all, i, longest);
    for (int r = timing->first; r < timing->end; r++)
        CP_TRY(
            cp_bytes_copy(timing->workspaces[r].memory[LISTS], lists,
                          (char *)(lists->tiles + lists->count) - (char *)lists,
                          timing->workspaces[r].queues.compute, "tiles"));
    return CP_OK;
}

static cp_status attend(const device_timing *timing,
                        const device_workspace *space) {
    const cp_timed_work *timed = timing->timed;
    const cp_shape *shape = &timing->calibration->shape;
    const timing_lists *lists = (const timing_lists *)space->memory[LISTS];
    cp_device_attention call = {
        .kernel = timing->kernel,
        .shape = *shape,
        .element = timing->element,
        .queries_of = {lists->tiles, &lists->count, timing->lists->count},
        .keys_of = {&lists->keys, lists->first, 1, timed->keys},
        .queries = space->memory[QUERIES],
        .keys = space->memory[KEYS],
        .values = space->memory[VALUES],
        .key_rows = timed->keys,
        .unfinished = (float *)space->memory[UNFINISHED],
        .tickets = (int32_t *)space->memory[TICKETS],
        .rows = timed->rows,
        .output = (float *)space->memory[OUTPUT],
        .lse = (float *)space->memory[LSE],
    };
    call.splits =
        cp_device_splits(&call, timing->blocks,
                         cp_device_most_splits(timing->kernel, shape,
                                               timing->blocks, timed->rows));
    return cp_cuda(cp_device_attend(&call, space->queues.compute),
                   "an attention of %ld rows over %ld keys", timed->rows,
                   timed->keys);
}

/* Only the product: quantizing rows to eight bits counts as memory traffic.
 * There is no register loop here, so the peak is what the library reaches. */
static cp_status multiply(const device_timing *timing,
                          const device_workspace *space) {
    const float *scales = timing->numbers == CP_NUMBERS_F8
                              ? (float *)space->memory[SCALES]
                              : NULL;
    const cp_device_matrix matrix = {
        timing->width, CP_CALIBRATE_WIDER * timing->width, timing->numbers,
        space->memory[WEIGHTS], scales};
    return cp_device_multiply(
        space->multiplier, &matrix, timing->timed->rows, space->memory[QUERIES],
        scales, false, (float *)space->memory[OUTPUT], space->queues.compute);
}

/* Exchange with the neighbours, or all-to-all: the n-th message goes to the
 * n-th rank ahead and comes from the n-th rank behind, from part n of one
 * buffer into part n of the other. */
static cp_status trade(const device_timing *timing, int rank) {
    const cp_timed_work *timed = timing->timed;
    const int ranks = (int)timing->calibration->ranks;
    const int count = timed->kind == CP_TIME_ALL_TO_ALL ? ranks - 1 : 1;
    const int64_t each = cp_ceil_divide(timed->bytes, count);
    const cp_link *link = timing->runner->link;
    const device_workspace *space = &timing->workspaces[rank];
    const cudaStream_t queue = space->queues.communication;
    cp_message_half halves[2 * CP_CALIBRATE_RANKS];
    for (int n = 0; n < count; n++) {
        const int to = (rank + 1 + n) % ranks;
        const int from = (rank + ranks - 1 - n) % ranks;
        const int64_t at = n * each;
        char *out = space->memory[FROM] + at;
        halves[2 * n] = (cp_message_half){to, false, out, each};
        halves[2 * n + 1] =
            (cp_message_half){from, true, space->memory[TO] + at, each};
        if (link == NULL) /* so all workspaces are here */
            CP_TRY(cp_bytes_copy(timing->workspaces[to].memory[TO] + at, out,
                                 each, queue, "a message"));
    }
    return link == NULL ? CP_OK
                        : link->trade(link->context, halves, 2 * count, queue);
}

/* Later work on the queue behind waits for what is now on the queue before. */
static cp_status join(cudaStream_t behind, cudaStream_t before,
                      cudaEvent_t event) {
    CP_TRY(cp_event_record(event, before));
    return cp_event_wait(behind, event);
}

/* A hop begins on both queues together, and ends when both have finished. */
static cp_status once(const device_timing *timing, int rank) {
    const cp_timed_work *timed = timing->timed;
    const device_workspace *space = &timing->workspaces[rank];
    const cp_queues queues = space->queues;
    const bool both = timed->kind == CP_TIME_OVERLAP;
    if (both)
        CP_TRY(join(queues.communication, queues.compute, space->sent));
    if (timed->kind >= CP_TIME_EXCHANGE)
        CP_TRY(trade(timing, rank));
    if (timed->kind == CP_TIME_COPY)
        return cp_bytes_copy(space->memory[TO], space->memory[FROM],
                             timed->bytes, queues.compute, "a message");
    if (timed->rows > 0)
        CP_TRY(timed->keys > 0 ? attend(timing, space)
                               : multiply(timing, space));
    return both ? join(queues.compute, queues.communication, space->sent)
                : CP_OK;
}

/* Enqueue a case on the queues of all local ranks, in turns, so that no rank
 * finishes before the last has begun. Events record the begin and the end on
 * the queue that the case runs on. */
static cp_status enqueue(const device_timing *timing, int64_t times) {
    const cp_timed_work *timed = timing->timed;
    const bool talks = timed->kind >= CP_TIME_EXCHANGE && timed->keys == 0;
    for (int64_t n = -1; n <= times; n++)
        for (int r = timing->first; r < timing->end; r++) {
            const device_workspace *space = &timing->workspaces[r];
            const cudaStream_t queue =
                talks ? space->queues.communication : space->queues.compute;
            CP_TRY(n < 0        ? cp_event_record(space->begun, queue)
                   : n == times ? cp_event_record(space->over, queue)
                                : once(timing, r));
        }
    return CP_OK;
}

static cudaError_t query_event(const void *event) {
    return cudaEventQuery(*(const cudaEvent_t *)event);
}

/* Take the time from the first rank's begin to each rank's end. A peer may be
 * dead, so no wait exceeds the timeout. */
static cp_status await_all(const device_timing *timing, double *times) {
    const double timeout = timing->runner->timeout;
    for (int r = timing->first; r < timing->end; r++) {
        const device_workspace *space = &timing->workspaces[r];
        float milliseconds = 0;
        bool late;
        CP_TRY(cp_await(query_event, &space->over, timing->runner->link,
                        timeout, &late));
        if (late)
            return cp_fail(CP_BROKEN,
                           "calibration: a case timed out after %g s", timeout);
        CP_TRY(cp_cuda(
            cudaEventElapsedTime(&milliseconds,
                                 timing->workspaces[timing->first].begun,
                                 space->over),
            "the time of a case"));
        times[r] = 1e-3 * (double)milliseconds;
    }
    return CP_OK;
}

/* Before processes exchange times, all agree that each has one: a process whose
 * messages have all arrived does not know that another one aborted. */
static cp_status time_work(void *context, const cp_timed_work *timed,
                           double *seconds) {
    device_timing *timing = context;
    const cp_process_group *group = timing->runner->group;
    const cp_link *link = timing->runner->link;
    const double work =
        cp_calibration_work(timing->calibration, timed->rows, timed->keys);
    const double guess = 1e-5 + (double)timed->bytes / 1e11 + work / 1e13;
    const int64_t often = (int64_t)fmin(fmax(0.002 / guess, 1), 16);
    double times[CP_CALIBRATE_RANKS];
    *seconds = 0;
    timing->timed = timed;
    CP_TRY(choose_kernel(timing, timed->rows));
    CP_TRY(cp_agree_to_start(group, send_lists(timing)));
    cp_status status = enqueue(timing, often);
    if (status == CP_OK)
        status = await_all(timing, times);
    if (status != CP_OK && link != NULL)
        link->abort(link->context);
    CP_TRY(cp_agree_to_start(group, status));
    if (group != NULL)
        CP_TRY(group->all_gather(times, sizeof(double)));
    for (int r = 0; r < timing->calibration->ranks; r++)
        *seconds = fmax(*seconds, times[r] / (double)often);
    return CP_OK;
}

cp_status cp_device_calibrate(const cp_device_runner *runner,
                              cp_numbers numbers,
                              const cp_calibration *calibration) {
    const bool shared = runner->only == CP_NO_RANK;
    device_timing timing = {
        .runner = runner,
        .calibration = calibration,
        .numbers = numbers,
        .element = numbers == CP_NUMBERS_F32 ? CP_F32 : CP_BF16,
        .width = cp_calibration_width(calibration),
        .first = shared ? 0 : runner->only,
        .end = shared ? (int)calibration->ranks : runner->only + 1};
    /* Ranks that share a GPU share one core. */
    cp_timing_backend timed = {
        .time = time_work,
        .context = &timing,
        .cores = shared ? 1 : 0,
        .speed = shared ? 1.0 / (double)calibration->ranks : 1,
        .element_bytes = cp_element_bytes(timing.element)};
    size_t left = 0, total = 0;
    int devices;
    cp_status status = CP_OK;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(cp_cuda(cp_device_blocks(&timing.blocks), "querying the blocks"));
    CP_TRY(cp_cuda(cudaMemGetInfo(&left, &total), "querying its memory"));
    timed.memory = (double)total;
    CP_TRY(measure_memory(&timing));
    CP_TRY(cp_allocate(&timing.lists, 1, timing.bytes[LISTS], "tiles"));
    for (int r = timing.first; r < timing.end && status == CP_OK; r++)
        status = workspace_set(&timing, &timing.workspaces[r]);
    status = cp_agree_to_start(runner->group, status);
    if (status == CP_OK)
        status = cp_calibrate(&timed, calibration);
    for (int r = timing.first; r < timing.end; r++)
        workspace_clear(&timing.workspaces[r]);
    free(timing.lists);
    return status;
}

cp_status cp_cuda_calibrate(const cp_backend *backend,
                            const cp_calibration *calibration) {
    const cp_numbers numbers = backend == &cp_backend_cuda_fp32 ? CP_NUMBERS_F32
                               : backend == &cp_backend_cuda_fp8
                                   ? CP_NUMBERS_F8
                                   : CP_NUMBERS_BF16;
    return cp_device_calibrate(cp_cuda_runner(calibration->ranks), numbers,
                               calibration);
}
