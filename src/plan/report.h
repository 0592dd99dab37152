/* Tangled from book/05-proof.nw; edit the chapter. */
/* What a plan costs: counted from its operations, not timed and not proven. */
#ifndef CP_REPORT_H
#define CP_REPORT_H

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

/* Count the cost of a plan, given the pairs of each query block with each key
 * block, [ranks + 1][ranks]; the last queries are all ranks'. Fails with
 * CP_MEMORY; free it even then. */
cp_status cp_plan_report_new(const cp_plan *plan, const int64_t *pairs,
                             cp_plan_report *report);
void cp_plan_report_free(cp_plan_report *report);

#endif
