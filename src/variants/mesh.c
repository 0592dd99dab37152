/* Tangled from book/16-heads.nw; edit the chapter. */
/* A mesh: ranks trade tokens for heads within a host, and keys and values go
 * round the hosts. One host is Ulysses, hosts of one rank are ring pass-KV. */
#include "plan/build.h"

/* The slots of a mesh, and how many ranks a host has. A field is the first of a
 * run of slots, one for each rank of the host. They hold the rank's own tokens,
 * one part of the heads each, or the tokens of one rank each, in this rank's
 * part of the heads. */
typedef struct {
    int members, hosts;
    int packed, keys, blocks; /* own keys; in parts; two sets of other hosts' */
    int queries, other_queries; /* own queries in parts; other ranks' queries */
    int scratch, partials, home;
} mesh;

/* Part r of rank k's own tokens, and rank k's part of the tokens of rank r of
 * its host. */
static cp_use own_part(int slot, int k, int r) {
    return cp_use_part(slot + r, k, r);
}

static cp_use other_part(const mesh *m, int slot, int k, int r) {
    const int base = k / m->members * m->members;
    return cp_use_part(slot + r, base + r, k - base);
}

static void trade(cp_plan *plan, const mesh *m, int k, int give, int take,
                  bool home) {
    const int a = m->members, j = k % a;
    const int hop = home ? m->hosts : 0;
    for (int d = 1; d < a; d++) {
        const int to = (j + d) % a, from = (j + a - d) % a;
        cp_emit_exchange(
            plan, k, hop,
            home ? other_part(m, give, k, to) : own_part(give, k, to),
            k - j + to,
            home ? own_part(take, k, from) : other_part(m, take, k, from),
            k - j + from);
    }
}

static void wait_for(cp_plan *plan, int k, int hop, int count) {
    for (int n = 0; n < count; n++)
        cp_emit_wait(plan, k, hop);
}

static cp_use queries_at(const mesh *m, int k, int r) {
    return r == k % m->members ? own_part(m->queries, k, r)
                               : other_part(m, m->other_queries, k, r);
}

static cp_use block_at(const mesh *m, int k, int hop, int s) {
    const int a = m->members, j = k % a;
    const int host = (k / a + m->hosts - hop) % m->hosts;
    if (hop == 0 && s == j)
        return own_part(m->keys, k, j);
    return cp_use_part(m->blocks + hop % 2 * a + s, host * a + s, j);
}

static void attend(cp_plan *plan, const mesh *m, int k, int hop) {
    for (int r = 0; r < m->members; r++) {
        const cp_use queries = queries_at(m, k, r);
        const bool is_local = r == k % m->members;
        const cp_use out =
            other_part(m, is_local ? m->home : m->partials, k, r);
        const cp_use added = cp_use_part(m->scratch, out.origin, out.part);
        for (int s = 0; s < m->members; s++) {
            const bool first = hop == 0 && s == 0;
            cp_emit_attend(plan, k, hop, queries, block_at(m, k, hop, s),
                           first ? out : added);
            if (!first)
                cp_emit(plan, k, hop, CP_OP_MERGE, added, out);
        }
    }
}

static void program(cp_plan *plan, const mesh *m, int k) {
    const int a = m->members, ranks = plan->layout->ranks;
    const int next = (k + a) % ranks, previous = (k + ranks - a) % ranks;
    cp_emit(plan, k, 0, CP_OP_PACK, cp_use_of(plan->cache, k),
            cp_use_of(m->packed, k));
    cp_emit(plan, k, 0, CP_OP_SPLIT, cp_use_of(m->packed, k),
            cp_use_of(m->keys, k));
    cp_emit(plan, k, 0, CP_OP_SPLIT, cp_use_of(plan->queries, k),
            cp_use_of(m->queries, k));
    trade(plan, m, k, m->queries, m->other_queries, false);
    trade(plan, m, k, m->keys, m->blocks, false);
    wait_for(plan, k, 0, 2 * (a - 1));
    for (int hop = 0; hop < m->hosts; hop++) {
        const int passed = hop + 1 < m->hosts ? a : 0;
        for (int s = 0; s < passed; s++)
            cp_emit_exchange(plan, k, hop + 1, block_at(m, k, hop, s), next,
                             block_at(m, k, hop + 1, s), previous);
        attend(plan, m, k, hop);
        wait_for(plan, k, hop + 1, passed);
    }
    trade(plan, m, k, m->partials, m->home, true);
    wait_for(plan, k, m->hosts, a - 1);
    cp_emit(plan, k, m->hosts, CP_OP_JOIN, cp_use_of(m->home, k),
            cp_use_of(plan->result, k));
}

static void build(cp_plan *plan, int members) {
    const int ranks = plan->layout->ranks;
    const mesh m = {
        .members = members,
        .hosts = ranks / members,
        .packed = cp_plan_add_slots(plan, CP_SLOT_KEYS, 1),
        .keys = cp_plan_add_parts(plan, CP_SLOT_KEYS, members, members),
        .blocks = cp_plan_add_parts(plan, CP_SLOT_KEYS, 2 * members, members),
        .queries = cp_plan_add_parts(plan, CP_SLOT_QUERIES, members, members),
        .other_queries =
            cp_plan_add_parts(plan, CP_SLOT_QUERIES, members, members),
        .scratch = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, 1, members),
        .partials = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, members, members),
        .home = cp_plan_add_parts(plan, CP_SLOT_PARTIAL, members, members),
    };
    for (int k = 0; k < ranks; k++)
        program(plan, &m, k);
}

void cp_plan_ulysses(cp_plan *plan) {
    build(plan, plan->layout->ranks);
}

void cp_plan_mesh(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    /* The largest host that leaves a ring of hosts. */
    int members = ranks > 16 ? 8 : ranks > 1 ? ranks / 2 : 1;
    while (ranks % members != 0 || !cp_shape_divides(&plan->shape, members))
        members--;
    build(plan, members);
}
