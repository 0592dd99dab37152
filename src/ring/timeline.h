/* Tangled from book/05-drawing.nw; edit the chapter. */
/* When each operation of a plan runs, given how long things take. */
#ifndef CP_TIMELINE_H
#define CP_TIMELINE_H

#include "ring/plan.h"

/* How long things take, in seconds. */
typedef struct {
    double pair;    /* scoring one (query, key) pair, all heads */
    double byte;    /* sending one byte */
    double latency; /* of one message */
} cp_costs;

/* One bar of a drawing. */
typedef struct {
    int rank;
    bool communication; /* which of the two queues */
    const cp_op *op;    /* a transfer: the receiver's exchange */
    int origin;         /* whose block it is about */
    double start, end;
} cp_bar;

typedef struct {
    cp_bar *bars;
    int64_t count, room;
    double end; /* of the last bar */
} cp_timeline;

/* When each operation of a plan runs if it takes as long as costs say. Frees
 * nothing of the plan, which must outlive the timeline. Fails as
 * cp_plan_order does. */
cp_status cp_timeline_new(const cp_plan *plan, const cp_costs *costs,
                          cp_timeline *timeline);

void cp_timeline_free(cp_timeline *timeline);

/* Costs at which one hop's keys of a full prefill take about half as long to
 * send as to attend to. */
cp_costs cp_costs_for_drawing(const cp_plan *plan);

#endif
