/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Plans of sparse attention: make lists of the best keys, then let any ring
 * attend to the chosen keys. */
#include "plan/build.h"

/* The index queries of rank k meet a block of index keys, its own first. */
static void select_keys(cp_plan *plan, int k, int hop, cp_use keys,
                        int scratch) {
    const cp_use queries = cp_use_of(plan->index_queries, k);
    const cp_use list = cp_use_of(plan->list, k);
    const cp_use added = cp_use_of(scratch, k);
    const bool first = keys.origin == k;
    cp_emit_select(plan, k, hop, queries, keys, first ? list : added);
    if (!first)
        cp_emit(plan, k, hop, CP_OP_MERGE, added, list);
}

/* Attach the complete list to the queries of rank k. */
static void choose(cp_plan *plan, int k, int hop) {
    cp_emit(plan, k, hop, CP_OP_PACK, cp_use_of(plan->list, k),
            cp_use_of(plan->queries, k));
}

static void gather_index_keys(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const int all = cp_plan_add_slots(plan, CP_SLOT_INDEX_KEYS, ranks);
    const int scratch = cp_plan_add_slots(plan, CP_SLOT_LIST, 1);
    for (int k = 0; k < ranks; k++) {
        const cp_use index_keys = cp_use_of(plan->index_keys, k);
        if (ranks > 1)
            cp_emit(plan, k, 0, CP_OP_ALL_GATHER, index_keys,
                    cp_use_of(all, k));
        for (int hop = 0; hop < ranks; hop++) {
            const int s = (k + ranks - hop) % ranks;
            select_keys(plan, k, 0, s == k ? index_keys : cp_use_of(all + s, s),
                        scratch);
        }
        choose(plan, k, 0);
    }
}

static void pass_index_keys(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const int ring = cp_plan_add_slots(plan, CP_SLOT_INDEX_KEYS, 2);
    const int scratch = cp_plan_add_slots(plan, CP_SLOT_LIST, 1);
    for (int k = 0; k < ranks; k++) {
        const int next = (k + 1) % ranks, previous = (k + ranks - 1) % ranks;
        cp_use keys = cp_use_of(plan->index_keys, k);
        for (int hop = 0; hop < ranks; hop++) {
            const bool has_next = hop + 1 < ranks;
            const cp_use arriving =
                cp_use_of(ring + hop % 2, (k + 2 * ranks - 1 - hop) % ranks);
            if (has_next)
                cp_emit_exchange(plan, k, hop + 1, keys, next, arriving,
                                 previous);
            select_keys(plan, k, hop, keys, scratch);
            if (has_next)
                cp_emit_wait(plan, k, hop + 1);
            keys = arriving;
        }
        choose(plan, k, ranks - 1);
    }
}

static void gather_index_queries(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const int gathered = cp_plan_add_slots(plan, CP_SLOT_INDEX_QUERIES, ranks);
    const int made = cp_plan_add_slots(plan, CP_SLOT_LIST, ranks);
    const int home = cp_plan_add_slots(plan, CP_SLOT_LIST, ranks);
    for (int k = 0; k < ranks; k++) {
        const cp_use keys = cp_use_of(plan->index_keys, k);
        const cp_use queries = cp_use_of(plan->index_queries, k);
        const cp_use list = cp_use_of(plan->list, k);
        if (ranks > 1)
            cp_emit(plan, k, 0, CP_OP_ALL_GATHER, queries,
                    cp_use_of(gathered, k));
        for (int r = 0; r < ranks; r++)
            cp_emit_select(plan, k, 0,
                           r == k ? queries : cp_use_of(gathered + r, r), keys,
                           r == k ? list : cp_use_of(made + r, r));
        if (ranks > 1)
            cp_emit(plan, k, 0, CP_OP_ALL_TO_ALL, cp_use_of(made, k),
                    cp_use_of(home, k));
        for (int r = 0; r < ranks; r++)
            if (r != k)
                cp_emit(plan, k, 0, CP_OP_MERGE, cp_use_of(home + r, k), list);
        choose(plan, k, 0);
    }
}

static void make_lists(cp_plan *plan) {
    const cp_slot *slots = plan->slots;
    if (plan->status != CP_OK)
        return;
    if (slots[plan->index_queries].bytes + slots[plan->list].bytes <
        slots[plan->index_keys].bytes)
        gather_index_queries(plan);
    else
        pass_index_keys(plan);
}

void cp_plan_sparse_q(cp_plan *plan) {
    make_lists(plan);
    cp_plan_pass_q(plan);
}

void cp_plan_sparse_gather(cp_plan *plan) {
    gather_index_keys(plan);
    cp_plan_all_gather(plan);
}

void cp_plan_sparse_kv(cp_plan *plan) {
    make_lists(plan);
    cp_plan_pass_kv(plan);
}

void cp_plan_sparse_decode(cp_plan *plan) {
    make_lists(plan);
    cp_plan_decode(plan);
}
