/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Ranks as processes: MPI's messages, waits with a timeout, and status messages
 * about failures. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include "reference/run/processes.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STATUS, MESSAGE, BARRIER }; /* tags; the last two in the first epoch */

/* The status message: what a rank reports about itself. */
struct status_message {
    int64_t left;      /* the last run that it has left */
    int32_t status;    /* of its failure, if it is the first; text says why */
    int32_t silent;    /* the rank that it timed out on, or CP_NO_RANK */
    int32_t waits_for; /* a rank that it has long waited for, or CP_NO_RANK */
    int32_t goodbye;   /* its exit status, after its last message; or -1 */
    int32_t cancelled; /* it has failed, and receives nothing any more */
    int32_t epoch;     /* how many lost ranks it has removed so far */
    uint64_t lost;     /* processes that it counts as lost, one bit each */
    int64_t ended;     /* the last run that it knows succeeded on all ranks */
    char text[480];
    double received_at; /* when it arrived, by the receiver's clock */
};

struct process_member {
    cp_comm comm; /* first: a cp_comm * is a struct process_member * */
    MPI_Comm world;
    cp_mpi_options options;
    struct status_message
        *messages; /* [ranks] the last of each rank, our own included */
    struct status_message *own_message; /* our own, in messages */
    void *outbox;           /* status messages that MPI has not sent yet */
    int64_t runs;           /* begun */
    cp_failure failure;     /* the first that this rank knows of */
    double end;             /* after a failure: until when to wait for others */
    bool pending_cancelled; /* after a failure: nothing is pending any more */
    bool silent;            /* MPI must not run any more: see cancel_pending */
    int *world_ranks;       /* [ranks] its rank in MPI's world */
    bool evicted;           /* the others count this rank as lost */
    int64_t agreed_run;     /* run after which all agree which are lost; or 0 */
};

static cp_status fail_mpi(int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return cp_fail(CP_BROKEN, "%.300s", text);
}

static void broadcast_status(const struct process_member *me) {
    for (int r = 0; r < me->comm.ranks && !me->silent; r++)
        if (r != me->comm.rank)
            MPI_Bsend(me->own_message, sizeof(*me->own_message), MPI_BYTE,
                      me->world_ranks[r], STATUS, me->world);
}

static uint64_t bit_of(const struct process_member *me, int rank) {
    return UINT64_C(1) << me->world_ranks[rank];
}

static bool is_lost(const struct process_member *me, int rank) {
    return me->options.repairs &&
           (me->own_message->lost & bit_of(me, rank)) != 0;
}

/* Has a rank been lost since this epoch began? */
static bool has_lost(const struct process_member *me) {
    return me->options.repairs &&
           __builtin_popcountll(me->own_message->lost) > me->own_message->epoch;
}

static int rank_at(const struct process_member *me, int world_rank) {
    for (int r = 0; r < me->comm.ranks; r++)
        if (me->world_ranks[r] == world_rank)
            return r;
    return CP_NO_RANK;
}

/* Rank numbers in a message mean something only in our own epoch. */
static const struct status_message *message_of(const struct process_member *me,
                                               int rank) {
    static const struct status_message nothing = {.waits_for = CP_NO_RANK,
                                                  .goodbye = CP_NO_RANK};
    const struct status_message *message = &me->messages[rank];
    return message->epoch == me->own_message->epoch ? message : &nothing;
}

enum { GRACE = 5, GRACE_OF_SILENT = 1, FAREWELL = 1 }; /* seconds */

static void announce(struct process_member *me, int silent) {
    const cp_failure *failure = &me->failure;
    me->end = cp_clock() + (silent == CP_NO_RANK ? GRACE : GRACE_OF_SILENT);
    if (silent != CP_NO_RANK && me->options.repairs) {
        me->own_message->lost |= bit_of(me, silent);
        me->end = cp_clock() + fmax(GRACE, me->options.timeout);
    }
    if (failure->rank != me->comm.rank)
        return;
    me->own_message->status = (int32_t)failure->status;
    me->own_message->silent = silent;
    snprintf(me->own_message->text, sizeof(me->own_message->text), "%.479s",
             failure->message);
    broadcast_status(me);
}

static void note_failure(struct process_member *me, int rank, cp_status status,
                         int silent) {
    if (cp_failure_note(&me->failure, rank, status))
        announce(me, silent);
}

/* A rank declared lost by any rank is lost for all. */
static void on_loss(struct process_member *me, int from) {
    const uint64_t new_losses =
        me->messages[from].lost & ~me->own_message->lost;
    for (int r = 0; r < me->comm.ranks; r++)
        if ((new_losses & bit_of(me, r)) != 0)
            note_failure(me, from, cp_fail(CP_BROKEN, "rank %d is silent", r),
                         r);
    me->own_message->lost |= new_losses;
}

/* A rank that learns it was evicted ends before it marks itself lost. */
static bool on_eviction(struct process_member *me, int from) {
    if ((me->messages[from].lost & bit_of(me, me->comm.rank)) == 0)
        return false;
    if (!me->evicted) /* whatever failure it noted before follows from this */
        me->failure.happened = false;
    me->evicted = true;
    note_failure(me, me->comm.rank,
                 cp_fail(CP_BROKEN, "evicted: this rank was silent for too "
                                    "long, and the others go on without it"),
                 CP_NO_RANK);
    return true;
}

static void on_status(struct process_member *me, int from) {
    const struct status_message *message = message_of(me, from);
    const cp_status status = (cp_status)message->status;
    if (me->options.repairs && on_eviction(me, from))
        return;
    if (status != CP_OK && !me->failure.happened)
        note_failure(me, from, cp_fail(status, "%s", message->text),
                     message->silent);
    if (me->options.repairs)
        on_loss(me, from);
    if (status == CP_OK)
        return;
    if (me->failure.rank == from)
        me->failure.status = status;
}

static void poll_status(struct process_member *me) {
    MPI_Status from;
    struct status_message message;
    for (int any = !me->silent; any;) {
        MPI_Iprobe(MPI_ANY_SOURCE, STATUS, me->world, &any, &from);
        if (!any)
            return;
        MPI_Recv(&message, sizeof(message), MPI_BYTE, from.MPI_SOURCE, STATUS,
                 me->world, MPI_STATUS_IGNORE);
        const int rank = rank_at(me, from.MPI_SOURCE);
        if (rank == CP_NO_RANK) /* that rank was lost */
            continue;
        message.received_at = cp_clock();
        me->messages[rank] = message;
        on_status(me, rank);
    }
}

/* The type of a message's elements; returns how many there are. */
static int type_of(int64_t bytes, int64_t piece, MPI_Datatype *type) {
    const int counts[] = {(int)(bytes / piece), (int)(bytes % piece)};
    const MPI_Aint starts[] = {0, (MPI_Aint)(bytes - bytes % piece)};
    MPI_Datatype parts[] = {MPI_BYTE, MPI_BYTE};
    *type = MPI_BYTE;
    if (bytes <= piece)
        return (int)bytes;
    MPI_Type_contiguous((int)piece, MPI_BYTE, &parts[0]);
    MPI_Type_create_struct(2, counts, starts, parts, type);
    MPI_Type_commit(type);
    MPI_Type_free(&parts[0]);
    return 1;
}

static cp_status start(struct process_member *me, cp_half *half, bool sends,
                       int tag) {
    MPI_Datatype type;
    MPI_Request *request;
    if (half->state != CP_HALF_POSTED)
        return CP_OK;
    CP_TRY(cp_allocate(&request, 1, sizeof(*request), "a message's request"));
    *request = MPI_REQUEST_NULL;
    half->way = request;
    const int count = type_of(half->bytes, me->options.piece, &type);
    const int world_rank = me->world_ranks[half->peer];
    const int code = sends ? MPI_Isend(half->data, count, type, world_rank, tag,
                                       me->world, request)
                           : MPI_Irecv(half->data, count, type, world_rank, tag,
                                       me->world, request);
    if (type != MPI_BYTE)
        MPI_Type_free(&type);
    return code == MPI_SUCCESS ? CP_OK : fail_mpi(code);
}

static void release(cp_half *half) {
    free(half->way);
    half->way = NULL;
}

static cp_status test(const struct process_member *me,
                      const cp_exchange *exchange, cp_half *half) {
    const bool receives = half == &exchange->receive;
    MPI_Status status;
    MPI_Count bytes = 0;
    int done = 0, class = MPI_SUCCESS;
    if (half->way == NULL)
        return CP_OK;
    const int code = MPI_Test(half->way, &done, &status);
    if (code == MPI_SUCCESS && !done)
        return CP_OK;
    MPI_Error_class(code, &class);
    if (code != MPI_SUCCESS && class != MPI_ERR_TRUNCATE)
        return fail_mpi(code);
    if (code == MPI_SUCCESS && receives)
        MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    if (receives && bytes != half->bytes)
        return cp_fail(CP_BROKEN,
                       "rank %d sends %s to rank %d in %s, which expects %ld "
                       "bytes",
                       half->peer, code == MPI_SUCCESS ? "less" : "more",
                       me->comm.rank, exchange->call, half->bytes);
    half->state = CP_HALF_DONE;
    release(half);
    return CP_OK;
}

static void back_off(int *polls) {
    enum { EAGER = 100, YIELDING = 1000 };
    const struct timespec nap = {0, 20000};
    ++*polls;
    if (*polls > YIELDING)
        nanosleep(&nap, NULL);
    else if (*polls > EAGER)
        sched_yield();
}

static double deadline(double timeout) {
    return timeout > 0 ? cp_clock() + timeout : INFINITY;
}

static bool wait_until(struct process_member *me,
                       bool (*so)(const struct process_member *), double end) {
    for (int polls = 0; !me->silent; back_off(&polls)) {
        poll_status(me);
        if (so(me))
            return true;
        if (cp_clock() > (me->failure.happened ? me->end : end))
            return false;
    }
    return false;
}

static void await(struct process_member *me, int rank) {
    if (me->own_message->waits_for == rank)
        return;
    me->own_message->waits_for = rank;
    broadcast_status(me);
}

static int silent_behind(const struct process_member *me, int peer) {
    for (int n = 0; n < me->comm.ranks; n++) {
        const int next = message_of(me, peer)->waits_for;
        if (next == CP_NO_RANK || next == me->comm.rank)
            return peer;
        peer = next;
    }
    return peer;
}

static bool has_left(const struct process_member *me, int peer) {
    enum { MILLISECONDS = 50 };
    const struct status_message *message = &me->messages[peer];
    return message->goodbye >= 0 ||
           (message->left >= me->runs &&
            cp_clock() > message->received_at + MILLISECONDS / 1000.0);
}

static bool in_hand(cp_half *half) {
    MPI_Request *request = half->way;
    int done = 0;
    if (request == NULL)
        return false;
    if (*request != MPI_REQUEST_NULL &&
        MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        return true;
    release(half);
    return false;
}

static bool receives_are_back(const struct process_member *me) {
    bool back = true;
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer)
        back = (!in_hand(&e->receive) || is_lost(me, e->receive.peer)) && back;
    return back;
}

static bool sends_are_back(const struct process_member *me) {
    bool back = true;
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer)
        if (in_hand(&e->send)) {
            const struct status_message *message = &me->messages[e->send.peer];
            back = back &&
                   (message->cancelled || message->goodbye >= 0 ||
                    message->left >= me->runs || is_lost(me, e->send.peer));
        }
    return back;
}

/* A lost rank may have died with a message half done, or may still be alive. */
static bool keeps_buffers(const struct process_member *me) {
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer)
        if ((in_hand(&e->receive) && is_lost(me, e->receive.peer)) ||
            (in_hand(&e->send) && is_lost(me, e->send.peer)))
            return true;
    return false;
}

static void cancel_pending(struct process_member *me) {
    if (me->pending_cancelled || !me->failure.happened)
        return;
    me->pending_cancelled = true;
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer) {
        MPI_Request *request = e->receive.way;
        if (request != NULL && *request != MPI_REQUEST_NULL)
            MPI_Cancel(request);
    }
    me->silent = !wait_until(me, receives_are_back, me->end);
    me->own_message->cancelled = true;
    broadcast_status(me);
    wait_until(me, sends_are_back, me->end);
    me->comm.kept = me->comm.kept || keeps_buffers(me);
    while (me->comm.oldest != NULL)
        cp_exchange_remove(&me->comm, me->comm.oldest, me->comm.oldest);
}

static cp_status join_failure(struct process_member *me) {
    cancel_pending(me);
    return cp_failure_status(&me->failure, me->comm.rank);
}

static cp_status mpi_fail(cp_comm *comm, cp_status status) {
    struct process_member *me = (struct process_member *)comm;
    note_failure(me, comm->rank, status, CP_NO_RANK);
    return join_failure(me);
}

static cp_status mpi_post(cp_comm *comm, cp_exchange *posted) {
    struct process_member *me = (struct process_member *)comm;
    const int tag =
        (posted->barrier ? BARRIER : MESSAGE) + 2 * me->own_message->epoch;
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

static cp_status test_all(struct process_member *me, cp_exchange *first,
                          const cp_exchange *last) {
    for (;; first = first->newer) {
        CP_TRY(test(me, first, &first->receive));
        CP_TRY(test(me, first, &first->send));
        if (first == last)
            return CP_OK;
    }
}
static cp_status take_back_timeout(struct process_member *me,
                                   const cp_exchange *exchange, int peer) {
    const int silent = silent_behind(me, peer);
    note_failure(me, me->comm.rank,
                 cp_fail(CP_BROKEN,
                         "%s; timed out after %g s: rank %d is silent",
                         cp_exchange_describe(exchange).text,
                         me->options.timeout, silent),
                 silent);
    return join_failure(me);
}

static cp_status mpi_complete(cp_comm *comm, cp_exchange *first,
                              cp_exchange *last) {
    struct process_member *me = (struct process_member *)comm;
    const double timeout = me->options.timeout, end = deadline(timeout);
    for (int polls = 0;; back_off(&polls)) {
        poll_status(me);
        if (me->failure.happened)
            return join_failure(me);
        const cp_status status = test_all(me, first, last);
        if (status != CP_OK)
            return mpi_fail(comm, status);
        const cp_exchange *unmet = cp_exchange_unmet(first, last);
        if (unmet == NULL)
            break;
        const bool receives = unmet->receive.state == CP_HALF_POSTED;
        const int peer = receives ? unmet->receive.peer : unmet->send.peer;
        if (has_left(me, peer))
            return mpi_fail(comm,
                            cp_fail(CP_BROKEN, "%s, but rank %d has left",
                                    cp_exchange_describe(unmet).text, peer));
        if (cp_clock() > end)
            return take_back_timeout(me, unmet, peer);
        if (cp_clock() > end - timeout / 2)
            await(me, peer);
    }
    await(me, CP_NO_RANK);
    cp_exchange_remove(comm, first, last);
    return CP_OK;
}

static void mpi_progress(cp_comm *comm) {
    poll_status((struct process_member *)comm);
}

static const cp_comm_ops mpi_ops = {mpi_post, mpi_complete, mpi_fail,
                                    mpi_progress};

static int first_missing(const struct process_member *me, bool goodbye) {
    for (int r = 0; r < me->comm.ranks; r++)
        if (me->messages[r].goodbye < 0 &&
            (goodbye || me->messages[r].left < me->runs))
            return r;
    return CP_NO_RANK;
}

static bool all_have_left(const struct process_member *me) {
    return has_lost(me) || first_missing(me, false) == CP_NO_RANK;
}

static void leave(struct process_member *me) {
    const cp_failure *failure = &me->failure;
    if (failure->happened && failure->rank == me->comm.rank)
        me->own_message->status = (int32_t)failure->status;
    me->own_message->left = me->runs;
    broadcast_status(me);
    if (failure->happened && has_lost(me))
        return;
    if (wait_until(me, all_have_left, deadline(me->options.timeout)) ||
        failure->happened) {
        if (!failure->happened)
            me->own_message->ended = me->runs;
        return;
    }
    const int late = silent_behind(me, first_missing(me, false));
    note_failure(me, me->comm.rank,
                 cp_fail(CP_BROKEN,
                         "waits at the end of call %ld; timed out after %g s: "
                         "rank %d is silent",
                         me->runs, me->options.timeout, late),
                 late);
}

static int first_apart(const struct process_member *me) {
    for (int r = 0; r < me->comm.ranks; r++)
        if (r != me->comm.rank && !is_lost(me, r) &&
            me->messages[r].goodbye < 0 &&
            me->messages[r].lost != me->own_message->lost)
            return r;
    return CP_NO_RANK;
}

static bool agree_on_lost(struct process_member *me) {
    const double timeout = fmax(GRACE, me->options.timeout);
    uint64_t announced = 0;
    double end = INFINITY;
    if (!has_lost(me))
        return false;
    for (int polls = 0, late = 0; late != CP_NO_RANK; back_off(&polls)) {
        poll_status(me);
        if (me->silent || me->evicted)
            return false;
        if (announced != me->own_message->lost) {
            announced = me->own_message->lost;
            broadcast_status(me);
            end = cp_clock() + timeout;
        }
        late = first_apart(me);
        if (late != CP_NO_RANK && cp_clock() > end)
            me->own_message->lost |= bit_of(me, late);
    }
    int64_t ended = 0;
    for (int r = 0; r < me->comm.ranks; r++)
        if (!is_lost(me, r))
            ended = cp_max(ended, me->messages[r].ended);
    me->agreed_run = ended + 1;
    return ended >= me->runs;
}

static void renumber(struct process_member *me, int lost) {
    struct status_message *own_message = me->own_message;
    const size_t after = (size_t)(--me->comm.ranks - lost);
    own_message->epoch++;
    own_message->status = CP_OK;
    own_message->silent = own_message->waits_for = CP_NO_RANK;
    own_message->cancelled = false;
    own_message->left = me->runs = me->agreed_run;
    memmove(me->messages + lost, me->messages + lost + 1,
            after * sizeof(*own_message));
    memmove(me->world_ranks + lost, me->world_ranks + lost + 1,
            after * sizeof(int));
    me->comm.rank -= me->comm.rank > lost;
    me->own_message = &me->messages[me->comm.rank];
    me->failure = (cp_failure){.happened = false};
    me->pending_cancelled = false;
    for (int r = 0; r < me->comm.ranks; r++)
        if (me->messages[r].epoch != me->own_message->epoch)
            me->messages[r].cancelled = false;
}

bool cp_mpi_shrink(cp_comm *comm, int *lost) {
    struct process_member *me = (struct process_member *)comm;
    int last = CP_NO_RANK;
    for (int r = 0; r < comm->ranks && me->agreed_run > 0; r++)
        last = is_lost(me, r) ? r : last;
    if (last == CP_NO_RANK)
        return false;
    *lost = last;
    renumber(me, last);
    if (has_lost(me)) /* one more: the next call returns it */
        return true;
    me->agreed_run = 0;
    broadcast_status(me);
    for (int r = 0; r < comm->ranks; r++)
        on_status(me, r);
    return true;
}

bool cp_mpi_is_evicted(const cp_comm *comm) {
    return ((const struct process_member *)comm)->evicted;
}
cp_status cp_mpi_run(cp_comm *comm, cp_rank_main function, void *context) {
    struct process_member *me = (struct process_member *)comm;
    if (me->failure.happened)
        return cp_failure_report(&me->failure);
    me->runs++;
    comm->sent = (cp_traffic){0};
    comm->kept = false;
    const cp_status status = function(comm, context);
    if (cp_failure_note_return(&me->failure, comm, status))
        announce(me, CP_NO_RANK);
    cancel_pending(me);
    leave(me);
    if (me->failure.happened && agree_on_lost(me))
        return CP_OK;
    return cp_failure_report(&me->failure);
}

/* Recovery on: any rank reports, since the usual reporter may be dead. */
static volatile sig_atomic_t all_report;

/* MPI_Init waits for all processes without limit; an alarm bounds it. */
static void on_late(int signal) {
    static const char text[] = "longring: not all processes have started\n";
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    (void)signal;
    if (all_report || rank == NULL || strcmp(rank, "1") <= 0) {
        const ssize_t ignored = write(STDERR_FILENO, text, sizeof(text) - 1);
        (void)ignored;
    }
    _exit(1);
}

enum { STARTING = 10 }; /* seconds that a slow start may take */

static cp_status start_mpi(double timeout) {
    int started = 0, level = MPI_THREAD_FUNNELED;
    MPI_Initialized(&started);
    if (!started && timeout > 0) {
        signal(SIGALRM, on_late);
        alarm((unsigned)ceil(fmin(fmax(timeout, STARTING), INT_MAX)));
    }
    const int code =
        started ? MPI_SUCCESS
                : MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    alarm(0);
    if (code != MPI_SUCCESS)
        return cp_fail(CP_BROKEN, "MPI_Init_thread failed");
    if (level < MPI_THREAD_FUNNELED)
        return cp_fail(CP_BROKEN, "this MPI has no MPI_THREAD_FUNNELED");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return CP_OK;
}

static cp_status duplicate(double timeout, MPI_Comm *out) {
    const double end = deadline(timeout);
    MPI_Request request;
    int done = 0, polls = 0;
    if (MPI_Comm_idup(MPI_COMM_WORLD, out, &request) != MPI_SUCCESS)
        return cp_fail(CP_BROKEN, "MPI_Comm_idup failed");
    for (; !done; back_off(&polls)) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done && cp_clock() > end)
            return cp_fail(CP_BROKEN,
                           "not all processes have started within %g s",
                           timeout);
    }
    return CP_OK;
}

enum { OUTBOX = 16 }; /* status messages to each rank */

static cp_status begin(struct process_member *me) {
    const int ranks = me->comm.ranks;
    const int64_t outbox =
        ranks * OUTBOX *
        (int64_t)(sizeof(struct status_message) + MPI_BSEND_OVERHEAD);
    CP_TRY(
        cp_allocate(&me->messages, ranks, sizeof(*me->messages), "the ranks"));
    CP_TRY(cp_allocate(&me->world_ranks, ranks, sizeof(int), "the ranks"));
    me->options.repairs = me->options.repairs && ranks <= 64;
    CP_TRY(cp_allocate(&me->outbox, outbox, 1, "status messages"));
    me->own_message = &me->messages[me->comm.rank];
    for (int r = 0; r < ranks; r++) {
        me->messages[r].waits_for = me->messages[r].goodbye = CP_NO_RANK;
        me->world_ranks[r] = r;
    }
    CP_TRY(duplicate(me->options.timeout, &me->world));
    MPI_Buffer_attach(me->outbox, (int)outbox);
    return CP_OK;
}

static void forget(struct process_member *me) {
    free(me->messages);
    free(me->world_ranks);
    free(me->outbox);
    free(me);
}

cp_status cp_mpi_open(const cp_mpi_options *options, cp_comm **out) {
    struct process_member *me;
    *out = NULL;
    if (!(options->timeout >= 0) || options->piece < 0 ||
        options->piece > INT_MAX)
        return cp_refuse("timeout %g s, pieces of %ld bytes: neither may be "
                         "< 0, and a piece must fit an int",
                         options->timeout, options->piece);
    all_report = options->repairs;
    CP_TRY(start_mpi(options->timeout));
    CP_TRY(cp_allocate(&me, 1, sizeof(*me), "a communicator"));
    me->options = *options;
    if (me->options.piece == 0)
        me->options.piece = 1 << 30;
    me->comm.ops = &mpi_ops;
    MPI_Comm_rank(MPI_COMM_WORLD, &me->comm.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &me->comm.ranks);
    const cp_status status = begin(me);
    if (status == CP_OK)
        *out = &me->comm;
    else
        forget(me);
    return status;
}

static bool all_are_gone(const struct process_member *me) {
    return first_missing(me, true) == CP_NO_RANK;
}

/* MPI cannot be finalized any more, and need not be. */
static bool left_behind;

int cp_mpi_close(cp_comm *comm, int status, bool *is_reporter) {
    struct process_member *me = (struct process_member *)comm;
    const double end = cp_clock() + FAREWELL;
    const char *complaint = "";
    int worst = status, room;
    me->end = fmax(me->end, end);
    me->own_message->goodbye = status;
    snprintf(me->own_message->text, sizeof(me->own_message->text), "%.479s",
             status == 0 ? "" : cp_message());
    broadcast_status(me);
    bool well =
        !me->evicted &&
        wait_until(me, all_are_gone, fmax(deadline(me->options.timeout), end));
    left_behind = me->evicted || me->own_message->epoch > 0;
    /* The work is done, unless it is rank 0 that is missing. */
    if (me->options.repairs && !well && status == 0 &&
        first_missing(me, true) > 0)
        well = left_behind = true;
    *is_reporter = true;
    for (int r = 0; r < comm->ranks; r++) {
        const struct status_message *message = &me->messages[r];
        worst = (int)cp_max(worst, message->goodbye);
        *is_reporter =
            *is_reporter && !(r < comm->rank && message->goodbye >= 0);
        if (message->goodbye > 0 && complaint[0] == '\0')
            complaint = message->text;
    }
    if (status == 0 && complaint[0] != '\0')
        cp_fail(CP_BROKEN, "%s", complaint);
    else if (status == 0 && !well)
        cp_fail(CP_BROKEN, "rank %d has gone without saying why",
                first_missing(me, true));
    if (!well)
        return -1;
    MPI_Buffer_detach(&me->outbox, &room);
    forget(me);
    return worst;
}
void cp_mpi_end(bool orderly) {
    int started = 0, ended = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (left_behind)
        return;
    if (started && !ended && orderly)
        MPI_Finalize();
    else if (started && !ended)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

void cp_mpi_set_timeout(cp_comm *comm, double seconds) {
    ((struct process_member *)comm)->options.timeout = seconds;
}

int cp_mpi_local(cp_comm *comm) {
    MPI_Comm local_comm;
    int size = 1;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, comm->rank,
                            MPI_INFO_NULL, &local_comm) != MPI_SUCCESS)
        return comm->ranks;
    MPI_Comm_size(local_comm, &size);
    MPI_Comm_free(&local_comm);
    return size;
}
