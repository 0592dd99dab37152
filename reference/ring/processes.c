/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Ranks as processes: MPI's messages, waits that end, and notes about failures.
 * Built with CP_HAVE_MPI, or as an empty shell without. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include "reference/ring/processes.h"

#ifdef CP_HAVE_MPI

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MESSAGE, BARRIER, NOTE }; /* tags */

enum note_kind {
    FAILED,    /* with status; text says why */
    WITHDRAWN, /* I have failed, and receive nothing any more */
    LEFT,      /* I am done with run number, with status */
    GOODBYE,   /* I shall not speak again; status is my exit's */
    AWAIT,     /* for long: that rank; or CP_NOBODY again */
};

struct note {
    int32_t kind, status, rank;
    int64_t number;
    char text[480];
};

/* A note under way to all. */
struct letter {
    struct letter *next;
    struct note note;
    MPI_Request requests[]; /* [ranks] */
};

struct peer {
    int64_t left;         /* the last run it ended */
    double left_at;       /* by our clock */
    bool withdrawn, gone; /* it receives nothing; it has said goodbye */
    int status;           /* with which */
    int awaits;
};

struct member {
    cp_comm comm; /* first: a cp_comm * is a struct member * */
    MPI_Comm world;
    struct peer *peers; /* [ranks] */
    struct letter *letters;
    cp_mpi_options options;
    int64_t runs;        /* begun */
    cp_failure failure;  /* the first that this rank knows of */
    double end;          /* after a failure: until when to wait for others */
    bool settled;        /* after a failure */
    bool silent;         /* MPI may not run any more: see settle */
    char complaint[512]; /* the first that came with a goodbye */
};

static cp_status fail_mpi(int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return cp_fail(CP_BROKEN, "%.300s", text);
}

static void say(struct member *me, const struct note *note) {
    const int ranks = me->comm.ranks;
    struct letter *letter =
        malloc(sizeof(*letter) + (size_t)ranks * sizeof(MPI_Request));
    if (letter == NULL || me->silent) {
        free(letter);
        return;
    }
    letter->note = *note;
    letter->next = me->letters;
    me->letters = letter;
    for (int r = 0; r < ranks; r++) {
        letter->requests[r] = MPI_REQUEST_NULL;
        if (r != me->comm.rank)
            MPI_Isend(&letter->note, sizeof(*note), MPI_BYTE, r, NOTE,
                      me->world, &letter->requests[r]);
    }
}

static void sweep(struct member *me) {
    struct letter **link = &me->letters;
    while (*link != NULL) {
        struct letter *letter = *link;
        int sent = 0;
        MPI_Testall(me->comm.ranks, letter->requests, &sent,
                    MPI_STATUSES_IGNORE);
        if (sent) {
            *link = letter->next;
            free(letter);
        } else {
            link = &letter->next;
        }
    }
}

enum { GRACE = 5, GRACE_OF_SILENT = 1, FAREWELL = 1 }; /* seconds */

static void announce(struct member *me, int silent) {
    const cp_failure *failure = &me->failure;
    me->end = cp_clock() + (silent == CP_NOBODY ? GRACE : GRACE_OF_SILENT);
    if (failure->rank != me->comm.rank)
        return;
    struct note note = {
        .kind = FAILED, .status = (int32_t)failure->status, .rank = silent};
    snprintf(note.text, sizeof(note.text), "%.479s", failure->message);
    say(me, &note);
}

static void note_failure(struct member *me, int rank, cp_status status,
                         int silent) {
    if (cp_failure_note(&me->failure, rank, status))
        announce(me, silent);
}

static void heed(struct member *me, int from, const struct note *note) {
    struct peer *peer = &me->peers[from];
    const cp_status status = (cp_status)note->status;
    switch ((enum note_kind)note->kind) {
    case FAILED:
        note_failure(me, from, cp_fail(status, "%s", note->text), note->rank);
        break;
    case WITHDRAWN:
        peer->withdrawn = true;
        break;
    case LEFT:
        peer->left = note->number;
        peer->left_at = cp_clock();
        if (me->failure.happened && me->failure.rank == from && status != CP_OK)
            me->failure.status = status;
        break;
    case GOODBYE:
        peer->gone = true;
        peer->status = note->status;
        if (peer->status != 0 && me->complaint[0] == '\0')
            snprintf(me->complaint, sizeof(me->complaint), "%s", note->text);
        break;
    case AWAIT:
        peer->awaits = note->rank;
        break;
    }
}

static void poll(struct member *me) {
    struct note note;
    MPI_Status from;
    for (int any = !me->silent; any;) {
        MPI_Iprobe(MPI_ANY_SOURCE, NOTE, me->world, &any, &from);
        if (!any)
            break;
        MPI_Recv(&note, sizeof(note), MPI_BYTE, from.MPI_SOURCE, NOTE,
                 me->world, MPI_STATUS_IGNORE);
        heed(me, from.MPI_SOURCE, &note);
    }
    if (!me->silent)
        sweep(me);
}

static int64_t pieces_of(const struct member *me, const cp_half *half) {
    return cp_max(1, cp_ceil_divide(half->bytes, me->options.piece));
}

static int piece_bytes(const struct member *me, const cp_half *half,
                       int64_t n) {
    const int64_t piece = me->options.piece;
    return (int)cp_min(piece, half->bytes - n * piece);
}

static cp_status start(struct member *me, cp_half *half, bool sends, int tag) {
    if (half->state != CP_HALF_POSTED)
        return CP_OK;
    const int64_t pieces = pieces_of(me, half);
    MPI_Request *requests;
    CP_TRY(cp_allocate(&requests, pieces, sizeof(*requests),
                       "the pieces of a message"));
    half->way = requests;
    for (int64_t n = 0; n < pieces; n++)
        requests[n] = MPI_REQUEST_NULL;
    for (int64_t n = 0; n < pieces; n++) {
        char *data = (char *)half->data + n * me->options.piece;
        const int bytes = piece_bytes(me, half, n);
        const int code = sends ? MPI_Isend(data, bytes, MPI_BYTE, half->peer,
                                           tag, me->world, &requests[n])
                               : MPI_Irecv(data, bytes, MPI_BYTE, half->peer,
                                           tag, me->world, &requests[n]);
        if (code != MPI_SUCCESS)
            return fail_mpi(code);
    }
    return CP_OK;
}

static cp_status test(struct member *me, const cp_exchange *exchange,
                      cp_half *half) {
    MPI_Request *requests = half->way;
    const bool receives = half == &exchange->receive;
    for (int64_t n = 0; requests != NULL && n < pieces_of(me, half); n++) {
        MPI_Status status;
        int done = 0, class = MPI_SUCCESS, bytes = 0;
        if (requests[n] == MPI_REQUEST_NULL)
            continue;
        const int code = MPI_Test(&requests[n], &done, &status);
        if (code == MPI_SUCCESS && !done)
            return CP_OK;
        MPI_Error_class(code, &class);
        if (code != MPI_SUCCESS && class != MPI_ERR_TRUNCATE)
            return fail_mpi(code);
        if (code == MPI_SUCCESS && receives)
            MPI_Get_count(&status, MPI_BYTE, &bytes);
        if (receives && bytes != piece_bytes(me, half, n))
            return cp_fail(CP_BROKEN,
                           "rank %d sends %s to rank %d in %s, which expects "
                           "%lld bytes",
                           half->peer, code == MPI_SUCCESS ? "less" : "more",
                           me->comm.rank, exchange->call,
                           (long long)half->bytes);
    }
    if (requests != NULL)
        half->state = CP_HALF_DONE;
    free(requests);
    half->way = NULL;
    return CP_OK;
}

static void rest(int *polls) {
    enum { EAGER = 100, YIELDING = 1000 };
    const struct timespec nap = {0, 20000};
    ++*polls;
    if (*polls > YIELDING)
        nanosleep(&nap, NULL);
    else if (*polls > EAGER)
        sched_yield();
}

static double deadline(const struct member *me) {
    return me->options.patience > 0 ? cp_clock() + me->options.patience
                                    : INFINITY;
}

static double parting(const struct member *me) {
    return me->failure.happened ? fmin(deadline(me), me->end) : deadline(me);
}

static int silent_behind(const struct member *me, int peer) {
    for (int n = 0; n < me->comm.ranks; n++) {
        const int next = me->peers[peer].awaits;
        if (next == CP_NOBODY || next == me->comm.rank)
            return peer;
        peer = next;
    }
    return peer;
}

static int peer_of(const cp_exchange *exchange) {
    const cp_half *receive = &exchange->receive;
    return receive->state == CP_HALF_POSTED ? receive->peer
                                            : exchange->send.peer;
}
static bool has_left(const struct member *me, int peer) {
    enum { MILLISECONDS = 50 };
    const struct peer *it = &me->peers[peer];
    return it->gone || (it->left >= me->runs &&
                        cp_clock() > it->left_at + MILLISECONDS / 1000.0);
}

static bool in_hand(const struct member *me, cp_half *half) {
    MPI_Request *requests = half->way;
    bool any = false;
    for (int64_t n = 0; requests != NULL && n < pieces_of(me, half); n++) {
        int done = 0;
        if (requests[n] != MPI_REQUEST_NULL &&
            MPI_Test(&requests[n], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS)
            any = any || !done;
    }
    if (any)
        return true;
    free(requests);
    half->way = NULL;
    return false;
}

static bool any_in_hand(const struct member *me, bool sends) {
    bool any = false;
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer) {
        cp_half *half = sends ? &e->send : &e->receive;
        if (!in_hand(me, half))
            continue;
        const struct peer *peer = &me->peers[half->peer];
        any = any || !sends ||
              !(peer->withdrawn || peer->gone || peer->left >= me->runs);
    }
    return any;
}

static void cancel_receives(struct member *me) {
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer) {
        MPI_Request *requests = e->receive.way;
        for (int64_t n = 0; requests != NULL && n < pieces_of(me, &e->receive);
             n++)
            if (requests[n] != MPI_REQUEST_NULL)
                MPI_Cancel(&requests[n]);
    }
}

static void await_end(struct member *me, bool sends) {
    int polls = 0;
    while (!me->silent && any_in_hand(me, sends) && cp_clock() < parting(me)) {
        poll(me);
        rest(&polls);
    }
}

static void settle(struct member *me) {
    if (me->settled || !me->failure.happened)
        return;
    me->settled = true;
    cancel_receives(me);
    await_end(me, false);
    me->silent = any_in_hand(me, false);
    say(me, &(struct note){.kind = WITHDRAWN});
    await_end(me, true);
    while (me->comm.oldest != NULL)
        cp_exchange_remove(&me->comm, me->comm.oldest);
}

static cp_status join_failure(struct member *me) {
    settle(me);
    return cp_failure_tell(&me->failure, me->comm.rank);
}

static cp_status mpi_fail(cp_comm *comm, cp_status status) {
    struct member *me = (struct member *)comm;
    note_failure(me, comm->rank, status, CP_NOBODY);
    return join_failure(me);
}

static cp_status give_up_patience(struct member *me,
                                  const cp_exchange *exchange) {
    const int silent = silent_behind(me, peer_of(exchange));
    const cp_status status =
        cp_exchange_fail(exchange, ", in vain for %g s: rank %d is silent",
                         me->options.patience, silent);
    note_failure(me, me->comm.rank, status, silent);
    return join_failure(me);
}

static cp_status mpi_post(cp_comm *comm, cp_exchange *posted) {
    struct member *me = (struct member *)comm;
    const int tag = posted->barrier ? BARRIER : MESSAGE;
    if (me->failure.happened) {
        free(posted);
        return join_failure(me);
    }
    cp_exchange_append(comm, posted);
    cp_status status = start(me, &posted->receive, false, tag);
    if (status == CP_OK)
        status = start(me, &posted->send, true, tag);
    return status == CP_OK ? CP_OK : mpi_fail(comm, status);
}

static cp_status test_all(struct member *me, cp_exchange *first,
                          const cp_exchange *last) {
    for (;; first = first->newer) {
        CP_TRY(test(me, first, &first->receive));
        CP_TRY(test(me, first, &first->send));
        if (first == last)
            return CP_OK;
    }
}

static void await(struct member *me, int rank) {
    say(me, &(struct note){.kind = AWAIT, .rank = rank});
}

static cp_status mpi_complete(cp_comm *comm, cp_exchange *first,
                              cp_exchange *last) {
    struct member *me = (struct member *)comm;
    const double end = deadline(me), half = end - me->options.patience / 2;
    bool told = false;
    int polls = 0;
    for (;; rest(&polls)) {
        poll(me);
        if (me->failure.happened)
            return join_failure(me);
        const cp_status status = test_all(me, first, last);
        if (status != CP_OK)
            return mpi_fail(comm, status);
        const cp_exchange *unmet = cp_exchange_unmet(first, last);
        if (unmet == NULL)
            break;
        const int peer = peer_of(unmet);
        if (has_left(me, peer))
            return mpi_fail(
                comm, cp_exchange_fail(unmet, ", but rank %d has left", peer));
        if (cp_clock() > end)
            return give_up_patience(me, unmet);
        if (!told && cp_clock() > half)
            await(me, peer);
        told = told || cp_clock() > half;
    }
    if (told)
        await(me, CP_NOBODY);
    cp_exchange_remove_all(comm, first, last);
    return CP_OK;
}

static void mpi_poke(cp_comm *comm) {
    poll((struct member *)comm);
}

static const cp_comm_ops mpi_ops = {mpi_post, mpi_complete, mpi_fail, mpi_poke};
static const cp_comm_ops unpoked_ops = {mpi_post, mpi_complete, mpi_fail, NULL};

static int first_missing(const struct member *me, bool goodbye) {
    for (int r = 0; r < me->comm.ranks; r++) {
        const struct peer *peer = &me->peers[r];
        if (r != me->comm.rank && !peer->gone &&
            (goodbye || peer->left < me->runs))
            return r;
    }
    return CP_NOBODY;
}

static void leave(struct member *me) {
    const cp_failure *failure = &me->failure;
    const bool ours = failure->happened && failure->rank == me->comm.rank;
    const cp_status status = ours ? failure->status : CP_OK;
    const double patience = deadline(me);
    int polls = 0;
    say(me, &(struct note){
                .kind = LEFT, .number = me->runs, .status = (int32_t)status});
    for (poll(me); !me->silent; poll(me)) {
        const int late = first_missing(me, false);
        if (late == CP_NOBODY ||
            cp_clock() > (failure->happened ? me->end : patience))
            break;
        rest(&polls);
    }
    /* Complain about those who have not left. */
    const int late = first_missing(me, false);
    if (late != CP_NOBODY && !failure->happened)
        note_failure(me, me->comm.rank,
                     cp_fail(CP_BROKEN,
                             "waits at the end of call %lld, in vain for %g s: "
                             "rank %d is silent",
                             (long long)me->runs, me->options.patience, late),
                     late);
}

cp_status cp_mpi_run(cp_comm *comm, cp_rank_main function, void *context) {
    struct member *me = (struct member *)comm;
    if (me->failure.happened)
        return cp_failure_report(&me->failure);
    me->runs++;
    comm->sent = (cp_traffic){0};
    const cp_status status = function(comm, context);
    if (cp_failure_note_return(&me->failure, comm, status))
        announce(me, CP_NOBODY);
    settle(me);
    leave(me);
    return cp_failure_report(&me->failure);
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

static cp_status duplicate(double patience, MPI_Comm *out) {
    const double end = patience > 0 ? cp_clock() + patience : INFINITY;
    MPI_Request request;
    int done = 0, polls = 0;
    if (MPI_Comm_idup(MPI_COMM_WORLD, out, &request) != MPI_SUCCESS)
        return cp_fail(CP_BROKEN, "MPI cannot make a communicator");
    for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done;
         MPI_Test(&request, &done, MPI_STATUS_IGNORE)) {
        if (cp_clock() > end)
            return cp_fail(CP_BROKEN,
                           "not all processes have started within %g s",
                           patience);
        rest(&polls);
    }
    return CP_OK;
}

cp_status cp_mpi_open(const cp_mpi_options *options, cp_comm **out) {
    struct member *me;
    *out = NULL;
    if (!(options->patience >= 0) || options->piece < 0 ||
        options->piece > INT_MAX)
        return cp_fail(CP_INVALID, "cannot wait for %g s, or send %lld bytes",
                       options->patience, (long long)options->piece);
    CP_TRY(start_mpi());
    CP_TRY(cp_allocate(&me, 1, sizeof(*me), "a communicator"));
    me->options = *options;
    if (me->options.piece == 0)
        me->options.piece = 1 << 30;
    me->comm.ops = options->unpoked ? &unpoked_ops : &mpi_ops;
    MPI_Comm_rank(MPI_COMM_WORLD, &me->comm.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &me->comm.ranks);
    cp_status status = cp_allocate(&me->peers, me->comm.ranks,
                                   sizeof(*me->peers), "the other ranks");
    for (int r = 0; r < me->comm.ranks && status == CP_OK; r++)
        me->peers[r].awaits = CP_NOBODY;
    if (status == CP_OK)
        status = duplicate(options->patience, &me->world);
    if (status == CP_OK) {
        *out = &me->comm;
        return CP_OK;
    }
    free(me->peers);
    free(me);
    return status;
}

int cp_mpi_close(cp_comm *comm, int status, bool *speaks) {
    struct member *me = (struct member *)comm;
    struct note note = {.kind = GOODBYE, .status = status};
    const double end = fmax(parting(me), cp_clock() + FAREWELL);
    int polls = 0, worst = status, missing;
    snprintf(note.text, sizeof(note.text), "%.479s",
             status == 0 ? "" : cp_message());
    say(me, &note);
    for (poll(me); !me->silent && cp_clock() < end; poll(me)) {
        if (first_missing(me, true) == CP_NOBODY && me->letters == NULL)
            break;
        rest(&polls);
    }
    missing = first_missing(me, true);
    *speaks = true;
    for (int r = 0; r < comm->ranks; r++) {
        worst = worst > me->peers[r].status ? worst : me->peers[r].status;
        *speaks = *speaks && !(r < comm->rank && me->peers[r].gone);
    }
    if (status == 0 && me->complaint[0] != '\0')
        cp_fail(CP_BROKEN, "%s", me->complaint);
    else if (status == 0 && missing != CP_NOBODY)
        cp_fail(CP_BROKEN, "rank %d has gone without a word", missing);
    const bool well = missing == CP_NOBODY && !me->silent;
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

int cp_mpi_close(cp_comm *comm, int status, bool *speaks) {
    (void)comm;
    *speaks = true;
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
