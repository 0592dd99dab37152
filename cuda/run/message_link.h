/* Tangled from book/13-streams.nw; edit the chapter. */
/* How ranks that are processes send and receive on a GPU, and how the host
 * waits for them. nccl_link.h makes one of NCCL. */
#ifndef CP_MESSAGE_LINK_H
#define CP_MESSAGE_LINK_H

#include "cuda/kernels/device.h"

/* One side of a message. The buffer is the device's, and the caller's. */
typedef struct {
    int peer;
    bool receive; /* into buffer; otherwise from it */
    void *buffer;
    int64_t bytes;
} cp_message_half;

/* How a rank that is a process sends and receives. trade enqueues messages on a
 * stream, as one group that is complete when all are. check tells whether the
 * connection is sound, and reports that the host is at work; idle reports that
 * it no longer is. abort ends what waits on the device, and first all graphs
 * that captured the messages, listed at graphs. A walk records its progress
 * between its messages in progress_events. Between two ranks the k-th message
 * sent matches the k-th received. Failures are CP_BROKEN. */
typedef struct {
    cp_status (*trade)(void *context, const cp_message_half *halves, int count,
                       cudaStream_t stream);
    cp_status (*check)(void *context);
    void (*idle)(void *context);
    void (*abort)(void *context);
    void *context;
    struct cp_graph **graphs; /* the first of them (graph.h); or NULL */
    cp_progress_events *progress_events; /* of the compute queue; or NULL */
} cp_link;

/* Poll query(what) until it is done, and a link (or NULL) for errors. *late is
 * set if nothing progressed for timeout seconds (0: for ever). Fails as the
 * link does, or as query did. */
cp_status cp_await(cudaError_t (*query)(const void *what), const void *what,
                   const cp_link *link, double timeout, bool *late);

/* The same, until everything on a rank's queues has completed. */
cp_status cp_queues_await(const cp_queues *queues, const cp_link *link,
                          double timeout, bool *late);

/* After a failure: end what waits for the link (or NULL) on the device, and
 * wait until everything on these ranks' queues has completed. */
void cp_queues_drain(const cp_queues *queues, int count, const cp_link *link);

#endif
