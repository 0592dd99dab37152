/* Tangled from book/13-streams.nw; edit the chapter. */
/* Errors, memory, queues and events of a GPU. */
#include "cuda/kernels/device.h"

#include <stdarg.h>
#include <stdio.h>

cp_status cp_cuda(cudaError_t error, const char *what, ...) {
    if (error == cudaSuccess)
        return CP_OK;
    char text[300];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(text, sizeof(text), what, arguments);
    va_end(arguments);
    return cp_fail(error == cudaErrorMemoryAllocation ? CP_MEMORY : CP_BROKEN,
                   "%s: %s", text, cudaGetErrorString(error));
}

cp_status cp_device_count(int *count) {
    *count = 0;
    const cudaError_t error = cudaGetDeviceCount(count);
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (error == cudaSuccess && *count > 0)
        return CP_OK;
    if (driver == 0)
        return cp_fail(CP_BROKEN, "no GPU: this machine has no driver for one");
    return cp_fail(
        CP_BROKEN, "no GPU: %s (driver for CUDA %d.%d, built for %d.%d)",
        error == cudaSuccess ? "no device" : cudaGetErrorString(error),
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

cp_status cp_device_reserve(int64_t bytes, const char *what, char **out) {
    size_t left = 0, total = 0;
    void *memory = NULL;
    *out = NULL;
    CP_TRY(cp_cuda(cudaMemGetInfo(&left, &total), "querying free memory"));
    if ((uint64_t)bytes > left)
        return cp_fail(CP_MEMORY,
                       "%s: %ld bytes on a GPU that has %zu of %zu left", what,
                       bytes, left, total);
    CP_TRY(cp_cuda(cudaMalloc(&memory, (size_t)cp_max(bytes, 1)),
                   "%s: %ld bytes", what, bytes));
    *out = memory;
    return CP_OK;
}

/* Bytes that are reserved beyond those needed. */
static int64_t spare(int64_t bytes) {
    return cp_min(4096 + bytes / 8, 1 << 20);
}

void cp_device_room_free(cp_device_room *room) {
    cudaFree(room->device);
    cudaFreeHost(room->host);
    *room = (cp_device_room){NULL, NULL, 0, 0};
}

cp_status cp_device_room_grow(cp_device_room *room, int64_t device_bytes,
                              int64_t host_bytes, const char *what) {
    if (room->device_bytes >= device_bytes && room->host_bytes >= host_bytes)
        return CP_OK;
    device_bytes += spare(device_bytes);
    host_bytes += spare(host_bytes);
    cp_device_room_free(room);
    CP_TRY(cp_device_reserve(device_bytes, what, &room->device));
    room->device_bytes = device_bytes;
    CP_TRY(cp_cuda(
        cudaMallocHost((void **)&room->host, (size_t)cp_max(host_bytes, 1)),
        "%s: %ld bytes on the host", what, host_bytes));
    room->host_bytes = host_bytes;
    return CP_OK;
}

cp_status cp_bytes_copy(void *to, const void *from, int64_t bytes,
                        cudaStream_t stream, const char *what) {
    return cp_cuda(
        cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, stream),
        "copying %s, %ld bytes", what, bytes);
}

cp_status cp_queues_new(cp_queues *queues) {
    int least = 0, greatest = 0;
    *queues = (cp_queues){NULL, NULL};
    CP_TRY(cp_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                   "querying stream priorities"));
    CP_TRY(cp_cuda(cudaStreamCreateWithPriority(&queues->compute,
                                                cudaStreamNonBlocking, least),
                   "making a stream to compute on"));
    return cp_cuda(cudaStreamCreateWithPriority(
                       &queues->communication, cudaStreamNonBlocking, greatest),
                   "making a stream to communicate on");
}

void cp_queues_free(cp_queues *queues) {
    if (queues->compute != NULL)
        cudaStreamDestroy(queues->compute);
    if (queues->communication != NULL)
        cudaStreamDestroy(queues->communication);
    *queues = (cp_queues){NULL, NULL};
}

cp_status cp_event_new(cudaEvent_t *event) {
    return cp_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                   "making an event");
}

void cp_event_free(cudaEvent_t event) {
    if (event != NULL)
        cudaEventDestroy(event);
}

cp_status cp_event_record(cudaEvent_t event, cudaStream_t stream) {
    return cp_cuda(cudaEventRecord(event, stream), "recording an event");
}

cp_status cp_event_wait(cudaStream_t stream, cudaEvent_t event) {
    return cp_cuda(cudaStreamWaitEvent(stream, event, 0), "joining two queues");
}

double cp_progress_events_query(cp_progress_events *p) {
    while (p->passed < p->noted &&
           cudaEventQuery(p->events[p->passed % CP_PROGRESS_EVENTS]) ==
               cudaSuccess) {
        p->passed++;
        p->when = cp_clock();
    }
    return p->when;
}

cp_status cp_progress_events_record(cp_progress_events *p,
                                    cudaStream_t stream) {
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    cudaEvent_t *next = &p->events[p->noted % CP_PROGRESS_EVENTS];
    CP_TRY(cp_cuda(cudaStreamIsCapturing(stream, &state),
                   "querying whether a queue is captured"));
    if (state != cudaStreamCaptureStatusNone)
        return CP_OK;
    if (p->noted - p->passed == CP_PROGRESS_EVENTS)
        cp_progress_events_query(p);
    if (p->noted - p->passed == CP_PROGRESS_EVENTS)
        return CP_OK;
    if (*next == NULL)
        CP_TRY(cp_event_new(next));
    CP_TRY(cp_event_record(*next, stream));
    p->noted++;
    return CP_OK;
}

void cp_progress_events_free(cp_progress_events *p) {
    for (int i = 0; i < CP_PROGRESS_EVENTS; i++)
        cp_event_free(p->events[i]);
    *p = (cp_progress_events){.noted = 0};
}
