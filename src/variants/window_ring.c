/* Tangled from book/16-window.nw; edit the chapter. */
/* Pass-KV in a window: each block goes straight to the ranks that need it. */
#include "plan/build.h"

/* Slots: the rank's packed block; those that arrive, in turn. */
typedef struct {
    int packed, first, count;
} window_slots;

/* Does a query of rank k see a key of rank r? */
static bool sees(const cp_plan *plan, int k, int r) {
    return cp_block_pairs(&plan->layout->queries[k], &plan->layout->keys[r],
                          plan->shape.window) > 0;
}

/* The next hop in which rank k sends or receives; ranks if there is none. */
static int next_hop(const cp_plan *plan, int k, int hop) {
    const int ranks = plan->layout->ranks;
    while (++hop < ranks)
        if (sees(plan, (k + hop) % ranks, k) ||
            sees(plan, k, (k - hop + ranks) % ranks))
            break;
    return hop < ranks ? hop : ranks;
}

static void exchange(cp_plan *plan, int k, int hop, int number,
                     window_slots slots) {
    const int ranks = plan->layout->ranks;
    const int to = (k + hop) % ranks, from = (k - hop + ranks) % ranks;
    cp_emit_exchange(plan, k, hop, cp_use_of(slots.packed, k),
                     sees(plan, to, k) ? to : CP_NO_RANK,
                     cp_use_of(slots.first + number % slots.count, from),
                     sees(plan, k, from) ? from : CP_NO_RANK);
}

static void program(cp_plan *plan, int k, window_slots slots, int scratch) {
    const int ranks = plan->layout->ranks;
    const cp_use queries = cp_use_of(plan->queries, k);
    const cp_use result = cp_use_of(plan->result, k);
    const cp_use added = cp_use_of(scratch, k);
    const cp_use cache = cp_use_of(plan->cache, k);
    int ahead = next_hop(plan, k, 0); /* of the next exchange to start */
    int current = 0, started = 0;     /* numbers of exchanges */
    if (ahead < ranks)
        cp_emit(plan, k, 0, CP_OP_PACK, cache, cp_use_of(slots.packed, k));
    for (int hop = 0; hop < ranks; hop = next_hop(plan, k, hop), current++) {
        const int from = (k - hop + ranks) % ranks;
        if (hop > 0)
            cp_emit_wait(plan, k, hop);
        /* Start every exchange that has a free buffer. */
        for (; ahead < ranks && started < current + slots.count - 1;
             ahead = next_hop(plan, k, ahead))
            exchange(plan, k, ahead, ++started, slots);
        /* Attend to the block that is here, and merge. */
        if (hop == 0) {
            cp_emit_attend(plan, k, hop, queries, cache, result);
        } else if (sees(plan, k, from)) {
            cp_emit_attend(plan, k, hop, queries,
                           cp_use_of(slots.first + current % slots.count, from),
                           added);
            cp_emit(plan, k, hop, CP_OP_MERGE, added, result);
        }
    }
}

void cp_plan_window(cp_plan *plan) {
    const window_slots slots = {
        .packed = cp_plan_add_slots(plan, CP_SLOT_KEYS, 1),
        .first = cp_plan_add_slots(plan, CP_SLOT_KEYS, 1 + plan->spare),
        .count = 1 + plan->spare};
    const int scratch = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    for (int k = 0; k < plan->layout->ranks; k++)
        program(plan, k, slots, scratch);
}
