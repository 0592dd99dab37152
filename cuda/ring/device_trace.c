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
    cudaEvent_t start, end; /* used again; NULL before the first time */
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

int64_t cp_device_trace_begin(cp_device_trace *trace,
                              const cp_device_stretch *what) {
    if (trace == NULL)
        return -1;
    tracer *mine = &trace->tracers[what->rank];
    marks *both = &mine->open[mine->count];
    if (!is_captured(what->stream) && mine->count < MOST_MARKS &&
        have_event(&both->start) && have_event(&both->end) &&
        cudaEventRecord(both->start, what->stream) == cudaSuccess) {
        both->what = *what;
        both->layer = mine->layer;
        both->ended = false;
        return mine->count++;
    }
    cp_history_lose(trace->history, what->rank, (int)what->queue);
    return -1;
}

void cp_device_trace_end(cp_device_trace *trace, int rank, int64_t mark) {
    if (trace == NULL || mark < 0)
        return;
    marks *both = &trace->tracers[rank].open[mark];
    both->ended = cudaEventRecord(both->end, both->what.stream) == cudaSuccess;
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

static void collect(cp_device_trace *trace, int rank, marks *both) {
    tracer *mine = &trace->tracers[rank];
    const cudaEvent_t before = mine->base;
    cp_stretch stretch = {.name = both->what.name,
                          .layer = both->layer,
                          .bytes = both->what.bytes,
                          .hop = both->what.hop};
    if (!times_of(mine, both, &stretch.start, &stretch.end)) {
        cp_history_lose(trace->history, rank, (int)both->what.queue);
        return;
    }
    cp_history_note(trace->history, rank, (int)both->what.queue, stretch);
    mine->base = both->end;
    mine->time = stretch.end;
    both->end = before;
}

void cp_device_trace_collect(cp_device_trace *trace, int rank) {
    if (trace == NULL)
        return;
    tracer *mine = &trace->tracers[rank];
    for (int64_t n = 0; n < mine->count; n++)
        collect(trace, rank, &mine->open[n]);
    mine->count = 0;
}

cp_status cp_device_trace_write(cp_device_trace *trace, const char *path) {
    for (int rank = 0; rank < trace->ranks; rank++) {
        const tracer *mine = &trace->tracers[rank];
        for (int64_t n = 0; n < mine->count; n++)
            if (mine->open[n].ended)
                cudaEventSynchronize(mine->open[n].end);
        cp_device_trace_collect(trace, rank);
    }
    return cp_history_write(trace->history, path);
}

static cp_status start_clock(cp_device_trace *trace, int rank) {
    tracer *mine = &trace->tracers[rank];
    float after = 0.0f;
    CP_TRY(cp_allocate(&mine->open, MOST_MARKS, sizeof(marks), "a trace"));
    cudaError_t error = cudaEventCreate(&mine->base);
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
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a trace"));
    (*out)->ranks = ranks;
    CP_TRY(cp_history_new(ranks, 2, names, &(*out)->history));
    CP_TRY(cp_allocate(&(*out)->tracers, ranks, sizeof(tracer), "a trace"));
    for (int rank = 0; rank < ranks; rank++)
        CP_TRY(start_clock(*out, rank));
    return CP_OK;
}

static void free_event(cudaEvent_t event) {
    if (event != NULL)
        cudaEventDestroy(event);
}

void cp_device_trace_free(cp_device_trace *trace) {
    if (trace == NULL)
        return;
    for (int rank = 0; trace->tracers != NULL && rank < trace->ranks; rank++) {
        tracer *mine = &trace->tracers[rank];
        for (int n = 0; mine->open != NULL && n < MOST_MARKS; n++) {
            free_event(mine->open[n].start);
            free_event(mine->open[n].end);
        }
        free_event(mine->base);
        free(mine->open);
    }
    cp_history_free(trace->history);
    free(trace->tracers);
    free(trace);
}
