/* Tangled from book/05-proof.nw; edit the chapter. */
/* One possible order of the operations of all ranks of a plan. */
#ifndef CP_ORDER_H
#define CP_ORDER_H

#include "plan/plan.h"

typedef enum {
    CP_EVENT_LOCAL,      /* append, pack, attend, merge: done */
    CP_EVENT_START,      /* an exchange is posted */
    CP_EVENT_TRANSFER,   /* from rank to op->to: the bytes move */
    CP_EVENT_WAIT,       /* the exchange that op ends is complete */
    CP_EVENT_COLLECTIVE, /* all ranks have reached it */
} cp_event_kind;

typedef struct {
    cp_event_kind kind;
    int rank;           /* its rank; a transfer: the sender; a collective: 0 */
    int64_t number;     /* of its operation in its program */
    const cp_op *op;    /* that operation */
    const int64_t *all; /* a collective: [ranks] its number on each rank */
} cp_event;

typedef cp_status (*cp_event_visitor)(void *context, const cp_event *event);

/* Visit all events of a plan in an order that could happen, assuming that no
 * message is buffered: a send ends when its receive is posted. Fails with
 * CP_BROKEN and a message that names the waiting rank and its peer if no rank
 * can move, if an exchange is never waited for, or if a send and its receive
 * differ in size; or as the visitor does. */
cp_status cp_plan_order(const cp_plan *plan, cp_event_visitor visit,
                        void *context);

#endif
