/* A plan that a student could have written, from its builder to its answer: a
 * ring that hides nothing. It needs only slots, links, checker, explorer and
 * walker; the rings of the next chapters have their own suites. */
#include "around.h"

static bool hasty; /* attends before it waits */

/* Exchange, wait, attend, merge; two slots alternate. */
static void plain_ring(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const int keys = cp_plan_add_slots(plan, CP_SLOT_KEYS, 2);
    const int scratch = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    for (int k = 0; k < ranks; k++) {
        const cp_use queries = cp_use_of(plan->queries, k);
        const cp_use result = cp_use_of(plan->result, k);
        const cp_use added = cp_use_of(scratch, k);
        cp_use current = cp_use_of(keys, k);
        cp_emit(plan, k, 0, CP_OP_PACK, cp_use_of(plan->cache, k), current);
        cp_emit_attend(plan, k, 0, queries, current, result);
        for (int hop = 1; hop < ranks; hop++) {
            const cp_use sent = current;
            current = cp_use_of(keys + hop % 2, (k + ranks - hop) % ranks);
            cp_emit_exchange(plan, k, hop, sent, (k + 1) % ranks, current,
                             (k + ranks - 1) % ranks);
            if (!hasty)
                cp_emit_wait(plan, k, hop);
            cp_emit_attend(plan, k, hop, queries, current, added);
            cp_emit(plan, k, hop, CP_OP_MERGE, added, result);
            if (hasty)
                cp_emit_wait(plan, k, hop);
        }
    }
}

LOOP(a_ring_that_hides_nothing_is_right, 1, 9) {
    for (int64_t tokens = 1; tokens <= 64; tokens *= 4)
        goes_around(plain_ring, _i, tokens, 1);
}

LOOP(a_plan_that_does_not_wait_is_refused, 2, 6) {
    cp_plan_report report;
    hasty = true;
    cp_plan *plan = plan_of(plain_ring, _i, 20, 1);
    refuses(cp_plan_check(plan, &report), CP_BROKEN,
            "which a receive is still filling");
    if (_i <= 3)
        refuses(cp_plan_explore(plan, 1000000, NULL), CP_BROKEN,
                "in some order");
    plan_drop(plan);
}
