/* Tangled from book/16-state-gpu.nw; edit the chapter. */
/* Messages between ranks outside of a plan, on the queues and by the link that
 * a walk uses. */
#ifndef CP_RANK_MESSAGES_H
#define CP_RANK_MESSAGES_H

#include "cuda/run/message_link.h"
#include "group/rank_message.h"

/* The ranks of this process. */
typedef struct {
    int only; /* the one rank; CP_NO_RANK: all ranks */
    int count;
    const cp_queues *queues; /* [count], as below */
    cudaEvent_t *events;
    const cp_link *link; /* between processes, or of ranks that share a GPU to
                            themselves; NULL: copies */
} cp_queued_ranks;

/* Which rank of this process a rank is; -1: none. */
static inline int cp_queued_index(const cp_queued_ranks *ranks, int rank) {
    return cp_rank_index(ranks->only, rank);
}

/* Enqueue messages, all under way together: after all that is now on the
 * compute queues of both ranks, and before what is enqueued there later. None is
 * of a rank to itself. All processes pass the same messages, in this order.
 * Fails with CP_MEMORY, and as CUDA and the link do. */
cp_status cp_rank_messages_pass(const cp_queued_ranks *ranks,
                                const cp_rank_message *messages, int64_t count);

#endif
