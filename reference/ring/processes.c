/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Ranks as processes: notes that agree on each message, then its freight.
 * Built with CP_HAVE_MPI, or as an empty shell without. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include "reference/ring/processes.h"

#ifdef CP_HAVE_MPI

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum note_kind {
    OFFER,   /* message number to you has bytes */
    WANT,    /* receive number from you expects bytes */
    BARRIER, /* I have entered barrier number */
    FAILURE, /* I failed with status; text says why */
    LEFT,    /* I am done with run number, with status */
    GOODBYE, /* I shall not speak again; status is my exit's */
};

struct note {
    int32_t kind, status;
    int64_t number, bytes;
    char text[480]; /* of FAILURE and GOODBYE; others are sent without */
};

struct letter {
    struct letter *next;
    MPI_Request request;
    struct note note;
};

struct news {
    struct news *next;
    int64_t bytes;
};

struct peer {
    int64_t sent, received;      /* halves posted: the last numbers */
    struct news *offers, *wants; /* not yet met by a half of ours */
    int64_t barriers, left;      /* entered; the last run it ended */
    bool gone;                   /* has said goodbye */
    int status;                  /* with which */
};

enum half_state { IDLE, POSTED, MOVING, DONE, SPOILED };

struct half {
    enum half_state state;
    bool sends;
    int peer;
    char *data;
    int64_t bytes, theirs;
    int64_t number; /* of messages between the two, this way */
    int pieces, arrived;
    MPI_Request *requests; /* [pieces] while MOVING */
};

struct exchange {
    struct exchange *newer;
    const char *call; /* for messages: "an exchange" */
    struct half send, receive;
};

struct member {
    cp_comm comm; /* first: a cp_comm * is a struct member * */
    MPI_Comm notes, freight;
    struct peer *peers; /* [ranks] */
    struct letter *letters;
    struct exchange *oldest;  /* outstanding, in order */
    struct exchange *waiting; /* for messages; NULL: a barrier or the end */
    cp_mpi_options options;
    int64_t runs, barriers; /* begun; entered */
    bool silent;            /* MPI may not run any more: see settle */
    bool given_up;          /* somebody did not leave in time */
    /* The first failure that this rank knows of. */
    bool failed;
    int failed_rank;
    cp_status status;
    char message[512];
    char complaint[512]; /* the first that came with a goodbye */
};

static void say(struct member *me, int to, struct note note) {
    const bool talks = note.kind == FAILURE || note.kind == GOODBYE;
    const size_t bytes = talks ? sizeof(note) : offsetof(struct note, text);
    struct letter *letter;
    int sent = 0;
    if (me->silent ||
        cp_allocate(&letter, 1, sizeof(*letter), "a note") != CP_OK)
        return;
    letter->note = note;
    if (MPI_Isend(&letter->note, (int)bytes, MPI_BYTE, to, 0, me->notes,
                  &letter->request) == MPI_SUCCESS) {
        MPI_Test(&letter->request, &sent, MPI_STATUS_IGNORE);
        letter->next = me->letters;
        if (!sent)
            me->letters = letter;
    }
    if (sent)
        free(letter);
}

static void say_to_all(struct member *me, struct note note) {
    for (int r = 0; r < me->comm.ranks; r++)
        if (r != me->comm.rank)
            say(me, r, note);
}

static void sweep_letters(struct member *me) {
    struct letter **link = &me->letters;
    while (*link != NULL) {
        struct letter *letter = *link;
        int sent = 0;
        MPI_Test(&letter->request, &sent, MPI_STATUS_IGNORE);
        if (sent) {
            *link = letter->next;
            free(letter);
        } else {
            link = &letter->next;
        }
    }
}

static void record_failure(struct member *me, int rank, cp_status status,
                           const char *why) {
    if (me->failed)
        return;
    const bool reason = why != NULL && why[0] != '\0';
    me->failed = true;
    me->failed_rank = rank;
    me->status = status;
    snprintf(me->message, sizeof(me->message), "%s",
             reason ? why : "gave no reason");
    if (rank != me->comm.rank)
        return;
    struct note note = {.kind = FAILURE, .status = (int32_t)status};
    snprintf(note.text, sizeof(note.text), "%.479s", me->message);
    say_to_all(me, note);
}

static void check_mpi(struct member *me, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    cp_fail(CP_BROKEN, "%s: %.300s", what, text);
    record_failure(me, me->comm.rank, CP_BROKEN, cp_message());
}

static void start(struct member *me, struct half *half) {
    const int64_t piece = me->options.piece;
    const int64_t pieces = cp_ceil_divide(half->bytes, piece);
    half->state = half->bytes == 0 ? DONE : MOVING;
    if (half->bytes == 0)
        return;
    if (pieces > INT_MAX ||
        cp_allocate(&half->requests, pieces, sizeof(MPI_Request),
                    "the pieces of a message") != CP_OK) {
        half->state = IDLE;
        record_failure(me, me->comm.rank, CP_MEMORY, cp_message());
        return;
    }
    half->pieces = (int)pieces;
    for (int p = 0; p < half->pieces; p++)
        half->requests[p] = MPI_REQUEST_NULL;
    /* Post every piece. */
    for (int p = 0; p < half->pieces; p++) {
        char *data = half->data + p * piece;
        const int bytes = (int)cp_min(piece, half->bytes - p * piece);
        MPI_Request *request = &half->requests[p];
        check_mpi(me,
                  half->sends ? MPI_Isend(data, bytes, MPI_BYTE, half->peer, 0,
                                          me->freight, request)
                              : MPI_Irecv(data, bytes, MPI_BYTE, half->peer, 0,
                                          me->freight, request),
                  half->sends ? "MPI_Isend" : "MPI_Irecv");
    }
}

static void meet(struct member *me, struct half *half, int64_t theirs) {
    half->theirs = theirs;
    if (half->bytes != theirs)
        half->state = SPOILED;
    else if (!me->failed)
        start(me, half);
}

static struct half *find_half(struct member *me, int peer, bool sends) {
    struct exchange *exchange = me->oldest;
    for (; exchange != NULL; exchange = exchange->newer) {
        struct half *half = sends ? &exchange->send : &exchange->receive;
        if (half->state == POSTED && half->peer == peer)
            return half;
    }
    return NULL;
}

static void hear_half(struct member *me, int from, bool sends, int64_t bytes) {
    struct half *half = find_half(me, from, sends);
    struct peer *peer = &me->peers[from];
    struct news **end = sends ? &peer->wants : &peer->offers;
    if (half != NULL) {
        meet(me, half, bytes);
        return;
    }
    while (*end != NULL)
        end = &(*end)->next;
    if (cp_allocate(end, 1, sizeof(**end), "news") == CP_OK)
        (*end)->bytes = bytes;
    else
        record_failure(me, me->comm.rank, CP_MEMORY, cp_message());
}

static void heed(struct member *me, int from, struct note *note) {
    struct peer *peer = &me->peers[from];
    const cp_status status = (cp_status)note->status;
    note->text[sizeof(note->text) - 1] = '\0';
    switch ((enum note_kind)note->kind) {
    case OFFER:
    case WANT:
        hear_half(me, from, note->kind == WANT, note->bytes);
        break;
    case BARRIER:
        peer->barriers = note->number;
        break;
    case FAILURE:
        record_failure(me, from, status, note->text);
        break;
    case LEFT:
        peer->left = note->number;
        if (me->failed && me->failed_rank == from && status != CP_OK)
            me->status = status;
        break;
    case GOODBYE:
        /* Hear a goodbye. */
        peer->gone = true;
        peer->status = note->status;
        if (peer->status != 0 && me->complaint[0] == '\0')
            snprintf(me->complaint, sizeof(me->complaint), "rank %d: %s", from,
                     note->text);
        break;
    }
}

static void hear(struct member *me) {
    for (int any = 1; any;) {
        MPI_Status from;
        struct note note = {0};
        MPI_Iprobe(MPI_ANY_SOURCE, 0, me->notes, &any, &from);
        if (!any)
            return;
        MPI_Recv(&note, (int)sizeof(note), MPI_BYTE, from.MPI_SOURCE, 0,
                 me->notes, MPI_STATUS_IGNORE);
        heed(me, from.MPI_SOURCE, &note);
    }
}

static void test(struct member *me, struct half *half) {
    int done = 1;
    while (half->state == MOVING && done && half->arrived < half->pieces) {
        check_mpi(
            me,
            MPI_Test(&half->requests[half->arrived], &done, MPI_STATUS_IGNORE),
            half->sends ? "sending" : "receiving");
        half->arrived += done != 0;
    }
    if (half->state != MOVING || half->arrived < half->pieces)
        return;
    half->state = DONE;
    free(half->requests);
    half->requests = NULL;
}

static void poll(struct member *me) {
    if (me->silent)
        return;
    hear(me);
    for (struct exchange *e = me->oldest; e != NULL; e = e->newer) {
        test(me, &e->send);
        test(me, &e->receive);
    }
    if (me->letters != NULL)
        sweep_letters(me);
}

static bool moving(const struct member *me) {
    for (const struct exchange *e = me->oldest; e != NULL; e = e->newer)
        if (e->send.state == MOVING || e->receive.state == MOVING)
            return true;
    return false;
}

enum { EAGER_POLLS = 100 };

static void rest(const struct member *me, int *polls) {
    const struct timespec nap = {0, 20000};
    if (++*polls < EAGER_POLLS)
        return;
    if (moving(me))
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

static double deadline(const struct member *me) {
    return me->options.patience > 0 ? cp_clock() + me->options.patience
                                    : INFINITY;
}

enum { GRACE = 5 }; /* seconds */

static double parting(const struct member *me) {
    return fmin(deadline(me), me->failed ? cp_clock() + GRACE : INFINITY);
}

static void add_text(char *text, size_t room, const char *format, ...) {
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, room - used, format, arguments);
    va_end(arguments);
}

static bool unmet(const struct half *half) {
    return half->state != IDLE && half->state != DONE;
}

static int first_absent(const struct member *me, bool gone) {
    for (int r = 0; r < me->comm.ranks; r++) {
        const struct peer *other = &me->peers[r];
        const bool left = other->gone || other->left >= me->runs;
        if (r != me->comm.rank && other->barriers < me->barriers &&
            (left || !gone))
            return r;
    }
    return CP_NOBODY;
}

static void describe(const struct member *me, char *text, size_t room) {
    const struct exchange *exchange = me->waiting;
    add_text(text, room, "rank %d waits ", me->comm.rank);
    if (exchange == NULL) {
        add_text(text, room, "at barrier %lld for rank %d",
                 (long long)me->barriers, first_absent(me, false));
        return;
    }
    const struct half *receive = &exchange->receive;
    const struct half *send = &exchange->send;
    add_text(text, room, "in %s", exchange->call);
    if (unmet(receive))
        add_text(text, room, " for %lld bytes (message %lld) from rank %d",
                 (long long)receive->bytes, (long long)receive->number,
                 receive->peer);
    if (unmet(send))
        add_text(text, room, "%s for rank %d to take %lld bytes (message %lld)",
                 unmet(receive) ? " and" : "", send->peer,
                 (long long)send->bytes, (long long)send->number);
}

static void cancel(struct half *half) {
    for (int p = 0; half->state == MOVING && p < half->pieces; p++)
        if (half->requests[p] != MPI_REQUEST_NULL)
            MPI_Cancel(&half->requests[p]);
}

static bool in_hand(const struct member *me, const struct half *half) {
    const struct peer *peer = &me->peers[half->peer];
    const bool left = peer->gone || peer->left >= me->runs;
    return half->state == MOVING && !(half->sends && left);
}

static void settle(struct member *me) {
    const double end = fmin(deadline(me), cp_clock() + GRACE);
    int polls = 0;
    for (struct exchange *e = me->oldest; e != NULL && !me->silent;
         e = e->newer)
        cancel(&e->receive);
    for (struct exchange *e = me->oldest; e != NULL; e = me->oldest) {
        while (!me->silent && cp_clock() < end &&
               (in_hand(me, &e->send) || in_hand(me, &e->receive))) {
            poll(me);
            rest(me, &polls);
        }
        me->silent = me->silent || e->receive.state == MOVING;
        me->oldest = e->newer;
        /* Free an exchange. */
        if (e->send.state != MOVING)
            free(e->send.requests);
        if (e->receive.state != MOVING)
            free(e->receive.requests);
        free(e);
    }
}

static cp_status give_up(struct member *me, cp_status status) {
    record_failure(me, me->comm.rank, status, cp_message());
    settle(me);
    return status;
}

static cp_status join_failure(struct member *me) {
    settle(me);
    if (me->failed_rank == me->comm.rank)
        return cp_fail(me->status, "%s", me->message);
    return cp_fail(CP_ABORTED, "rank %d failed first: %s", me->failed_rank,
                   me->message);
}

static cp_status give_up_leaver(struct member *me, int peer) {
    char text[400] = "";
    describe(me, text, sizeof(text));
    return give_up(me,
                   cp_fail(CP_BROKEN, "%s, but rank %d has left", text, peer));
}

static cp_status give_up_patience(struct member *me) {
    char text[400] = "";
    describe(me, text, sizeof(text));
    return give_up(me, cp_fail(CP_BROKEN, "%s, in vain for %g s", text,
                               me->options.patience));
}

static cp_status give_up_sizes(struct member *me,
                               const struct exchange *exchange) {
    const bool sends = exchange->send.state == SPOILED;
    const struct half *half = sends ? &exchange->send : &exchange->receive;
    cp_fail(CP_BROKEN,
            "rank %d %s rank %d in %s: %lld bytes (message %lld), not the "
            "%lld that rank %d %s",
            me->comm.rank, sends ? "sends to" : "receives from", half->peer,
            exchange->call, (long long)half->bytes, (long long)half->number,
            (long long)half->theirs, half->peer, sends ? "expects" : "sends");
    return give_up(me, CP_BROKEN);
}

static void post_half(struct member *me, struct half *half) {
    if (half->state != POSTED)
        return;
    struct peer *peer = &me->peers[half->peer];
    struct news **first = half->sends ? &peer->wants : &peer->offers;
    struct news *news = *first;
    half->number = half->sends ? ++peer->sent : ++peer->received;
    say(me, half->peer,
        (struct note){.kind = half->sends ? OFFER : WANT,
                      .number = half->number,
                      .bytes = half->bytes});
    if (news == NULL)
        return;
    *first = news->next;
    meet(me, half, news->bytes);
    free(news);
}

static cp_status post(struct member *me, const char *call, struct half send,
                      struct half receive, struct exchange **posted) {
    struct exchange **end = &me->oldest;
    if (me->failed)
        return join_failure(me);
    cp_status status =
        cp_allocate(posted, 1, sizeof(**posted), "a message's record");
    if (status != CP_OK)
        return give_up(me, status);
    while (*end != NULL)
        end = &(*end)->newer;
    **posted = (struct exchange){NULL, call, send, receive};
    *end = *posted;
    post_half(me, &(*posted)->send);
    post_half(me, &(*posted)->receive);
    poll(me);
    return me->failed ? join_failure(me) : CP_OK;
}

static struct half half_of(bool sends, int peer, const void *data,
                           int64_t bytes) {
    return (struct half){.state = peer == CP_NOBODY ? IDLE : POSTED,
                         .sends = sends,
                         .peer = peer == CP_NOBODY ? 0 : peer,
                         .data = (char *)(uintptr_t)data,
                         .bytes = bytes};
}

static cp_status mpi_exchange(cp_comm *comm, int to, const void *send,
                              int64_t send_bytes, int from, void *receive,
                              int64_t receive_bytes) {
    struct exchange *posted;
    return post((struct member *)comm, "an exchange",
                half_of(true, to, send, send_bytes),
                half_of(false, from, receive, receive_bytes), &posted);
}

static bool forsaken(const struct member *me, const struct half *half) {
    const struct peer *peer = &me->peers[half->peer];
    return half->state == POSTED && (peer->gone || peer->left >= me->runs);
}

static cp_status complete(struct member *me, struct exchange *exchange) {
    const struct half *send = &exchange->send, *receive = &exchange->receive;
    const double end = deadline(me);
    int polls = 0;
    me->waiting = exchange;
    for (poll(me); unmet(send) || unmet(receive); poll(me)) {
        if (send->state == SPOILED || receive->state == SPOILED)
            return give_up_sizes(me, exchange);
        if (me->failed)
            return join_failure(me);
        if (forsaken(me, receive))
            return give_up_leaver(me, receive->peer);
        if (forsaken(me, send))
            return give_up_leaver(me, send->peer);
        if (cp_clock() > end)
            return give_up_patience(me);
        rest(me, &polls);
    }
    if (me->failed)
        return join_failure(me);
    /* Remove the exchange. */
    struct exchange **link = &me->oldest;
    while (*link != exchange)
        link = &(*link)->newer;
    *link = exchange->newer;
    free(exchange);
    return CP_OK;
}

static cp_status mpi_wait(cp_comm *comm) {
    struct member *me = (struct member *)comm;
    if (me->failed)
        return join_failure(me);
    if (me->oldest != NULL)
        return complete(me, me->oldest);
    cp_fail(CP_BROKEN, "rank %d waits, but has no exchange outstanding",
            comm->rank);
    return give_up(me, CP_BROKEN);
}

static cp_status trade(struct member *me, const char *call,
                       const void *const *sends, const void *same,
                       void *const *receives, int64_t bytes) {
    const int ranks = me->comm.ranks, rank = me->comm.rank;
    struct exchange *first = NULL, *posted;
    cp_status status = CP_OK;
    for (int shift = 1; shift < ranks && status == CP_OK; shift++) {
        const int to = (rank + shift) % ranks;
        const int from = (rank - shift + ranks) % ranks;
        status =
            post(me, call,
                 half_of(true, to, sends != NULL ? sends[to] : same, bytes),
                 half_of(false, from, receives[from], bytes), &posted);
        if (first == NULL && status == CP_OK)
            first = posted;
    }
    while (first != NULL && status == CP_OK) {
        struct exchange *next = first->newer;
        status = complete(me, first);
        first = next;
    }
    return status;
}

static cp_status mpi_all_to_all(cp_comm *comm, const void *const *send,
                                void *const *receive, int64_t bytes) {
    return trade((struct member *)comm, "an all-to-all", send, NULL, receive,
                 bytes);
}

static cp_status mpi_all_gather(cp_comm *comm, const void *send,
                                void *const *receive, int64_t bytes) {
    return trade((struct member *)comm, "an all-gather", NULL, send, receive,
                 bytes);
}

static cp_status mpi_barrier(cp_comm *comm) {
    struct member *me = (struct member *)comm;
    const double end = deadline(me);
    int polls = 0;
    if (me->failed)
        return join_failure(me);
    me->waiting = NULL;
    say_to_all(me, (struct note){.kind = BARRIER, .number = ++me->barriers});
    for (poll(me); first_absent(me, false) != CP_NOBODY; poll(me)) {
        if (me->failed)
            return join_failure(me);
        if (first_absent(me, true) != CP_NOBODY)
            return give_up_leaver(me, first_absent(me, true));
        if (cp_clock() > end)
            return give_up_patience(me);
        rest(me, &polls);
    }
    return me->failed ? join_failure(me) : CP_OK;
}

static void mpi_abort(cp_comm *comm, const char *why) {
    struct member *me = (struct member *)comm;
    record_failure(me, comm->rank, CP_ABORTED, why);
    settle(me);
}

static void mpi_poke(cp_comm *comm) {
    poll((struct member *)comm);
}

static const cp_comm_ops mpi_ops = {
    mpi_exchange, mpi_wait,  mpi_all_to_all, mpi_all_gather,
    mpi_barrier,  mpi_abort, mpi_poke,
};

static const cp_comm_ops unpoked_ops = {
    mpi_exchange, mpi_wait,  mpi_all_to_all, mpi_all_gather,
    mpi_barrier,  mpi_abort, NULL,
};

static bool all_left(const struct member *me) {
    for (int r = 0; r < me->comm.ranks; r++)
        if (r != me->comm.rank && me->peers[r].left < me->runs)
            return false;
    return true;
}

static void leave(struct member *me, cp_status status) {
    const double end = parting(me);
    int polls = 0;
    say_to_all(me, (struct note){.kind = LEFT,
                                 .number = me->runs,
                                 .status = (int32_t)status});
    for (poll(me); !all_left(me) && !me->silent && cp_clock() < end; poll(me))
        rest(me, &polls);
    /* Complain about those who have not left. */
    for (int r = 0; r < me->comm.ranks && !me->failed; r++)
        if (r != me->comm.rank && me->peers[r].left < me->runs) {
            cp_fail(
                CP_BROKEN,
                "rank %d waits at the end of call %lld for rank %d, in vain "
                "for %g s",
                me->comm.rank, (long long)me->runs, r, me->options.patience);
            record_failure(me, me->comm.rank, CP_BROKEN, cp_message());
        }
    me->given_up = !all_left(me);
}

cp_status cp_mpi_run(cp_comm *comm, cp_rank_main function, void *context) {
    struct member *me = (struct member *)comm;
    const bool dead = me->failed;
    me->runs++;
    comm->sent = (cp_traffic){0};
    cp_status status = dead ? join_failure(me) : function(comm, context);
    if (status == CP_OK && me->oldest != NULL && !me->failed)
        status = cp_fail(CP_BROKEN, "returned, but never waited for %s",
                         me->oldest->call);
    if (status != CP_OK)
        record_failure(me, comm->rank, status, cp_message());
    if (status != CP_OK && !dead && me->failed_rank == comm->rank)
        me->status = status; /* an abort gave only the reason */
    settle(me);
    if (!dead)
        leave(me, status);
    if (!me->failed)
        return CP_OK;
    return cp_fail(me->status, "rank %d: %s", me->failed_rank, me->message);
}

static cp_status duplicate(double patience, MPI_Comm *out) {
    const double end = patience > 0 ? cp_clock() + patience : INFINITY;
    const struct timespec nap = {0, 20000};
    MPI_Request request;
    int done = 0;
    if (MPI_Comm_idup(MPI_COMM_WORLD, out, &request) != MPI_SUCCESS)
        return cp_fail(CP_BROKEN, "MPI cannot make a communicator");
    for (;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done)
            return CP_OK;
        if (cp_clock() > end)
            return cp_fail(CP_BROKEN,
                           "not all processes have started within %g s",
                           patience);
        nanosleep(&nap, NULL);
    }
}

static cp_status start_mpi(void) {
    int started = 0, level = MPI_THREAD_FUNNELED;
    MPI_Initialized(&started);
    if (!started &&
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return cp_fail(CP_BROKEN, "MPI does not start");
    if (level < MPI_THREAD_FUNNELED)
        return cp_fail(CP_BROKEN, "this MPI knows no threads");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return CP_OK;
}

cp_status cp_mpi_open(const cp_mpi_options *options, cp_comm **out) {
    struct member *me;
    *out = NULL;
    if (!(options->patience >= 0) || options->piece < 0 ||
        options->piece > INT_MAX)
        return cp_fail(CP_INVALID, "cannot wait for %g s, or send %lld bytes",
                       options->patience, (long long)options->piece);
    cp_status status = start_mpi();
    if (status == CP_OK)
        status = cp_allocate(&me, 1, sizeof(*me), "a communicator");
    if (status != CP_OK)
        return status;
    me->options = *options;
    if (me->options.piece == 0)
        me->options.piece = 1 << 30;
    me->comm.ops = options->unpoked ? &unpoked_ops : &mpi_ops;
    MPI_Comm_rank(MPI_COMM_WORLD, &me->comm.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &me->comm.ranks);
    status = cp_allocate(&me->peers, me->comm.ranks, sizeof(*me->peers),
                         "the other ranks");
    /* Duplicate the world twice. */
    if (status == CP_OK)
        status = duplicate(options->patience, &me->notes);
    if (status == CP_OK)
        status = duplicate(options->patience, &me->freight);
    if (status == CP_OK) {
        *out = &me->comm;
    } else {
        free(me->peers);
        free(me);
    }
    return status;
}

static void forget_news(struct news *news) {
    while (news != NULL) {
        struct news *next = news->next;
        free(news);
        news = next;
    }
}

static bool all_gone(const struct member *me) {
    for (int r = 0; r < me->comm.ranks; r++)
        if (r != me->comm.rank && !me->peers[r].gone)
            return false;
    return true;
}

int cp_mpi_close(cp_comm *comm, int status) {
    struct member *me = (struct member *)comm;
    struct note note = {.kind = GOODBYE, .status = status};
    const double end = parting(me);
    int polls = 0, worst = status;
    snprintf(note.text, sizeof(note.text), "%.479s",
             status == 0 ? "" : cp_message());
    settle(me);
    say_to_all(me, note);
    for (poll(me); !me->silent && cp_clock() < end; poll(me)) {
        if (me->given_up || (all_gone(me) && me->letters == NULL))
            break;
        rest(me, &polls);
    }
    /* Find the worst, and free what was kept. */
    const bool well = all_gone(me) && !me->silent;
    for (int r = 0; r < comm->ranks; r++) {
        worst = worst > me->peers[r].status ? worst : me->peers[r].status;
        forget_news(me->peers[r].offers);
        forget_news(me->peers[r].wants);
    }
    if (status == 0 && me->complaint[0] != '\0')
        cp_fail(CP_BROKEN, "%s", me->complaint);
    free(me->peers);
    free(me);
    return well ? worst : -1;
}

void cp_mpi_end(bool orderly) {
    int started = 0, ended = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (started && !ended && orderly)
        MPI_Finalize();
    else if (started && !ended)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

void cp_mpi_set_patience(cp_comm *comm, double seconds) {
    ((struct member *)comm)->options.patience = seconds;
}

int cp_mpi_local(cp_comm *comm) {
    MPI_Comm here;
    int size = 1;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, comm->rank,
                            MPI_INFO_NULL, &here) != MPI_SUCCESS)
        return comm->ranks;
    MPI_Comm_size(here, &size);
    MPI_Comm_free(&here);
    return size;
}

const char *cp_mpi_name(void) {
#ifdef OPEN_MPI
    return "Open MPI";
#elif defined(MPICH_NAME)
    return "MPICH";
#else
    return "MPI";
#endif
}

#else

cp_status cp_mpi_open(const cp_mpi_options *options, cp_comm **comm) {
    (void)options;
    *comm = NULL;
    return cp_fail(CP_BROKEN, "MPI is not built in");
}

cp_status cp_mpi_run(cp_comm *comm, cp_rank_main function, void *context) {
    (void)comm, (void)function, (void)context;
    return cp_fail(CP_BROKEN, "MPI is not built in");
}

int cp_mpi_close(cp_comm *comm, int status) {
    (void)comm;
    return status;
}

void cp_mpi_end(bool orderly) {
    (void)orderly;
}

void cp_mpi_set_patience(cp_comm *comm, double seconds) {
    (void)comm, (void)seconds;
}

int cp_mpi_local(cp_comm *comm) {
    (void)comm;
    return 1;
}

const char *cp_mpi_name(void) {
    return NULL;
}

#endif
