/* Tangled from book/05-drawing.nw; edit the chapter. */
/* When each operation of a plan runs, given how long things take. */
#ifndef CP_TIMELINE_H
#define CP_TIMELINE_H

#include "ring/plan.h"

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

/* When each operation of a plan runs, if one hop's keys of a full prefill take
 * about half as long to send as to attend to. The plan must outlive the
 * timeline. Fails as cp_plan_order does. */
cp_status cp_timeline_new(const cp_plan *plan, cp_timeline *timeline);

void cp_timeline_free(cp_timeline *timeline);

#endif
