/* Tangled from book/labs/11-hide.nw; the skeleton; write your answer here. */
/* Pass-Q whose partials return early. */
#include "hide.h"

/* Slots: one spare buffer for queries; partials computed here for each other
 * rank; returned partials, one from each other rank. */
typedef struct {
    int spare, computed, home;
} slots;

/* The queries that are on rank k at hop h. */
static cp_use queries_at(const cp_plan *plan, slots at, int k, int h) {
    const int ranks = plan->layout->ranks;
    const int origin = (k - h + ranks) % ranks;
    return cp_use_of(h % 2 == 0 ? plan->queries : at.spare, origin);
}

static void program(cp_plan *plan, int k, slots at) {
    const int ranks = plan->layout->ranks;
    const int next = (k + 1) % ranks, previous = (k + ranks - 1) % ranks;
    const cp_use cache = cp_use_of(plan->cache, k);
    const cp_use result = cp_use_of(plan->result, k);
    /* Emit the operations of rank k. */
    (void)queries_at, (void)at, (void)next, (void)previous, (void)cache,
        (void)result;
}

void home_early_plan(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const slots at = {
        .spare = cp_plan_add_slots(plan, CP_SLOT_QUERIES, 1),
        .computed = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, ranks),
        .home = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, ranks),
    };
    for (int k = 0; k < ranks; k++)
        program(plan, k, at);
}

double home_early_seconds(int ranks, double attend, double query,
                          double partial) {
    /* Add up the longest path. */
    return 0;
}

double home_late_seconds(int ranks, double attend, double query,
                         double partial) {
    /* Add up the path of the book's plan. */
    return 0;
}
