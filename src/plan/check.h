/* Tangled from book/05-proof.nw; edit the chapter. */
/* Prove that a plan is right, by its spans and slots alone, and count its cost.
 * Computes no attention and takes next to no time; only exploring all orders of
 * a small plan takes some. */
#ifndef CP_CHECK_H
#define CP_CHECK_H

#include "plan/plan.h"

/* The cost of a plan, per rank; counted, not timed. */
typedef struct {
    int ranks;
    int64_t *pairs;     /* [ranks] (query, key) pairs scored, per head, or by
                           an indexer; lists of int64_t follow it */
    double *flops;      /* [ranks] 4 D_H N_H for each pair; sparse attention
                           as if keys were chosen evenly */
    int64_t *bytes;     /* [ranks] sent */
    int64_t *messages;  /* [ranks] sent; a collective sends N-1 */
    int64_t hops;       /* of the ring: exchanges of the busiest rank */
    double balance;     /* largest pairs over their mean; 1 is perfect */
    int64_t slot_bytes; /* of all slots of one rank */
} cp_plan_report;

/* Prove that a plan attends each causal pair exactly once, that its sends and
 * receives match, that no slot is touched while in flight, and that it ends. On
 * success the report is filled in (free it with cp_plan_report_free). Otherwise
 * fails with CP_BROKEN, and a message that says which query missed a key or met
 * it twice, which slot was overwritten, or which rank waits for which. */
cp_status cp_plan_check(const cp_plan *plan, cp_plan_report *report);

void cp_plan_report_free(cp_plan_report *report);

/* Visit every interleaving of a plan's operations and transfers. Fails with
 * CP_BROKEN if one of them deadlocks or touches a slot in flight, with
 * CP_INVALID if a rank has more than 64 operations, and with CP_CAPACITY if
 * there are more than most states. states may be NULL. */
cp_status cp_plan_explore(const cp_plan *plan, int64_t most, int64_t *states);

#endif
