/* Tangled from book/13-graphs.nw; edit the chapter. */
/* What ran when on a device. */
#include "cuda/ring/device_trace.h"

#include <stdlib.h>

#include "cuda/kernels/device.h"
#include "ring/history.h"

enum { MOST_MARKS = 20000 }; /* pairs that have not been collected */

typedef struct {
    cp_device_stretch what;
    int64_t layer;
    cudaEvent_t start, end;
    bool ended;
} marks;

typedef struct {
    int64_t layer;
    marks *open; /* in the order in which they began */
    int64_t count, room;
    cudaEvent_t *spare; /* [2 * room + 1] events that may be used again */
    int64_t spares;
    cudaEvent_t base; /* the time of this one is known */
    double time;
} tracer;

struct cp_device_trace {
    int ranks;
    cp_history *history;
    tracer *tracers; /* [ranks] */
};

static cudaEvent_t find_event(tracer *mine) {
    cudaEvent_t event = NULL;
    if (mine->spares > 0)
        return mine->spare[--mine->spares];
    return cudaEventCreate(&event) == cudaSuccess ? event : NULL;
}

static void put_back(tracer *mine, cudaEvent_t event) {
    if (event != NULL)
        mine->spare[mine->spares++] = event;
}

static bool make_space(tracer *mine) {
    if (mine->count < mine->room)
        return true;
    if (mine->room >= MOST_MARKS)
        return false;
    const int64_t room = cp_max(256, 2 * mine->room);
    marks *open = realloc(mine->open, (size_t)room * sizeof(*open));
    if (open == NULL)
        return false;
    mine->open = open;
    cudaEvent_t *spare =
        realloc(mine->spare, (size_t)(2 * room + 1) * sizeof(*spare));
    if (spare == NULL)
        return false;
    mine->spare = spare;
    mine->room = room;
    return true;
}

static bool is_captured(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
           status != cudaStreamCaptureStatusNone;
}

void cp_device_trace_begin_stretch(cp_device_trace *trace,
                                   const cp_device_stretch *what) {
    if (trace == NULL)
        return;
    tracer *mine = &trace->tracers[what->rank];
    marks both = {.what = *what, .layer = mine->layer};
    const bool space = !is_captured(what->stream) && make_space(mine);
    both.start = space ? find_event(mine) : NULL;
    both.end = space ? find_event(mine) : NULL;
    if (both.start != NULL && both.end != NULL &&
        cudaEventRecord(both.start, what->stream) == cudaSuccess) {
        mine->open[mine->count++] = both;
        return;
    }
    put_back(mine, both.start);
    put_back(mine, both.end);
    cp_history_lose(trace->history, what->rank, (int)what->queue);
}

void cp_device_trace_begin(cp_device_trace *trace, int rank, const char *what,
                           cudaStream_t stream) {
    const cp_device_stretch stretch = {
        .rank = rank, .stream = stream, .name = what};
    cp_device_trace_begin_stretch(trace, &stretch);
}

void cp_device_trace_end(cp_device_trace *trace, int rank,
                         cudaStream_t stream) {
    if (trace == NULL || is_captured(stream))
        return;
    tracer *mine = &trace->tracers[rank];
    for (int64_t n = mine->count - 1; n >= 0; n--) {
        marks *both = &mine->open[n];
        if (both->what.stream != stream || both->ended)
            continue;
        both->ended = cudaEventRecord(both->end, stream) == cudaSuccess;
        return;
    }
}

void cp_device_trace_layer(cp_device_trace *trace, int rank, int64_t layer) {
    if (trace != NULL)
        trace->tracers[rank].layer = layer;
}

static bool times_of(const tracer *mine, const marks *both, double *start,
                     double *end) {
    float first = 0.0f, last = 0.0f;
    if (!both->ended || cudaEventQuery(both->end) != cudaSuccess ||
        cudaEventElapsedTime(&first, mine->base, both->start) != cudaSuccess ||
        cudaEventElapsedTime(&last, mine->base, both->end) != cudaSuccess)
        return false;
    *start = mine->time + 1e-3 * (double)first;
    *end = mine->time + 1e-3 * (double)last;
    return true;
}

void cp_device_trace_collect(cp_device_trace *trace, int rank) {
    tracer *mine = trace != NULL ? &trace->tracers[rank] : NULL;
    int64_t left = 0;
    for (int64_t n = 0; mine != NULL && n < mine->count; n++) {
        const marks both = mine->open[n];
        double start, end;
        if (!times_of(mine, &both, &start, &end)) {
            mine->open[left++] = both;
            continue;
        }
        const cp_stretch stretch = {
            both.what.name, start,           end,
            both.layer,     both.what.bytes, both.what.hop};
        cp_history_note(trace->history, rank, (int)both.what.queue, stretch);
        put_back(mine, both.start);
        put_back(mine, mine->base);
        mine->base = both.end;
        mine->time = end;
    }
    if (mine != NULL)
        mine->count = left;
}

cp_status cp_device_trace_write(cp_device_trace *trace, const char *path) {
    for (int rank = 0; rank < trace->ranks; rank++) {
        const tracer *mine = &trace->tracers[rank];
        for (int64_t n = 0; n < mine->count; n++)
            if (mine->open[n].ended)
                cudaEventSynchronize(mine->open[n].end);
        cp_device_trace_collect(trace, rank);
    }
    return cp_history_write(trace->history, 0.0, path);
}

static cp_status start_clock(cp_device_trace *trace, int rank) {
    tracer *mine = &trace->tracers[rank];
    float after = 0.0f;
    make_space(mine);
    cudaError_t error = mine->room > 0 ? cudaEventCreate(&mine->base)
                                       : cudaErrorMemoryAllocation;
    if (error == cudaSuccess)
        error = cudaEventRecord(mine->base, NULL);
    if (error == cudaSuccess)
        error = cudaEventSynchronize(mine->base);
    if (error == cudaSuccess)
        error =
            cudaEventElapsedTime(&after, trace->tracers[0].base, mine->base);
    mine->time = 1e-3 * (double)after;
    return cp_cuda(error, "starting the clock of rank %d", rank);
}

cp_status cp_device_trace_new(int ranks, cp_device_trace **out) {
    static const char *const names[] = {"computing", "communicating"};
    *out = NULL;
    cp_device_trace *trace;
    cp_status status = cp_allocate(&trace, 1, sizeof(*trace), "a trace");
    if (status != CP_OK)
        return status;
    trace->ranks = ranks;
    status = cp_history_new(ranks, 2, names, &trace->history);
    if (status == CP_OK)
        status = cp_allocate(&trace->tracers, ranks, sizeof(tracer), "a trace");
    for (int rank = 0; rank < ranks && status == CP_OK; rank++)
        status = start_clock(trace, rank);
    if (status == CP_OK)
        *out = trace;
    else
        cp_device_trace_free(trace);
    return status;
}

static void free_tracer(tracer *mine) {
    for (int64_t n = 0; n < mine->count; n++) {
        cudaEventDestroy(mine->open[n].start);
        cudaEventDestroy(mine->open[n].end);
    }
    for (int64_t n = 0; n < mine->spares; n++)
        cudaEventDestroy(mine->spare[n]);
    if (mine->base != NULL)
        cudaEventDestroy(mine->base);
    free(mine->open);
    free(mine->spare);
}

void cp_device_trace_free(cp_device_trace *trace) {
    if (trace == NULL)
        return;
    for (int rank = 0; trace->tracers != NULL && rank < trace->ranks; rank++)
        free_tracer(&trace->tracers[rank]);
    cp_history_free(trace->history);
    free(trace->tracers);
    free(trace);
}
