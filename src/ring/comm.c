/* Tangled from book/04-ranks.nw; edit the chapter. */
/* The thin layer that all communicators share: arguments are checked
 * and traffic is counted here, so that no implementation has to. */
#include "ring/comm.h"

#include <stddef.h>

static cp_status check_half(const cp_comm *comm, const char *verb, int peer,
                            const void *data, int64_t bytes) {
    if (peer == CP_NOBODY)
        return CP_OK;
    if (peer < 0 || peer >= comm->ranks)
        return cp_fail(CP_INVALID, "cannot %s rank %d: there are %d ranks",
                       verb, peer, comm->ranks);
    if (bytes < 0 || (bytes > 0 && data == NULL))
        return cp_fail(CP_INVALID, "cannot %s rank %d: %lld bytes at %p", verb,
                       peer, (long long)bytes, data);
    return CP_OK;
}

static bool overlap(const void *a, int64_t a_bytes, const void *b,
                    int64_t b_bytes) {
    const uintptr_t a_start = (uintptr_t)a, b_start = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 &&
           a_start < b_start + (uintptr_t)b_bytes &&
           b_start < a_start + (uintptr_t)a_bytes;
}

static cp_status check_blocks(const cp_comm *comm, const char *verb,
                              const void *const *blocks, int64_t bytes) {
    if (comm->ranks > 1 && blocks == NULL)
        return cp_fail(CP_INVALID, "cannot %s %d ranks: no list of blocks",
                       verb, comm->ranks);
    for (int peer = 0; peer < comm->ranks; peer++)
        if (peer != comm->rank &&
            check_half(comm, verb, peer, blocks[peer], bytes) != CP_OK)
            return CP_INVALID;
    return CP_OK;
}

static cp_status refuse(cp_comm *comm) {
    comm->ops->abort(comm, cp_message());
    return CP_INVALID;
}

cp_status cp_comm_exchange(cp_comm *comm, int to, const void *send,
                           int64_t send_bytes, int from, void *receive,
                           int64_t receive_bytes) {
    /* Refuse halves that cannot be. */
    if (check_half(comm, "send to", to, send, send_bytes) != CP_OK ||
        check_half(comm, "receive from", from, receive, receive_bytes) != CP_OK)
        return refuse(comm);
    if (to != CP_NOBODY && from != CP_NOBODY &&
        overlap(send, send_bytes, receive, receive_bytes)) {
        cp_fail(CP_INVALID, "%lld bytes to rank %d overlap %lld from rank %d",
                (long long)send_bytes, to, (long long)receive_bytes, from);
        return refuse(comm);
    }
    const cp_status status = comm->ops->exchange(comm, to, send, send_bytes,
                                                 from, receive, receive_bytes);
    if (status == CP_OK && to != CP_NOBODY) {
        comm->sent.hops++;
        comm->sent.ring_bytes += send_bytes;
    }
    return status;
}

cp_status cp_comm_wait(cp_comm *comm) {
    return comm->ops->wait(comm);
}

cp_status cp_comm_all_to_all(cp_comm *comm, const void *const *send,
                             void *const *receive, int64_t bytes) {
    const void *const *into = (const void *const *)receive;
    if (check_blocks(comm, "send to", send, bytes) != CP_OK ||
        check_blocks(comm, "receive from", into, bytes) != CP_OK)
        return refuse(comm);
    const cp_status status = comm->ops->all_to_all(comm, send, receive, bytes);
    if (status == CP_OK)
        comm->sent.all_to_all_bytes += (comm->ranks - 1) * bytes;
    return status;
}

cp_status cp_comm_all_gather(cp_comm *comm, const void *send,
                             void *const *receive, int64_t bytes) {
    const void *const *into = (const void *const *)receive;
    if (check_half(comm, "send as", comm->rank, send, bytes) != CP_OK ||
        check_blocks(comm, "receive from", into, bytes) != CP_OK)
        return refuse(comm);
    const cp_status status = comm->ops->all_gather(comm, send, receive, bytes);
    if (status == CP_OK)
        comm->sent.all_gather_bytes += (comm->ranks - 1) * bytes;
    return status;
}

cp_status cp_comm_barrier(cp_comm *comm) {
    const cp_status status = comm->ops->barrier(comm);
    if (status == CP_OK)
        comm->sent.barriers++;
    return status;
}

void cp_comm_abort(cp_comm *comm, const char *why) {
    comm->ops->abort(comm, why);
}

void cp_comm_poke(cp_comm *comm) {
    if (comm->ops->poke != NULL)
        comm->ops->poke(comm);
}
