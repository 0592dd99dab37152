/* Capture and replay. Operations on a stream that captures become nodes of a
 * graph and do not run; an event recorded there carries the nodes that came
 * before it, and a stream that waits for it joins the capture. What a node was
 * given by value it keeps for ever: a length that should have been read from
 * memory is found stale at the first replay. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

/* Sets of node numbers, as short lists. */

static void add_tip(int **tips, int *count, int number) {
    for (int i = 0; i < *count; i++)
        if ((*tips)[i] == number)
            return;
    int *longer = realloc(*tips, ((size_t)*count + 1) * sizeof *longer);
    if (longer == NULL)
        abort();
    *tips = longer;
    longer[(*count)++] = number;
}

static void add_tips(int **tips, int *count, const int *from, int from_count) {
    for (int i = 0; i < from_count; i++)
        add_tip(tips, count, from[i]);
}

/* Captures. */

static capture *find_capture(int64_t number) {
    for (capture *c = machine.captures; c != NULL; c = c->next)
        if (c->number == number)
            return c;
    return NULL;
}

/* Whether the event's latest record belongs to a capture, open or not. */
bool captured(const event *what) {
    return what->capture != NULL;
}

static void leave_capture(stream *on) {
    on->capture = NULL;
    free(on->tips);
    on->tips = NULL;
    on->tip_count = 0;
}

static void free_nodes(node *nodes, int count) {
    for (int i = 0; i < count; i++) {
        operation_free(nodes[i].what);
        free(nodes[i].needs);
    }
    free(nodes);
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
    node *nodes = realloc(g->nodes, ((size_t)g->count + 1) * sizeof *nodes);
    if (nodes == NULL)
        abort();
    g->nodes = nodes;
    nodes[g->count] =
        (node){.what = what, .needs = on->tips, .need_count = on->tip_count};
    on->tips = NULL;
    on->tip_count = 0;
    add_tip(&on->tips, &on->tip_count, g->count++);
    return cudaSuccess;
}

cudaError_t capture_record(stream *on, event *what) {
    if (on->capture->invalid)
        return invalidated();
    what->capture = on->capture;
    what->capture_number = on->capture->number;
    free(what->tips);
    what->tips = NULL;
    what->tip_count = 0;
    add_tips(&what->tips, &what->tip_count, on->tips, on->tip_count);
    return cudaSuccess;
}

/* An ignored edge still makes its stream part of the capture. */
cudaError_t capture_wait(stream *on, event *what, bool ignored) {
    if (!captured(what)) {
        if (what->latest == NULL)
            return cudaSuccess;
        on->capture->invalid = true;
        return complain(cudaErrorStreamCaptureIsolation,
                        "a captured stream waits for event %lld, which was "
                        "recorded outside the capture",
                        (long long)what->number);
    }
    capture *from = find_capture(what->capture_number);
    if (from == NULL)
        return complain(cudaErrorInvalidValue,
                        "event %lld was recorded in a capture that has ended",
                        (long long)what->number);
    if (on->capture != NULL && on->capture != from)
        return complain(cudaErrorStreamCaptureMerge,
                        "event %lld belongs to another capture",
                        (long long)what->number);
    if (from->invalid)
        return invalidated();
    on->capture = from;
    machine.counted.waits += ignored ? 0 : 1;
    if (!ignored)
        add_tips(&on->tips, &on->tip_count, what->tips, what->tip_count);
    return cudaSuccess;
}

/* Waiting is no operation; in a capture it is a mistake that ends it. */
cudaError_t spoil_capture(stream *on, const char *call) {
    on->capture->invalid = true;
    return complain(cudaErrorStreamCaptureUnsupported,
                    "%s on stream %lld, which captures", call,
                    (long long)on->number);
}

/* Calls that may wait for the device are refused while somebody captures who
 * did not say that he knows. */
cudaError_t refuse_in_capture(const char *call) {
    for (capture *c = machine.captures; c != NULL; c = c->next) {
        const bool mine = pthread_equal(c->thread, pthread_self()) != 0;
        if (c->mode == cudaStreamCaptureModeRelaxed ||
            (c->mode == cudaStreamCaptureModeThreadLocal && !mine))
            continue;
        c->invalid = true;
        return complain(cudaErrorStreamCaptureUnsupported,
                        "%s while stream %lld captures", call,
                        (long long)c->origin->number);
    }
    return cudaSuccess;
}

static cudaError_t enter_with_stream(cudaStream_t given, stream **on) {
    const cudaError_t error = enter();
    *on = machine.begun ? resolve(given) : NULL;
    if (error != cudaSuccess)
        return error;
    return *on != NULL ? cudaSuccess
                       : complain(cudaErrorInvalidResourceHandle,
                                  "a stream that does not exist (any more)");
}

static cudaError_t begin_capture(stream *on, enum cudaStreamCaptureMode mode) {
    if (on->number == 0)
        return complain(cudaErrorStreamCaptureUnsupported,
                        "the null stream cannot capture");
    if (on->capture != NULL)
        return complain(cudaErrorInvalidValue, "stream %lld captures already",
                        (long long)on->number);
    capture *c = take(1, sizeof *c);
    c->number = ++machine.numbers;
    c->into = take(1, sizeof *c->into);
    c->origin = on;
    c->mode = mode;
    c->thread = pthread_self();
    c->next = machine.captures;
    machine.captures = c;
    on->capture = c;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t given,
                                   enum cudaStreamCaptureMode mode) {
    stream *on;
    const cudaError_t error = enter_with_stream(given, &on);
    return leave(error != cudaSuccess ? error : begin_capture(on, mode));
}

/* Mark a node and all that it needs. */
static void reach(const graph *g, bool *reached, int number) {
    if (reached[number])
        return;
    reached[number] = true;
    for (int i = 0; i < g->nodes[number].need_count; i++)
        reach(g, reached, g->nodes[number].needs[i]);
}

/* Every stream that joined must have been joined to the origin again. */
static bool all_joined(const capture *c) {
    bool *reached = take((size_t)c->into->count, sizeof *reached);
    bool result = true;
    for (int i = 0; i < c->origin->tip_count; i++)
        reach(c->into, reached, c->origin->tips[i]);
    for (const stream *s = machine.streams; s != NULL; s = s->next)
        for (int i = 0; s->capture == c && i < s->tip_count; i++)
            result = result && reached[s->tips[i]];
    free(reached);
    return result;
}

static cudaError_t end_capture(stream *on, cudaGraph_t *out) {
    capture *c = on->capture;
    *out = NULL;
    if (c == NULL || c->origin != on)
        return complain(cudaErrorStreamCaptureUnmatched,
                        "stream %lld did not begin the capture",
                        (long long)on->number);
    cudaError_t error = c->invalid ? invalidated() : cudaSuccess;
    if (error == cudaSuccess && c->mode != cudaStreamCaptureModeRelaxed &&
        pthread_equal(c->thread, pthread_self()) == 0)
        return complain(cudaErrorStreamCaptureWrongThread,
                        "another thread began the capture");
    if (error == cudaSuccess && !all_joined(c))
        error = complain(cudaErrorStreamCaptureUnjoined,
                         "a stream that joined the capture of stream %lld was "
                         "not joined to it again",
                         (long long)on->number);
    for (stream *s = machine.streams; s != NULL; s = s->next)
        if (s->capture == c)
            leave_capture(s);
    capture **link = &machine.captures;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    if (error == cudaSuccess) {
        c->into->next = machine.graphs;
        machine.graphs = c->into;
        *out = c->into;
    } else {
        free_nodes(c->into->nodes, c->into->count);
        free(c->into);
    }
    free(c);
    return error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t given, cudaGraph_t *pGraph) {
    stream *on;
    const cudaError_t error = enter_with_stream(given, &on);
    return leave(error != cudaSuccess ? error : end_capture(on, pGraph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t given,
                                  enum cudaStreamCaptureStatus *status) {
    stream *on;
    const cudaError_t error = enter_with_stream(given, &on);
    if (error != cudaSuccess)
        return leave(error);
    *status = cudaStreamCaptureStatusNone;
    if (on->capture != NULL)
        *status = on->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    return leave(cudaSuccess);
}

/* Graphs. */

static bool known_graph(cudaGraph_t given) {
    for (const graph *g = machine.graphs; g != NULL; g = g->next)
        if (g == given)
            return true;
    return false;
}

static bool known_executable(cudaGraphExec_t given) {
    for (const executable *x = machine.executables; x != NULL; x = x->next)
        if (x == given)
            return true;
    return false;
}

static cudaError_t enter_with(bool (*is_known)(void *), void *given) {
    const cudaError_t error = enter();
    if (error != cudaSuccess)
        return error;
    return is_known(given) ? cudaSuccess
                           : complain(cudaErrorInvalidValue,
                                      "a graph that does not exist (any more)");
}

static bool is_graph(void *given) {
    return known_graph(given);
}

static bool is_executable(void *given) {
    return known_executable(given);
}

/* Node numbers stand in for the opaque handles: only their count is of use. */
cudaError_t cudaGraphGetNodes(cudaGraph_t given, cudaGraphNode_t *nodes,
                              size_t *numNodes) {
    const cudaError_t error = enter_with(is_graph, given);
    if (error != cudaSuccess)
        return leave(error);
    if (nodes != NULL)
        return leave(cudaErrorNotSupported);
    *numNodes = (size_t)given->count;
    return leave(cudaSuccess);
}

static executable *instantiate(const graph *from) {
    executable *x = take(1, sizeof *x);
    x->nodes = take((size_t)from->count, sizeof *x->nodes);
    x->count = from->count;
    x->number = ++machine.numbers;
    for (int i = 0; i < from->count; i++) {
        const node *n = &from->nodes[i];
        x->nodes[i].what = operation_copy(n->what);
        add_tips(&x->nodes[i].needs, &x->nodes[i].need_count, n->needs,
                 n->need_count);
    }
    x->next = machine.executables;
    machine.executables = x;
    return x;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t from,
                                 unsigned long long flags) {
    (void)flags;
    const cudaError_t error = enter_with(is_graph, from);
    *pGraphExec = error == cudaSuccess ? instantiate(from) : NULL;
    return leave(error);
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
    while (*met < n->need_count && launch->nodes[n->needs[*met]]->done)
        ++*met;
    return *met == n->need_count;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t given, cudaStream_t where) {
    cudaError_t error = enter_with(is_executable, given);
    stream *on = error == cudaSuccess ? resolve(where) : NULL;
    if (error == cudaSuccess && on == NULL)
        error = complain(cudaErrorInvalidResourceHandle,
                         "a graph in a stream that does not exist");
    if (error == cudaSuccess && countdown(&machine.fail_launch))
        error = complain(cudaErrorLaunchOutOfResources,
                         "launch of graph %lld failed on demand",
                         (long long)given->number);
    if (error != cudaSuccess)
        return leave(error);
    operation *launch = operation_new(GRAPH);
    launch->what = given;
    machine.counted.graph_launches++;
    return leave(enqueue(on, launch));
}

static bool in_use(const executable *x) {
    for (const stream *s = machine.streams; s != NULL; s = s->next)
        for (const operation *o = s->head; o != NULL; o = o->next)
            if (o->kind == GRAPH && o->what == x)
                return true;
    return false;
}

static void remove_executable(executable *x) {
    executable **link = &machine.executables;
    while (*link != x)
        link = &(*link)->next;
    *link = x->next;
    free_nodes(x->nodes, x->count);
    free(x);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t given) {
    cudaError_t error = enter();
    if (!known_executable(given))
        return leave(error != cudaSuccess ? error : cudaErrorInvalidValue);
    settle();
    if (in_use(given)) {
        accuse("graph %lld was destroyed with a launch of it left",
               (long long)given->number);
        for (stream *s = machine.streams; s != NULL; s = s->next)
            for (const operation *o = s->head; o != NULL; o = o->next)
                if (o->kind == GRAPH && o->what == given) {
                    forget_work(s);
                    break;
                }
    }
    remove_executable(given);
    return leave(error);
}

static void remove_graph(graph *g) {
    graph **link = &machine.graphs;
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    free_nodes(g->nodes, g->count);
    free(g);
}

cudaError_t cudaGraphDestroy(cudaGraph_t given) {
    const cudaError_t error = enter();
    if (!known_graph(given))
        return leave(error != cudaSuccess ? error : cudaErrorInvalidValue);
    remove_graph(given);
    return leave(error);
}

/* At the end: name what is left. Streams go after this, so their launches are
 * dropped here. */
void finish_graphs(void) {
    for (stream *s = machine.streams; s != NULL; s = s->next) {
        for (const operation *o = s->head; o != NULL; o = o->next)
            if (o->kind == GRAPH) {
                accuse("stream %lld has graph launches that nobody waited for",
                       (long long)s->number);
                forget_work(s);
                break;
            }
        if (s->capture != NULL)
            leave_capture(s);
    }
    while (machine.captures != NULL) {
        capture *c = machine.captures;
        accuse("a capture was never ended");
        machine.captures = c->next;
        free_nodes(c->into->nodes, c->into->count);
        free(c->into);
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
