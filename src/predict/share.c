/* Tangled from book/15-share.nw; edit the chapter. */
/* Ranks that share the cores of a machine, in virtual time. */
#include "predict/share.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    double key;
    int64_t what;
} entry;

typedef struct {
    entry *entries;
    int64_t count;
} heap;

static double first(const heap *heap) {
    return heap->count > 0 ? heap->entries[0].key : INFINITY;
}

static void push(heap *heap, double key, int64_t what) {
    int64_t at = heap->count++;
    for (; at > 0 && heap->entries[(at - 1) / 2].key > key; at = (at - 1) / 2)
        heap->entries[at] = heap->entries[(at - 1) / 2];
    heap->entries[at] = (entry){key, what};
}
static int64_t pop(heap *heap) {
    const int64_t what = heap->entries[0].what;
    const entry last = heap->entries[--heap->count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child + 1 < heap->count &&
            heap->entries[child + 1].key < heap->entries[child].key)
            child++;
        if (child >= heap->count || heap->entries[child].key >= last.key)
            break;
        heap->entries[at] = heap->entries[child];
        at = child;
    }
    heap->entries[at] = last;
    return what;
}

typedef struct worker {
    cp_task task;
    bool begun, over;
    double start, end;   /* of the task: a time; what given will be */
    struct worker *next; /* that is ready too, or waits at the same gate */
} worker;

typedef struct {
    int posts;
    double opens;
    worker *waiting;
} gate;

typedef struct {
    const cp_share *share;
    worker *workers; /* [ranks] */
    gate *gates;
    worker *ready;
    heap working, opening; /* ranks by end, gates by opens */
    double now, given;     /* the time; work of each who has always worked */
} sharing;

static void make_ready(sharing *s, worker *worker) {
    worker->next = s->ready;
    s->ready = worker;
}

static void open(sharing *s, gate *gate) {
    while (gate->waiting != NULL) {
        worker *worker = gate->waiting;
        gate->waiting = worker->next;
        make_ready(s, worker);
    }
}
static double post(sharing *s, const cp_task *task) {
    gate *gate = &s->gates[task->gate];
    if (gate->posts++ == 0)
        gate->opens = INFINITY;
    if (gate->posts < task->parties)
        return s->now;
    gate->posts = 0;
    gate->opens = s->now + task->seconds;
    if (gate->opens <= s->now)
        open(s, gate);
    else
        push(&s->opening, gate->opens, task->gate);
    return gate->opens;
}

static bool begin(sharing *s, worker *worker) {
    const cp_share *share = s->share;
    const int rank = (int)(worker - s->workers);
    if (worker->begun)
        return true;
    worker->over = !share->next(share->context, rank, &worker->task);
    worker->begun = true;
    worker->start = s->now;
    worker->end = s->given + worker->task.seconds;
    return !worker->over;
}

static bool ended(const sharing *s, const worker *worker) {
    if (worker->task.kind == CP_TASK_WORK)
        return worker->end <= s->given;
    return worker->task.kind == CP_TASK_POST ||
           s->gates[worker->task.gate].opens <= s->now;
}
static void put_aside(sharing *s, worker *worker) {
    gate *gate = &s->gates[worker->task.gate];
    if (worker->task.kind == CP_TASK_WORK) {
        push(&s->working, worker->end, worker - s->workers);
        return;
    }
    worker->next = gate->waiting;
    gate->waiting = worker;
}

static void go_on(sharing *s, worker *worker) {
    const cp_share *share = s->share;
    const cp_task *task = &worker->task;
    while (begin(s, worker)) {
        if (!ended(s, worker)) {
            put_aside(s, worker);
            return;
        }
        const double end = task->kind == CP_TASK_POST ? post(s, task) : s->now;
        share->done(share->context, (int)(worker - s->workers), task,
                    worker->start, end);
        worker->begun = false;
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
    CP_TRY(cp_allocate(&s->working.entries, share->ranks, sizeof(entry),
                       "ranks at work"));
    return cp_allocate(&s->opening.entries, share->gates, sizeof(entry),
                       "gates that open");
}
static cp_status left(const sharing *s) {
    for (int rank = 0; rank < s->share->ranks; rank++)
        if (!s->workers[rank].over)
            return cp_fail(CP_BROKEN,
                           "rank %d waits at gate %lld, which never opens",
                           rank, (long long)s->workers[rank].task.gate);
    return CP_OK;
}

static cp_status run(sharing *s) {
    for (int rank = s->share->ranks; rank > 0; rank--)
        make_ready(s, &s->workers[rank - 1]);
    do
        while (s->ready != NULL) {
            worker *worker = s->ready;
            s->ready = worker->next;
            go_on(s, worker);
        }
    while (move(s));
    return left(s);
}
cp_status cp_share_run(const cp_share *share) {
    sharing s = {.share = share};
    cp_status status = sharing_new(&s);
    if (status == CP_OK)
        status = run(&s);
    free(s.workers);
    free(s.gates);
    free(s.working.entries);
    free(s.opening.entries);
    return status;
}
