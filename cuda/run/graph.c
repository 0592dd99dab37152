/* Tangled from book/13-graphs.nw; edit the chapter. */
/* Work that is enqueued once and runs often. */
#include "cuda/run/graph.h"

#include <stdlib.h>

struct cp_graph {
    cudaGraphExec_t run;
    const cp_queues *queues; /* [ranks] */
    cudaEvent_t *events;     /* [ranks] */
    int ranks;
    const cp_link *link; /* whose list it is in; or NULL */
    cp_graph *next;      /* there */
};

static cp_status join(const cp_graph *graph, int behind, int before) {
    const cudaEvent_t event = graph->events[before];
    CP_TRY(cp_event_record(event, graph->queues[before].compute));
    return cp_event_wait(graph->queues[behind].compute, event);
}

static cp_status fan_out(const cp_graph *graph) {
    for (int r = 1; r < graph->ranks; r++)
        CP_TRY(join(graph, r, 0));
    return CP_OK;
}

static cp_status fan_in(const cp_graph *graph) {
    for (int r = 1; r < graph->ranks; r++)
        CP_TRY(join(graph, 0, r));
    return CP_OK;
}

static cp_status enqueue_all(const cp_graph *graph,
                             cp_status (*enqueue)(void *), void *context) {
    CP_TRY(fan_out(graph));
    CP_TRY(enqueue(context));
    return fan_in(graph);
}

static cp_status capture(cp_graph *graph, cp_status (*enqueue)(void *),
                         void *context) {
    cudaStream_t stream = graph->queues[0].compute;
    cudaGraph_t captured = NULL;
    CP_TRY(cp_cuda(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
        "beginning a capture"));
    cp_status status = enqueue_all(graph, enqueue, context);
    const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
    if (status == CP_OK)
        status = cp_cuda(ended, "ending a capture");
    if (status == CP_OK)
        status = cp_cuda(
            cudaGraphInstantiate(&graph->run, captured,
                                 cudaGraphInstantiateFlagUseNodePriority),
            "instantiating a graph");
    if (captured != NULL)
        cudaGraphDestroy(captured);
    return status;
}

static void enlist(cp_graph *graph, const cp_link *link) {
    if (link == NULL || link->graphs == NULL)
        return;
    graph->link = link;
    graph->next = *link->graphs;
    *link->graphs = graph;
}

cp_status cp_graph_capture(const cp_queues *queues, int ranks,
                           const cp_link *link,
                           cp_status (*enqueue)(void *context), void *context,
                           cp_graph **out) {
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a graph"));
    **out = (cp_graph){.queues = queues, .ranks = ranks};
    enlist(*out, link);
    CP_TRY(cp_allocate(&(*out)->events, ranks, sizeof(cudaEvent_t), "events"));
    for (int r = 0; r < ranks; r++)
        CP_TRY(cp_event_new(&(*out)->events[r]));
    return capture(*out, enqueue, context);
}

cp_status cp_graph_launch(cp_graph *graph) {
    if (graph->run == NULL)
        return cp_fail(CP_BROKEN, "a graph's peers were given up");
    CP_TRY(fan_in(graph));
    CP_TRY(cp_cuda(cudaGraphLaunch(graph->run, graph->queues[0].compute),
                   "launching a graph"));
    return fan_out(graph);
}

void cp_graphs_end(cp_graph *first) {
    for (cp_graph *each = first; each != NULL; each = each->next) {
        if (each->run != NULL)
            cudaGraphExecDestroy(each->run);
        each->run = NULL;
    }
}

static void unlist(const cp_graph *graph) {
    cp_graph **at = graph->link->graphs;
    while (*at != graph)
        at = &(*at)->next;
    *at = graph->next;
}

void cp_graph_free(cp_graph *graph) {
    if (graph == NULL)
        return;
    if (graph->link != NULL)
        unlist(graph);
    graph->next = NULL;
    cp_graphs_end(graph);
    for (int r = 0; graph->events != NULL && r < graph->ranks; r++)
        cp_event_free(graph->events[r]);
    free(graph->events);
    free(graph);
}
