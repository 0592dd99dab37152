/* Tangled from book/13-graphs.nw; edit the chapter. */
/* Work on the queues of some ranks that is enqueued once and runs often. What
 * it was given by value stays as it was. */
#ifndef CP_GRAPH_H
#define CP_GRAPH_H

#include "cuda/kernels/device.h"

typedef struct cp_graph cp_graph;

/* Capture what enqueue puts on the compute queues of some ranks of the current
 * device, and on queues that wait for those. It has been called before, so
 * that whatever is made at a first time is made. Nothing runs. queues [ranks]
 * must outlive the graph. Fails as enqueue does, or as CUDA; free even then. */
cp_status cp_graph_capture(const cp_queues *queues, int ranks,
                           cp_status (*enqueue)(void *context), void *context,
                           cp_graph **out);

/* Run it all once more: behind what is on these compute queues by now, and
 * before what will be. */
cp_status cp_graph_launch(cp_graph *graph);

/* Waits for nothing: no launch may be under way. */
void cp_graph_free(cp_graph *graph);

#endif
