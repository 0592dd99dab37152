/* Tangled from book/06-pass-kv.nw; edit the chapter. */
/* Ring pass-KV (the paper's Algorithm 2): keys and values are sent, queries
 * and partials stay. */
#include "plan/build.h"

/* The ring's buffers: block h (the one that arrives at hop h) lies in slot
 * first + h mod count. */
typedef struct {
    int first, count;
} cp_ring;

static cp_use block_at(cp_ring ring, int rank, int hop, int ranks) {
    const int origin = ((rank - hop) % ranks + ranks) % ranks;
    return cp_use_of(ring.first + hop % ring.count, origin);
}

static void program(cp_plan *plan, int k, cp_ring ring, int scratch) {
    const int ranks = plan->layout->ranks;
    const int next = (k + 1) % ranks, previous = (k + ranks - 1) % ranks;
    const cp_use queries = cp_use_of(plan->queries, k);
    const cp_use result = cp_use_of(plan->result, k);
    const cp_use added = cp_use_of(scratch, k);
    const cp_use cache = cp_use_of(plan->cache, k);
    int started = 0, arrived = 0;
    if (ranks > 1)
        cp_emit(plan, k, 0, CP_OP_PACK, cache, block_at(ring, k, 0, ranks));
    for (int hop = 0; hop < ranks; hop++) {
        /* Start every exchange that has a free buffer. */
        while (started < ranks - 1 && started < hop + ring.count - 1) {
            if (started > arrived)
                cp_emit_wait(plan, k, arrived = started);
            cp_emit_exchange(plan, k, started + 1,
                             block_at(ring, k, started, ranks), next,
                             block_at(ring, k, started + 1, ranks), previous);
            started++;
        }
        /* Attend to the block that is here, and merge. */
        const cp_use block = block_at(ring, k, hop, ranks);
        if (hop == 0) {
            cp_emit_attend(plan, k, hop, queries, cache, result);
        } else {
            cp_emit_attend(plan, k, hop, queries, block, added);
            cp_emit(plan, k, hop, CP_OP_MERGE, added, result);
        }
        /* Wait for the block of the next hop. */
        if (hop + 1 < ranks && arrived < hop + 1)
            cp_emit_wait(plan, k, arrived = hop + 1);
    }
}

void cp_plan_pass_kv(cp_plan *plan) {
    const int count = 1 + plan->spare;
    const cp_ring ring = {cp_plan_add_slots(plan, CP_SLOT_KEYS, count), count};
    const int scratch = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    for (int k = 0; k < plan->layout->ranks; k++)
        program(plan, k, ring, scratch);
}
