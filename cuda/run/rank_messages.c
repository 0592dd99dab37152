/* Tangled from book/16-state-gpu.nw; edit the chapter. */
/* Messages between ranks outside of a plan. */
#include "cuda/run/rank_messages.h"

#include <stdlib.h>

/* A process sends and receives in one group. */
static cp_status trade(const cp_queued_ranks *ranks,
                       const cp_rank_message *messages, int64_t count) {
    cudaStream_t stream = ranks->queues->communication;
    cp_message_half *halves;
    int traded = 0;
    CP_TRY(cp_allocate(&halves, count, sizeof(*halves), "messages"));
    for (int64_t n = 0; n < count; n++) {
        const cp_rank_message m = messages[n];
        if (m.from == ranks->only)
            halves[traded++] =
                (cp_message_half){m.to, false, m.source, m.bytes};
        if (m.to == ranks->only)
            halves[traded++] =
                (cp_message_half){m.from, true, m.target, m.bytes};
    }
    cp_status status = cp_event_wait(stream, ranks->events[0]);
    if (status == CP_OK && traded > 0)
        status =
            ranks->link->trade(ranks->link->context, halves, traded, stream);
    free(halves);
    CP_TRY(status);
    CP_TRY(cp_event_record(ranks->events[0], stream));
    return cp_event_wait(ranks->queues->compute, ranks->events[0]);
}

/* Ranks that share a GPU: the receiver copies. */
static cp_status copy(const cp_queued_ranks *ranks, const cp_rank_message *m) {
    cudaStream_t stream = ranks->queues[m->to].communication;
    const cp_message_half halves[2] = {{0, false, m->source, m->bytes},
                                       {0, true, m->target, m->bytes}};
    CP_TRY(cp_event_wait(stream, ranks->events[m->from]));
    CP_TRY(cp_event_wait(stream, ranks->events[m->to]));
    return ranks->link != NULL
               ? ranks->link->trade(ranks->link->context, halves, 2, stream)
               : cp_bytes_copy(m->target, m->source, m->bytes, stream,
                               "a message");
}

static cp_status await_copy(const cp_queued_ranks *ranks,
                            const cp_rank_message *m) {
    const cudaEvent_t over = ranks->events[m->to];
    CP_TRY(cp_event_record(over, ranks->queues[m->to].communication));
    CP_TRY(cp_event_wait(ranks->queues[m->to].compute, over));
    return cp_event_wait(ranks->queues[m->from].compute, over);
}

cp_status cp_rank_messages_pass(const cp_queued_ranks *ranks,
                                const cp_rank_message *messages,
                                int64_t count) {
    for (int r = 0; r < ranks->count; r++)
        CP_TRY(cp_event_record(ranks->events[r], ranks->queues[r].compute));
    if (ranks->only != CP_NO_RANK)
        return trade(ranks, messages, count);
    for (int64_t n = 0; n < count; n++)
        CP_TRY(copy(ranks, &messages[n]));
    for (int64_t n = 0; n < count; n++)
        CP_TRY(await_copy(ranks, &messages[n]));
    return CP_OK;
}
