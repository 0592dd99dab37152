/* Tangled from book/13-graphs.nw; edit the chapter. */
/* What ran when on a device. */
#include "cuda/run/device_trace.h"

#include <stdlib.h>

#include "cuda/kernels/device.h"

#ifdef __has_include
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif
#endif
#ifndef NVTX_VERSION
#define nvtxRangePushA(name)
#define nvtxRangePop()
#endif

enum { MOST_MARKS = 20000 }; /* pairs that have not been collected */

typedef struct {
    cp_queue queue;
    cudaStream_t stream;
    cp_stretch what;
    cudaEvent_t start, end; /* reused; NULL before the first time */
    bool ended;
} marks;

typedef struct {
    int64_t layer;
    marks *open;      /* [MOST_MARKS] in the order in which they began, */
    int64_t count;    /* of them */
    cudaEvent_t base; /* the time of this one is known */
    double time;
} tracer;

struct cp_device_trace {
    int ranks;
    cp_history *history;
    tracer *tracers; /* [ranks] */
};

static bool have_event(cudaEvent_t *event) {
    if (*event == NULL && cudaEventCreate(event) != cudaSuccess)
        *event = NULL;
    return *event != NULL;
}

static bool is_captured(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
           status != cudaStreamCaptureStatusNone;
}

int64_t cp_device_trace_begin(cp_device_trace *trace, int rank, cp_queue queue,
                              cudaStream_t stream, cp_stretch what) {
    nvtxRangePushA(what.name);
    if (trace == NULL)
        return -1;
    tracer *tracer = &trace->tracers[rank];
    marks *both = &tracer->open[tracer->count];
    what.layer = tracer->layer;
    if (!is_captured(stream) && tracer->count < MOST_MARKS &&
        have_event(&both->start) && have_event(&both->end) &&
        cudaEventRecord(both->start, stream) == cudaSuccess) {
        *both = (marks){queue, stream, what, both->start, both->end, false};
        return tracer->count++;
    }
    cp_history_lose(trace->history, rank, (int)queue);
    return -1;
}

void cp_device_trace_end(cp_device_trace *trace, int rank, int64_t mark) {
    nvtxRangePop();
    if (trace == NULL || mark < 0)
        return;
    marks *both = &trace->tracers[rank].open[mark];
    both->ended = cudaEventRecord(both->end, both->stream) == cudaSuccess;
}

void cp_device_trace_layer(cp_device_trace *trace, int rank, int64_t layer) {
    if (trace != NULL)
        trace->tracers[rank].layer = layer;
}

static bool find_times(const tracer *tracer, marks *both) {
    float first = 0.0f, last = 0.0f;
    if (!both->ended || cudaEventQuery(both->end) != cudaSuccess ||
        cudaEventElapsedTime(&first, tracer->base, both->start) !=
            cudaSuccess ||
        cudaEventElapsedTime(&last, tracer->base, both->end) != cudaSuccess)
        return false;
    both->what.start = tracer->time + 1e-3 * (double)first;
    both->what.end = tracer->time + 1e-3 * (double)last;
    return true;
}

static void collect(cp_device_trace *trace, int rank, marks *both) {
    tracer *tracer = &trace->tracers[rank];
    const cudaEvent_t before = tracer->base;
    if (!find_times(tracer, both)) {
        cp_history_lose(trace->history, rank, (int)both->queue);
        return;
    }
    cp_history_note(trace->history, rank, (int)both->queue, both->what);
    tracer->base = both->end;
    tracer->time = both->what.end;
    both->end = before;
}

void cp_device_trace_collect(cp_device_trace *trace, int rank) {
    if (trace == NULL)
        return;
    tracer *tracer = &trace->tracers[rank];
    for (int64_t n = 0; n < tracer->count; n++)
        collect(trace, rank, &tracer->open[n]);
    tracer->count = 0;
}

cp_status cp_device_trace_write(cp_device_trace *trace, const char *path,
                                int64_t *lost) {
    for (int rank = 0; rank < trace->ranks; rank++) {
        const tracer *tracer = &trace->tracers[rank];
        for (int64_t n = 0; n < tracer->count; n++)
            if (tracer->open[n].ended)
                cudaEventSynchronize(tracer->open[n].end);
        cp_device_trace_collect(trace, rank);
    }
    return cp_history_write(trace->history, path, lost);
}

static cp_status start_clock(cp_device_trace *trace, int rank) {
    tracer *tracer = &trace->tracers[rank];
    float after = 0.0f;
    CP_TRY(cp_allocate(&tracer->open, MOST_MARKS, sizeof(marks), "a trace"));
    CP_TRY(cp_cuda(cudaEventCreate(&tracer->base), "making a clock"));
    CP_TRY(cp_event_record(tracer->base, NULL));
    CP_TRY(cp_cuda(cudaEventSynchronize(tracer->base), "starting a clock"));
    CP_TRY(cp_cuda(
        cudaEventElapsedTime(&after, trace->tracers[0].base, tracer->base),
        "setting the clock of rank %d", rank));
    tracer->time = 1e-3 * (double)after;
    return CP_OK;
}

cp_status cp_device_trace_new(int ranks, cp_device_trace **out) {
    static const char *const names[] = {"computing", "communicating"};
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a trace"));
    (*out)->ranks = ranks;
    CP_TRY(cp_history_new(ranks, 2, names, &(*out)->history));
    CP_TRY(cp_allocate(&(*out)->tracers, ranks, sizeof(tracer), "a trace"));
    for (int rank = 0; rank < ranks; rank++)
        CP_TRY(start_clock(*out, rank));
    return CP_OK;
}

void cp_device_trace_free(cp_device_trace *trace) {
    if (trace == NULL)
        return;
    for (int rank = 0; trace->tracers != NULL && rank < trace->ranks; rank++) {
        tracer *tracer = &trace->tracers[rank];
        for (int n = 0; tracer->open != NULL && n < MOST_MARKS; n++) {
            cp_event_free(tracer->open[n].start);
            cp_event_free(tracer->open[n].end);
        }
        cp_event_free(tracer->base);
        free(tracer->open);
    }
    cp_history_free(trace->history);
    free(trace->tracers);
    free(trace);
}
