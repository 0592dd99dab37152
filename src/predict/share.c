/* Tangled from book/15-share.nw; edit the chapter. */
/* Ranks with tasks, in virtual time, each with a core or all sharing some. */
#include "predict/share.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    double key;
    int64_t what;
} entry;

/* Entries by key, the least one last. */
typedef struct {
    entry *entries;
    int64_t count;
} queue;

static double first(const queue *queue) {
    return queue->count > 0 ? queue->entries[queue->count - 1].key : INFINITY;
}

static void push(queue *queue, double key, int64_t what) {
    int64_t at = queue->count++;
    for (; at > 0 && queue->entries[at - 1].key < key; at--)
        queue->entries[at] = queue->entries[at - 1];
    queue->entries[at] = (entry){key, what};
}

static int64_t pop(queue *queue) {
    return queue->entries[--queue->count].what;
}

typedef struct worker {
    const cp_task *task;   /* NULL: the next is due */
    double now, start;     /* its time, and when its task began */
    double end;            /* of work on shared cores: what given will be */
    double posted, opened; /* the last gate that it went through */
    struct worker *next;   /* that is ready too, or waits at the same gate */
} worker;

typedef struct {
    int posts;
    bool shut;
    double posted, seconds; /* by the last party, and how long then */
    worker *waiting;
} gate;

typedef struct {
    const cp_share *share;
    bool shared;
    worker *workers; /* [ranks] */
    gate *gates;
    worker *ready;
    queue working, opening; /* ranks by end, gates by opens */
    double now, given;      /* the time; work of each who has always worked */
} sharing;

/* Of two times, without the call that fmax is. */
static double later(double a, double b) {
    return a > b ? a : b;
}

static double opening(const gate *gate) {
    return gate->posted + gate->seconds;
}

static void make_ready(sharing *s, worker *worker) {
    worker->next = s->ready;
    s->ready = worker;
}

static void open(sharing *s, gate *gate) {
    gate->shut = false;
    while (gate->waiting != NULL) {
        worker *worker = gate->waiting;
        gate->waiting = worker->next;
        make_ready(s, worker);
    }
}

static void post(sharing *s, const worker *worker, int n) {
    const cp_task *task = worker->task;
    gate *gate = &s->gates[task->gates[n]];
    if (gate->posts++ == 0) {
        gate->shut = true;
        gate->posted = gate->seconds = 0;
    }
    gate->posted = later(gate->posted, worker->now);
    if (n == 0)
        gate->seconds = later(gate->seconds, task->seconds);
    if (gate->posts < task->parties)
        return;
    gate->posts = 0;
    if (s->shared && opening(gate) > s->now)
        push(&s->opening, opening(gate), task->gates[n]);
    else
        open(s, gate);
}

/* Pass the gates, or wait at the first that is shut. */
static bool await(sharing *s, worker *worker) {
    for (int n = 0; n < 2; n++) {
        if (worker->task->gates[n] == CP_NO_GATE)
            continue;
        gate *gate = &s->gates[worker->task->gates[n]];
        if (gate->shut) {
            worker->next = gate->waiting;
            gate->waiting = worker;
            return false;
        }
        worker->posted = gate->posted;
        worker->opened = opening(gate);
        worker->now = later(worker->now, worker->opened);
    }
    return true;
}

/* Who shares cores is put aside until its work is done. */
static bool ended(sharing *s, worker *worker) {
    switch (worker->task->kind) {
    case CP_TASK_WORK:
        if (s->shared && worker->end > s->given) {
            push(&s->working, worker->end, worker - s->workers);
            return false;
        }
        worker->now = s->shared ? s->now : worker->now + worker->task->seconds;
        return true;
    case CP_TASK_AWAIT:
        return await(s, worker);
    case CP_TASK_POST:
        for (int n = 0; n < 2; n++)
            if (worker->task->gates[n] != CP_NO_GATE)
                post(s, worker, n);
    }
    return true;
}

/* Do task after task, until one must wait. */
static void go_on(sharing *s, worker *worker) {
    const cp_share *share = s->share;
    const int rank = (int)(worker - s->workers);
    for (;;) {
        if (worker->task == NULL) {
            worker->task = share->next(share->context, rank);
            worker->start = worker->now;
            if (worker->task == NULL)
                return;
            worker->end = s->given + worker->task->seconds;
        }
        if (!ended(s, worker))
            return;
        share->done(share->context, rank, worker->start, worker->now,
                    worker->posted, worker->opened);
        worker->task = NULL;
    }
}

static bool move(sharing *s) {
    const double end = first(&s->working), opens = first(&s->opening);
    const double active = fmax(1, (double)s->working.count);
    const double rate = fmin(1, s->share->cores / active);
    const double worked = s->now + (end - s->given) / rate;
    if (fmin(worked, opens) == INFINITY)
        return false;
    s->given =
        worked <= opens ? end : fmin(end, s->given + (opens - s->now) * rate);
    s->now = fmin(worked, opens);
    while (first(&s->working) <= s->given)
        make_ready(s, &s->workers[pop(&s->working)]);
    while (first(&s->opening) <= s->now)
        open(s, &s->gates[pop(&s->opening)]);
    return true;
}

static cp_status sharing_new(sharing *s) {
    const cp_share *share = s->share;
    CP_TRY(cp_allocate(&s->workers, share->ranks, sizeof(worker), "ranks"));
    CP_TRY(cp_allocate(&s->gates, share->gates, sizeof(gate), "gates"));
    for (int rank = share->ranks - 1; rank >= 0; rank--)
        make_ready(s, &s->workers[rank]);
    CP_TRY(cp_allocate(&s->working.entries, share->ranks + share->gates,
                       sizeof(entry), "what ends and opens"));
    s->opening.entries = s->working.entries + share->ranks;
    return CP_OK;
}

static cp_status run(sharing *s) {
    do
        while (s->ready != NULL) {
            worker *worker = s->ready;
            s->ready = worker->next;
            go_on(s, worker);
        }
    while (move(s));
    for (int rank = 0; rank < s->share->ranks; rank++) {
        const cp_task *task = s->workers[rank].task;
        if (task == NULL)
            continue;
        if (task->kind == CP_TASK_WORK)
            return cp_fail(CP_BROKEN, "rank %d has work without end", rank);
        const int *gates = task->gates;
        const bool first = gates[0] != CP_NO_GATE && s->gates[gates[0]].shut;
        return cp_fail(CP_BROKEN, "rank %d waits at gate %d, which never opens",
                       rank, gates[first ? 0 : 1]);
    }
    return CP_OK;
}

cp_status cp_share_run(const cp_share *share) {
    sharing s = {.share = share, .shared = share->cores < share->ranks};
    cp_status status = sharing_new(&s);
    if (status == CP_OK)
        status = run(&s);
    free(s.workers);
    free(s.gates);
    free(s.working.entries);
    return status;
}
