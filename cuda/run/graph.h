/* Tangled from book/13-graphs.nw; edit the chapter. */
/* Work on the queues of some ranks that is enqueued once and runs often. What
 * it was given by value stays as it was. */
#ifndef CP_GRAPH_H
#define CP_GRAPH_H

#include "cuda/run/message_link.h"

typedef struct cp_graph cp_graph;

/* Capture what enqueue puts on the compute queues of some ranks of the current
 * device, and on queues that wait for those. enqueue has been called before, so
 * that all one-time initialization is done. Nothing runs. queues [ranks] must
 * outlive the graph, and so must link, whose messages are captured (or NULL).
 * Fails as enqueue does, or as CUDA; free even then. */
cp_status cp_graph_capture(const cp_queues *queues, int ranks,
                           const cp_link *link,
                           cp_status (*enqueue)(void *context), void *context,
                           cp_graph **out);

/* Run it all once more: after everything now on these compute queues, and
 * before everything enqueued later. CP_BROKEN if the link was given up. */
cp_status cp_graph_launch(cp_graph *graph);

/* The graphs of a link's list release its messages and can run no more. A
 * pending launch continues to its end. Free them still. */
void cp_graphs_end(cp_graph *first);

/* Does not wait; a pending launch continues to its end. */
void cp_graph_free(cp_graph *graph);

#endif
