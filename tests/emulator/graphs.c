/* Capture and replay. Operations on capturing streams do not run; a graph keeps
 * them, with events recorded and waited for, and a launch enqueues all of it
 * again: in the launching stream, and in the graph's own streams for the
 * others. A stream joins a capture when it waits for an event of it. An
 * operation keeps its by-value arguments forever: a length that should have
 * been read from memory is stale at the first replay. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

/* Captures. */

static void release_graph(graph *g) {
    if (--g->references > 0)
        return;
    for (operation *one; (one = g->first) != NULL; operation_free(one))
        g->first = one->next;
    free(g);
}

static cudaError_t invalidated(void) {
    return complain(cudaErrorStreamCaptureInvalidated,
                    "the capture was invalidated before");
}

cudaError_t capture_operation(stream *on, operation *what) {
    if (on->capture->invalid) {
        operation_free(what);
        return invalidated();
    }
    graph *g = on->capture->into;
    g->count++;
    what->stream_index = on->stream_index;
    for (int i = 0; i < what->part_count; i++)
        what->parts[i].captured = true;
    *g->end = what;
    g->end = &what->next;
    on->before.of[on->stream_index] += what->point == NULL;
    return cudaSuccess;
}

cudaError_t capture_record(stream *on, event *what) {
    if (on->capture->invalid)
        return invalidated();
    mark_release(what->latest);
    what->latest = mark_new(on);
    what->captured = on->capture->number;
    what->before = on->before;
    return enqueue_point(on, RECORD, what->latest);
}

static void join(stream *on, capture *c) {
    on->capture = c;
    on->stream_index = c->into->streams++;
    on->before = (history){{0}};
    c->into->ranked |= on->priority != c->origin->priority;
}

/* An ignored edge still makes its stream part of the capture. */
cudaError_t capture_wait(stream *on, event *what, bool ignored) {
    if (what->captured == 0) {
        if (what->latest == NULL)
            return cudaSuccess;
        on->capture->invalid = true;
        return complain(cudaErrorStreamCaptureIsolation,
                        "a captured stream waits for event %ld, which was "
                        "recorded outside the capture",
                        what->number);
    }
    capture *from = machine.captures;
    while (from != NULL && from->number != what->captured)
        from = from->next;
    if (from == NULL || (on->capture != NULL && on->capture != from))
        return complain(cudaErrorInvalidValue,
                        "event %ld was recorded in another capture",
                        what->number);
    if (from->invalid)
        return invalidated();
    if (on->capture == NULL && from->into->streams == MOST_CAPTURED)
        return complain(cudaErrorNotSupported,
                        "the emulator captures %d streams together",
                        MOST_CAPTURED);
    if (on->capture == NULL)
        join(on, from);
    if (ignored)
        return cudaSuccess;
    machine.counted.waits++;
    for (int i = 0; i < from->into->streams; i++)
        if (what->before.of[i] > on->before.of[i])
            on->before.of[i] = what->before.of[i];
    return enqueue_point(on, WAIT, what->latest);
}

/* Waiting on the host is not an operation; in a capture it is an error that
 * ends it. */
cudaError_t spoil_capture(stream *on, const char *call) {
    on->capture->invalid = true;
    return complain(cudaErrorStreamCaptureUnsupported,
                    "%s on stream %ld, which captures", call, on->number);
}

/* Calls that may wait for the device are refused to a thread that captures. */
cudaError_t refuse_in_capture(const char *call) {
    for (capture *c = machine.captures; c != NULL; c = c->next) {
        if (pthread_equal(c->thread, pthread_self()) == 0)
            continue;
        c->invalid = true;
        return complain(cudaErrorStreamCaptureUnsupported,
                        "%s while stream %ld captures", call,
                        c->origin->number);
    }
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t given,
                                   enum cudaStreamCaptureMode mode) {
    stream *on;
    TRY(enter_stream(given, &on));
    if (mode != cudaStreamCaptureModeThreadLocal || on->number == 0 ||
        on->capture != NULL)
        return leave(complain(cudaErrorStreamCaptureUnsupported,
                              "stream %ld cannot capture in this mode or "
                              "captures already",
                              on->number));
    capture *c = take(1, sizeof *c);
    c->number = ++machine.numbers;
    c->into = take(1, sizeof *c->into);
    c->into->references = 1;
    c->into->number = c->number;
    c->into->end = &c->into->first;
    c->origin = on;
    c->thread = pthread_self();
    join(on, c);
    enlist(&machine.captures, c);
    return leave(cudaSuccess);
}

/* Every stream that joined must have been joined back to the origin. */
static cudaError_t check_capture(const capture *c) {
    if (c->invalid)
        return invalidated();
    for (const stream *s = machine.streams; s != NULL; s = s->next)
        if (s->capture == c && c->origin->before.of[s->stream_index] <
                                   s->before.of[s->stream_index])
            return complain(cudaErrorStreamCaptureUnjoined,
                            "a stream that joined the capture of stream %ld "
                            "was not joined to it again",
                            c->origin->number);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t given, cudaGraph_t *pGraph) {
    stream *on;
    TRY(enter_stream(given, &on));
    capture *c = on->capture;
    *pGraph = NULL;
    if (c == NULL || c->origin != on)
        return leave(complain(cudaErrorStreamCaptureUnmatched,
                              "stream %ld did not begin the capture",
                              on->number));
    const cudaError_t error = check_capture(c);
    for (stream *s = machine.streams; s != NULL; s = s->next)
        if (s->capture == c)
            s->capture = NULL;
    if (error == cudaSuccess)
        enlist(&machine.graphs, *pGraph = c->into);
    else
        release_graph(c->into);
    unlist(&machine.captures, c);
    free(c);
    return leave(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t given,
                                  enum cudaStreamCaptureStatus *status) {
    stream *on;
    TRY(enter_stream(given, &on));
    *status = on->capture == NULL    ? cudaStreamCaptureStatusNone
              : on->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
    return leave(cudaSuccess);
}

/* Graphs. */

static cudaError_t enter_with(const void *list, const void *given) {
    OR_RETURN(enter());
    return listed(list, given)
               ? cudaSuccess
               : complain(cudaErrorInvalidValue,
                          "a graph that does not exist (any more)");
}

static cudaError_t enter_with_executable(const executable *given) {
    OR_RETURN(enter_with(&machine.executables, given));
    return !given->gone
               ? cudaSuccess
               : complain(cudaErrorInvalidValue,
                          "graph %ld is used after its end", given->of->number);
}

static bool mentions(const graph *g, const communicator *by) {
    const operation *o = g->first;
    while (o != NULL && (o->kind != MESSAGES || o->by != by))
        o = o->next;
    return o != NULL;
}

/* NCCL releases a communicator when no graph is left that has its messages,
 * neither captured nor instantiated. A graph destroyed while it ran no longer
 * counts: it ends by itself, or by an abort. */
int64_t graph_holding(const communicator *by) {
    for (const graph *g = machine.graphs; g != NULL; g = g->next)
        if (mentions(g, by))
            return g->number;
    for (const executable *x = machine.executables; x != NULL; x = x->next)
        if (!x->gone && mentions(x->of, by))
            return x->of->number;
    return 0;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t from,
                                 unsigned long long flags) {
    *pGraphExec = NULL;
    TRY(enter_with(&machine.graphs, from));
    if (from->ranked && (flags & cudaGraphInstantiateFlagUseNodePriority) == 0)
        accuse("graph %ld forgets the priorities of its streams", from->number);
    if (countdown(&machine.fail_allocation))
        return leave(complain(cudaErrorMemoryAllocation,
                              "instantiating graph %ld failed on demand",
                              from->number));
    executable *x = *pGraphExec = take(1, sizeof *x);
    x->of = from;
    for (const operation *o = from->first; o != NULL; o = o->next)
        machine.counted.graph_nodes += o->point == NULL;
    for (int i = 1; i < from->streams; i++)
        x->streams[i] = add_stream(++machine.numbers);
    from->references++;
    enlist(&machine.executables, x);
    return leave(cudaSuccess);
}

/* Enqueue one step of a graph again, with marks of this launch. */
static void replay(stream *on, const operation *captured) {
    mark *point = captured->point;
    if (point == NULL) {
        enqueue(on, operation_copy(captured));
        return;
    }
    if (captured->kind == RECORD) {
        mark_release(point->now);
        point->now = mark_new(on);
    }
    enqueue_point(on, captured->kind, point->now);
}

static void mark_end(executable *x, stream *on) {
    mark_release(x->end);
    x->end = mark_new(on);
    enqueue_point(on, RECORD, x->end);
}

/* Two launches of one graph never overlap, and none begins before its stream
 * reaches it. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t given, cudaStream_t where) {
    stream *on;
    TRY(enter_with_executable(given));
    TRY(find_stream(where, &on));
    if (countdown(&machine.fail_launch))
        return leave(complain(cudaErrorLaunchOutOfResources,
                              "launch of graph %ld failed on demand",
                              given->of->number));
    if (on->capture != NULL)
        return leave(complain(cudaErrorNotSupported,
                              "the emulator captures no graph in a graph"));
    machine.counted.graph_launches++;
    if (given->end != NULL)
        enqueue_point(on, WAIT, given->end);
    mark_end(given, on); /* of all before */
    given->streams[0] = on;
    for (int i = 1; i < given->of->streams; i++)
        enqueue_point(given->streams[i], WAIT, given->end);
    for (const operation *o = given->of->first; o != NULL; o = o->next)
        replay(given->streams[o->stream_index], o);
    mark_end(given, on);
    return leave(cudaSuccess);
}

static bool runs(const executable *x) {
    return x->end != NULL && !x->end->done;
}

static void remove_executable(executable *x) {
    if (runs(x))
        accuse("graph %ld was destroyed with a launch of it left",
               x->of->number);
    for (int i = 1; i < x->of->streams; i++)
        remove_stream(x->streams[i]);
    mark_release(x->end);
    unlist(&machine.executables, x);
    release_graph(x->of);
    free(x);
}

static void remove_graph(graph *g) {
    unlist(&machine.graphs, g);
    release_graph(g);
}

/* Free destroyed graphs that have ended by now. */
static void reap(void) {
    for (executable *x = machine.executables, *next; x != NULL; x = next) {
        next = x->next;
        if (x->gone && !runs(x))
            remove_executable(x);
    }
}

/* A running launch completes. Graphs can be destroyed after the machine has
 * failed. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t given) {
    const cudaError_t error = enter_with_executable(given);
    advance_streams();
    if (listed(&machine.executables, given))
        given->gone = true;
    reap();
    changed();
    return leave(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t given) {
    const cudaError_t error = enter_with(&machine.graphs, given);
    if (listed(&machine.graphs, given))
        remove_graph(given);
    return leave(error);
}

/* At the end, before the streams: report what is left. */
void finish_graphs(void) {
    for (stream *s = machine.streams; s != NULL; s = s->next)
        s->capture = NULL;
    while (machine.captures != NULL) {
        capture *c = machine.captures;
        accuse("a capture was never ended");
        unlist(&machine.captures, c);
        release_graph(c->into);
        free(c);
    }
    reap();
    while (machine.executables != NULL) {
        if (!machine.executables->gone)
            accuse("executable graph %ld was never destroyed",
                   machine.executables->of->number);
        remove_executable(machine.executables);
    }
    while (machine.graphs != NULL) {
        accuse("a graph of %d steps was never destroyed",
               machine.graphs->count);
        remove_graph(machine.graphs);
    }
}
