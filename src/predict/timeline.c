/* Tangled from book/15-simulate.nw; edit the chapter. */
/* Computes when the operations of a plan run, layer after layer. */
#include "predict/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/order.h"

/* The cost of an operation. */
typedef struct {
    double seconds;
    int gate; /* of its message, or of a collective */
    int draw; /* which random number of a layer is its own */
} cost;

typedef enum {
    WORK,  /* for seconds, if all ranks work */
    POST,  /* post the operation's gates */
    AWAIT, /* wait until they have opened */
} task_kind;

typedef struct {
    task_kind kind;
    double seconds;   /* of a post: its message takes, without a core */
    unsigned spent;   /* bits: the uses of its time */
    const char *name; /* of its bar */
    const cp_op *op;  /* or NULL */
} task;

/* A rank, and how far it is. */
typedef struct worker {
    int rank;
    const cp_program *program;
    cost *costs;         /* of its operations */
    int64_t layer, next; /* next: 0 before the plan, then its operations */
    task tasks[4];       /* of the operation begun last */
    int count, at;
    double start, work_given;       /* the clocks when its task began */
    cp_rank_time time, first, last; /* now; when these layers ended */
    struct worker *behind;          /* the next worker on a list */
} worker;

/* Workers sorted by the time of their next event, the earliest at the end. */
typedef struct {
    int count;
    struct {
        double until;
        worker *worker;
    } * entries;
} queue;

/* A gate opens some seconds after the last of its parties has posted it. */
typedef struct {
    int posts;              /* so far; after the last one 0 again */
    double posted, seconds; /* when the last party did; until it opens */
    worker *waiting;
} gate;

typedef struct {
    const cp_timeline *line;
    int ranks, gate_count, draws;
    int64_t events, layers; /* events of a layer; layers to walk */
    worker *workers;        /* [ranks] */
    gate *gates;            /* [2 gate_count] */
    double speed;           /* of a rank while all work, at most 1 */
    double now, work_given; /* of shared cores: time, and work */
    worker *ready;          /* a list */
    queue working, asleep;
} clocks;

static cost *cost_of(const worker *worker, const cp_op *op) {
    return &worker->costs[op - worker->program->ops];
}

/* The n-th deviate of a seed, with mean 0 and variance 1. */
static double deviate(uint64_t seed, uint64_t n) {
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const uint64_t sum =
        (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
    return ((double)sum * 0x1p-16 - 2) * 1.7320508;
}

static double jittered(const clocks *s, const worker *worker, const cp_op *op,
                       double seconds) {
    const cp_timeline *line = s->line;
    if (line->jitter <= 0)
        return seconds;
    const int64_t n = worker->layer * s->draws + cost_of(worker, op)->draw;
    seconds += line->jitter * deviate(line->seed, (uint64_t)n);
    return seconds > 0 ? seconds : 0;
}

#define SPENT(kind) (1u << CP_SPENT_##kind)

static void add(worker *worker, task_kind kind, double seconds, unsigned spent,
                const char *name, const cp_op *op) {
    worker->tasks[worker->count++] = (task){kind, seconds, spent, name, op};
}

static void add_step(const clocks *s, worker *worker) {
    if (s->line->step > 0)
        add(worker, WORK, s->line->step, SPENT(RING), "step", NULL);
}

/* Whether two consecutive operations wait for one message group. */
static bool wait_together(const worker *worker, const cp_op *first,
                          const cp_op *next) {
    const cp_op *ops = worker->program->ops;
    return first >= ops && next < ops + worker->program->count &&
           first->kind == CP_OP_WAIT && next->kind == CP_OP_WAIT &&
           next->ends == first->ends + 1 &&
           ops[next->ends].hop == ops[first->ends].hop;
}

/* The seconds that cannot hide of the exchange that a wait ends. */
static double copied(const clocks *s, const worker *worker, const cp_op *wait) {
    const cp_op *ops = worker->program->ops;
    double seconds = cost_of(worker, &ops[wait->ends])->seconds;
    if (wait_together(worker, wait - 1, wait))
        seconds -= cost_of(worker, &ops[wait->ends - 1])->seconds;
    return seconds > 0 ? (1 - s->line->hidden) * seconds : 0;
}

static void add_operation(const clocks *s, worker *worker, const cp_op *op) {
    const cp_op_kind kind = op->kind;
    const cp_op *const wait = op;
    const double hidden = s->line->hidden;
    const unsigned ring = SPENT(RING), exposed = ring | SPENT(EXPOSED);
    if (kind == CP_OP_WAIT)
        op = &worker->program->ops[op->ends];
    const double seconds = cost_of(worker, op)->seconds;
    const char *name = cp_op_name(op->kind);
    switch (kind) {
    case CP_OP_EXCHANGE:
        add(worker, POST, jittered(s, worker, op, hidden * seconds), ring, name,
            op);
        return;
    case CP_OP_WAIT:
        add(worker, AWAIT, 0, exposed, name, op);
        if (hidden < 1)
            add(worker, WORK, copied(s, worker, wait),
                exposed | SPENT(EXCHANGING), name, op);
        if (!wait_together(worker, wait, wait + 1))
            add_step(s, worker);
        return;
    case CP_OP_ALL_TO_ALL:
    case CP_OP_ALL_GATHER:
        add(worker, POST, 0, ring, name, op);
        add(worker, AWAIT, 0, exposed, name, op);
        add(worker, WORK, seconds, exposed, name, op);
        return;
    case CP_OP_ATTEND:
        add(worker, WORK, jittered(s, worker, op, seconds),
            ring | SPENT(BUSY) | SPENT(ATTENDING), name, op);
        return;
    case CP_OP_APPEND:
        add_step(s, worker);
        break;
    default:
        break;
    }
    add(worker, WORK, seconds, ring | SPENT(BUSY), name, op);
}

/* Make the tasks of the next operation, or part of a layer; false: the rank has
 * finished. */
static bool refill(const clocks *s, worker *worker) {
    const cp_around *around = &s->line->around;
    const double *times = s->line->times;
    const double factor = times != NULL ? times[worker->rank] : 1;
    const cp_program *program = worker->program;
    const unsigned busy = SPENT(BUSY), linear = SPENT(LINEAR) | busy;
    worker->at = worker->count = 0;
    if (worker->next > program->count + 1) {
        worker->next = 0;
        worker->layer++;
    }
    const int64_t next = worker->next++;
    if (worker->layer == s->layers && next > 0)
        return false;
    if (worker->layer == s->layers)
        add(worker, WORK, around->head, busy, "head", NULL);
    else if (next == 0)
        add(worker, WORK, factor * around->before, linear, "project", NULL);
    else if (next <= program->count)
        add_operation(s, worker, &program->ops[next - 1]);
    else {
        add(worker, WORK, factor * around->after, linear, "feed", NULL);
        add(worker, WORK, around->reduce, SPENT(REDUCING) | busy, "all-reduce",
            NULL);
    }
    return true;
}

static void push(worker **list, worker *worker) {
    worker->behind = *list;
    *list = worker;
}

static worker *pop(worker **list) {
    worker *first = *list;
    *list = first->behind;
    return first;
}

static void insert(queue *queue, worker *worker, double until) {
    int at = queue->count++;
    for (; at > 0 && queue->entries[at - 1].until < until; at--)
        queue->entries[at] = queue->entries[at - 1];
    queue->entries[at].until = until;
    queue->entries[at].worker = worker;
}

static double first(const queue *queue) {
    return queue->count > 0 ? queue->entries[queue->count - 1].until : INFINITY;
}

/* Make all workers ready whose time has come. */
static void wake(clocks *s, queue *queue, double now) {
    while (first(queue) <= now)
        push(&s->ready, queue->entries[--queue->count].worker);
}

/* The gate of the message that the operation of this task sends, or of a
 * collective (n = 0); or of the message that it receives (n = 1). NULL: none.
 * Each gate exists twice, for even layers and for odd ones. */
static gate *gate_of(const clocks *s, const worker *worker, int n) {
    const cp_op *op = worker->tasks[worker->at].op;
    const cost *cost = cost_of(worker, op);
    if (n == 0 ? op->to == CP_NO_RANK
               : op->from == CP_NO_RANK || cp_op_is_collective(op))
        return NULL;
    if (n == 1)
        cost = &s->workers[op->from].costs[op->got_from];
    return &s->gates[2 * cost->gate + worker->layer % 2];
}

/* The later of two times, without a call of fmax. */
static double later(double a, double b) {
    return a > b ? a : b;
}

static void post(clocks *s, const worker *worker, int n) {
    const task *task = &worker->tasks[worker->at];
    const int parties = cp_op_is_collective(task->op) ? s->ranks : 2;
    gate *gate = gate_of(s, worker, n);
    if (gate == NULL)
        return;
    gate->posted = later(gate->posted, worker->time.now);
    if (n == 0)
        gate->seconds = task->seconds;
    if (++gate->posts < parties)
        return;
    gate->posts = 0;
    while (gate->waiting != NULL)
        push(&s->ready, pop(&gate->waiting));
}

/* Pass the gate if it is open, at the time at which it opened or later; or put
 * the worker on a list and return false. */
static bool pass(clocks *s, worker *worker, int n) {
    gate *gate = gate_of(s, worker, n);
    if (gate == NULL)
        return true;
    const double opens = gate->posted + gate->seconds;
    if (gate->posts > 0)
        push(&gate->waiting, worker);
    else if (s->speed < 1 && opens > s->now)
        insert(&s->asleep, worker, opens);
    else {
        worker->time.now = later(worker->time.now, opens);
        return true;
    }
    return false;
}

/* Carry out the worker's task. Returns whether it has ended; if not, the worker
 * is on a list. */
static bool ended(clocks *s, worker *worker) {
    const task *task = &worker->tasks[worker->at];
    const double work = task->seconds * s->speed;
    switch (task->kind) {
    case WORK:
        if (s->speed < 1 && worker->work_given + work > s->work_given) {
            insert(&s->working, worker, worker->work_given + work);
            return false;
        }
        worker->time.now = s->speed < 1 ? s->now : worker->time.now + work;
        return true;
    case POST:
        post(s, worker, 0);
        post(s, worker, 1);
        return true;
    case AWAIT:
        return pass(s, worker, 0) && pass(s, worker, 1);
    }
    return true;
}

static void show(const clocks *s, const worker *worker, double start,
                 double end) {
    const task *task = &worker->tasks[worker->at];
    if (s->line->bar != NULL && end > start)
        s->line->bar(s->line->context,
                     &(cp_bar){worker->rank, task->name, task->op,
                               worker->layer, start, end});
}

static void count(const clocks *s, worker *worker) {
    const task *task = &worker->tasks[worker->at];
    const gate *came = task->kind == AWAIT ? gate_of(s, worker, 1) : NULL;
    cp_rank_time *time = &worker->time;
    for (unsigned left = task->spent; left != 0; left &= left - 1)
        time->spent[__builtin_ctz(left)] += time->now - worker->start;
    if (task->kind == WORK)
        show(s, worker, worker->start, time->now);
    if (came != NULL) {
        time->spent[CP_SPENT_EXCHANGING] += came->seconds;
        show(s, worker, came->posted, came->posted + came->seconds);
    }
    if (task->spent & SPENT(REDUCING)) {
        worker->last = *time;
        if (worker->layer == 0)
            worker->first = *time;
    }
}

static void go_on(clocks *s, worker *worker) {
    while (worker->at < worker->count || refill(s, worker)) {
        if (!ended(s, worker))
            return;
        count(s, worker);
        worker->at++;
        worker->start = worker->time.now;
        worker->work_given = s->work_given;
    }
}

static bool move(clocks *s) {
    const double end = first(&s->working), wakes = first(&s->asleep);
    const double active = fmax(1, s->working.count);
    const double rate = fmin(1, s->line->cores / active);
    const double worked = s->now + (end - s->work_given) / rate;
    if (fmin(worked, wakes) == INFINITY)
        return false;
    s->work_given = worked <= wakes
                        ? end
                        : fmin(end, s->work_given + (wakes - s->now) * rate);
    s->now = fmin(worked, wakes);
    wake(s, &s->working, s->work_given);
    wake(s, &s->asleep, s->now);
    return true;
}

static cp_status walk(clocks *s, int64_t layers) {
    s->layers = layers;
    s->now = s->work_given = 0;
    memset(s->gates, 0, 2 * (size_t)s->gate_count * sizeof(gate));
    for (int k = s->ranks - 1; k >= 0; k--) {
        worker *worker = &s->workers[k];
        *worker = (struct worker){
            .rank = k, .program = worker->program, .costs = worker->costs};
        push(&s->ready, worker);
    }
    do
        while (s->ready != NULL)
            go_on(s, pop(&s->ready));
    while (move(s));
    for (const worker *worker = s->workers; worker < s->workers + s->ranks;
         worker++)
        if (worker->at < worker->count)
            return cp_fail(CP_BROKEN, "rank %d, layer %ld: its %s never ends",
                           worker->rank, worker->layer,
                           worker->tasks[worker->at].name);
    return CP_OK;
}

/* Whether the last layer took every rank as long as it took the first rank. */
static bool repeats(const clocks *s) {
    const worker *workers = s->workers;
    const double moved = workers[0].last.now - workers[0].first.now;
    for (int k = 0; k < s->ranks; k++) {
        const double seconds = workers[k].last.now - workers[k].first.now;
        if (fabs(seconds - moved) > 1e-12 * workers[k].last.now)
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

/* Sum up; in layers not walked, each rank continues as after its first. */
static void sum_up(const clocks *s, cp_rank_time *sum) {
    const double all = (double)s->line->layers * s->ranks;
    const int64_t left = s->line->layers - s->layers;
    const double times = left > 0 ? (double)left / (double)(s->layers - 1) : 0;
    *sum = (cp_rank_time){0};
    for (int k = 0; k < s->ranks; k++) {
        const worker *worker = &s->workers[k];
        const cp_rank_time *first = &worker->first, *last = &worker->last;
        double now = worker->time.now;
        if (left > 0)
            now += times * (last->now - first->now);
        sum->now = fmax(sum->now, now);
        for (int kind = 0; kind < CP_SPENT_KINDS; kind++)
            sum->spent[kind] +=
                (worker->time.spent[kind] +
                 times * (last->spent[kind] - first->spent[kind])) /
                all;
    }
}

static cp_status number_draws(void *context, const cp_event *event) {
    clocks *s = context;
    if (event->op->kind == CP_OP_ATTEND || event->kind == CP_EVENT_TRANSFER)
        s->workers[event->rank].costs[event->number].draw = s->draws++;
    return CP_OK;
}

static cp_status prepare(clocks *s) {
    const cp_timeline *line = s->line;
    int exchange = 0, owned = 0;
    CP_TRY(cp_allocate(&s->workers, s->ranks, sizeof(worker), "clocks"));
    CP_TRY(cp_allocate(&s->working.entries, s->ranks,
                       sizeof(*s->working.entries), "clocks"));
    CP_TRY(cp_allocate(&s->asleep.entries, s->ranks, sizeof(*s->asleep.entries),
                       "clocks"));
    for (int k = 0; k < s->ranks; k++)
        for (int64_t n = 0; n < line->plan->programs[k].count; n++)
            owned += line->plan->programs[k].ops[n].kind == CP_OP_EXCHANGE;
    for (int k = 0; k < s->ranks; k++) {
        const cp_program *program = &line->plan->programs[k];
        worker *worker = &s->workers[k];
        worker->program = program;
        CP_TRY(cp_allocate(&worker->costs, program->count, sizeof(cost),
                           "clocks"));
        s->gate_count = owned;
        for (int64_t n = 0; n < program->count; n++) {
            const cp_op *op = &program->ops[n];
            cost *cost = &worker->costs[n];
            cost->seconds = line->seconds(line->context, k, op);
            s->events++;
            if (op->kind == CP_OP_EXCHANGE) {
                cost->gate = exchange++;
                s->events++;
            } else if (cp_op_is_collective(op)) {
                cost->gate = s->gate_count++;
                s->events -= k > 0;
            }
        }
    }
    CP_TRY(cp_allocate(&s->gates, 2 * s->gate_count, sizeof(gate), "clocks"));
    return line->jitter > 0 ? cp_plan_order(line->plan, number_draws, s)
                            : CP_OK;
}

cp_status cp_timeline_run(const cp_timeline *timeline, cp_rank_time *time) {
    const int ranks = timeline->plan->layout->ranks;
    const double speed = timeline->cores > 0 ? timeline->cores / ranks : 1;
    clocks s = {timeline, ranks, .speed = fmin(1, speed)};
    cp_status status = prepare(&s);
    if (status == CP_OK)
        status = walk_enough(&s);
    if (status == CP_OK)
        sum_up(&s, time);
    for (int k = 0; k < ranks && s.workers != NULL; k++)
        free(s.workers[k].costs);
    free(s.workers);
    free(s.working.entries);
    free(s.asleep.entries);
    free(s.gates);
    return status;
}
