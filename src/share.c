/* Tangled from book/15-share.nw; edit the chapter. */
/* Ranks that share the cores of a machine, in virtual time. */
#include "share.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    cp_task task;
    bool begun, over;
    double start, end; /* of the task: a time; what given will be */
} worker;

typedef struct {
    int posts;
    double opens;
} gate;

typedef struct {
    const cp_share *share;
    worker *workers; /* [ranks] */
    gate *gates;
    double now, given; /* the time; work of each who has always worked */
} sharing;

static double post(sharing *s, const cp_task *task) {
    gate *gate = &s->gates[task->gate];
    if (gate->posts++ == 0)
        gate->opens = INFINITY;
    if (gate->posts < task->parties)
        return s->now;
    gate->posts = 0;
    gate->opens = s->now + task->seconds;
    return gate->opens;
}

static void begin(sharing *s, worker *worker) {
    worker->begun = true;
    worker->start = s->now;
    worker->end = s->given + worker->task.seconds;
}

static bool ended(const sharing *s, const worker *worker) {
    if (worker->task.kind == CP_TASK_WORK)
        return worker->end <= s->given;
    return worker->task.kind == CP_TASK_POST ||
           s->gates[worker->task.gate].opens <= s->now;
}

static bool go_on(sharing *s, int rank) {
    const cp_share *share = s->share;
    worker *worker = &s->workers[rank];
    bool moved = false;
    while (!worker->over) {
        if (!worker->begun) {
            worker->over = !share->next(share->context, rank, &worker->task);
            if (worker->over)
                return true;
            begin(s, worker);
        }
        if (!ended(s, worker))
            return moved;
        const double end =
            worker->task.kind == CP_TASK_POST ? post(s, &worker->task) : s->now;
        share->done(share->context, rank, &worker->task, worker->start, end);
        worker->begun = false;
        moved = true;
    }
    return moved;
}
static void settle(sharing *s) {
    bool moved;
    do {
        moved = false;
        for (int rank = 0; rank < s->share->ranks; rank++)
            moved |= go_on(s, rank);
    } while (moved);
}

static bool move(sharing *s) {
    double end = INFINITY, opens = INFINITY;
    int active = 0;
    for (int rank = 0; rank < s->share->ranks; rank++) {
        const worker *worker = &s->workers[rank];
        if (!worker->over && worker->task.kind == CP_TASK_WORK) {
            end = fmin(end, worker->end);
            active++;
        } else if (!worker->over) {
            opens = fmin(opens, s->gates[worker->task.gate].opens);
        }
    }
    /* Move to what comes first. */
    const double rate = fmin(1, s->share->cores / fmax(active, 1));
    const double worked = s->now + (end - s->given) / rate;
    if (fmin(worked, opens) == INFINITY)
        return false;
    s->given =
        worked <= opens ? end : fmin(end, s->given + (opens - s->now) * rate);
    s->now = fmin(worked, opens);
    return true;
}

static cp_status left(const sharing *s) {
    for (int rank = 0; rank < s->share->ranks; rank++)
        if (!s->workers[rank].over)
            return cp_fail(CP_BROKEN,
                           "rank %d waits at gate %lld, which never opens",
                           rank, (long long)s->workers[rank].task.gate);
    return CP_OK;
}

cp_status cp_share_run(const cp_share *share) {
    sharing s = {.share = share};
    cp_status status =
        cp_allocate(&s.workers, share->ranks, sizeof(worker), "ranks");
    if (status == CP_OK)
        status = cp_allocate(&s.gates, share->gates, sizeof(gate), "gates");
    if (status == CP_OK) {
        do
            settle(&s);
        while (move(&s));
        status = left(&s);
    }
    free(s.workers);
    free(s.gates);
    return status;
}
