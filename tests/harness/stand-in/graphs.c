/* Capture and replay. Operations on a stream that captures become nodes of a
 * graph and do not run; an event recorded there carries the nodes that came
 * before it, and a stream that waits for it joins the capture. What a node was
 * given by value it keeps for ever: a length that should have been read from
 * memory is found stale at the first replay. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

static void add_number(node_set *set, int number) {
    for (int i = 0; i < set->count; i++)
        if (set->list[i] == number)
            return;
    set->list = grown(set->list, set->count, sizeof *set->list);
    set->list[set->count++] = number;
}

static void add_numbers(node_set *set, node_set from) {
    for (int i = 0; i < from.count; i++)
        add_number(set, from.list[i]);
}

static void empty(node_set *set) {
    free(set->list);
    *set = (node_set){0};
}

/* Captures. */

static capture *find_capture(int64_t number) {
    capture *c = machine.captures;
    while (c != NULL && c->number != number)
        c = c->next;
    return c;
}

static void leave_capture(stream *on) {
    on->capture = NULL;
    empty(&on->tips);
}

static void release_graph(graph *g) {
    if (--g->references > 0)
        return;
    for (int i = 0; i < g->count; i++) {
        operation_free(g->nodes[i].what);
        free(g->nodes[i].needs.list);
    }
    free(g->nodes);
    free(g);
}

static cudaError_t invalidated(void) {
    return complain(cudaErrorStreamCaptureInvalidated,
                    "the capture was invalidated before");
}

cudaError_t capture_operation(stream *on, operation *what) {
    capture *into = on->capture;
    if (into->invalid || what->kind == GRAPH) {
        const bool nested = what->kind == GRAPH;
        operation_free(what);
        return nested ? complain(cudaErrorNotSupported,
                                 "the stand-in captures no graph in a graph")
                      : invalidated();
    }
    graph *g = into->into;
    g->nodes = grown(g->nodes, g->count, sizeof *g->nodes);
    g->nodes[g->count] = (node){what, on->tips};
    on->tips = (node_set){0};
    add_number(&on->tips, g->count++);
    return cudaSuccess;
}

cudaError_t capture_record(stream *on, event *what) {
    if (on->capture->invalid)
        return invalidated();
    what->captured = on->capture->number;
    empty(&what->tips);
    add_numbers(&what->tips, on->tips);
    return cudaSuccess;
}

/* An ignored edge still makes its stream part of the capture. */
cudaError_t capture_wait(stream *on, event *what, bool ignored) {
    if (what->captured == 0) {
        if (what->latest == NULL)
            return cudaSuccess;
        on->capture->invalid = true;
        return complain(cudaErrorStreamCaptureIsolation,
                        "a captured stream waits for event %lld, which was "
                        "recorded outside the capture",
                        (long long)what->number);
    }
    capture *from = find_capture(what->captured);
    if (from == NULL)
        return complain(cudaErrorInvalidValue,
                        "event %lld was recorded in a capture that has ended",
                        (long long)what->number);
    if (from->invalid)
        return invalidated();
    on->capture = from;
    machine.counted.waits += ignored ? 0 : 1;
    if (!ignored)
        add_numbers(&on->tips, what->tips);
    return cudaSuccess;
}

/* Waiting is no operation; in a capture it is a mistake that ends it. */
cudaError_t spoil_capture(stream *on, const char *call) {
    on->capture->invalid = true;
    return complain(cudaErrorStreamCaptureUnsupported,
                    "%s on stream %lld, which captures", call,
                    (long long)on->number);
}

/* Calls that may wait for the device are refused to a thread that captures. */
cudaError_t refuse_in_capture(const char *call) {
    for (capture *c = machine.captures; c != NULL; c = c->next) {
        if (pthread_equal(c->thread, pthread_self()) == 0)
            continue;
        c->invalid = true;
        return complain(cudaErrorStreamCaptureUnsupported,
                        "%s while stream %lld captures", call,
                        (long long)c->origin->number);
    }
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t given,
                                   enum cudaStreamCaptureMode mode) {
    stream *on;
    TRY(enter_stream(given, &on));
    if (mode != cudaStreamCaptureModeThreadLocal)
        return leave(cudaErrorInvalidValue);
    if (on->number == 0)
        return leave(complain(cudaErrorStreamCaptureUnsupported,
                              "the null stream cannot capture"));
    if (on->capture != NULL)
        return leave(complain(cudaErrorInvalidValue,
                              "stream %lld captures already",
                              (long long)on->number));
    capture *c = on->capture = take(1, sizeof *c);
    c->number = ++machine.numbers;
    c->into = take(1, sizeof *c->into);
    c->into->references = 1;
    c->origin = on;
    c->thread = pthread_self();
    enlist(&machine.captures, c);
    return leave(cudaSuccess);
}

/* Mark a node and all that it needs. */
static void reach(const graph *g, bool *reached, int number) {
    if (reached[number])
        return;
    reached[number] = true;
    for (int i = 0; i < g->nodes[number].needs.count; i++)
        reach(g, reached, g->nodes[number].needs.list[i]);
}

/* Every stream that joined must have been joined to the origin again. */
static bool all_joined(const capture *c) {
    bool *reached = take((size_t)c->into->count, sizeof *reached);
    bool result = true;
    for (int i = 0; i < c->origin->tips.count; i++)
        reach(c->into, reached, c->origin->tips.list[i]);
    for (const stream *s = machine.streams; s != NULL; s = s->next)
        for (int i = 0; s->capture == c && i < s->tips.count; i++)
            result = result && reached[s->tips.list[i]];
    free(reached);
    return result;
}

static cudaError_t check_capture(const capture *c) {
    if (c->invalid)
        return invalidated();
    if (!all_joined(c))
        return complain(cudaErrorStreamCaptureUnjoined,
                        "a stream that joined the capture of stream %lld was "
                        "not joined to it again",
                        (long long)c->origin->number);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t given, cudaGraph_t *pGraph) {
    stream *on;
    TRY(enter_stream(given, &on));
    capture *c = on->capture;
    *pGraph = NULL;
    if (c == NULL || c->origin != on)
        return leave(complain(cudaErrorStreamCaptureUnmatched,
                              "stream %lld did not begin the capture",
                              (long long)on->number));
    const cudaError_t error = check_capture(c);
    for (stream *s = machine.streams; s != NULL; s = s->next)
        if (s->capture == c)
            leave_capture(s);
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
    const cudaError_t error = enter();
    if (error != cudaSuccess || listed(list, given))
        return error;
    return complain(cudaErrorInvalidValue,
                    "a graph that does not exist (any more)");
}

/* Node numbers stand in for the opaque handles: only their count is of use. */
cudaError_t cudaGraphGetNodes(cudaGraph_t given, cudaGraphNode_t *nodes,
                              size_t *numNodes) {
    TRY(enter_with(&machine.graphs, given));
    if (nodes != NULL)
        return leave(cudaErrorNotSupported);
    *numNodes = (size_t)given->count;
    return leave(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t from,
                                 unsigned long long flags) {
    (void)flags;
    *pGraphExec = NULL;
    TRY(enter_with(&machine.graphs, from));
    executable *x = *pGraphExec = take(1, sizeof *x);
    *x = (executable){.of = from,
                      .nodes = from->nodes,
                      .count = from->count,
                      .number = ++machine.numbers};
    from->references++;
    enlist(&machine.executables, x);
    return leave(cudaSuccess);
}

/* A launch has its own copy of every operation. */
void launch_begin(operation *launch) {
    executable *x = launch->what;
    launch->turn = x->launched++;
    launch->nodes = take((size_t)x->count, sizeof *launch->nodes);
    launch->met = take((size_t)x->count, sizeof *launch->met);
    for (int i = 0; i < x->count; i++) {
        launch->nodes[i] = operation_copy(x->nodes[i].what);
        if (launch->nodes[i]->kind == MESSAGES)
            messages_enqueued(launch->nodes[i]);
    }
}

void launch_free(operation *launch) {
    for (int i = 0; launch->nodes != NULL && i < launch->what->count; i++)
        operation_free(launch->nodes[i]);
    free(launch->nodes);
    free(launch->met);
    launch->nodes = NULL;
    launch->met = NULL;
}

/* Two launches of one graph never overlap. What is done stays done, so a node
 * asks only from the first need on that was not. */
bool node_ready(const operation *launch, int number) {
    const node *n = &launch->what->nodes[number];
    if (launch->turn != launch->what->finished || launch->nodes[number]->done)
        return false;
    int *met = &launch->met[number];
    while (*met < n->needs.count && launch->nodes[n->needs.list[*met]]->done)
        ++*met;
    return *met == n->needs.count;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t given, cudaStream_t where) {
    stream *on;
    TRY(enter_with(&machine.executables, given));
    TRY(find_stream(where, &on));
    if (countdown(&machine.fail_launch))
        return leave(complain(cudaErrorLaunchOutOfResources,
                              "launch of graph %lld failed on demand",
                              (long long)given->number));
    operation *launch = operation_new(GRAPH);
    launch->what = given;
    machine.counted.graph_launches++;
    return leave(enqueue(on, launch));
}

/* Drop what streams have left where a launch of this graph is left; true if one
 * was. */
static bool drop_launches(const executable *of) {
    bool left = false;
    for (stream *s = machine.streams; s != NULL; s = s->next) {
        const operation *o = s->head;
        while (o != NULL && (o->kind != GRAPH || o->what != of))
            o = o->next;
        left = left || o != NULL;
        if (o != NULL)
            forget_work(s);
    }
    return left;
}

static void remove_executable(executable *x) {
    if (drop_launches(x))
        accuse("graph %lld went with a launch of it left",
               (long long)x->number);
    unlist(&machine.executables, x);
    release_graph(x->of);
    free(x);
}

/* They can be destroyed after the machine has failed. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t given) {
    const cudaError_t error = enter();
    if (!listed(&machine.executables, given))
        return leave(error != cudaSuccess ? error : cudaErrorInvalidValue);
    settle();
    remove_executable(given);
    return leave(error);
}

static void remove_graph(graph *g) {
    unlist(&machine.graphs, g);
    release_graph(g);
}

cudaError_t cudaGraphDestroy(cudaGraph_t given) {
    const cudaError_t error = enter();
    if (!listed(&machine.graphs, given))
        return leave(error != cudaSuccess ? error : cudaErrorInvalidValue);
    remove_graph(given);
    return leave(error);
}

/* At the end, before the streams: name what is left. */
void finish_graphs(void) {
    for (stream *s = machine.streams; s != NULL; s = s->next)
        if (s->capture != NULL)
            leave_capture(s);
    while (machine.captures != NULL) {
        capture *c = machine.captures;
        accuse("a capture was never ended");
        unlist(&machine.captures, c);
        release_graph(c->into);
        free(c);
    }
    while (machine.executables != NULL) {
        accuse("executable graph %lld was never destroyed",
               (long long)machine.executables->number);
        remove_executable(machine.executables);
    }
    while (machine.graphs != NULL) {
        accuse("a graph of %d nodes was never destroyed",
               machine.graphs->count);
        remove_graph(machine.graphs);
    }
}
