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

#include "group/membership.h"

enum { STATUS, MESSAGE, BARRIER }; /* tags; the last two in the first epoch */

struct process_member {
    cp_comm comm; /* first: a cp_comm * is a struct process_member * */
    MPI_Comm world;
    cp_mpi_options options;
    cp_membership members;
    void *outbox;           /* status messages that MPI has not sent yet */
    bool pending_cancelled; /* after a failure: nothing is pending any more */
    bool silent;            /* MPI must not run any more: see cancel_pending */
};

static cp_status fail_mpi(int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return cp_fail(CP_BROKEN, "%.300s", text);
}

static void broadcast_status(struct process_member *me) {
    const cp_membership *m = &me->members;
    for (int r = 0; r < m->ranks && !me->silent; r++)
        if (r != m->rank)
            MPI_Bsend(m->own_message, sizeof(*m->own_message), MPI_BYTE,
                      m->processes[r], STATUS, me->world);
    me->members.changed = false;
}

static void send_changes(struct process_member *me) {
    if (me->members.changed)
        broadcast_status(me);
}

static void note_failure(struct process_member *me, int rank, cp_status status,
                         int silent) {
    cp_member_note(&me->members, rank, status, silent, cp_clock());
    send_changes(me);
}

static void poll_status(struct process_member *me) {
    MPI_Status from;
    cp_member_status message;
    for (int any = !me->silent; any;) {
        MPI_Iprobe(MPI_ANY_SOURCE, STATUS, me->world, &any, &from);
        if (!any)
            return;
        MPI_Recv(&message, sizeof(message), MPI_BYTE, from.MPI_SOURCE, STATUS,
                 me->world, MPI_STATUS_IGNORE);
        cp_member_receive(&me->members, from.MPI_SOURCE, &message, cp_clock());
        send_changes(me);
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
    const int world_rank = me->members.processes[half->peer];
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

static void await(struct process_member *me, int rank) {
    cp_member_await(&me->members, rank);
    send_changes(me);
}

static bool wait_until(struct process_member *me,
                       bool (*so)(const struct process_member *), double end) {
    for (int polls = 0; !me->silent; back_off(&polls)) {
        poll_status(me);
        if (so(me))
            return true;
        if (cp_clock() > (me->members.failure.happened ? me->members.end : end))
            return false;
    }
    return false;
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
        back = (!in_hand(&e->receive) ||
                cp_member_is_lost(&me->members, e->receive.peer)) &&
               back;
    return back;
}

static bool sends_are_back(const struct process_member *me) {
    bool back = true;
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer)
        if (in_hand(&e->send)) {
            const cp_member_status *message =
                &me->members.messages[e->send.peer];
            back = back && (message->cancelled || message->goodbye >= 0 ||
                            message->left >= me->members.runs ||
                            cp_member_is_lost(&me->members, e->send.peer));
        }
    return back;
}

/* A lost rank may have died with a message half done, or may still be alive. */
static bool keeps_buffers(const struct process_member *me) {
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer)
        if ((in_hand(&e->receive) &&
             cp_member_is_lost(&me->members, e->receive.peer)) ||
            (in_hand(&e->send) &&
             cp_member_is_lost(&me->members, e->send.peer)))
            return true;
    return false;
}

static void cancel_pending(struct process_member *me) {
    if (me->pending_cancelled || !me->members.failure.happened)
        return;
    me->pending_cancelled = true;
    for (cp_exchange *e = me->comm.oldest; e != NULL; e = e->newer) {
        MPI_Request *request = e->receive.way;
        if (request != NULL && *request != MPI_REQUEST_NULL)
            MPI_Cancel(request);
    }
    me->silent = !wait_until(me, receives_are_back, me->members.end);
    me->members.own_message->cancelled = true;
    broadcast_status(me);
    wait_until(me, sends_are_back, me->members.end);
    me->comm.kept = me->comm.kept || keeps_buffers(me);
    while (me->comm.oldest != NULL)
        cp_exchange_remove(&me->comm, me->comm.oldest, me->comm.oldest);
}

static cp_status join_failure(struct process_member *me) {
    cancel_pending(me);
    return cp_failure_status(&me->members.failure, me->comm.rank);
}

static cp_status mpi_fail(cp_comm *comm, cp_status status) {
    struct process_member *me = (struct process_member *)comm;
    note_failure(me, comm->rank, status, CP_NO_RANK);
    return join_failure(me);
}

static cp_status mpi_post(cp_comm *comm, cp_exchange *posted) {
    struct process_member *me = (struct process_member *)comm;
    const int tag = (posted->barrier ? BARRIER : MESSAGE) +
                    2 * me->members.own_message->epoch;
    if (me->members.failure.happened) {
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
    const int silent = cp_member_silent_behind(&me->members, peer);
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
        if (me->members.failure.happened)
            return join_failure(me);
        const cp_status status = test_all(me, first, last);
        if (status != CP_OK)
            return mpi_fail(comm, status);
        const cp_exchange *unmet = cp_exchange_unmet(first, last);
        if (unmet == NULL)
            break;
        const bool receives = unmet->receive.state == CP_HALF_POSTED;
        const int peer = receives ? unmet->receive.peer : unmet->send.peer;
        if (cp_member_has_left(&me->members, peer, cp_clock()))
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

static bool all_have_left(const struct process_member *me) {
    return cp_membership_has_left(&me->members);
}

static void leave(struct process_member *me) {
    cp_membership *m = &me->members;
    cp_member_leave(m);
    send_changes(me);
    if (m->failure.happened && cp_membership_has_lost(m))
        return;
    if (wait_until(me, all_have_left, deadline(me->options.timeout)) ||
        m->failure.happened) {
        if (!m->failure.happened)
            cp_member_end(m);
        return;
    }
    const int late = cp_member_silent_behind(m, cp_member_missing(m, false));
    note_failure(me, m->rank,
                 cp_fail(CP_BROKEN,
                         "waits at the end of call %ld; timed out after %g s: "
                         "rank %d is silent",
                         m->runs, me->options.timeout, late),
                 late);
}

static bool agree_on_lost(struct process_member *me) {
    cp_membership *m = &me->members;
    bool agreed = false;
    if (!cp_membership_has_lost(m))
        return false;
    for (int polls = 0; !agreed; back_off(&polls)) {
        poll_status(me);
        if (me->silent || m->evicted)
            return false;
        agreed = cp_membership_agree(m, cp_clock());
        send_changes(me);
    }
    return cp_membership_settle(m);
}

bool cp_mpi_shrink(cp_comm *comm, int *lost) {
    struct process_member *me = (struct process_member *)comm;
    if (!cp_membership_shrink(&me->members, lost, cp_clock()))
        return false;
    comm->rank = me->members.rank;
    comm->ranks = me->members.ranks;
    me->pending_cancelled = false;
    send_changes(me);
    return true;
}

bool cp_mpi_is_evicted(const cp_comm *comm) {
    return ((const struct process_member *)comm)->members.evicted;
}
cp_status cp_mpi_run(cp_comm *comm, cp_rank_main function, void *context) {
    struct process_member *me = (struct process_member *)comm;
    if (me->members.failure.happened)
        return cp_failure_report(&me->members.failure);
    cp_member_begin(&me->members, cp_clock());
    send_changes(me);
    comm->sent = (cp_traffic){0};
    comm->kept = false;
    const cp_status status = function(comm, context);
    if (cp_failure_note_return(&me->members.failure, comm, status))
        cp_member_announce(&me->members, CP_NO_RANK, cp_clock());
    send_changes(me);
    cancel_pending(me);
    leave(me);
    if (me->members.failure.happened && agree_on_lost(me))
        return CP_OK;
    return cp_failure_report(&me->members.failure);
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

enum { OUTBOX = 16, FAREWELL = 1 }; /* status messages to each rank; seconds */

static cp_status begin(struct process_member *me) {
    const int ranks = me->comm.ranks;
    const int64_t outbox =
        ranks * OUTBOX *
        (int64_t)(sizeof(cp_member_status) + MPI_BSEND_OVERHEAD);
    CP_TRY(cp_membership_begin(&me->members, me->comm.rank, ranks,
                               me->options.repairs, me->options.timeout));
    CP_TRY(cp_allocate(&me->outbox, outbox, 1, "status messages"));
    CP_TRY(duplicate(me->options.timeout, &me->world));
    MPI_Buffer_attach(me->outbox, (int)outbox);
    return CP_OK;
}

static void forget(struct process_member *me) {
    cp_membership_free(&me->members);
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
    return cp_member_missing(&me->members, true) == CP_NO_RANK;
}

/* MPI cannot be finalized any more, and need not be. */
static bool left_behind;

int cp_mpi_close(cp_comm *comm, int status, bool *is_reporter) {
    struct process_member *me = (struct process_member *)comm;
    cp_membership *m = &me->members;
    const double end = cp_clock() + FAREWELL;
    const char *complaint = "";
    int worst = status, room;
    m->end = fmax(m->end, end);
    m->own_message->goodbye = status;
    snprintf(m->own_message->text, sizeof(m->own_message->text), "%.479s",
             status == 0 ? "" : cp_message());
    broadcast_status(me);
    bool well =
        !m->evicted &&
        wait_until(me, all_are_gone, fmax(deadline(me->options.timeout), end));
    left_behind = m->evicted || m->own_message->epoch > 0;
    /* The work is done, unless it is rank 0 that is missing. */
    if (m->repairs && !well && status == 0 && cp_member_missing(m, true) > 0)
        well = left_behind = true;
    *is_reporter = true;
    for (int r = 0; r < comm->ranks; r++) {
        const cp_member_status *message = &m->messages[r];
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
                cp_member_missing(m, true));
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
    struct process_member *me = (struct process_member *)comm;
    me->options.timeout = me->members.timeout = seconds;
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
