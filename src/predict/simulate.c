/* Tangled from book/15-simulate.nw; edit the chapter. */
/* What a call will take on a described machine: the plan's walker with virtual
 * clocks. */
#define _GNU_SOURCE
#include "predict/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ring/cache.h"
#include "ring/order.h"
#include "predict/share.h"

typedef struct {
    double before, after, reduce, head;
} stretches;

typedef struct turns turns;

typedef struct {
    cp_event_kind kind;
    int rank, own; /* whose; which operation of all */
    const cp_op *op;
    double seconds; /* of the operation */
} event;

typedef struct {
    double compute, send, receive; /* when each queue is free */
    double exposed, attending, exchanging, busy, ring;
    double linear, reducing; /* where cores are shared */
} clock;

typedef struct {
    const cp_pace *pace;
    const cp_plan *plan;
    stretches around;
    event *events;
    int64_t count, room;
    int operations;              /* of all ranks */
    double *posted, *done;       /* [operations] of exchanges */
    int *first;                  /* [ranks] number of a rank's first */
    clock *clocks;               /* [ranks] */
    clock *before, *first_layer; /* [ranks] the same, one layer ago, and after
                                    the first */
    turns *turns;                /* where ranks share cores; else NULL */
    uint64_t seed;
    double sigma; /* of the jitter; a captured decode step has none */
    cp_forecast *forecast;
    cp_history *trace;
    int64_t layer;
} simulation;

static void note_longest(cp_forecast *forecast, const cp_op *op,
                         double seconds) {
    if (op->kind == CP_OP_ATTEND)
        forecast->attend = fmax(forecast->attend, seconds);
    if (op->kind == CP_OP_EXCHANGE)
        forecast->exchange = fmax(forecast->exchange, seconds);
    if (cp_op_is_collective(op))
        forecast->all_to_all = fmax(forecast->all_to_all, seconds);
}

static cp_status record(void *context, const cp_event *seen) {
    simulation *s = context;
    const cp_op *op = seen->op;
    if (s->count == s->room) {
        /* Make room for more events. */
        const int64_t room = s->room == 0 ? 1024 : 2 * s->room;
        event *events = realloc(s->events, (size_t)room * sizeof(event));
        if (events == NULL)
            return cp_fail(CP_MEMORY, "no memory for %lld events",
                           (long long)room);
        s->events = events;
        s->room = room;
    }
    event *e = &s->events[s->count++];
    *e = (event){.kind = seen->kind, .rank = seen->rank, .op = op};
    e->own = s->first[seen->rank] + (int)seen->number;
    if (op->kind == CP_OP_WAIT) {
        e->op = &s->plan->programs[seen->rank].ops[op->ends];
        e->own = s->first[seen->rank] + op->ends;
    }
    e->seconds = cp_pace_of(s->pace, s->plan, e->op);
    note_longest(s->forecast, e->op, e->seconds);
    return CP_OK;
}

static double deviate(uint64_t *seed) {
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const uint64_t sum =
        (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
    return ((double)sum * 0x1p-16 - 2) * 1.7320508;
}

static double jittered(simulation *s, double seconds) {
    return s->sigma <= 0 ? seconds
                         : fmax(0, seconds + s->sigma * deviate(&s->seed));
}

static void named_bar(simulation *s, int rank, const char *name, double start,
                      double seconds) {
    if (s->trace != NULL && seconds > 0)
        cp_history_note(s->trace, rank, 0,
                        (cp_stretch){.name = name,
                                     .start = start,
                                     .end = start + seconds,
                                     .layer = s->layer});
}

static void bar(simulation *s, int rank, bool message, const cp_op *op,
                double start, double seconds) {
    if (s->trace == NULL)
        return;
    int64_t bytes = message ? s->plan->slots[op->in.slot].bytes : 0;
    if (cp_op_is_collective(op))
        bytes *= s->pace->ranks - 1;
    cp_history_note(s->trace, rank, message,
                    (cp_stretch){cp_op_name(op->kind), start, start + seconds,
                                 s->layer, bytes, op->hop});
}

static double step_of(const simulation *s) {
    return s->pace->decode || s->pace->ranks == 1 ? 0 : s->pace->hardware->step;
}

static void step(simulation *s, int rank) {
    named_bar(s, rank, "step", s->clocks[rank].compute, step_of(s));
    s->clocks[rank].compute += step_of(s);
}

static void local(simulation *s, const event *e) {
    clock *clock = &s->clocks[e->rank];
    double seconds = e->seconds;
    if (e->op->kind == CP_OP_ATTEND) {
        seconds = jittered(s, seconds);
        clock->attending += seconds;
    }
    if (e->op->kind == CP_OP_APPEND)
        step(s, e->rank);
    bar(s, e->rank, false, e->op, clock->compute, seconds);
    clock->compute += seconds;
    clock->busy += seconds;
}

static void transfer(simulation *s, const event *e) {
    const int own = e->own, other = s->first[e->op->to] + e->op->sent_to;
    clock *from = &s->clocks[e->rank], *to = &s->clocks[e->op->to];
    const double start = fmax(fmax(s->posted[own], s->posted[other]),
                              fmax(from->send, to->receive));
    const double seconds = jittered(s, e->seconds);
    const double end = start + seconds;
    from->send = to->receive = end;
    s->done[own] = fmax(s->done[own], end);
    s->done[other] = fmax(s->done[other], end);
    to->exchanging += seconds;
    bar(s, e->op->to, true, e->op, start, seconds);
}

static void await(simulation *s, const event *e) {
    const cp_hardware *hardware = s->pace->hardware;
    const double overlap =
        s->pace->decode ? hardware->decode_overlap : hardware->overlap;
    clock *clock = &s->clocks[e->rank];
    const double end =
        fmax(clock->compute + (1 - overlap) * e->seconds, s->done[e->own]);
    clock->exposed += end - clock->compute;
    clock->compute = end;
    step(s, e->rank);
}

static void together(simulation *s, const event *e) {
    double start = 0;
    for (int k = 0; k < s->pace->ranks; k++)
        start = fmax(start, s->clocks[k].compute);
    for (int k = 0; k < s->pace->ranks; k++) {
        bar(s, k, true, e->op, start, e->seconds);
        s->clocks[k].exposed += start + e->seconds - s->clocks[k].compute;
        s->clocks[k].compute = start + e->seconds;
    }
}

static void replay(simulation *s) {
    for (int64_t n = 0; n < s->count; n++) {
        const event *e = &s->events[n];
        if (e->kind == CP_EVENT_LOCAL)
            local(s, e);
        else if (e->kind == CP_EVENT_START)
            s->posted[e->own] = s->done[e->own] = s->clocks[e->rank].compute;
        else if (e->kind == CP_EVENT_TRANSFER)
            transfer(s, e);
        else if (e->kind == CP_EVENT_WAIT)
            await(s, e);
        else
            together(s, e);
    }
}
static void stretch(simulation *s, const char *what, double seconds) {
    for (int k = 0; k < s->pace->ranks; k++) {
        clock *clock = &s->clocks[k];
        named_bar(s, k, what, clock->compute, seconds);
        clock->compute += seconds;
        clock->busy += seconds;
    }
}

static void layer(simulation *s) {
    const stretches *around = &s->around;
    stretch(s, "project", around->before);
    for (int k = 0; k < s->pace->ranks; k++)
        s->clocks[k].ring -= s->clocks[k].compute;
    replay(s);
    for (int k = 0; k < s->pace->ranks; k++)
        s->clocks[k].ring += s->clocks[k].compute;
    stretch(s, "feed", around->after);
    stretch(s, "all-reduce", around->reduce);
    s->layer++;
}

static bool repeats(const simulation *s) {
    const double moved = s->clocks[0].compute - s->before[0].compute;
    bool same = s->layer > 1 && s->sigma <= 0 && s->trace == NULL;
    for (int k = 0; k < s->pace->ranks && same; k++) {
        const clock *now = &s->clocks[k];
        const double here = now->compute - s->before[k].compute;
        same = fabs(here - moved) <= 1e-12 * now->compute;
    }
    return same;
}
/* Let the clocks go on for some layers as they did in the count layers in which
 * they went from one state to another. */
static void go_on(simulation *s, double layers, const clock *from,
                  const clock *to, double count) {
    const double times = layers / count;
    for (int k = 0; k < s->pace->ranks; k++) {
        clock *now = &s->clocks[k];
        now->compute += times * (to[k].compute - from[k].compute);
        now->exposed += times * (to[k].exposed - from[k].exposed);
        now->attending += times * (to[k].attending - from[k].attending);
        now->exchanging += times * (to[k].exchanging - from[k].exchanging);
        now->busy += times * (to[k].busy - from[k].busy);
        now->ring += times * (to[k].ring - from[k].ring);
        now->linear += times * (to[k].linear - from[k].linear);
        now->reducing += times * (to[k].reducing - from[k].reducing);
    }
}
enum { MOST_REPLAYED = 12000000 };

static int64_t enough(const simulation *s) {
    const int64_t layers = s->pace->model->layers;
    const int64_t most = cp_max(8, MOST_REPLAYED / cp_max(s->count, 1));
    return s->trace != NULL ? layers : cp_min(layers, most);
}

static void walk(simulation *s) {
    const size_t bytes = (size_t)s->pace->ranks * sizeof(clock);
    const int64_t most = enough(s);
    bool same = false;
    while (s->layer < most && !same) {
        memcpy(s->before, s->clocks, bytes);
        layer(s);
        if (s->layer == 1)
            memcpy(s->first_layer, s->clocks, bytes);
        same = repeats(s);
    }
    const double left = (double)(s->pace->model->layers - s->layer);
    if (left > 0 && same)
        go_on(s, left, s->before, s->clocks, 1);
    else if (left > 0)
        go_on(s, left, s->first_layer, s->clocks, (double)(s->layer - 1));
    stretch(s, "head", s->around.head);
}

/* Where a rank is, and what its present task counts as. */
typedef struct {
    int64_t layer, at; /* at: an operation; -1 before them */
    int part;          /* of the operation */
    unsigned counts;
    const char *name; /* of its bar, or: */
    const cp_op *op;  /* what its bar shows */
    bool message;
    int receiver; /* of a message that is posted */
} turn;

struct turns {
    int64_t layers;  /* that are walked */
    turn *each;      /* [ranks] */
    double *seconds; /* [operations] while all ranks work */
};
static cp_status record_turns(void *context, const cp_event *seen) {
    simulation *s = context;
    s->count++;
    if (seen->kind == CP_EVENT_TRANSFER)
        return CP_OK;
    const double seconds = cp_pace_of(s->pace, s->plan, seen->op);
    note_longest(s->forecast, seen->op, seconds);
    s->turns->seconds[s->first[seen->rank] + seen->number] = seconds;
    if (seen->kind == CP_EVENT_COLLECTIVE)
        for (int k = 0; k < s->pace->ranks; k++)
            s->turns->seconds[s->first[k] + seen->all[k]] = seconds;
    return CP_OK;
}

static int gate_of(const simulation *s, const cp_op *op) {
    return cp_op_is_collective(op) ? s->first[0] + op->sent_to
                                   : s->first[op->from] + op->got_from;
}
enum {
    BUSY = 1,
    ATTENDING = 2,
    EXPOSED = 4,
    EXCHANGING = 8,
    RING = 16,
    LINEAR = 32,
    REDUCING = 64,
};

static cp_task work_of(const simulation *s, double seconds) {
    return (cp_task){.kind = CP_TASK_WORK,
                     .seconds = seconds * fmin(1, s->pace->speed)};
}
static cp_task named(const simulation *s, turn *turn, const char *name,
                     unsigned counts, double seconds) {
    turn->name = name;
    turn->counts = counts;
    return work_of(s, seconds);
}

static cp_task at_gate(const turn *turn, cp_task_kind kind, int number,
                       int parties, double seconds) {
    return (cp_task){kind, seconds, 2 * (int64_t)number + turn->layer % 2,
                     parties};
}
static double hidden_share(const simulation *s) {
    const cp_hardware *hardware = s->pace->hardware;
    return s->pace->decode ? hardware->decode_overlap : hardware->overlap;
}

/* First what is sent, then what is received. A half that an exchange does not
 * have is a task of nothing. */
static cp_task post_part(simulation *s, int rank, turn *turn, const cp_op *op,
                         int number) {
    const bool sends = turn->part == 0;
    if ((sends ? op->to : op->from) == CP_NOBODY)
        return work_of(s, 0);
    turn->op = op;
    turn->receiver = sends ? op->to : rank;
    return at_gate(turn, CP_TASK_POST, sends ? number : gate_of(s, op), 2,
                   jittered(s, hidden_share(s) * s->turns->seconds[number]));
}
static cp_task wait_part(simulation *s, turn *turn, const cp_op *op,
                         int number) {
    turn->counts = RING | EXPOSED;
    if (turn->part == 0 && op->to != CP_NOBODY)
        return at_gate(turn, CP_TASK_AWAIT, number, 2, 0);
    if (turn->part == 1 && op->from != CP_NOBODY)
        return at_gate(turn, CP_TASK_AWAIT, gate_of(s, op), 2, 0);
    if (turn->part < 2)
        return work_of(s, 0);
    if (turn->part == 3)
        return named(s, turn, "step", RING, step_of(s));
    turn->op = op;
    turn->message = true;
    turn->counts |= EXCHANGING;
    return work_of(s, (1 - hidden_share(s)) * s->turns->seconds[number]);
}
static cp_task collective_part(simulation *s, turn *turn, const cp_op *op,
                               int number) {
    turn->counts = RING | EXPOSED;
    if (turn->part < 2)
        return at_gate(turn, turn->part == 0 ? CP_TASK_POST : CP_TASK_AWAIT,
                       gate_of(s, op), s->pace->ranks, 0);
    turn->op = op;
    turn->message = true;
    return work_of(s, s->turns->seconds[number]);
}
static cp_task local_part(simulation *s, turn *turn, const cp_op *op,
                          int number) {
    const double seconds = s->turns->seconds[number];
    if (op->kind == CP_OP_APPEND && turn->part == 0)
        return named(s, turn, "step", RING, step_of(s));
    turn->op = op;
    turn->counts = RING | BUSY;
    if (op->kind != CP_OP_ATTEND)
        return work_of(s, seconds);
    turn->counts |= ATTENDING;
    return work_of(s, jittered(s, seconds));
}
static cp_task around_part(const simulation *s, turn *turn) {
    const stretches *around = &s->around;
    const unsigned counts = LINEAR | BUSY;
    if (turn->at < 0 && turn->layer == s->turns->layers)
        return named(s, turn, "head", BUSY, around->head);
    if (turn->at < 0)
        return named(s, turn, "project", counts, around->before);
    if (turn->part == 0)
        return named(s, turn, "feed", counts, around->after);
    return named(s, turn, "all-reduce", REDUCING | BUSY, around->reduce);
}
static int parts_of(const cp_program *program, const turn *turn) {
    if (turn->at < 0)
        return 1;
    if (turn->at == program->count)
        return 2;
    switch (program->ops[turn->at].kind) {
    case CP_OP_WAIT:
        return 4;
    case CP_OP_ALL_TO_ALL:
    case CP_OP_ALL_GATHER:
        return 3;
    case CP_OP_APPEND:
    case CP_OP_EXCHANGE:
        return 2;
    default:
        return 1;
    }
}
static cp_task part_of(simulation *s, int rank, turn *turn) {
    const cp_program *program = &s->plan->programs[rank];
    if (turn->at < 0 || turn->at == program->count)
        return around_part(s, turn);
    const cp_op *op = &program->ops[turn->at];
    const int number = s->first[rank] + (int)turn->at;
    if (op->kind == CP_OP_WAIT)
        return wait_part(s, turn, &program->ops[op->ends],
                         s->first[rank] + op->ends);
    if (op->kind == CP_OP_EXCHANGE)
        return post_part(s, rank, turn, op, number);
    if (cp_op_is_collective(op))
        return collective_part(s, turn, op, number);
    return local_part(s, turn, op, number);
}
static bool next_part(void *context, int rank, cp_task *task) {
    simulation *s = context;
    turn *turn = &s->turns->each[rank];
    const cp_program *program = &s->plan->programs[rank];
    if (turn->part == parts_of(program, turn)) {
        turn->part = 0;
        turn->at++;
    }
    if (turn->at > program->count) {
        turn->at = -1;
        turn->layer++;
    }
    if (turn->layer == s->turns->layers && turn->at >= 0)
        return false;
    turn->op = NULL;
    turn->name = NULL;
    turn->counts = 0;
    turn->message = false;
    *task = part_of(s, rank, turn);
    turn->part++;
    return true;
}
static void add_up(clock *clock, unsigned counts, double seconds) {
    clock->busy += counts & BUSY ? seconds : 0;
    clock->attending += counts & ATTENDING ? seconds : 0;
    clock->exposed += counts & EXPOSED ? seconds : 0;
    clock->exchanging += counts & EXCHANGING ? seconds : 0;
    clock->ring += counts & RING ? seconds : 0;
    clock->linear += counts & LINEAR ? seconds : 0;
    clock->reducing += counts & REDUCING ? seconds : 0;
}

/* The part of a message that needs no core. */
static void pass_by(simulation *s, const turn *turn, double start,
                    double seconds) {
    if (seconds <= 0)
        return;
    add_up(&s->clocks[turn->receiver], EXCHANGING, seconds);
    bar(s, turn->receiver, true, turn->op, start, seconds);
}
static void part_done(void *context, int rank, const cp_task *task,
                      double start, double end) {
    simulation *s = context;
    const turn *turn = &s->turns->each[rank];
    clock *clock = &s->clocks[rank];
    s->layer = turn->layer;
    if (task->kind == CP_TASK_POST) {
        pass_by(s, turn, start, end - start);
        return;
    }
    add_up(clock, turn->counts, end - start);
    clock->compute = end;
    if (turn->name != NULL)
        named_bar(s, rank, turn->name, start, end - start);
    if (turn->op != NULL && (end > start || !turn->message))
        bar(s, rank, turn->message, turn->op, start, end - start);
    if (turn->counts & REDUCING) {
        /* Keep how the clocks stand after a layer. */
        s->before[rank] = *clock;
        if (turn->layer == 0)
            s->first_layer[rank] = *clock;
    }
}
static cp_status take_turns(simulation *s) {
    const int64_t walked = s->turns->layers = enough(s);
    const cp_share share = {
        .ranks = s->pace->ranks,
        .gates = 2 * (int64_t)s->operations,
        .cores = (double)(s->pace->speed < 1 ? s->pace->hardware->cores
                                             : s->pace->ranks),
        .next = next_part,
        .done = part_done,
        .context = s,
    };
    for (int k = 0; k < s->pace->ranks; k++)
        s->turns->each[k] = (turn){.at = -1};
    CP_TRY(cp_share_run(&share));
    const double left = (double)(s->pace->model->layers - walked);
    if (left > 0)
        go_on(s, left, s->first_layer, s->before, (double)(walked - 1));
    return CP_OK;
}

static void memory(const cp_pace *pace, const cp_plan *plan,
                   cp_forecast *forecast) {
    const cp_layout *layout = plan->layout;
    const double layers = (double)pace->model->layers;
    const double row = 2 * (double)pace->shape.kv_heads *
                       (double)pace->shape.head_dim *
                       (double)plan->element_bytes;
    int64_t most = 0;
    for (int k = 0; k < layout->ranks; k++)
        most = cp_max(most, layout->cache[k].tokens);
    forecast->weights =
        layers * cp_pace_layer_weights(pace) + cp_pace_table_weights(pace);
    forecast->cache = (double)most * row * layers;
    for (int n = 0; n < plan->slot_count; n++)
        forecast->buffers += (double)plan->slots[n].bytes;
    /* Add the activations of the linear layers. */
    const double rows = (double)layout->queries[0].rows;
    const double numbers =
        2 * (double)pace->model->width +
        2 * (double)pace->model->inner / (double)pace->tensor;
    forecast->buffers += rows * numbers * (double)plan->element_bytes;
}

static void work(const cp_pace *pace, const cp_plan *plan,
                 cp_forecast *forecast) {
    const cp_layout *layout = plan->layout;
    const cp_model_sizes *model = pace->model;
    double pairs = 0;
    for (int64_t i = 0; i < layout->sequences; i++) {
        const double fresh = (double)layout->fresh[i];
        pairs += fresh * ((double)layout->past[i] + (fresh + 1) / 2);
    }
    forecast->flops =
        2 * (double)model->parameters * (double)layout->new_tokens +
        4 * (double)(model->query_heads * model->head_dim) * pairs *
            (double)model->layers;
    forecast->gpus = pace->ranks * pace->tensor;
    forecast->flops_per_second =
        forecast->flops / forecast->seconds / (double)forecast->gpus;
}

static void sum_up(const simulation *s) {
    const stretches *around = &s->around;
    cp_forecast *forecast = s->forecast;
    const double layers = (double)s->pace->model->layers;
    const double all = layers * s->pace->ranks;
    for (int k = 0; k < s->pace->ranks; k++) {
        const clock *clock = &s->clocks[k];
        forecast->seconds = fmax(forecast->seconds, clock->compute);
        forecast->ring += clock->ring / all;
        forecast->exposed += clock->exposed / all;
        forecast->attending += clock->attending / all;
        forecast->exchanging += clock->exchanging / all;
        forecast->busy += clock->busy / s->pace->ranks;
        forecast->linear += clock->linear / all;
        forecast->reducing += clock->reducing / all;
    }
    if (s->turns == NULL) {
        forecast->linear = around->before + around->after;
        forecast->reducing = around->reduce;
    }
    forecast->events = s->count;
    forecast->busy /= forecast->seconds;
}

static cp_status run_alone(simulation *s) {
    CP_TRY(
        cp_allocate(&s->posted, 2 * s->operations, sizeof(double), "clocks"));
    s->done = s->posted + s->operations;
    CP_TRY(cp_plan_order(s->plan, record, s));
    walk(s);
    return CP_OK;
}

static cp_status run_turns(simulation *s) {
    turns *turns = s->turns;
    cp_status status =
        cp_allocate(&turns->each, s->pace->ranks, sizeof(turn), "turns");
    if (status == CP_OK)
        status = cp_allocate(&turns->seconds, s->operations, sizeof(double),
                             "turns");
    if (status == CP_OK)
        status = cp_plan_order(s->plan, record_turns, s);
    return status == CP_OK ? take_turns(s) : status;
}
static cp_status run(simulation *s) {
    const int ranks = s->pace->ranks;
    CP_TRY(
        cp_allocate(&s->clocks, 3 * (int64_t)ranks, sizeof(clock), "clocks"));
    CP_TRY(cp_allocate(&s->first, ranks, sizeof(int), "clocks"));
    for (int k = 0; k < ranks; k++) {
        s->first[k] = s->operations;
        s->operations += (int)s->plan->programs[k].count;
    }
    s->before = s->clocks + ranks;
    s->first_layer = s->before + ranks;
    CP_TRY(s->turns != NULL ? run_turns(s) : run_alone(s));
    sum_up(s);
    return CP_OK;
}
static cp_status simulate_plan(const cp_scenario *scenario, const cp_pace *pace,
                               const cp_plan *plan, cp_forecast *forecast) {
    const int64_t rows = plan->layout->queries[0].rows;
    turns turns = {0};
    simulation s = {
        .pace = pace,
        .plan = plan,
        .around = {cp_pace_before(pace, rows), cp_pace_after(pace, rows),
                   cp_pace_reduce(pace, rows), cp_pace_head(pace)},
        .turns = pace->speed < 1 || scenario->by_turns ? &turns : NULL,
        .seed = scenario->seed,
        .sigma = pace->decode || pace->ranks == 1 ? 0 : pace->hardware->jitter,
        .forecast = forecast,
        .trace = scenario->trace};
    const cp_status status = run(&s);
    free(turns.each);
    free(turns.seconds);
    free(s.events);
    free(s.posted);
    free(s.first);
    free(s.clocks);
    if (status != CP_OK)
        return status;
    if (scenario->kept)
        forecast->seconds += pace->hardware->call;
    memory(pace, plan, forecast);
    work(pace, plan, forecast);
    return CP_OK;
}

enum { MOST_TOKENS = INT32_MAX };

static cp_status tokens_check(const cp_scenario *scenario) {
    int64_t sum = 0;
    for (int64_t i = 0; i < scenario->sequences; i++) {
        const int64_t fresh = scenario->new_tokens[i];
        const int64_t past = scenario->cached_tokens[i];
        if (fresh < 0 || past < 0 || !cp_add(sum, fresh, &sum) ||
            !cp_add(sum, past, &sum) || sum > MOST_TOKENS)
            return cp_fail(CP_CAPACITY,
                           "--new, --cached: with the %lld and %lld tokens of "
                           "sequence %lld there are more than the %d that can "
                           "be planned",
                           (long long)fresh, (long long)past, (long long)i,
                           MOST_TOKENS);
    }
    return CP_OK;
}
static cp_status lay_out(const cp_scenario *scenario, cp_cache **cache,
                         cp_layout **layout) {
    cp_layout *past = NULL;
    int64_t cached = 0, fresh = 0;
    for (int64_t i = 0; i < scenario->sequences; i++) {
        cached += scenario->cached_tokens[i];
        fresh += scenario->new_tokens[i];
    }
    cp_status status =
        cp_cache_new(scenario->ranks, scenario->sequences,
                     cached + fresh + 2 * scenario->ranks, cache);
    if (status == CP_OK && cached > 0)
        status = cp_cache_prefill(*cache, scenario->cached_tokens, &past);
    if (status == CP_OK && cached > 0)
        status = cp_cache_commit(*cache, past);
    cp_layout_free(past);
    if (status != CP_OK)
        return status;
    return scenario->variant == CP_DECODE
               ? cp_cache_decode(*cache, scenario->new_tokens, layout)
               : cp_cache_prefill(*cache, scenario->new_tokens, layout);
}

cp_status cp_simulate(const cp_scenario *scenario, cp_forecast *forecast) {
    *forecast = (cp_forecast){.variant = scenario->variant};
    cp_pace pace = {.hardware = scenario->hardware,
                    .model = scenario->model,
                    .ranks = scenario->ranks,
                    .tensor = scenario->tensor,
                    .partial_bytes = scenario->partial_bytes,
                    .decode = scenario->variant == CP_DECODE};
    if (pace.partial_bytes == 0)
        pace.partial_bytes = CP_PARTIAL_BYTES;
    cp_cache *cache = NULL;
    cp_layout *layout = NULL;
    cp_plan *plan = NULL;
    const cp_plan_options options = {scenario->model->cache_bytes, 1};
    cp_status status = tokens_check(scenario);
    if (status == CP_OK)
        status = cp_pace_new(&pace);
    if (status == CP_OK)
        status = lay_out(scenario, &cache, &layout);
    if (status == CP_OK)
        status = cp_plan_build(scenario->variant, layout, &pace.shape, &options,
                               &plan);
    if (status == CP_OK)
        status = simulate_plan(scenario, &pace, plan, forecast);
    cp_plan_free(plan);
    cp_layout_free(layout);
    cp_cache_free(cache);
    return status;
}
