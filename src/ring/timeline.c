/* Tangled from book/05-drawing.nw; edit the chapter. */
/* When each operation of a plan runs, given how long things take. */
#include "ring/timeline.h"

#include <math.h>
#include <stdlib.h>

#include "ring/order.h"

/* How long things take, in seconds. */
typedef struct {
    double pair;    /* scoring one (query, key) pair, all heads */
    double byte;    /* sending one byte */
    double latency; /* of one message */
} lengths;

typedef struct {
    double compute;       /* when the rank's compute queue is free */
    double send, receive; /* when its two directions of traffic are free */
    double *posted;       /* [operations] when an exchange was posted */
    double *done;         /* [operations] when both its halves were done */
} clock;

typedef struct {
    const cp_plan *plan;
    lengths costs;
    clock *clocks;
    cp_timeline *timeline;
} drawing;

static cp_status add_bar(cp_timeline *timeline, cp_bar bar) {
    if (bar.end <= bar.start)
        return CP_OK;
    if (timeline->count == timeline->room) {
        const int64_t room = cp_max(64, 2 * timeline->room);
        cp_bar *bars = realloc(timeline->bars, (size_t)room * sizeof(cp_bar));
        if (bars == NULL)
            return cp_fail(CP_MEMORY, "no memory for %lld bars",
                           (long long)room);
        timeline->bars = bars;
        timeline->room = room;
    }
    timeline->bars[timeline->count++] = bar;
    timeline->end = bar.end > timeline->end ? bar.end : timeline->end;
    return CP_OK;
}

static double local_cost(const drawing *drawing, const cp_op *op) {
    if (op->kind != CP_OP_ATTEND)
        return 0;
    const cp_layout *layout = drawing->plan->layout;
    const int64_t pairs = cp_block_pairs(&layout->queries[op->in.origin],
                                         &layout->keys[op->keys.origin]);
    return (double)pairs * drawing->costs.pair;
}

static cp_status on_local(drawing *drawing, const cp_event *event) {
    clock *clock = &drawing->clocks[event->rank];
    const double start = clock->compute;
    clock->compute += local_cost(drawing, event->op);
    const int origin = event->op->kind == CP_OP_ATTEND &&
                               drawing->plan->variant != CP_PASS_Q &&
                               drawing->plan->variant != CP_DECODE
                           ? event->op->keys.origin
                           : event->op->in.origin;
    return add_bar(drawing->timeline, (cp_bar){event->rank, false, event->op,
                                               origin, start, clock->compute});
}

static cp_status on_transfer(drawing *drawing, const cp_event *event) {
    const cp_plan *plan = drawing->plan;
    const cp_op *send = event->op;
    const int64_t s = event->number, r = send->sent_to;
    const cp_op *receive = &plan->programs[send->to].ops[r];
    clock *from = &drawing->clocks[event->rank];
    clock *to = &drawing->clocks[send->to];
    const cp_slot *slot = &plan->slots[send->in.slot];
    const double start = fmax(fmax(from->posted[s], to->posted[r]),
                              fmax(from->send, to->receive));
    const double end = start + drawing->costs.latency +
                       (double)slot->bytes * drawing->costs.byte;
    from->send = to->receive = end;
    from->done[s] = fmax(from->done[s], end);
    to->done[r] = fmax(to->done[r], end);
    return add_bar(
        drawing->timeline,
        (cp_bar){send->to, true, receive, receive->out.origin, start, end});
}

static cp_status on_collective(drawing *drawing, const cp_event *event) {
    const cp_plan *plan = drawing->plan;
    const int ranks = plan->layout->ranks;
    double start = 0;
    for (int k = 0; k < ranks; k++)
        start = fmax(start, drawing->clocks[k].compute);
    const int slot =
        event->op->kind == CP_OP_ALL_GATHER ? event->op->in.slot : plan->result;
    const double end = start + (ranks - 1) * (drawing->costs.latency +
                                              (double)plan->slots[slot].bytes *
                                                  drawing->costs.byte);
    for (int k = 0; k < ranks; k++) {
        const cp_op *op = &plan->programs[k].ops[event->all[k]];
        drawing->clocks[k].compute = end;
        CP_TRY(
            add_bar(drawing->timeline, (cp_bar){k, true, op, k, start, end}));
    }
    return CP_OK;
}

static cp_status on_event(void *context, const cp_event *event) {
    drawing *drawing = context;
    clock *clock = &drawing->clocks[event->rank];
    switch (event->kind) {
    case CP_EVENT_LOCAL:
        return on_local(drawing, event);
    case CP_EVENT_START:
        clock->posted[event->number] = clock->compute;
        clock->done[event->number] = clock->compute;
        return CP_OK;
    case CP_EVENT_TRANSFER:
        return on_transfer(drawing, event);
    case CP_EVENT_WAIT:
        clock->compute = fmax(clock->compute, clock->done[event->op->ends]);
        return CP_OK;
    case CP_EVENT_COLLECTIVE:
        return on_collective(drawing, event);
    }
    return CP_OK;
}

static lengths lengths_of(const cp_plan *plan) {
    const cp_layout *layout = plan->layout;
    const double total = (double)layout->new_tokens *
                         (double)(layout->cached_tokens + layout->new_tokens);
    const double hop = total / layout->ranks / layout->ranks;
    const cp_shape *shape = &plan->shape;
    const double block =
        (double)layout->keys[0].rows * 2 *
        (double)(shape->kv_heads * shape->head_dim * plan->element_bytes);
    return (lengths){1 / hop, 0.25 / block, 0.02};
}

cp_status cp_timeline_new(const cp_plan *plan, cp_timeline *timeline) {
    const int ranks = plan->layout->ranks;
    *timeline = (cp_timeline){0};
    drawing drawing = {plan, lengths_of(plan), NULL, timeline};
    cp_status status =
        cp_allocate(&drawing.clocks, ranks, sizeof(clock), "clocks");
    for (int k = 0; k < ranks && status == CP_OK; k++) {
        clock *clock = &drawing.clocks[k];
        const int64_t count = plan->programs[k].count;
        status = cp_allocate(&clock->posted, 2 * count, 8, "clocks");
        clock->done = status == CP_OK ? clock->posted + count : NULL;
    }
    if (status == CP_OK)
        status = cp_plan_order(plan, on_event, &drawing);
    for (int k = 0; drawing.clocks != NULL && k < ranks; k++)
        free(drawing.clocks[k].posted);
    free(drawing.clocks);
    if (status != CP_OK)
        cp_timeline_free(timeline);
    return status;
}

void cp_timeline_free(cp_timeline *timeline) {
    free(timeline->bars);
    *timeline = (cp_timeline){0};
}
