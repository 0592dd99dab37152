/* Tangled from book/16-home.nw; edit the chapter. */
/* Decode steps that do not begin with a rank's own tokens: which rank has
 * which queries, and how partials come home. */
#include "plan/build.h"

static cp_use part_at(const cp_plan *plan, int slot, int p) {
    return cp_use_part(slot, plan->layout->ranks, p);
}

/* The partial that rank k computes for part p; its own is the result. */
static cp_use computed_at(const cp_plan *plan, int first, int k, int p) {
    return part_at(plan, p == k ? plan->result : first + p, p);
}

static void attend_parts(cp_plan *plan, int k, int query_parts, int queries,
                         int computed) {
    for (int p = 0; p < plan->layout->ranks; p++)
        cp_emit_attend(
            plan, k, 0, part_at(plan, p == k ? queries : query_parts + p, p),
            cp_use_of(plan->cache, k), computed_at(plan, computed, k, p));
}

static void bring_home(cp_plan *plan, int k, int computed, int home) {
    const int ranks = plan->layout->ranks;
    if (ranks > 1)
        cp_emit(plan, k, 1, CP_OP_ALL_TO_ALL, part_at(plan, computed, 0),
                part_at(plan, home, k));
    for (int r = 0; r < ranks; r++)
        if (r != k)
            cp_emit(plan, k, 1, CP_OP_MERGE, part_at(plan, home + r, k),
                    cp_plan_ends(plan, k));
}

static int gather_queries(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    cp_plan_begin_with(plan, CP_OWN_HEADS, CP_OWN_HEADS);
    const int query_parts =
        cp_plan_add_parts(plan, CP_SLOT_QUERIES, ranks, ranks);
    for (int k = 0; k < ranks && ranks > 1; k++)
        cp_emit(plan, k, 0, CP_OP_ALL_GATHER, cp_plan_begins(plan, k),
                part_at(plan, query_parts, k));
    return query_parts;
}

void cp_plan_gather_q(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const int query_parts = gather_queries(plan);
    const int computed = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, ranks, ranks);
    const int home = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, ranks, ranks);
    for (int k = 0; k < ranks; k++) {
        attend_parts(plan, k, query_parts, plan->queries, computed);
        bring_home(plan, k, computed, home);
    }
}

void cp_plan_scatter_q(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    const int query_parts = gather_queries(plan);
    const int computed = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, ranks, ranks);
    const int arriving = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, 1, ranks);
    for (int k = 0; k < ranks; k++) {
        attend_parts(plan, k, query_parts, plan->queries, computed);
        for (int hop = 1; hop < ranks; hop++) {
            const int give = (k + ranks - hop) % ranks;
            const int take = (give + ranks - 1) % ranks;
            cp_emit_exchange(plan, k, hop, computed_at(plan, computed, k, give),
                             (k + 1) % ranks, part_at(plan, arriving, take),
                             (k + ranks - 1) % ranks);
            cp_emit_wait(plan, k, hop);
            cp_emit(plan, k, hop, CP_OP_MERGE, part_at(plan, arriving, take),
                    computed_at(plan, computed, k, take));
        }
    }
}

void cp_plan_helix(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    cp_plan_begin_with(plan, CP_OWN_ALL, CP_OWN_HEADS);
    const int query_parts =
        cp_plan_add_parts(plan, CP_SLOT_QUERIES, ranks, ranks);
    const int computed = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, ranks, ranks);
    const int home = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, ranks, ranks);
    for (int k = 0; k < ranks; k++) {
        cp_emit(plan, k, 0, CP_OP_SPLIT, cp_plan_begins(plan, k),
                part_at(plan, query_parts, 0));
        attend_parts(plan, k, query_parts, query_parts + k, computed);
        bring_home(plan, k, computed, home);
    }
}

void cp_plan_gather_o(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    cp_plan_begin_with(plan, CP_OWN_ALL, CP_OWN_ALL);
    const int gathered = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, ranks, 1);
    for (int k = 0; k < ranks; k++) {
        const cp_use result = cp_plan_ends(plan, k);
        cp_emit_attend(plan, k, 0, cp_plan_begins(plan, k),
                       cp_use_of(plan->cache, k), result);
        if (ranks > 1)
            cp_emit(plan, k, 1, CP_OP_ALL_GATHER, result,
                    part_at(plan, gathered, 0));
        for (int r = 0; r < ranks; r++)
            if (r != k)
                cp_emit(plan, k, 1, CP_OP_MERGE, part_at(plan, gathered + r, 0),
                        result);
    }
}

static void exchange_partial(cp_plan *plan, int k, int hop, int to,
                             int arriving, int from) {
    const cp_use result = cp_plan_ends(plan, k);
    const cp_use other = part_at(plan, arriving, 0);
    cp_emit_exchange(plan, k, hop, result, to, other, from);
    cp_emit_wait(plan, k, hop);
    if (from != CP_NO_RANK && arriving != plan->result)
        cp_emit(plan, k, hop, CP_OP_MERGE, other, result);
}

void cp_plan_tree(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    cp_plan_begin_with(plan, CP_OWN_ALL, CP_OWN_ALL);
    const int arriving = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, 1, 1);
    int power = 1;
    while (2 * power <= ranks)
        power *= 2;
    for (int k = 0; k < ranks; k++) {
        const int twin = k < power ? k + power : k - power;
        int hop = 1;
        cp_emit_attend(plan, k, 0, cp_plan_begins(plan, k),
                       cp_use_of(plan->cache, k), cp_plan_ends(plan, k));
        if (k >= power) {
            exchange_partial(plan, k, 1, twin, arriving, CP_NO_RANK);
            exchange_partial(plan, k, 2, CP_NO_RANK, plan->result, twin);
            continue;
        }
        if (twin < ranks)
            exchange_partial(plan, k, hop++, CP_NO_RANK, arriving, twin);
        for (int step = 1; step < power; step *= 2)
            exchange_partial(plan, k, hop++, k ^ step, arriving, k ^ step);
        if (twin < ranks)
            exchange_partial(plan, k, hop, twin, arriving, CP_NO_RANK);
    }
}
