/* Tangled from book/06-pass-kv.nw; edit the chapter. */
/* All-gather KV: every rank first gets the keys and values of all ranks, then
 * attends. The baseline that the rings are measured against. */
#include "plan/build.h"

static void program(cp_plan *plan, int k, int packed, int gathered,
                    int scratch) {
    const int ranks = plan->layout->ranks;
    const cp_use queries = cp_use_of(plan->queries, k);
    const cp_use result = cp_use_of(plan->result, k);
    const cp_use added = cp_use_of(scratch, k);
    const cp_use cache = cp_use_of(plan->cache, k), sent = cp_use_of(packed, k);
    if (ranks > 1) {
        cp_emit(plan, k, 0, CP_OP_PACK, cache, sent);
        cp_emit(plan, k, 0, CP_OP_ALL_GATHER, sent, cp_use_of(gathered, k));
    }
    cp_emit_attend(plan, k, 0, queries, cache, result);
    for (int hop = 1; hop < ranks; hop++) {
        /* Attend to one of the gathered blocks. */
        const int s = (k - hop + ranks) % ranks;
        cp_emit_attend(plan, k, hop, queries, cp_use_of(gathered + s, s),
                       added);
        cp_emit(plan, k, hop, CP_OP_MERGE, added, result);
    }
}

void cp_plan_all_gather(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const int packed = cp_plan_add_slots(plan, CP_SLOT_KEYS, 1);
    const int gathered = cp_plan_add_slots(plan, CP_SLOT_KEYS, ranks);
    const int scratch = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    for (int k = 0; k < ranks; k++)
        program(plan, k, packed, gathered, scratch);
}
