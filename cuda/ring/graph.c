/* Tangled from book/13-graphs.nw; edit the chapter. */
/* Work that is enqueued once and runs often. */
#include "cuda/ring/graph.h"

#include <stdlib.h>

struct cp_graph {
    cudaGraphExec_t run;
    cudaStream_t *streams; /* [ranks] */
    cudaEvent_t *events;   /* [ranks] */
    int ranks;
    int64_t nodes;
};

static cp_status join(cudaStream_t stream, cudaEvent_t event,
                      cudaStream_t other) {
    cp_status status =
        cp_cuda(cudaEventRecord(event, other), "recording an event");
    return status == CP_OK ? cp_cuda(cudaStreamWaitEvent(stream, event, 0),
                                     "joining two queues")
                           : status;
}

static cp_status fan_out(const cp_graph *graph) {
    for (int r = 1; r < graph->ranks; r++)
        CP_TRY(join(graph->streams[r], graph->events[0], graph->streams[0]));
    return CP_OK;
}

static cp_status fan_in(const cp_graph *graph) {
    for (int r = 1; r < graph->ranks; r++)
        CP_TRY(join(graph->streams[0], graph->events[r], graph->streams[r]));
    return CP_OK;
}

static cp_status capture(cp_graph *graph, cp_status (*enqueue)(void *),
                         void *context) {
    cudaGraph_t captured = NULL;
    cp_status status =
        cp_cuda(cudaStreamBeginCapture(graph->streams[0],
                                       cudaStreamCaptureModeThreadLocal),
                "beginning a capture");
    if (status != CP_OK)
        return status;
    status = fan_out(graph);
    if (status == CP_OK)
        status = enqueue(context);
    if (status == CP_OK)
        status = fan_in(graph);
    const cudaError_t ended =
        cudaStreamEndCapture(graph->streams[0], &captured);
    if (status == CP_OK)
        status = cp_cuda(ended, "ending a capture");
    /* Make the graph ready to run. */
    size_t nodes = 0;
    if (status == CP_OK)
        status = cp_cuda(cudaGraphGetNodes(captured, NULL, &nodes),
                         "counting nodes");
    if (status == CP_OK)
        status = cp_cuda(cudaGraphInstantiate(&graph->run, captured, 0),
                         "a graph of %lld nodes", (long long)nodes);
    graph->nodes = (int64_t)nodes;
    if (captured != NULL)
        cudaGraphDestroy(captured);
    return status;
}

cp_status cp_graph_capture(const cp_queues *queues, int ranks,
                           cp_status (*enqueue)(void *context), void *context,
                           cp_graph **out) {
    *out = NULL;
    cp_graph *graph;
    cp_status status = cp_allocate(&graph, 1, sizeof(*graph), "a graph");
    if (status != CP_OK)
        return status;
    graph->ranks = ranks;
    status =
        cp_allocate(&graph->streams, ranks, sizeof(cudaStream_t), "queues");
    if (status == CP_OK)
        status =
            cp_allocate(&graph->events, ranks, sizeof(cudaEvent_t), "events");
    for (int r = 0; r < ranks && status == CP_OK; r++) {
        graph->streams[r] = queues[r].compute;
        status = cp_cuda(
            cudaEventCreateWithFlags(&graph->events[r], cudaEventDisableTiming),
            "making an event");
    }
    if (status == CP_OK)
        status = capture(graph, enqueue, context);
    if (status == CP_OK)
        *out = graph;
    else
        cp_graph_free(graph);
    return status;
}

cp_status cp_graph_launch(cp_graph *graph) {
    cp_status status = fan_in(graph);
    if (status == CP_OK)
        status =
            cp_cuda(cudaGraphLaunch(graph->run, graph->streams[0]),
                    "launching a graph of %lld nodes", (long long)graph->nodes);
    return status == CP_OK ? fan_out(graph) : status;
}

int64_t cp_graph_nodes(const cp_graph *graph) {
    return graph->nodes;
}

void cp_graph_free(cp_graph *graph) {
    if (graph == NULL)
        return;
    if (graph->run != NULL)
        cudaGraphExecDestroy(graph->run);
    for (int r = 0; graph->events != NULL && r < graph->ranks; r++)
        if (graph->events[r] != NULL)
            cudaEventDestroy(graph->events[r]);
    free(graph->events);
    free(graph->streams);
    free(graph);
}
