/* Tangled from book/04-ranks.nw; edit the chapter. */
/* The part that all communicators share, so that no implementation needs it:
 * check arguments, count traffic, make collectives of exchanges, and describe
 * mistakes. */
#include "group/comm.h"

#include <stdio.h>
#include <stdlib.h>

static cp_half half_of(int peer, const void *data, int64_t bytes) {
    return (cp_half){.state =
                         peer == CP_NO_RANK ? CP_HALF_IDLE : CP_HALF_POSTED,
                     .peer = peer,
                     .data = (void *)(uintptr_t)data,
                     .bytes = bytes};
}

static cp_status check_half(const cp_comm *comm, const char *verb,
                            const cp_half *half) {
    const int peer = half->peer;
    if (peer == CP_NO_RANK)
        return CP_OK;
    if (peer < 0 || peer >= comm->ranks)
        return cp_refuse("cannot %s rank %d: there are %d ranks", verb, peer,
                         comm->ranks);
    if (half->bytes < 0 || (half->bytes > 0 && half->data == NULL))
        return cp_refuse("cannot %s rank %d: %ld bytes at %p", verb, peer,
                         half->bytes, half->data);
    return CP_OK;
}

static bool overlap(const cp_half *a, const cp_half *b) {
    const uintptr_t a_start = (uintptr_t)a->data, b_start = (uintptr_t)b->data;
    return a->bytes > 0 && b->bytes > 0 &&
           a_start < b_start + (uintptr_t)b->bytes &&
           b_start < a_start + (uintptr_t)a->bytes;
}

static cp_status check_exchange(const cp_comm *comm,
                                const cp_exchange *exchange) {
    const cp_half *send = &exchange->send, *receive = &exchange->receive;
    CP_TRY(check_half(comm, "send to", send));
    CP_TRY(check_half(comm, "receive from", receive));
    if (send->peer != CP_NO_RANK && receive->peer != CP_NO_RANK &&
        overlap(send, receive))
        return cp_refuse("%ld bytes to rank %d overlap %ld from rank %d",
                         send->bytes, send->peer, receive->bytes,
                         receive->peer);
    return CP_OK;
}

static cp_status post(cp_comm *comm, const cp_exchange *what,
                      cp_exchange **posted) {
    cp_status status = check_exchange(comm, what);
    if (status == CP_OK)
        status = cp_allocate(posted, 1, sizeof(**posted), "a message's record");
    if (status != CP_OK)
        return comm->ops->fail(comm, status);
    **posted = *what;
    return comm->ops->post(comm, *posted);
}

static cp_status trade(cp_comm *comm, cp_exchange what,
                       const void *const *sends, const void *same,
                       void *const *receives, int64_t bytes) {
    const int ranks = comm->ranks, rank = comm->rank;
    cp_exchange *first = NULL, *posted = NULL;
    for (int shift = 1; shift < ranks; shift++) {
        const int to = (rank + shift) % ranks;
        const int from = (rank - shift + ranks) % ranks;
        what.send = half_of(to, sends != NULL ? sends[to] : same, bytes);
        what.receive =
            half_of(from, receives != NULL ? receives[from] : NULL, bytes);
        CP_TRY(post(comm, &what, &posted));
        if (first == NULL)
            first = posted;
    }
    return first == NULL ? CP_OK : comm->ops->complete(comm, first, posted);
}

cp_status cp_comm_exchange(cp_comm *comm, int to, const void *send,
                           int64_t send_bytes, int from, void *receive,
                           int64_t receive_bytes) {
    const cp_exchange what = {.call = "an exchange",
                              .send = half_of(to, send, send_bytes),
                              .receive = half_of(from, receive, receive_bytes)};
    cp_exchange *posted;
    CP_TRY(post(comm, &what, &posted));
    if (to != CP_NO_RANK) {
        comm->sent.hops++;
        comm->sent.ring_bytes += send_bytes;
    }
    return CP_OK;
}

cp_status cp_comm_wait(cp_comm *comm) {
    if (comm->oldest != NULL)
        return comm->ops->complete(comm, comm->oldest, comm->oldest);
    cp_fail(CP_BROKEN, "waits, but has no exchange outstanding");
    return comm->ops->fail(comm, CP_BROKEN);
}

cp_status cp_comm_all_to_all(cp_comm *comm, const void *const *send,
                             void *const *receive, int64_t bytes) {
    CP_TRY(trade(comm, (cp_exchange){.call = "an all-to-all"}, send, NULL,
                 receive, bytes));
    comm->sent.all_to_all_bytes += (comm->ranks - 1) * bytes;
    return CP_OK;
}

cp_status cp_comm_all_gather(cp_comm *comm, const void *send,
                             void *const *receive, int64_t bytes) {
    CP_TRY(trade(comm, (cp_exchange){.call = "an all-gather"}, NULL, send,
                 receive, bytes));
    comm->sent.all_gather_bytes += (comm->ranks - 1) * bytes;
    return CP_OK;
}

cp_status cp_comm_all_gather_in_place(cp_comm *comm, void *items,
                                      int64_t bytes) {
    void **pointers;
    CP_TRY(cp_allocate(&pointers, comm->ranks, sizeof(*pointers), "pointers"));
    for (int r = 0; r < comm->ranks; r++)
        pointers[r] = (char *)items + r * bytes;
    const cp_status status =
        cp_comm_all_gather(comm, pointers[comm->rank], pointers, bytes);
    free(pointers);
    return status;
}

cp_status cp_comm_broadcast(cp_comm *comm, void *data, int64_t bytes) {
    if (comm->rank != 0)
        CP_TRY(cp_comm_exchange(comm, CP_NO_RANK, NULL, 0, 0, data, bytes));
    for (int r = 1; comm->rank == 0 && r < comm->ranks; r++)
        CP_TRY(cp_comm_exchange(comm, r, data, bytes, CP_NO_RANK, NULL, 0));
    while (comm->oldest != NULL)
        CP_TRY(cp_comm_wait(comm));
    return CP_OK;
}

cp_status cp_comm_barrier(cp_comm *comm) {
    return trade(comm, (cp_exchange){.call = "a barrier", .barrier = true},
                 NULL, NULL, NULL, 0);
}

void cp_comm_abort(cp_comm *comm, const char *why) {
    cp_fail(CP_ABORTED, "%s",
            why != NULL && why[0] != '\0' ? why : "gave no reason");
    comm->ops->fail(comm, CP_ABORTED);
}

void cp_comm_progress(cp_comm *comm) {
    if (comm->ops->progress != NULL)
        comm->ops->progress(comm);
}

void cp_exchange_append(cp_comm *comm, cp_exchange *exchange) {
    cp_exchange **end = &comm->oldest;
    while (*end != NULL)
        end = &(*end)->newer;
    *end = exchange;
}

void cp_exchange_remove(cp_comm *comm, cp_exchange *first,
                        const cp_exchange *last) {
    cp_exchange **link = &comm->oldest;
    while (*link != first)
        link = &(*link)->newer;
    for (bool has_more = true; has_more;) {
        cp_exchange *done = *link;
        has_more = done != last;
        *link = done->newer;
        free(done);
    }
}

static bool unmet(const cp_half *half) {
    return half->state != CP_HALF_IDLE && half->state != CP_HALF_DONE;
}

const cp_exchange *cp_exchange_unmet(const cp_exchange *first,
                                     const cp_exchange *last) {
    for (;; first = first->newer) {
        if (unmet(&first->send) || unmet(&first->receive))
            return first;
        if (first == last)
            return NULL;
    }
}

cp_sentence cp_exchange_describe(const cp_exchange *exchange) {
    const cp_half *receive = &exchange->receive, *send = &exchange->send;
    const bool expects = unmet(receive);
    char from[64] = "", to[64] = "";
    cp_sentence out;
    if (exchange->barrier)
        snprintf(from, sizeof(from), " for rank %d",
                 expects ? receive->peer : send->peer);
    else if (expects)
        snprintf(from, sizeof(from), " for %ld bytes from rank %d",
                 receive->bytes, receive->peer);
    if (unmet(send) && !exchange->barrier)
        snprintf(to, sizeof(to), "%s for rank %d to take %ld bytes",
                 expects ? " and" : "", send->peer, send->bytes);
    snprintf(out.text, sizeof(out.text), "waits in %s%s%s", exchange->call,
             from, to);
    return out;
}

bool cp_failure_note(cp_failure *failure, int rank, cp_status status) {
    if (failure->happened)
        return false;
    failure->happened = true;
    failure->rank = rank;
    failure->status = status;
    snprintf(failure->message, sizeof(failure->message), "%s", cp_message());
    return true;
}

cp_status cp_failure_status(const cp_failure *failure, int rank) {
    if (failure->rank == rank)
        return cp_fail(failure->status, "%s", failure->message);
    return cp_fail(CP_ABORTED, "rank %d failed first: %s", failure->rank,
                   failure->message);
}

cp_status cp_failure_report(const cp_failure *failure) {
    if (!failure->happened)
        return CP_OK;
    return cp_fail(failure->status, "rank %d: %s", failure->rank,
                   failure->message);
}

bool cp_failure_note_return(cp_failure *failure, const cp_comm *comm,
                            cp_status status) {
    if (status == CP_OK && comm->oldest != NULL && !failure->happened)
        status = cp_fail(CP_BROKEN, "returned, but never waited for %s",
                         comm->oldest->call);
    if (status == CP_OK)
        return false;
    const bool first = cp_failure_note(failure, comm->rank, status);
    if (failure->rank == comm->rank)
        failure->status = status; /* an abort gave only the reason */
    return first;
}
