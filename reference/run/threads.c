/* Tangled from book/04-ranks.nw; edit the chapter. */
/* Ranks as threads: a hub where they meet under one lock, and one
 * memcpy per message, outside the lock, from the sender's buffer
 * straight into the receiver's. Not for hundreds of busy ranks. */
#define _GNU_SOURCE /* pthread_cond_clockwait, nanosleep, anonymous memory */

#include "reference/run/threads.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include "ground/random.h"

struct thread_member {
    cp_comm comm; /* first: a cp_comm * is a struct member * */
    cp_threads *hub;
    struct carrier *carrier; /* of the current work */
    void *stack;
    ucontext_t context;        /* where it resumes, if it is not running */
    cp_exchange *first, *last; /* it waits for these */
    double end;                /* deadline of the wait; INFINITY: none */
    bool resting;              /* not to be run */
    bool asleep;               /* resting until an exchange has moved */
    bool left;                 /* has left the current work for good */
    uint64_t random;
};

struct carrier {
    cp_threads *hub;
    int index;
    pthread_t thread;
    pthread_cond_t woken;
    atomic_bool wake_pending; /* one of its ranks may continue */
    ucontext_t home;          /* where it looks for the next rank */
};

struct cp_threads {
    cp_threads_options options;
    pthread_mutex_t lock;
    struct thread_member *members; /* [ranks] */
    struct carrier *carriers;      /* [ranks], of which a call uses some */
    int started;
    int active, asleep; /* members not left; members asleep */
    bool late, early;   /* delivery, when in disorder */
    cp_failure failure; /* of the current work */
    /* The current work. calls: of cp_threads_work so far; -1 is the end. */
    int64_t calls;
    int carrier_count; /* carriers in use */
    cp_rank_main function;
    void *context;
};

enum { SHORT = 1 << 15 }; /* bytes that the second rank to post copies */

static int64_t draw_nap(struct thread_member *me) {
    if (me->hub->options.disorder == 0)
        return 0;
    const int64_t drawn = (int64_t)(cp_random(&me->random) >> 33);
    return drawn % 16 == 0 ? drawn / 16 % 2000 : drawn / 16 % 80;
}

static void take_nap(int64_t microseconds) {
    const struct timespec nap = {0, (long)microseconds * 1000};
    if (microseconds > 0)
        nanosleep(&nap, NULL);
}

static void wake(struct thread_member *member) {
    if (member->asleep) {
        member->asleep = false;
        member->hub->asleep--;
    }
    member->resting = false;
    member->carrier->wake_pending = true;
    pthread_cond_signal(&member->carrier->woken);
}

static void wake_all(cp_threads *hub) {
    for (int r = 0; r < hub->started; r++)
        wake(&hub->members[r]);
}

static struct thread_member *owner_of(cp_threads *hub, const cp_half *half) {
    return &hub->members[((const cp_half *)half->way)->peer];
}

static void notify(struct thread_member *member) {
    if (!member->asleep ||
        cp_exchange_unmet(member->first, member->last) == NULL)
        wake(member);
}

static void copy(cp_threads *hub, cp_half *send, cp_half *receive) {
    struct thread_member *sender = owner_of(hub, send);
    struct thread_member *receiver = owner_of(hub, receive);
    const int64_t nap = draw_nap(receiver);
    const bool brief = send->bytes <= SHORT && nap == 0;
    send->state = receive->state = CP_HALF_COPYING;
    if (!brief)
        pthread_mutex_unlock(&hub->lock);
    take_nap(nap);
    if (send->bytes > 0)
        memcpy(receive->data, send->data, (size_t)send->bytes);
    if (!brief)
        pthread_mutex_lock(&hub->lock);
    send->state = receive->state = CP_HALF_DONE;
    notify(sender);
    notify(receiver);
}

static void change(ucontext_t *from, const ucontext_t *to) {
    volatile bool gone = false;
    getcontext(from);
    if (!gone) {
        gone = true;
        setcontext(to);
    }
}

static void suspend(struct thread_member *me, double end) {
    me->resting = true;
    me->end = end;
    change(&me->context, &me->carrier->home);
}

static void withdraw(struct thread_member *me, cp_half *half) {
    while (half->state == CP_HALF_COPYING)
        suspend(me, INFINITY);
    if (half->state == CP_HALF_PAIRED)
        ((cp_half *)half->way)->state = CP_HALF_POSTED;
    half->state = CP_HALF_IDLE;
}

static void cancel_pending(struct thread_member *me) {
    cp_exchange *oldest;
    while ((oldest = me->comm.oldest) != NULL) {
        withdraw(me, &oldest->send);
        withdraw(me, &oldest->receive);
        cp_exchange_remove(&me->comm, oldest, oldest);
    }
}

static void note_failure(struct thread_member *me, cp_status status) {
    if (cp_failure_note(&me->hub->failure, me->comm.rank, status))
        wake_all(me->hub);
}

static cp_status join_failure(struct thread_member *me) {
    cancel_pending(me);
    return cp_failure_status(&me->hub->failure, me->comm.rank);
}

static cp_status give_up(struct thread_member *me, cp_status status) {
    note_failure(me, status);
    return join_failure(me);
}

static cp_half *find_undelivered(cp_threads *hub) {
    for (int r = 0; r < hub->options.ranks; r++) {
        cp_exchange *exchange = hub->members[r].comm.oldest;
        for (; exchange != NULL; exchange = exchange->newer)
            if (exchange->receive.state == CP_HALF_PAIRED)
                return &exchange->receive;
    }
    return NULL;
}

static void handle_stall(struct thread_member *me) {
    cp_threads *hub = me->hub;
    cp_half *matched = find_undelivered(hub);
    if (matched != NULL) {
        wake(me);
        copy(hub, matched->way, matched);
        return;
    }
    char text[400] = "no rank can move";
    const char *before = ": ";
    for (int r = 0; r < hub->options.ranks; r++) {
        const struct thread_member *member = &hub->members[r];
        const size_t used = strlen(text);
        if (member->left)
            continue;
        const cp_exchange *unmet =
            cp_exchange_unmet(member->first, member->last);
        snprintf(text + used, sizeof(text) - used, "%srank %d %s", before, r,
                 cp_exchange_describe(unmet).text);
        before = "; ";
    }
    note_failure(me, cp_fail(CP_BROKEN, "%s", text));
}

static bool sleep_until_woken(struct thread_member *me, double end) {
    cp_threads *hub = me->hub;
    me->asleep = true;
    if (++hub->asleep == hub->active)
        handle_stall(me);
    if (me->asleep)
        suspend(me, end);
    const bool woken = !me->asleep;
    wake(me);
    return woken;
}

static int forsaken_by(const cp_threads *hub, const cp_exchange *exchange) {
    const cp_half *halves[] = {&exchange->receive, &exchange->send};
    for (int n = 0; n < 2; n++)
        if (halves[n]->state == CP_HALF_POSTED &&
            hub->members[halves[n]->peer].left)
            return halves[n]->peer;
    return CP_NO_RANK;
}

static cp_half *find_partner(struct thread_member *me, cp_exchange *exchange,
                             const cp_half *half) {
    if (half->state != CP_HALF_POSTED)
        return NULL;
    cp_exchange *candidate = me->hub->members[half->peer].comm.oldest;
    for (; candidate != NULL; candidate = candidate->newer) {
        cp_half *other =
            half == &exchange->send ? &candidate->receive : &candidate->send;
        if (other->state == CP_HALF_POSTED && other->peer == me->comm.rank &&
            candidate->barrier == exchange->barrier)
            return other;
    }
    return NULL;
}

static void pair(struct thread_member *me, const cp_exchange *exchange,
                 cp_half *send, cp_half *receive) {
    if (send == NULL || receive == NULL || me->hub->failure.happened)
        return;
    if (send->bytes != receive->bytes) {
        cp_fail(CP_BROKEN,
                "rank %d sends %ld bytes to rank %d in %s, which expects "
                "%ld bytes",
                receive->peer, send->bytes, send->peer, exchange->call,
                receive->bytes);
        note_failure(me, CP_BROKEN);
        return;
    }
    send->way = receive;
    receive->way = send;
    send->state = receive->state = CP_HALF_PAIRED;
}

static void deliver(struct thread_member *me, cp_half *send, cp_half *receive) {
    if (me->hub->early || (send->bytes <= SHORT && !me->hub->late)) {
        copy(me->hub, send, receive);
        return;
    }
    wake(owner_of(me->hub, send));
    wake(owner_of(me->hub, receive));
}

static cp_status threads_post(cp_comm *comm, cp_exchange *posted) {
    struct thread_member *me = (struct thread_member *)comm;
    cp_threads *hub = me->hub;
    cp_half *send = &posted->send, *receive = &posted->receive;
    take_nap(draw_nap(me));
    if (hub->options.disorder != 0 && receive->state == CP_HALF_POSTED &&
        receive->bytes > 0)
        memset(receive->data, 0xFF, (size_t)receive->bytes);
    pthread_mutex_lock(&hub->lock);
    cp_exchange_append(comm, posted);
    pair(me, posted, send, find_partner(me, posted, send));
    pair(me, posted, find_partner(me, posted, receive), receive);
    if (send->state == CP_HALF_PAIRED)
        deliver(me, send, send->way);
    if (receive->state == CP_HALF_PAIRED)
        deliver(me, receive->way, receive);
    const cp_status status = hub->failure.happened ? join_failure(me) : CP_OK;
    pthread_mutex_unlock(&hub->lock);
    return status;
}

static bool copy_one(struct thread_member *me) {
    for (cp_exchange *e = me->first;; e = e->newer) {
        if (e->receive.state == CP_HALF_PAIRED) {
            copy(me->hub, e->receive.way, &e->receive);
            return true;
        }
        if (e->send.state == CP_HALF_PAIRED && !me->hub->late) {
            copy(me->hub, &e->send, e->send.way);
            return true;
        }
        if (e == me->last)
            return false;
    }
}

static cp_status complete(struct thread_member *me) {
    cp_threads *hub = me->hub;
    const double timeout = hub->options.timeout;
    const double end = timeout > 0 ? cp_clock() + timeout : INFINITY;
    const cp_exchange *unmet;
    while (!hub->failure.happened &&
           (unmet = cp_exchange_unmet(me->first, me->last)) != NULL) {
        const int gone = forsaken_by(hub, unmet);
        if (copy_one(me))
            continue;
        if (gone != CP_NO_RANK)
            return give_up(me, cp_fail(CP_BROKEN, "%s, but rank %d has left",
                                       cp_exchange_describe(unmet).text, gone));
        if (!sleep_until_woken(me, end) &&
            unmet->send.state != CP_HALF_COPYING &&
            unmet->receive.state != CP_HALF_COPYING)
            return give_up(me,
                           cp_fail(CP_BROKEN, "%s; timed out after %g s",
                                   cp_exchange_describe(unmet).text, timeout));
    }
    if (hub->failure.happened)
        return join_failure(me);
    cp_exchange_remove(&me->comm, me->first, me->last);
    return CP_OK;
}

static cp_status threads_complete(cp_comm *comm, cp_exchange *first,
                                  cp_exchange *last) {
    struct thread_member *me = (struct thread_member *)comm;
    take_nap(draw_nap(me));
    pthread_mutex_lock(&me->hub->lock);
    me->first = first;
    me->last = last;
    const cp_status status = complete(me);
    pthread_mutex_unlock(&me->hub->lock);
    return status;
}

static cp_status threads_fail(cp_comm *comm, cp_status status) {
    struct thread_member *me = (struct thread_member *)comm;
    pthread_mutex_lock(&me->hub->lock);
    status = give_up(me, status);
    pthread_mutex_unlock(&me->hub->lock);
    return status;
}

static const cp_comm_ops threads_ops = {threads_post, threads_complete,
                                        threads_fail, NULL};

static _Thread_local struct thread_member *current;

static void live(void) {
    struct thread_member *me = current;
    cp_threads *hub = me->hub;
    pthread_mutex_unlock(&hub->lock);
    const cp_status status = hub->function(&me->comm, hub->context);
    pthread_mutex_lock(&hub->lock);
    cp_failure_note_return(&hub->failure, &me->comm, status);
    cancel_pending(me);
    me->left = true;
    me->end = INFINITY;
    hub->active--;
    wake_all(hub);
}

enum { YIELDS = 50 }; /* before a thread really sleeps */

static void doze(struct carrier *carrier) {
    cp_threads *hub = carrier->hub;
    struct thread_member *next = &hub->members[carrier->index];
    int error = 0;
    for (int r = carrier->index; r < hub->started; r += hub->carrier_count)
        if (hub->members[r].end < next->end)
            next = &hub->members[r];
    const double end = fmin(next->end, 1e10);
    const struct timespec until = {(time_t)end, (long)(fmod(end, 1) * 1e9)};
    carrier->wake_pending = false;
    pthread_mutex_unlock(&hub->lock);
    for (int n = 0; n < YIELDS && !carrier->wake_pending; n++)
        sched_yield();
    pthread_mutex_lock(&hub->lock);
    while (!carrier->wake_pending && error != ETIMEDOUT)
        error = pthread_cond_clockwait(&carrier->woken, &hub->lock,
                                       CLOCK_MONOTONIC, &until);
    if (error == ETIMEDOUT)
        next->resting = false;
}

static void run_members(struct carrier *carrier) {
    cp_threads *hub = carrier->hub;
    bool all_left = false, all_resting;
    while (!all_left) {
        all_left = all_resting = true;
        for (int r = carrier->index; r < hub->started;
             r += hub->carrier_count) {
            current = &hub->members[r];
            if (!current->left && !current->resting) {
                change(&carrier->home, &current->context);
                all_resting = false;
            }
            all_left = all_left && hub->members[r].left;
        }
        if (all_resting && !all_left)
            doze(carrier);
    }
}

static void *wait_for_work(void *argument) {
    struct carrier *carrier = argument;
    cp_threads *hub = carrier->hub;
    int64_t done = 0;
    pthread_mutex_lock(&hub->lock);
    while (hub->calls >= 0)
        if (hub->calls == done) {
            pthread_cond_wait(&carrier->woken, &hub->lock);
        } else {
            done = hub->calls;
            if (carrier->index < hub->carrier_count)
                run_members(carrier);
        }
    pthread_mutex_unlock(&hub->lock);
    return NULL;
}

#define STACK_BYTES ((size_t)4 << 20)
#define CARRIER_STACK_BYTES ((size_t)1 << 18)
#define GUARD_BYTES ((size_t)1 << 16)

static int start_thread(struct carrier *carrier) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, CARRIER_STACK_BYTES);
    const int error =
        pthread_create(&carrier->thread, &small, wait_for_work, carrier);
    pthread_attr_destroy(&small);
    return error;
}

static int start_rank(cp_threads *hub, int rank) {
    struct thread_member *member = &hub->members[rank];
    struct carrier *carrier = &hub->carriers[rank];
    member->hub = carrier->hub = hub;
    carrier->index = rank;
    member->comm = (cp_comm){
        .ops = &threads_ops, .rank = rank, .ranks = hub->options.ranks};
    member->random = hub->options.disorder << 16 ^ (uint64_t)rank;
    member->stack =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (member->stack == MAP_FAILED)
        return errno;
    mprotect(member->stack, GUARD_BYTES, PROT_NONE);
    pthread_cond_init(&carrier->woken, NULL);
    const int error = rank == 0 ? 0 : start_thread(carrier);
    if (error != 0)
        munmap(member->stack, STACK_BYTES);
    return error;
}

void cp_threads_end(cp_threads *hub) {
    if (hub == NULL)
        return;
    pthread_mutex_lock(&hub->lock);
    hub->calls = -1;
    for (int r = 0; r < hub->started; r++)
        pthread_cond_signal(&hub->carriers[r].woken);
    pthread_mutex_unlock(&hub->lock);
    for (int r = 1; r < hub->started; r++)
        pthread_join(hub->carriers[r].thread, NULL);
    for (int r = 0; r < hub->started; r++) {
        pthread_cond_destroy(&hub->carriers[r].woken);
        munmap(hub->members[r].stack, STACK_BYTES);
    }
    pthread_mutex_destroy(&hub->lock);
    free(hub->carriers);
    free(hub->members);
    free(hub);
}

cp_status cp_threads_start(const cp_threads_options *options,
                           cp_threads **out) {
    *out = NULL;
    if (options->ranks < 1)
        return cp_refuse("cannot run %d ranks; expected at least 1",
                         options->ranks);
    if (!(options->timeout >= 0))
        return cp_refuse("timeout %g s; it must be >= 0", options->timeout);
    cp_threads *hub;
    CP_TRY(cp_allocate(&hub, 1, sizeof(*hub), "the ranks"));
    const uint64_t disorder = options->disorder;
    hub->options = *options;
    hub->late = disorder % 2 == 1;
    hub->early = disorder != 0 && disorder % 2 == 0;
    pthread_mutex_init(&hub->lock, NULL);
    cp_status status = cp_allocate(&hub->members, options->ranks,
                                   sizeof(*hub->members), "the ranks");
    if (status == CP_OK)
        status = cp_allocate(&hub->carriers, options->ranks,
                             sizeof(*hub->carriers), "the threads");
    while (status == CP_OK && hub->started < options->ranks) {
        const int error = start_rank(hub, hub->started);
        if (error != 0)
            status = cp_fail(CP_MEMORY, "could start %d of %d ranks: %s",
                             hub->started, options->ranks, strerror(error));
        else
            hub->started++;
    }
    if (status == CP_OK)
        *out = hub;
    else
        cp_threads_end(hub);
    return status;
}

static void reset_member(cp_threads *hub, struct thread_member *member) {
    member->carrier = &hub->carriers[member->comm.rank % hub->carrier_count];
    member->comm.sent = (cp_traffic){0};
    member->left = member->resting = false;
    member->end = INFINITY;
    getcontext(&member->context);
    member->context.uc_stack.ss_sp = member->stack;
    member->context.uc_stack.ss_size = STACK_BYTES;
    member->context.uc_link = &member->carrier->home;
    makecontext(&member->context, live, 0);
}

cp_status cp_threads_work(cp_threads *hub, int carriers, cp_rank_main function,
                          void *context) {
    if (carriers < 1)
        return cp_refuse("%d threads for the ranks; expected at least 1",
                         carriers);
    pthread_mutex_lock(&hub->lock);
    hub->function = function;
    hub->context = context;
    hub->failure.happened = false;
    hub->active = hub->options.ranks;
    hub->carrier_count = carriers < hub->active ? carriers : hub->active;
    for (int r = 0; r < hub->started; r++)
        reset_member(hub, &hub->members[r]);
    hub->calls++;
    for (int n = 1; n < hub->carrier_count; n++)
        pthread_cond_signal(&hub->carriers[n].woken);
    run_members(&hub->carriers[0]);
    while (hub->active > 0)
        pthread_cond_wait(&hub->carriers[0].woken, &hub->lock);
    pthread_mutex_unlock(&hub->lock);
    return cp_failure_report(&hub->failure);
}

cp_status cp_threads_run(const cp_threads_options *options,
                         cp_rank_main function, void *context) {
    cp_threads *hub;
    CP_TRY(cp_threads_start(options, &hub));
    const cp_status status =
        cp_threads_work(hub, options->ranks, function, context);
    cp_threads_end(hub);
    return status;
}
