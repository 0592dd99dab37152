/* Tangled from book/15-simulate.nw; edit the chapter. */
/* When the operations of a plan run, layer after layer. */
#include "predict/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "predict/share.h"
#include "ring/order.h"

/* What an operation costs. */
typedef struct {
    double seconds;
    int gate; /* of its message, or of a collective */
    int draw; /* which random number of a layer is its own */
} cost;

/* A task, and what it is for. */
typedef struct {
    cp_task task;
    unsigned spent;   /* bits: what its time goes to */
    const char *name; /* of its bar; NULL: that of its operation */
    const cp_op *op;  /* or NULL */
} part;

/* Where a rank is. */
typedef struct {
    int64_t layer, next; /* next: 0 before the plan, then its operations */
    part parts[4];       /* of what was last begun */
    int count, at;
    cp_hours hours, first, last; /* now; when these layers were over */
} turn;

typedef struct {
    const cp_timeline *line;
    int ranks, gates, draws;
    cost **costs;   /* [ranks][operations] */
    int64_t events; /* of a layer */
    turn *turns;    /* [ranks] */
    int64_t layers; /* that are walked */
    double speed;   /* of a rank while all work, at most 1 */
} clocks;

static cost *cost_of(const clocks *s, int rank, const cp_op *op) {
    return &s->costs[rank][op - s->line->plan->programs[rank].ops];
}

/* A deviate of mean 0 and variance 1: the n-th of its seed. */
static double deviate(uint64_t seed, uint64_t n) {
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const uint64_t sum =
        (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
    return ((double)sum * 0x1p-16 - 2) * 1.7320508;
}

static double jittered(const clocks *s, int rank, const cp_op *op,
                       double seconds) {
    const cp_timeline *line = s->line;
    if (line->jitter <= 0)
        return seconds;
    const int64_t n =
        s->turns[rank].layer * s->draws + cost_of(s, rank, op)->draw;
    seconds += line->jitter * deviate(line->seed, (uint64_t)n);
    return seconds > 0 ? seconds : 0;
}

#define SPENT(kind) (1u << CP_SPENT_##kind)

static void add_work(const clocks *s, int rank, const char *name,
                     const cp_op *op, double seconds, unsigned spent) {
    turn *turn = &s->turns[rank];
    const cp_task task = {.kind = CP_TASK_WORK, .seconds = seconds * s->speed};
    turn->parts[turn->count++] = (part){task, spent, name, op};
}

static void add_step(const clocks *s, int rank) {
    if (s->line->step > 0)
        add_work(s, rank, "step", NULL, s->line->step, SPENT(RING));
}

/* Each gate exists twice, for even layers and for odd ones. */
static int gate_of(const clocks *s, int rank, const cost *cost) {
    return 2 * cost->gate + (int)(s->turns[rank].layer % 2);
}

/* Post or await the gates of an exchange, one for what it sends and one for
 * what it receives, or that of a collective. */
static void add_meeting(const clocks *s, int rank, cp_task_kind kind,
                        const cp_op *op, double seconds) {
    turn *turn = &s->turns[rank];
    const bool all = cp_op_is_collective(op);
    cp_task task = {
        kind, seconds, {CP_NO_GATE, CP_NO_GATE}, all ? s->ranks : 2};
    if (all || op->to != CP_NOBODY)
        task.gates[0] = gate_of(s, rank, cost_of(s, rank, op));
    if (!all && op->from != CP_NOBODY)
        task.gates[1] = gate_of(s, rank, &s->costs[op->from][op->got_from]);
    turn->parts[turn->count++] =
        (part){task, SPENT(RING) | SPENT(EXPOSED), NULL, op};
}

static void add_operation(const clocks *s, int rank, const cp_op *op) {
    const double hidden = s->line->hidden;
    const unsigned ring = SPENT(RING), exposed = ring | SPENT(EXPOSED);
    const cp_op *exchange = op->kind == CP_OP_WAIT
                                ? &s->line->plan->programs[rank].ops[op->ends]
                                : op;
    const double seconds = cost_of(s, rank, exchange)->seconds;
    switch (op->kind) {
    case CP_OP_EXCHANGE:
        add_meeting(s, rank, CP_TASK_POST, op,
                    jittered(s, rank, op, hidden * seconds));
        return;
    case CP_OP_WAIT:
        add_meeting(s, rank, CP_TASK_AWAIT, exchange, 0);
        if (hidden < 1)
            add_work(s, rank, NULL, exchange, (1 - hidden) * seconds,
                     exposed | SPENT(EXCHANGING));
        add_step(s, rank);
        return;
    case CP_OP_ALL_TO_ALL:
    case CP_OP_ALL_GATHER:
        add_meeting(s, rank, CP_TASK_POST, op, 0);
        add_meeting(s, rank, CP_TASK_AWAIT, op, 0);
        add_work(s, rank, NULL, op, seconds, exposed);
        return;
    case CP_OP_ATTEND:
        add_work(s, rank, NULL, op, jittered(s, rank, op, seconds),
                 ring | SPENT(BUSY) | SPENT(ATTENDING));
        return;
    case CP_OP_APPEND:
        add_step(s, rank);
        break;
    default:
        break;
    }
    add_work(s, rank, NULL, op, seconds, ring | SPENT(BUSY));
}

/* Make the parts of what comes next; false: nothing does. */
static bool refill(const clocks *s, int rank) {
    const cp_timeline *line = s->line;
    const cp_program *program = &line->plan->programs[rank];
    const unsigned linear = SPENT(LINEAR) | SPENT(BUSY);
    turn *turn = &s->turns[rank];
    turn->at = turn->count = 0;
    if (turn->next > program->count + 1) {
        turn->next = 0;
        turn->layer++;
    }
    const int64_t next = turn->next++;
    if (turn->layer == s->layers && next > 0)
        return false;
    if (turn->layer == s->layers)
        add_work(s, rank, "head", NULL, line->around.head, SPENT(BUSY));
    else if (next == 0)
        add_work(s, rank, "project", NULL, line->around.before, linear);
    else if (next <= program->count)
        add_operation(s, rank, &program->ops[next - 1]);
    else {
        add_work(s, rank, "feed", NULL, line->around.after, linear);
        add_work(s, rank, "all-reduce", NULL, line->around.reduce,
                 SPENT(REDUCING) | SPENT(BUSY));
    }
    return true;
}

static const cp_task *next(void *context, int rank) {
    const clocks *s = context;
    turn *turn = &s->turns[rank];
    if (turn->at == turn->count && !refill(s, rank))
        return NULL;
    return &turn->parts[turn->at++].task;
}

static void show(const clocks *s, int rank, double start, double end) {
    const turn *turn = &s->turns[rank];
    const part *part = &turn->parts[turn->at - 1];
    const cp_op *op = part->op;
    const char *name = op != NULL ? cp_op_name(op->kind) : part->name;
    if (s->line->bar != NULL && end > start)
        s->line->bar(s->line->context,
                     &(cp_bar){rank, name, op, turn->layer, start, end});
}

static void done(void *context, int rank, double start, double end,
                 double posted, double opened) {
    const clocks *s = context;
    turn *turn = &s->turns[rank];
    const part *part = &turn->parts[turn->at - 1];
    const cp_task *task = &part->task;
    cp_hours *hours = &turn->hours;
    hours->now = end;
    for (unsigned left = part->spent; left != 0; left &= left - 1)
        hours->spent[__builtin_ctz(left)] += end - start;
    if (task->kind == CP_TASK_WORK)
        show(s, rank, start, end);
    if (task->kind == CP_TASK_AWAIT && task->gates[1] != CP_NO_GATE) {
        hours->spent[CP_SPENT_EXCHANGING] += opened - posted;
        show(s, rank, posted, opened);
    }
    if (part->spent & SPENT(REDUCING)) {
        turn->last = *hours;
        if (turn->layer == 0)
            turn->first = *hours;
    }
}

static cp_status walk(clocks *s, int64_t layers) {
    const cp_share share = {
        .ranks = s->ranks,
        .gates = 2 * s->gates,
        .cores = s->speed < 1 ? s->line->cores : s->ranks,
        .next = next,
        .done = done,
        .context = s,
    };
    s->layers = layers;
    memset(s->turns, 0, (size_t)s->ranks * sizeof(turn));
    return cp_share_run(&share);
}

/* Did the second layer take all ranks as long as the first of them? */
static bool repeats(const clocks *s) {
    const turn *turns = s->turns;
    const double moved = turns[0].last.now - turns[0].first.now;
    for (int k = 0; k < s->ranks; k++) {
        const double here = turns[k].last.now - turns[k].first.now;
        if (fabs(here - moved) > 1e-12 * turns[k].last.now)
            return false;
    }
    return true;
}

enum { MOST_WALKED = 12000000 }; /* events */

static cp_status walk_enough(clocks *s) {
    const cp_timeline *line = s->line;
    const bool traced = line->bar != NULL;
    const bool steady = s->speed >= 1 && line->jitter <= 0 && !traced;
    const int64_t many = cp_max(8, MOST_WALKED / cp_max(s->events, 1));
    const int64_t most = traced ? line->layers : cp_min(line->layers, many);
    CP_TRY(walk(s, steady ? cp_min(most, 2) : most));
    return s->layers == most || repeats(s) ? CP_OK : walk(s, most);
}

/* Each rank goes on as it did after its first layer. */
static void sum_up(const clocks *s, cp_hours *sum) {
    const double all = (double)s->line->layers * s->ranks;
    const int64_t left = s->line->layers - s->layers;
    const double times = left > 0 ? (double)left / (double)(s->layers - 1) : 0;
    *sum = (cp_hours){0};
    for (int k = 0; k < s->ranks; k++) {
        const turn *turn = &s->turns[k];
        const cp_hours *first = &turn->first, *last = &turn->last;
        double now = turn->hours.now;
        if (left > 0)
            now += times * (last->now - first->now);
        sum->now = fmax(sum->now, now);
        for (int kind = 0; kind < CP_SPENT_KINDS; kind++)
            sum->spent[kind] +=
                (turn->hours.spent[kind] +
                 times * (last->spent[kind] - first->spent[kind])) /
                all;
    }
}

static cp_status number_draws(void *context, const cp_event *event) {
    clocks *s = context;
    if (event->op->kind == CP_OP_ATTEND || event->kind == CP_EVENT_TRANSFER)
        cost_of(s, event->rank, event->op)->draw = s->draws++;
    return CP_OK;
}

static cp_status prepare(clocks *s) {
    const cp_timeline *line = s->line;
    const cp_program *programs = line->plan->programs;
    const int owned = 2 * (1 + line->plan->spare) * s->ranks;
    CP_TRY(cp_allocate(&s->turns, s->ranks, sizeof(turn), "clocks"));
    CP_TRY(cp_allocate(&s->costs, s->ranks, sizeof(cost *), "clocks"));
    for (int k = 0; k < s->ranks; k++) {
        CP_TRY(cp_allocate(&s->costs[k], programs[k].count, sizeof(cost),
                           "clocks"));
        int gate = k;
        s->gates = owned;
        for (int64_t n = 0; n < programs[k].count; n++) {
            const cp_op *op = &programs[k].ops[n];
            cost *cost = &s->costs[k][n];
            cost->seconds = line->seconds(line->context, op);
            s->events++;
            if (op->kind == CP_OP_EXCHANGE) {
                cost->gate = gate;
                gate = (gate + s->ranks) % owned;
                s->events++;
            } else if (cp_op_is_collective(op)) {
                cost->gate = s->gates++;
                s->events -= k > 0;
            }
        }
    }
    return line->jitter > 0 ? cp_plan_order(line->plan, number_draws, s)
                            : CP_OK;
}

cp_status cp_timeline_run(const cp_timeline *timeline, cp_hours *hours) {
    const int ranks = timeline->plan->layout->ranks;
    const double speed = timeline->cores > 0 ? timeline->cores / ranks : 1;
    clocks s = {timeline, ranks, .speed = fmin(1, speed)};
    cp_status status = prepare(&s);
    if (status == CP_OK)
        status = walk_enough(&s);
    if (status == CP_OK)
        sum_up(&s, hours);
    for (int k = 0; k < ranks && s.costs != NULL; k++)
        free(s.costs[k]);
    free(s.costs);
    free(s.turns);
    return status;
}
