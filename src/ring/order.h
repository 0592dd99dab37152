/* Tangled from book/05-proof.nw; edit the chapter. */
/* One order in which the operations of all ranks of a plan could happen. */
#ifndef CP_ORDER_H
#define CP_ORDER_H

#include "ring/plan.h"

typedef enum {
    CP_EVENT_LOCAL,      /* append, pack, attend, merge: done */
    CP_EVENT_START,      /* an exchange is posted */
    CP_EVENT_TRANSFER,   /* from rank to peer: the bytes move */
    CP_EVENT_WAIT,       /* the oldest exchange of rank is complete */
    CP_EVENT_COLLECTIVE, /* all ranks are at one; rank and peer are -1 */
} cp_event_kind;

typedef struct {
    cp_event_kind kind;
    int rank, peer;
    const cp_op *op;         /* of rank; for a wait, the exchange it ends */
    const cp_op *peer_op;    /* a transfer: the receiver's exchange */
    const cp_op *const *all; /* a collective: [ranks] each rank's operation */
} cp_event;

typedef cp_status (*cp_event_visitor)(void *context, const cp_event *event);

/* Visit all events of a plan in an order that could happen, assuming that
 * nobody buffers: a send ends when its receive is posted. Fails with CP_BROKEN
 * and a message that names who waits for whom if no rank can move, if a send
 * never meets a receive, or if their sizes differ; or as the visitor does. */
cp_status cp_plan_order(const cp_plan *plan, cp_event_visitor visit,
                        void *context);

#endif
