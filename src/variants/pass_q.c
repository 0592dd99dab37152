/* Tangled from book/07-pass-q.nw; edit the chapter. */
/* Ring pass-Q (the paper's Algorithms 3 and 4): queries are sent, keys and
 * values stay, and partials come home in one all-to-all. */
#include "plan/build.h"

/* Slots: spare buffers for queries; partials computed here, one for each other
 * rank; partials that come home, one from each other rank. */
typedef struct {
    int spare, computed, home;
} query_ring;

static cp_use queries_at(const cp_plan *plan, query_ring ring, int k, int hop) {
    const int ranks = plan->layout->ranks, turn = hop % (plan->spare + 1);
    const int origin = (k - hop % ranks + ranks) % ranks;
    return cp_use_of(turn == 0 ? plan->queries : ring.spare + turn - 1, origin);
}

static void program(cp_plan *plan, int k, query_ring ring) {
    const int ranks = plan->layout->ranks;
    const int next = (k + 1) % ranks, previous = (k + ranks - 1) % ranks;
    int started = 0, arrived = 0;
    for (int hop = 0; hop < ranks; hop++) {
        /* Start every exchange of queries that has a free buffer. */
        while (started < ranks - 1 && started < hop + plan->spare) {
            if (started > arrived)
                cp_emit_wait(plan, k, arrived = started);
            cp_emit_exchange(plan, k, started + 1,
                             queries_at(plan, ring, k, started), next,
                             queries_at(plan, ring, k, started + 1), previous);
            started++;
        }
        /* Attend for the queries that are here to the rank's own keys. */
        const cp_use block = queries_at(plan, ring, k, hop);
        const int partial =
            block.origin == k ? plan->result : ring.computed + block.origin;
        cp_emit_attend(plan, k, hop, block, cp_use_of(plan->cache, k),
                       cp_use_of(partial, block.origin));
        /* Wait for the queries of the next hop. */
        if (hop + 1 < ranks && arrived < hop + 1)
            cp_emit_wait(plan, k, arrived = hop + 1);
    }
    /* Send the partials home and merge them. */
    if (ranks > 1)
        cp_emit(plan, k, 0, CP_OP_ALL_TO_ALL, cp_use_of(ring.computed, k),
                cp_use_of(ring.home, k));
    for (int r = 0; r < ranks; r++)
        if (r != k)
            cp_emit(plan, k, ranks - 1, CP_OP_MERGE,
                    cp_use_of(ring.home + r, k), cp_use_of(plan->result, k));
}

void cp_plan_pass_q(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const query_ring ring = {
        .spare = cp_plan_add_slots(plan, CP_SLOT_QUERIES, plan->spare),
        .computed = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, ranks),
        .home = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, ranks),
    };
    for (int k = 0; k < ranks; k++)
        program(plan, k, ring);
}
