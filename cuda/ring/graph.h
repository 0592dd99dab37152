/* Tangled from book/13-graphs.nw; edit the chapter. */
/* Work on the queues of some ranks that is enqueued once and runs often. What
 * it was given by value stays as it was. */
#ifndef CP_GRAPH_H
#define CP_GRAPH_H

#include "cuda/ring/streams.h"

typedef struct cp_graph cp_graph;

/* Capture what enqueue puts on the compute queues of some ranks of the current
 * device, and on queues that wait for those. It has been called before, so
 * that whatever is made at a first time is made. Nothing runs. queues [ranks]
 * must outlive the graph, and so must link, whose messages are captured (or
 * NULL). Fails as enqueue does, or as CUDA; free even then. */
cp_status cp_graph_capture(const cp_queues *queues, int ranks,
                           const cp_link *link,
                           cp_status (*enqueue)(void *context), void *context,
                           cp_graph **out);

/* Run it all once more: behind what is on these compute queues by now, and
 * before what will be. CP_BROKEN if the link was given up. */
cp_status cp_graph_launch(cp_graph *graph);

/* The graphs of a link's list let go of its messages and run no more. A launch
 * that is under way goes on to its end. Free them still. */
void cp_graphs_end(cp_graph *first);

/* Waits for nothing; a launch that is under way goes on to its end. */
void cp_graph_free(cp_graph *graph);

#endif
