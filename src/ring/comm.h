/* Tangled from book/04-ranks.nw; edit the chapter. */
/* What ranks can say to each other: an asynchronous exchange and
 * its wait, two collectives, a barrier, a cry for help. It moves
 * bytes and does not know what they mean; how they travel is an
 * implementation's business (reference/ring/threads.h has one). */
#ifndef CP_COMM_H
#define CP_COMM_H

#include "ground/ground.h"

#define CP_NOBODY (-1) /* the peer of a half that is not there */

typedef struct cp_comm cp_comm;

/* What this rank has sent; to itself counts too. */
typedef struct {
    int64_t hops;             /* exchanges with a send half */
    int64_t ring_bytes;       /* and their bytes */
    int64_t all_to_all_bytes; /* (ranks - 1) x bytes each time */
    int64_t all_gather_bytes; /* likewise */
    int64_t barriers;
} cp_traffic;

/* What an implementation provides. Use the functions below
 * instead: they check arguments and count. */
typedef struct {
    cp_status (*exchange)(cp_comm *, int to, const void *send,
                          int64_t send_bytes, int from, void *receive,
                          int64_t receive_bytes);
    cp_status (*wait)(cp_comm *);
    cp_status (*all_to_all)(cp_comm *, const void *const *send,
                            void *const *receive, int64_t bytes);
    cp_status (*all_gather)(cp_comm *, const void *send, void *const *receive,
                            int64_t bytes);
    cp_status (*barrier)(cp_comm *);
    void (*abort)(cp_comm *, const char *why);
    void (*poke)(cp_comm *); /* NULL: messages need no help */
} cp_comm_ops;

/* One rank's end; only that rank's thread may use it. */
struct cp_comm {
    const cp_comm_ops *ops;
    int rank, ranks;
    cp_traffic sent;
};

/* A failure ends the communicator. Once any of these functions has
 * returned anything but CP_OK, nobody touches this rank's buffers
 * any more and its later calls fail too; the calls of the other
 * ranks, also those that wait at this moment, end with CP_ABORTED
 * and a message that names this rank and its reason. */

/* Start to send to one rank and to receive from another; return at
 * once. Either may be CP_NOBODY (its buffer is ignored) or this
 * rank. The buffers may not overlap, and are lent until the wait:
 * do not write the one, do not touch the other. Nothing is
 * buffered. The k-th message that a sends to b meets the k-th
 * receive that b posts from a; should their sizes differ, both
 * waits fail with CP_BROKEN. */
cp_status cp_comm_exchange(cp_comm *comm, int to, const void *send,
                           int64_t send_bytes, int from, void *receive,
                           int64_t receive_bytes);

/* Complete this rank's oldest outstanding exchange, both halves.
 * It completes once the peers have posted theirs, whatever they do
 * next. CP_BROKEN if there is none, if a peer has left, if patience
 * ran out, or if no rank can move. */
cp_status cp_comm_wait(cp_comm *comm);

/* send[r] goes to rank r's receive[this rank]; bytes each, the same
 * on all ranks. Own entries are not touched and may be NULL.
 * Complete on return. */
cp_status cp_comm_all_to_all(cp_comm *comm, const void *const *send,
                             void *const *receive, int64_t bytes);

/* receive[r] gets rank r's send; bytes each, the same on all ranks.
 * The own entry is not touched and may be NULL. Complete on
 * return. */
cp_status cp_comm_all_gather(cp_comm *comm, const void *send,
                             void *const *receive, int64_t bytes);

/* Return when all ranks have called it. */
cp_status cp_comm_barrier(cp_comm *comm);

/* Say that this rank cannot go on. Call it before freeing a buffer
 * that an outstanding exchange names; on return all buffers are
 * this rank's own again. */
void cp_comm_abort(cp_comm *comm, const char *why);

/* Let messages that are under way move on, and return at once. To
 * be called now and then by whoever computes between an exchange
 * and its wait: some communicators hide nothing otherwise. */
void cp_comm_poke(cp_comm *comm);

#endif
