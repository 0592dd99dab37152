/* What a calibration times on GPUs: one case at a time, on all ranks at
 * once. */
#include "measure/calibrate_device.h"
#include "measure/timed_device.h"

#include <math.h>

#include "group/agree.h"

/* A linear layer reads queries and writes outputs. */
typedef struct {
    cp_timed_device device;
    cudaEvent_t sent;              /* without a time */
    cp_device_attention attention; /* of the current case */
} device_workspace;

typedef struct {
    const cp_device_runner *runner;
    const cp_calibration *calibration;
    const cp_timed_work *timed; /* the current case */
    cp_numbers numbers;
    int64_t width;          /* of all query heads */
    cp_timed_kernel kernel; /* for the current case */
    int first, end;         /* ranks of this process */
    device_workspace workspaces[CP_CALIBRATE_RANKS];
} device_timing;

/* The lists have at most one tile for each query. */
static void count_bytes(const device_timing *timing, cp_timed_device *device) {
    const cp_calibration *calibration = timing->calibration;
    const int64_t wider = CP_CALIBRATE_WIDER * timing->width;
    const int64_t rows = cp_largest(&calibration->rows);
    for (int64_t n = 0; n < calibration->rows.count; n++)
        cp_timed_device_count(device, calibration->rows.items[n],
                              cp_largest(&calibration->keys));
    device->bytes[CP_TIMED_WEIGHTS] =
        wider * timing->width * cp_number_bytes(timing->numbers);
    device->bytes[CP_TIMED_SCALES] = cp_max(rows, wider) * 4;
    device->bytes[CP_TIMED_FROM] =
        cp_largest(&calibration->bytes) + calibration->ranks;
    device->bytes[CP_TIMED_TO] = device->bytes[CP_TIMED_FROM];
    device->bytes[CP_TIMED_OUTPUT] = rows * wider * 4;
}

static cp_element element_of(cp_numbers numbers) {
    return numbers == CP_NUMBERS_F32 ? CP_F32 : CP_BF16;
}

static cp_status workspace_set(const device_timing *timing,
                               device_workspace *space) {
    space->device.shape = timing->calibration->shape;
    space->device.element = element_of(timing->numbers);
    CP_TRY(cp_cuda(cp_device_blocks(&space->device.blocks),
                   "querying the blocks"));
    count_bytes(timing, &space->device);
    CP_TRY(cp_event_new(&space->sent));
    CP_TRY(cp_timed_device_set(&space->device));
    return cp_multiplier_check(space->device.multiplier, timing->numbers);
}

static void workspace_clear(device_workspace *space) {
    cp_timed_device_clear(&space->device);
    cp_event_free(space->sent);
}

/* Attention needs its tiles on the device. A walker also sends them once a
 * call. */
static cp_status send_lists(device_timing *timing) {
    const int64_t rows = timing->timed->rows, keys = timing->timed->keys;
    const cp_shape *shape = &timing->calibration->shape;
    CP_TRY(cp_cuda(cp_device_choose(shape, element_of(timing->numbers), rows,
                                    &timing->kernel.kernel),
                   "choosing a kernel"));
    for (int r = timing->first; r < timing->end && keys > 0; r++)
        CP_TRY(cp_timed_device_attention(&timing->workspaces[r].device,
                                         &timing->kernel,
                                         (cp_span){0, keys, rows, 1}, keys,
                                         &timing->workspaces[r].attention));
    return CP_OK;
}

static cp_status attend(const device_timing *timing,
                        const device_workspace *space) {
    return cp_cuda(cp_timed_attend(&timing->kernel, &space->attention,
                                   space->device.queues.compute),
                   "an attention of %ld rows over %ld keys",
                   timing->timed->rows, timing->timed->keys);
}

/* Only the product: quantizing rows to eight bits counts as memory traffic.
 * There is no register loop here, so the peak is what the library reaches. */
static cp_status multiply(const device_timing *timing,
                          const device_workspace *space) {
    const cp_timed_device *device = &space->device;
    const float *scales = timing->numbers == CP_NUMBERS_F8
                              ? (float *)device->memory[CP_TIMED_SCALES]
                              : NULL;
    const cp_device_matrix matrix = {
        timing->width, CP_CALIBRATE_WIDER * timing->width, timing->numbers,
        device->memory[CP_TIMED_WEIGHTS], scales};
    return cp_device_multiply(device->multiplier, &matrix, timing->timed->rows,
                              device->memory[CP_TIMED_QUERIES], scales, false,
                              (float *)device->memory[CP_TIMED_OUTPUT],
                              device->queues.compute);
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
    const cp_timed_device *device = &timing->workspaces[rank].device;
    const cudaStream_t queue = device->queues.communication;
    cp_message_half halves[2 * CP_CALIBRATE_RANKS];
    for (int n = 0; n < count; n++) {
        const int to = (rank + 1 + n) % ranks;
        const int from = (rank + ranks - 1 - n) % ranks;
        const int64_t at = n * each;
        char *out = device->memory[CP_TIMED_FROM] + at;
        halves[2 * n] = (cp_message_half){to, false, out, each};
        halves[2 * n + 1] = (cp_message_half){
            from, true, device->memory[CP_TIMED_TO] + at, each};
        if (link == NULL) /* so all workspaces are here */
            CP_TRY(cp_bytes_copy(
                timing->workspaces[to].device.memory[CP_TIMED_TO] + at, out,
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
    const cp_queues queues = space->device.queues;
    const bool both = timed->kind == CP_TIME_OVERLAP;
    if (both)
        CP_TRY(join(queues.communication, queues.compute, space->sent));
    if (timed->kind >= CP_TIME_EXCHANGE)
        CP_TRY(trade(timing, rank));
    if (timed->kind == CP_TIME_COPY)
        return cp_bytes_copy(space->device.memory[CP_TIMED_TO],
                             space->device.memory[CP_TIMED_FROM], timed->bytes,
                             queues.compute, "a message");
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
            const cp_timed_device *device = &timing->workspaces[r].device;
            const cudaStream_t queue =
                talks ? device->queues.communication : device->queues.compute;
            CP_TRY(n < 0        ? cp_event_record(device->begun, queue)
                   : n == times ? cp_event_record(device->over, queue)
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
        const cp_timed_device *device = &timing->workspaces[r].device;
        float milliseconds = 0;
        bool late;
        CP_TRY(cp_await(query_event, &device->over, timing->runner->link,
                        timeout, &late));
        if (late)
            return cp_fail(CP_BROKEN,
                           "calibration: a case timed out after %g s", timeout);
        CP_TRY(cp_cuda(
            cudaEventElapsedTime(&milliseconds,
                                 timing->workspaces[timing->first].device.begun,
                                 device->over),
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

cp_status cp_calibrate_device(const cp_device_runner *runner,
                              cp_numbers numbers,
                              const cp_calibration *calibration) {
    const bool shared = runner->only == CP_NO_RANK;
    device_timing timing = {.runner = runner,
                            .calibration = calibration,
                            .numbers = numbers,
                            .width = cp_calibration_width(calibration),
                            .first = shared ? 0 : runner->only,
                            .end = shared ? (int)calibration->ranks
                                          : runner->only + 1};
    /* Ranks that share a GPU share one core. */
    cp_timing_backend timed = {
        .time = time_work,
        .context = &timing,
        .cores = shared ? 1 : 0,
        .speed = shared ? 1.0 / (double)calibration->ranks : 1,
        .element_bytes = cp_element_bytes(element_of(numbers))};
    size_t left = 0, total = 0;
    int devices;
    cp_status status = CP_OK;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(cp_cuda(cudaMemGetInfo(&left, &total), "querying its memory"));
    timed.memory = (double)total;
    for (int r = timing.first; r < timing.end && status == CP_OK; r++)
        status = workspace_set(&timing, &timing.workspaces[r]);
    status = cp_agree_to_start(runner->group, status);
    if (status == CP_OK)
        status = cp_calibrate(&timed, calibration);
    for (int r = timing.first; r < timing.end; r++)
        workspace_clear(&timing.workspaces[r]);
    return status;
}
