/* Tangled from book/04-ranks.nw; edit the chapter. */
/* What ranks can say to each other: an asynchronous exchange and its wait, two
 * collectives, a barrier, and a cry for help. It carries bytes; it does not
 * know what they mean. Implementations: reference/threads.h. */
#ifndef CP_COMM_H
#define CP_COMM_H

#include "ground.h"

#define CP_NOBODY (-1) /* the peer of a half that is not there */

typedef struct cp_comm cp_comm;

/* What this rank has sent, itself included when it is its own peer. */
typedef struct {
    int64_t hops;             /* exchanges with a send half */
    int64_t ring_bytes;       /* bytes of those */
    int64_t all_to_all_bytes; /* (ranks - 1) x bytes, each time */
    int64_t all_gather_bytes; /* likewise */
    int64_t barriers;
} cp_traffic;
/* What an implementation provides. Call the functions below instead: they
 * check arguments and count. */
typedef struct {
    cp_status (*exchange)(cp_comm *, int to, const void *send,
                          int64_t send_bytes, int from, void *receive,
                          int64_t receive_bytes);
    cp_status (*wait)(cp_comm *);
    cp_status (*all_to_all)(cp_comm *, const void *const *send,
                            void *const *receive, int64_t bytes);
    cp_status (*all_gather)(cp_comm *, const void *send,
                            void *const *receive, int64_t bytes);
    cp_status (*barrier)(cp_comm *);
    void (*abort)(cp_comm *, const char *why);
} cp_comm_ops;

/* One rank's end of a communicator; used by that rank's thread alone. */
struct cp_comm {
    const cp_comm_ops *ops;
    int rank, ranks;
    cp_traffic sent;
};

/* All of these: a failure ends the communicator. When one of them returns
 * anything but CP_OK, nobody touches this rank's buffers any more, every later
 * call on this rank fails, and the other ranks' calls, also those that wait at
 * this moment, end with CP_ABORTED and a message that names this rank. */

/* Start to send send_bytes to rank `to` and to receive receive_bytes from rank
 * `from`, and return at once. Either may be CP_NOBODY (its buffer is ignored)
 * or the rank itself. The buffers may not overlap and are lent until the wait:
 * do not write the one, do not touch the other. Nobody promises to buffer: the
 * send ends when the other rank has posted its receive and the bytes are
 * there. The k-th send from a to b meets the k-th receive that b posts from a;
 * if their sizes differ, the waits of both fail with CP_BROKEN. */
cp_status cp_comm_exchange(cp_comm *comm, int to, const void *send,
                           int64_t send_bytes, int from, void *receive,
                           int64_t receive_bytes);

/* Complete the oldest outstanding exchange of this rank, both halves. Once its
 * peers have posted theirs it completes, whatever they do next. CP_BROKEN if
 * there is none, if a peer has left, or if no rank can move. */
cp_status cp_comm_wait(cp_comm *comm);
/* send[r] goes to rank r's receive[this rank], bytes each, the same number on
 * all ranks. The own entries, send[rank] and receive[rank], are neither read
 * nor written and may be NULL. Complete on return. */
cp_status cp_comm_all_to_all(cp_comm *comm, const void *const *send,
                             void *const *receive, int64_t bytes);

/* receive[r] gets rank r's send, bytes each, the same number on all ranks. The
 * own entry is not written and may be NULL. Complete on return. */
cp_status cp_comm_all_gather(cp_comm *comm, const void *send,
                             void *const *receive, int64_t bytes);

/* Return when all ranks have called it. */
cp_status cp_comm_barrier(cp_comm *comm);

/* Say that this rank cannot go on. On return its buffers are its own again;
 * call this before freeing a buffer that an outstanding exchange names. */
void cp_comm_abort(cp_comm *comm, const char *why);

#endif
