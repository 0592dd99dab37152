/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when on each rank. */
#define _POSIX_C_SOURCE 200809L
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "save.h"

enum { MOST_EVENTS = 20000 }; /* of each rank */

typedef struct {
    const char *name;
    double start, end;
    int64_t layer, bytes;
    int hop;
} event;

typedef struct {
    event *events;
    int64_t count, room, lost;
} timeline;

struct cp_trace {
    int ranks;
    double origin;
    timeline *timelines; /* [ranks]; each is its rank's alone */
};

static void note(const cp_trace_context *context, event happened) {
    timeline *line = &context->trace->timelines[context->rank];
    if (line->count == line->room && line->room < MOST_EVENTS) {
        const int64_t room = cp_max(1024, cp_min(MOST_EVENTS, 2 * line->room));
        event *events =
            realloc(line->events, (size_t)room * sizeof(line->events[0]));
        if (events != NULL) {
            line->events = events;
            line->room = room;
        }
    }
    if (line->count < line->room)
        line->events[line->count++] = happened;
    else
        line->lost++;
}

void cp_trace_observe(void *context, const cp_walker *walker, const cp_op *op,
                      double start, double end) {
    const cp_trace_context *mine = context;
    const cp_plan *plan = cp_walker_plan(walker);
    const bool sends = op->kind == CP_OP_EXCHANGE && op->to != CP_NOBODY;
    const bool collects =
        op->kind == CP_OP_ALL_TO_ALL || op->kind == CP_OP_ALL_GATHER;
    int64_t bytes = sends || collects ? plan->slots[op->in.slot].bytes : 0;
    if (collects)
        bytes *= plan->layout->ranks - 1;
    note(mine, (event){cp_op_name(op->kind), start, end, mine->layer, bytes,
                       op->hop});
}

double cp_trace_now(const cp_trace *trace) {
    struct timespec time = {0, 0};
    if (trace != NULL)
        clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void cp_trace_layers(const cp_trace_context *context, const char *what,
                     double start) {
    if (context->trace != NULL)
        note(context, (event){what, start, cp_trace_now(context->trace),
                              context->layer, 0, 0});
}

cp_status cp_trace_new(int ranks, cp_trace **out) {
    *out = NULL;
    cp_trace *trace;
    cp_status status = cp_allocate(&trace, 1, sizeof(*trace), "a trace");
    if (status != CP_OK)
        return status;
    trace->ranks = ranks;
    trace->origin = cp_trace_now(trace);
    status = cp_allocate(&trace->timelines, ranks, sizeof(timeline), "a trace");
    if (status == CP_OK)
        *out = trace;
    else
        free(trace);
    return status;
}

void cp_trace_free(cp_trace *trace) {
    for (int rank = 0; trace != NULL && rank < trace->ranks; rank++)
        free(trace->timelines[rank].events);
    if (trace != NULL)
        free(trace->timelines);
    free(trace);
}

static void print_event(FILE *file, int rank, double origin, const event *e) {
    fprintf(file,
            ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,"
            "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"layer\":%lld,\"hop\":%d,"
            "\"bytes\":%lld}}",
            e->name, rank, 1e6 * (e->start - origin), 1e6 * (e->end - e->start),
            (long long)e->layer, e->hop, (long long)e->bytes);
}

static void print_rank(FILE *file, const cp_trace *trace, int rank) {
    const timeline *line = &trace->timelines[rank];
    fprintf(file,
            "%s{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,"
            "\"args\":{\"name\":\"rank %d (%lld operations left out)\"}}",
            rank == 0 ? "" : ",\n", rank, rank, (long long)line->lost);
    for (int64_t n = 0; n < line->count; n++)
        print_event(file, rank, trace->origin, &line->events[n]);
}

cp_status cp_trace_write(const cp_trace *trace, const char *path) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (file == NULL)
        return cp_fail(CP_MEMORY, "%s: no memory for a trace", path);
    fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int rank = 0; rank < trace->ranks; rank++)
        print_rank(file, trace, rank);
    fprintf(file, "\n]}\n");
    cp_status status = CP_OK;
    if (fclose(file) != 0)
        status = cp_fail(CP_MEMORY, "%s: no memory for a trace", path);
    const cp_bytes bytes = {text, (int64_t)length};
    if (status == CP_OK)
        status = cp_save(path, 1, &bytes);
    free(text);
    return status;
}
