/* Tangled from book/04-ranks.nw; edit the chapter. */
/* How ranks communicate: an asynchronous exchange and its wait, two
 * collectives, a barrier, an abort. It moves bytes and does not know
 * what they mean; an implementation decides how they travel
 * (reference/run/threads.h has one). */
#ifndef CP_COMM_H
#define CP_COMM_H

#include "ground/ground.h"

typedef struct cp_comm cp_comm;

/* What this rank has sent, also to itself. */
typedef struct {
    int64_t hops;             /* exchanges with a send half */
    int64_t ring_bytes;       /* and their bytes */
    int64_t all_to_all_bytes; /* (ranks - 1) x bytes each time */
    int64_t all_gather_bytes; /* likewise */
} cp_traffic;

/* A rank's function. An error that it returns ends all ranks. */
typedef cp_status (*cp_rank_main)(cp_comm *comm, void *context);

/* The rest of these types is for implementations. A half is one side of a
 * message, as its rank has posted it. */
typedef enum {
    CP_HALF_IDLE, /* absent, or cancelled */
    CP_HALF_POSTED,
    CP_HALF_PAIRED,  /* both sides are posted */
    CP_HALF_COPYING, /* a thread is copying the buffer */
    CP_HALF_DONE,
} cp_half_state;

typedef struct {
    cp_half_state state;
    int peer;
    void *data; /* read-only in a send */
    int64_t bytes;
    void *way; /* the implementation's transfer state */
} cp_half;

typedef struct cp_exchange {
    struct cp_exchange *newer;
    const char *call; /* for messages: "an exchange" */
    bool barrier;     /* matches only halves of barriers */
    cp_half send, receive;
} cp_exchange;

/* The first known failure. */
typedef struct {
    bool happened;
    int rank;
    cp_status status;
    char message[512];
} cp_failure;

/* What an implementation provides. Use the functions below instead: they
 * check arguments, count, and make collectives of exchanges. */
typedef struct {
    /* Append the exchange to comm's list and start it. The list owns it from
     * then on, even if this fails. */
    cp_status (*post)(cp_comm *, cp_exchange *);
    /* Return when all from first to last are done and removed. */
    cp_status (*complete)(cp_comm *, cp_exchange *first, cp_exchange *last);
    /* This rank fails with cp_message(), unless the communicator already has
     * failed. Cancel all that it has posted; return the status to report. */
    cp_status (*fail)(cp_comm *, cp_status);
    void (*progress)(cp_comm *); /* NULL: messages need no help */
} cp_comm_ops;

/* One rank's end; only that rank's thread may use it. */
struct cp_comm {
    const cp_comm_ops *ops;
    int rank, ranks;
    cp_traffic sent;
    cp_exchange *oldest; /* outstanding, in order */
    bool kept; /* a lost rank may still touch the buffers of an exchange
                  (processes.h): do not free them */
};

/* A failure ends the communicator. Once any of these functions has
 * returned anything but CP_OK, no thread touches this rank's buffers
 * any more and its later calls fail too. The other ranks' calls, even
 * those that are waiting at this moment, end with CP_ABORTED and a
 * message that names this rank and its reason. */

/* Start to send to one rank and to receive from another; return at
 * once. Either may be CP_NO_RANK (its buffer is ignored) or this
 * rank. The buffers may not overlap, and are lent until the wait:
 * do not write to send, do not touch receive. Buffering is not
 * promised. The k-th message from a to b matches the k-th receive
 * that b posts from a; if their sizes differ, the receiver, at the
 * latest, fails with CP_BROKEN. */
cp_status cp_comm_exchange(cp_comm *comm, int to, const void *send,
                           int64_t send_bytes, int from, void *receive,
                           int64_t receive_bytes);

/* Complete this rank's oldest outstanding exchange, both halves.
 * It completes at the latest once the peers have posted theirs,
 * whatever they do next. Fails with CP_BROKEN if there is none, if
 * a peer has left, on a timeout, or if no rank can proceed. */
cp_status cp_comm_wait(cp_comm *comm);

/* send[r] goes to rank r's receive[this rank]; bytes each, the same
 * on all ranks. A rank's own entries are not touched and may be
 * NULL. Complete on return. */
cp_status cp_comm_all_to_all(cp_comm *comm, const void *const *send,
                             void *const *receive, int64_t bytes);

/* receive[r] gets rank r's send; bytes each, the same on all ranks.
 * This rank's entry is not touched and may be NULL. Complete on
 * return. */
cp_status cp_comm_all_gather(cp_comm *comm, const void *send,
                             void *const *receive, int64_t bytes);

/* Return when all ranks have called it. */
cp_status cp_comm_barrier(cp_comm *comm);

/* Broadcast rank 0's data; bytes is the same on all ranks. */
cp_status cp_comm_broadcast(cp_comm *comm, void *data, int64_t bytes);

/* All-gather items [ranks], bytes each; each rank fills in its own. */
cp_status cp_comm_all_gather_in_place(cp_comm *comm, void *items,
                                      int64_t bytes);

/* Report that this rank cannot continue. Call it before freeing a
 * buffer that an outstanding exchange names; on return all buffers
 * belong to this rank again. */
void cp_comm_abort(cp_comm *comm, const char *why);

/* Progress outstanding messages, and return at once. A rank that
 * computes between an exchange and its wait calls it now and then:
 * some communicators overlap nothing otherwise. */
void cp_comm_progress(cp_comm *comm);

/* For implementations: the list of outstanding exchanges. */
void cp_exchange_append(cp_comm *comm, cp_exchange *exchange);
void cp_exchange_remove(cp_comm *comm, cp_exchange *first,
                        const cp_exchange *last); /* and free */

/* The first exchange that is not done, from first to last; or NULL. */
const cp_exchange *cp_exchange_unmet(const cp_exchange *first,
                                     const cp_exchange *last);

/* What an exchange waits for: "waits in an exchange for 8 bytes from rank 1".
 * Use the result within one expression. */
typedef struct {
    char text[160];
} cp_sentence;
cp_sentence cp_exchange_describe(const cp_exchange *exchange);

/* For implementations. note: record a failure with cp_message(), if it is the
 * first. status: that of rank's calls after it. report: the status of the
 * run of all ranks. */
bool cp_failure_note(cp_failure *failure, int rank, cp_status status);
cp_status cp_failure_status(const cp_failure *failure, int rank);
cp_status cp_failure_report(const cp_failure *failure);

/* Record the status that a rank's function returned. */
bool cp_failure_note_return(cp_failure *failure, const cp_comm *comm,
                            cp_status status);

#endif
