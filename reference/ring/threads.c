/* Tangled from book/04-ranks.nw; edit the chapter. */
/* Ranks as threads: a hub where they meet under one lock, and one
 * memcpy per message, outside of the lock, from the sender's buffer
 * straight into the receiver's. Not for hundreds of busy ranks. */
#define _POSIX_C_SOURCE 200809L /* monotonic clock, nanosleep */

#include "reference/ring/threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES ((size_t)4 << 20)

enum half_state { IDLE, POSTED, PAIRED, COPYING, DONE, SPOILED };

struct half {
    enum half_state state;
    struct member *owner;
    int peer;
    const void *source; /* of a send */
    void *target;       /* of a receive */
    int64_t bytes, their_bytes;
    struct half *partner; /* while PAIRED or COPYING */
    int64_t nap;          /* microseconds before the copy */
};

struct exchange {
    struct exchange *newer;
    const char *call; /* for messages: "an exchange" */
    struct half send, receive;
};

struct member {
    cp_comm comm; /* first: a cp_comm * is a struct member * */
    struct hub *hub;
    pthread_t thread;
    pthread_cond_t woken;
    struct exchange *oldest;  /* outstanding, in order */
    struct exchange *waiting; /* asleep for this; NULL: a barrier */
    bool asleep;              /* and not yet woken */
    bool left;
    int64_t barriers; /* entered */
    uint64_t random;
};

struct hub {
    pthread_mutex_t lock;
    struct member *members;
    int ranks, started;
    int running, asleep; /* members not left; members asleep */
    int arrived;         /* at the present barrier */
    int64_t barriers;    /* passed by all */
    double patience;
    uint64_t disorder;
    bool late, early;
    cp_rank_main function;
    void *context;
    /* The first failure. */
    bool failed;
    int failed_rank; /* CP_NOBODY: the ranks could not start */
    cp_status status;
    char message[512];
};

static uint64_t seed_of(uint64_t disorder, int rank) {
    const uint64_t seed = (disorder << 16 ^ (uint64_t)rank) + 1;
    return seed * 0x9E3779B97F4A7C15ULL | 1;
}

static int64_t draw_nap(struct member *me) {
    if (me->hub->disorder == 0)
        return 0;
    me->random ^= me->random >> 12;
    me->random ^= me->random << 25;
    me->random ^= me->random >> 27;
    const int64_t drawn = (int64_t)(me->random * 0x2545F4914F6CDD1DULL >> 33);
    return drawn % 16 == 0 ? drawn / 16 % 2000 : drawn / 16 % 80;
}

static void take_nap(int64_t microseconds) {
    const struct timespec nap = {0, (long)microseconds * 1000};
    if (microseconds > 0)
        nanosleep(&nap, NULL);
}

static void wake(struct member *member) {
    if (member->asleep) {
        member->asleep = false;
        member->hub->asleep--;
    }
    pthread_cond_signal(&member->woken);
}

static void wake_all(struct hub *hub) {
    for (int r = 0; r < hub->started; r++)
        wake(&hub->members[r]);
}

static void copy(struct hub *hub, struct half *send, struct half *receive) {
    send->state = receive->state = COPYING;
    pthread_mutex_unlock(&hub->lock);
    take_nap(receive->nap);
    if (send->bytes > 0)
        memcpy(receive->target, send->source, (size_t)send->bytes);
    pthread_mutex_lock(&hub->lock);
    send->state = receive->state = DONE;
    wake(send->owner);
    wake(receive->owner);
}

static void record_failure(struct hub *hub, int rank, cp_status status,
                           const char *why) {
    if (hub->failed)
        return;
    const bool reason = why != NULL && why[0] != '\0';
    hub->failed = true;
    hub->failed_rank = rank;
    hub->status = status;
    snprintf(hub->message, sizeof(hub->message), "%s",
             reason ? why : "gave no reason");
    wake_all(hub);
}

static bool unmet(const struct half *half) {
    return half->state != IDLE && half->state != DONE;
}

static bool forsaken(const struct hub *hub, const struct half *half) {
    return half->state == POSTED && hub->members[half->peer].left;
}

static bool copying(const struct exchange *exchange) {
    return exchange->send.state == COPYING ||
           exchange->receive.state == COPYING;
}

static int first_absent(const struct member *me, bool gone) {
    for (int r = 0; r < me->comm.ranks; r++) {
        const struct member *other = &me->hub->members[r];
        if (other->barriers < me->barriers && (other->left || !gone))
            return r;
    }
    return CP_NOBODY;
}

static void add_text(char *text, size_t room, const char *format, ...) {
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, room - used, format, arguments);
    va_end(arguments);
}

static void describe(const struct member *who, char *text, size_t room) {
    const struct exchange *exchange = who->waiting;
    add_text(text, room, "rank %d waits ", who->comm.rank);
    if (exchange == NULL) {
        add_text(text, room, "at barrier %lld for rank %d",
                 (long long)who->barriers, first_absent(who, false));
        return;
    }
    const struct half *receive = &exchange->receive;
    const struct half *send = &exchange->send;
    add_text(text, room, "in %s", exchange->call);
    if (unmet(receive))
        add_text(text, room, " for %lld bytes from rank %d",
                 (long long)receive->bytes, receive->peer);
    if (unmet(send))
        add_text(text, room, "%s for rank %d to take %lld bytes",
                 unmet(receive) ? " and" : "", send->peer,
                 (long long)send->bytes);
}

static struct half *find_undelivered(struct hub *hub) {
    for (int r = 0; r < hub->ranks; r++) {
        struct exchange *exchange = hub->members[r].oldest;
        for (; exchange != NULL; exchange = exchange->newer)
            if (exchange->receive.state == PAIRED)
                return &exchange->receive;
    }
    return NULL;
}

static void nobody_can_move(struct member *me) {
    struct hub *hub = me->hub;
    struct half *due = find_undelivered(hub);
    if (due != NULL) {
        wake(me);
        copy(hub, due->partner, due);
        return;
    }
    /* Say that this is a deadlock. */
    char text[400] = "";
    for (int r = 0; r < hub->ranks; r++)
        if (!hub->members[r].left) {
            if (text[0] != '\0')
                add_text(text, sizeof(text), "; ");
            describe(&hub->members[r], text, sizeof(text));
        }
    cp_fail(CP_BROKEN, "no rank can move: %s", text);
    record_failure(hub, me->comm.rank, CP_BROKEN, cp_message());
}

static bool sleep_until_woken(struct member *me,
                              const struct timespec *deadline) {
    struct hub *hub = me->hub;
    int error = 0;
    me->asleep = true;
    hub->asleep++;
    if (hub->asleep == hub->running)
        nobody_can_move(me);
    while (me->asleep && error != ETIMEDOUT)
        error = deadline == NULL
                    ? pthread_cond_wait(&me->woken, &hub->lock)
                    : pthread_cond_timedwait(&me->woken, &hub->lock, deadline);
    const bool woken = !me->asleep;
    wake(me);
    return woken;
}

static const struct timespec *find_deadline(const struct hub *hub,
                                            struct timespec *end) {
    if (hub->patience <= 0)
        return NULL;
    const double seconds = hub->patience < 1e9 ? hub->patience : 1e9;
    clock_gettime(CLOCK_MONOTONIC, end);
    const int64_t nanoseconds = end->tv_nsec + (int64_t)(seconds * 1e9);
    end->tv_sec += (time_t)(nanoseconds / 1000000000);
    end->tv_nsec = (long)(nanoseconds % 1000000000);
    return end;
}

static void withdraw(struct member *me, struct half *half) {
    while (half->state == COPYING)
        pthread_cond_wait(&me->woken, &me->hub->lock);
    if (half->state == PAIRED)
        half->partner->state = POSTED;
    half->state = IDLE;
}

static void settle(struct member *me) {
    while (me->oldest != NULL) {
        struct exchange *exchange = me->oldest;
        withdraw(me, &exchange->send);
        withdraw(me, &exchange->receive);
        me->oldest = exchange->newer;
        free(exchange);
    }
}

static cp_status give_up(struct member *me, cp_status status) {
    record_failure(me->hub, me->comm.rank, status, cp_message());
    settle(me);
    return status;
}

static cp_status join_failure(struct member *me) {
    const struct hub *hub = me->hub;
    settle(me);
    if (hub->failed_rank == me->comm.rank)
        return cp_fail(hub->status, "%s", hub->message);
    return cp_fail(CP_ABORTED, "rank %d failed first: %s", hub->failed_rank,
                   hub->message);
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
                               me->hub->patience));
}

static cp_status give_up_sizes(struct member *me,
                               const struct exchange *exchange) {
    const bool sends = exchange->send.state == SPOILED;
    const struct half *half = sends ? &exchange->send : &exchange->receive;
    cp_fail(CP_BROKEN,
            "rank %d %s rank %d in %s: %lld bytes, not the "
            "%lld that rank %d %s",
            me->comm.rank, sends ? "sends to" : "receives from", half->peer,
            exchange->call, (long long)half->bytes,
            (long long)half->their_bytes, half->peer,
            sends ? "expects" : "sends");
    return give_up(me, CP_BROKEN);
}

static struct half send_half(int peer, const void *source, int64_t bytes) {
    return (struct half){.state = peer == CP_NOBODY ? IDLE : POSTED,
                         .peer = peer,
                         .source = source,
                         .bytes = bytes};
}

static struct half receive_half(int peer, void *target, int64_t bytes) {
    return (struct half){.state = peer == CP_NOBODY ? IDLE : POSTED,
                         .peer = peer,
                         .target = target,
                         .bytes = bytes};
}

static struct half *find_partner(struct hub *hub, const struct half *mine,
                                 bool sends) {
    const int rank = mine->owner->comm.rank;
    struct exchange *theirs = hub->members[mine->peer].oldest;
    for (; theirs != NULL; theirs = theirs->newer) {
        struct half *half = sends ? &theirs->receive : &theirs->send;
        if (half->state == POSTED && half->peer == rank)
            return half;
    }
    return NULL;
}

static void pair(struct hub *hub, struct half *send, struct half *receive) {
    const bool equal = send->bytes == receive->bytes;
    send->partner = receive;
    receive->partner = send;
    send->their_bytes = receive->bytes;
    receive->their_bytes = send->bytes;
    send->state = receive->state = equal ? PAIRED : SPOILED;
    wake(send->owner);
    wake(receive->owner);
    if (equal && hub->early)
        copy(hub, send, receive);
}

static void append(struct member *me, struct exchange *exchange) {
    struct exchange **end = &me->oldest;
    while (*end != NULL)
        end = &(*end)->newer;
    *end = exchange;
}

static void pair_both(struct hub *hub, struct exchange *exchange) {
    struct half *send = &exchange->send, *receive = &exchange->receive;
    struct half *partner;
    if (send->state == POSTED &&
        (partner = find_partner(hub, send, true)) != NULL)
        pair(hub, send, partner);
    if (receive->state == POSTED &&
        (partner = find_partner(hub, receive, false)) != NULL)
        pair(hub, partner, receive);
}

static cp_status post(struct member *me, const char *call, struct half send,
                      struct half receive, struct exchange **posted) {
    struct hub *hub = me->hub;
    const cp_status status =
        cp_allocate(posted, 1, sizeof(**posted), "a message's record");
    take_nap(draw_nap(me));
    receive.nap = draw_nap(me);
    send.owner = receive.owner = me;
    if (hub->disorder != 0 && receive.state == POSTED)
        memset(receive.target, 0xFF, (size_t)receive.bytes);
    pthread_mutex_lock(&hub->lock);
    /* Turn back if this cannot be. */
    if (status != CP_OK || hub->failed) {
        free(*posted);
        const cp_status failure =
            status != CP_OK ? give_up(me, status) : join_failure(me);
        pthread_mutex_unlock(&hub->lock);
        return failure;
    }
    **posted = (struct exchange){NULL, call, send, receive};
    append(me, *posted);
    pair_both(hub, *posted);
    pthread_mutex_unlock(&hub->lock);
    return CP_OK;
}

static void remove_exchange(struct member *me, struct exchange *exchange) {
    struct exchange **link = &me->oldest;
    while (*link != exchange)
        link = &(*link)->newer;
    *link = exchange->newer;
    free(exchange);
}

static cp_status complete(struct member *me, struct exchange *exchange) {
    struct hub *hub = me->hub;
    struct half *send = &exchange->send;
    struct half *receive = &exchange->receive;
    struct timespec end;
    const struct timespec *deadline = find_deadline(hub, &end);
    me->waiting = exchange;
    while (unmet(send) || unmet(receive)) {
        if (send->state == SPOILED || receive->state == SPOILED)
            return give_up_sizes(me, exchange);
        if (hub->failed)
            return join_failure(me);
        /* Take one step, or sleep. */
        if (receive->state == PAIRED)
            copy(hub, receive->partner, receive);
        else if (send->state == PAIRED && !hub->late)
            copy(hub, send, send->partner);
        else if (forsaken(hub, receive))
            return give_up_leaver(me, receive->peer);
        else if (forsaken(hub, send))
            return give_up_leaver(me, send->peer);
        else if (!sleep_until_woken(me, deadline) && !copying(exchange))
            return give_up_patience(me);
    }
    if (hub->failed)
        return join_failure(me);
    remove_exchange(me, exchange);
    return CP_OK;
}

static cp_status threads_exchange(cp_comm *comm, int to, const void *send,
                                  int64_t send_bytes, int from, void *receive,
                                  int64_t receive_bytes) {
    struct exchange *posted;
    return post((struct member *)comm, "an exchange",
                send_half(to, send, send_bytes),
                receive_half(from, receive, receive_bytes), &posted);
}

static cp_status complete_oldest(struct member *me) {
    if (me->oldest != NULL)
        return complete(me, me->oldest);
    if (me->hub->failed)
        return join_failure(me);
    cp_fail(CP_BROKEN, "rank %d waits, but has no exchange outstanding",
            me->comm.rank);
    return give_up(me, CP_BROKEN);
}

static cp_status threads_wait(cp_comm *comm) {
    struct member *me = (struct member *)comm;
    take_nap(draw_nap(me));
    pthread_mutex_lock(&me->hub->lock);
    const cp_status status = complete_oldest(me);
    pthread_mutex_unlock(&me->hub->lock);
    return status;
}

static cp_status complete_all(struct member *me, struct exchange *first) {
    cp_status status = CP_OK;
    pthread_mutex_lock(&me->hub->lock);
    while (first != NULL && status == CP_OK) {
        struct exchange *next = first->newer;
        status = complete(me, first);
        first = next;
    }
    pthread_mutex_unlock(&me->hub->lock);
    return status;
}

static cp_status trade(struct member *me, const char *call,
                       const void *const *sends, const void *same,
                       void *const *receives, int64_t bytes) {
    const int ranks = me->comm.ranks, rank = me->comm.rank;
    struct exchange *first = NULL, *posted;
    for (int shift = 1; shift < ranks; shift++) {
        const int to = (rank + shift) % ranks;
        const int from = (rank - shift + ranks) % ranks;
        const void *source = sends != NULL ? sends[to] : same;
        const cp_status status =
            post(me, call, send_half(to, source, bytes),
                 receive_half(from, receives[from], bytes), &posted);
        if (status != CP_OK)
            return status;
        if (first == NULL)
            first = posted;
    }
    return complete_all(me, first);
}

static cp_status threads_all_to_all(cp_comm *comm, const void *const *send,
                                    void *const *receive, int64_t bytes) {
    return trade((struct member *)comm, "an all-to-all", send, NULL, receive,
                 bytes);
}

static cp_status threads_all_gather(cp_comm *comm, const void *send,
                                    void *const *receive, int64_t bytes) {
    return trade((struct member *)comm, "an all-gather", NULL, send, receive,
                 bytes);
}

static cp_status arrive(struct member *me) {
    struct hub *hub = me->hub;
    struct timespec end;
    const struct timespec *deadline = find_deadline(hub, &end);
    const int64_t number = ++me->barriers;
    me->waiting = NULL;
    if (++hub->arrived == hub->ranks) {
        hub->arrived = 0;
        hub->barriers++;
        wake_all(hub);
    }
    while (!hub->failed && hub->barriers < number) {
        const int gone = first_absent(me, true);
        if (gone != CP_NOBODY)
            return give_up_leaver(me, gone);
        if (!sleep_until_woken(me, deadline))
            return give_up_patience(me);
    }
    return hub->failed ? join_failure(me) : CP_OK;
}

static cp_status threads_barrier(cp_comm *comm) {
    struct member *me = (struct member *)comm;
    take_nap(draw_nap(me));
    pthread_mutex_lock(&me->hub->lock);
    const cp_status status = arrive(me);
    pthread_mutex_unlock(&me->hub->lock);
    return status;
}

static void threads_abort(cp_comm *comm, const char *why) {
    struct member *me = (struct member *)comm;
    pthread_mutex_lock(&me->hub->lock);
    record_failure(me->hub, comm->rank, CP_ABORTED, why);
    settle(me);
    pthread_mutex_unlock(&me->hub->lock);
}

static const cp_comm_ops threads_ops = {
    threads_exchange,
    threads_wait,
    threads_all_to_all,
    threads_all_gather,
    threads_barrier,
    threads_abort,
    NULL,
};

static void leave(struct member *me, cp_status status) {
    struct hub *hub = me->hub;
    pthread_mutex_lock(&hub->lock);
    if (status == CP_OK && me->oldest != NULL && !hub->failed)
        status = cp_fail(CP_BROKEN, "returned, but never waited for %s",
                         me->oldest->call);
    if (status != CP_OK)
        record_failure(hub, me->comm.rank, status, cp_message());
    if (status != CP_OK && hub->failed_rank == me->comm.rank)
        hub->status = status; /* an abort gave only the reason */
    settle(me);
    me->left = true;
    hub->running--;
    wake_all(hub);
    pthread_mutex_unlock(&hub->lock);
}

static void *run_rank(void *argument) {
    struct member *me = argument;
    struct hub *hub = me->hub;
    pthread_mutex_lock(&hub->lock);
    const bool complete = hub->started == hub->ranks;
    pthread_mutex_unlock(&hub->lock);
    if (complete)
        leave(me, hub->function(&me->comm, hub->context));
    return NULL;
}

static int make_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    const int error = pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
}

static int start_rank(struct hub *hub, int rank) {
    struct member *member = &hub->members[rank];
    pthread_attr_t roomy;
    int error = make_condition(&member->woken);
    if (error != 0)
        return error;
    member->hub = hub;
    member->comm = (cp_comm){&threads_ops, rank, hub->ranks, {0}};
    member->random = seed_of(hub->disorder, rank);
    pthread_attr_init(&roomy);
    pthread_attr_setstacksize(&roomy, STACK_BYTES);
    if (rank > 0)
        error = pthread_create(&member->thread, &roomy, run_rank, member);
    pthread_attr_destroy(&roomy);
    if (error != 0)
        pthread_cond_destroy(&member->woken);
    return error;
}

static void start_ranks(struct hub *hub) {
    int error = 0;
    pthread_mutex_lock(&hub->lock);
    while (hub->started < hub->ranks && error == 0) {
        error = start_rank(hub, hub->started);
        hub->started += error == 0;
    }
    if (error != 0) {
        cp_fail(CP_MEMORY, "could start %d of %d ranks: %s", hub->started,
                hub->ranks, strerror(error));
        record_failure(hub, CP_NOBODY, CP_MEMORY, cp_message());
    }
    pthread_mutex_unlock(&hub->lock);
}

static void join_ranks(struct hub *hub) {
    for (int r = 1; r < hub->started; r++)
        pthread_join(hub->members[r].thread, NULL);
    for (int r = 0; r < hub->started; r++)
        pthread_cond_destroy(&hub->members[r].woken);
}

static cp_status check_options(const cp_threads_options *options,
                               cp_rank_main function) {
    if (options == NULL || function == NULL)
        return cp_fail(CP_INVALID, "no %s for the ranks",
                       options == NULL ? "options" : "function");
    if (options->ranks < 1)
        return cp_fail(CP_INVALID, "cannot run %d ranks: 1 is the least",
                       options->ranks);
    if (!(options->patience >= 0))
        return cp_fail(CP_INVALID, "cannot wait for %g s", options->patience);
    return CP_OK;
}

static cp_status report(const struct hub *hub) {
    if (!hub->failed)
        return CP_OK;
    if (hub->failed_rank == CP_NOBODY)
        return cp_fail(hub->status, "%s", hub->message);
    return cp_fail(hub->status, "rank %d: %s", hub->failed_rank, hub->message);
}

cp_status cp_threads_run(const cp_threads_options *options,
                         cp_rank_main function, void *context) {
    cp_status status = check_options(options, function);
    if (status != CP_OK)
        return status;
    struct hub hub = {
        /* What the hub knows from the options. */
        .ranks = options->ranks,
        .running = options->ranks,
        .patience = options->patience,
        .disorder = options->disorder,
        .late = options->disorder % 2 == 1,
        .early = options->disorder != 0 && options->disorder % 2 == 0,
        .function = function,
        .context = context,
    };
    status =
        cp_allocate(&hub.members, hub.ranks, sizeof(*hub.members), "the ranks");
    if (status != CP_OK)
        return status;
    pthread_mutex_init(&hub.lock, NULL);
    start_ranks(&hub);
    if (hub.started > 0)
        run_rank(&hub.members[0]);
    join_ranks(&hub);
    pthread_mutex_destroy(&hub.lock);
    free(hub.members);
    return report(&hub);
}
