/* Tangled from book/05-plan.nw; edit the chapter. */
/* The slots that the operations of a plan touch, and their names. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

void cp_plan_free(cp_plan *plan) {
    if (plan == NULL)
        return;
    for (int r = 0; plan->programs != NULL && r < plan->layout->ranks; r++) {
        free(plan->programs[r].ops);
        free(plan->programs[r].leaves);
    }
    free(plan->programs);
    free(plan->slots);
    free(plan);
}

static cp_use use_of(const cp_plan *plan, cp_ownership ownership, int slot,
                     int rank) {
    if (ownership == CP_OWN_TOKENS)
        return cp_use_of(slot, rank);
    return cp_use_part(slot, plan->layout->ranks,
                       ownership == CP_OWN_HEADS ? rank : 0);
}

cp_use cp_plan_begins(const cp_plan *plan, int rank) {
    return use_of(plan, plan->begins, plan->queries, rank);
}

cp_use cp_plan_ends(const cp_plan *plan, int rank) {
    return use_of(plan, plan->ends, plan->result, rank);
}

cp_use cp_plan_own(const cp_plan *plan, int rank, int slot) {
    const int half = slot == plan->queries || slot == plan->result + 1;
    if (plan->slots[slot].kind == CP_SLOT_RUN)
        return plan->slots[slot].given ? cp_plan_own_run(plan, rank, half)
                                       : cp_plan_prefix_run(plan, rank, half);
    if (slot == plan->queries)
        return cp_plan_begins(plan, rank);
    return slot == plan->result ? cp_plan_ends(plan, rank)
                                : cp_use_of(slot, rank);
}

const cp_block *cp_plan_queries(const cp_plan *plan, int origin) {
    const cp_layout *layout = plan->layout;
    return origin == layout->ranks ? &layout->all_queries
                                   : &layout->queries[origin];
}

static bool collective_touch(const cp_plan *plan, int rank, const cp_op *op,
                             int n, cp_touch *touch) {
    const int others = plan->layout->ranks - 1;
    const bool gather = op->kind == CP_OP_ALL_GATHER;
    const int reads = gather ? 1 : others;
    const bool writes = n >= reads;
    const int r = writes ? n - reads : n;
    *touch = (cp_touch){writes ? op->out.slot : op->in.slot, writes};
    if (writes || !gather)
        touch->slot += r + (r >= rank);
    return n < reads + others;
}

static bool parts_touch(const cp_plan *plan, const cp_op *op, int n,
                        cp_touch *touch) {
    const bool split = op->kind == CP_OP_SPLIT;
    const int parts = plan->slots[split ? op->out.slot : op->in.slot].parts;
    const bool writes = split ? n > 0 : n == parts;
    *touch = (cp_touch){writes ? op->out.slot : op->in.slot, writes};
    if (split == writes)
        touch->slot += split ? n - 1 : n;
    return n <= parts;
}

bool cp_op_touch(const cp_plan *plan, int rank, const cp_op *op, int n,
                 cp_touch *touch) {
    const bool exchange = op->kind == CP_OP_EXCHANGE;
    cp_touch list[3] = {{0, false}};
    int count = 0;
    if (op->kind == CP_OP_WAIT)
        return false;
    if (cp_op_is_collective(op))
        return collective_touch(plan, rank, op, n, touch);
    if (op->kind == CP_OP_SPLIT || op->kind == CP_OP_JOIN)
        return parts_touch(plan, op, n, touch);
    if (!exchange || op->to != CP_NO_RANK)
        list[count++] = (cp_touch){op->in.slot, false};
    if (op->kind == CP_OP_ATTEND || op->kind == CP_OP_SELECT)
        list[count++] = (cp_touch){op->keys.slot, false};
    if (op->kind == CP_OP_MERGE)
        list[count++] = (cp_touch){op->out.slot, false};
    if (!exchange || op->from != CP_NO_RANK)
        list[count++] = (cp_touch){op->out.slot, true};
    *touch = list[n < count ? n : 0];
    return n < count;
}
cp_tensor cp_plan_tensor(const cp_plan *plan, cp_slot_kind kind, int parts,
                         int t) {
    const cp_shape shape = cp_shape_part(&plan->shape, parts);
    const cp_indexer *indexer = &plan->indexer;
    const int64_t e = plan->element_bytes, p = CP_PARTIAL_BYTES;
    const int64_t dim = shape.head_dim, value_dim = cp_value_dim(&shape);
    const int64_t queries = shape.query_heads, keys = shape.kv_heads;
    const int64_t values = shape.latent ? 0 : keys;
    const cp_encoding k = cp_wire_encoding(plan->wire, CP_PAYLOAD_KEYS, e),
                      q = cp_wire_encoding(plan->wire, CP_PAYLOAD_QUERIES, e),
                      o = cp_wire_encoding(plan->wire, CP_PAYLOAD_PARTIALS, p);
    const cp_tensor tensors[][2] = {
        [CP_SLOT_CACHE] = {{keys, dim, e}, {values, value_dim, e}},
        [CP_SLOT_NEW] = {{keys, dim, e}, {values, value_dim, e}},
        [CP_SLOT_QUERIES] = {{queries, dim, e, q},
                             {parts == 1 ? indexer->top_k : 0, 1,
                              CP_CHOSEN_BYTES}},
        [CP_SLOT_KEYS] = {{keys, dim, e, k}, {values, value_dim, e, k}},
        [CP_SLOT_PARTIAL] = {{queries, value_dim, p, o}, {queries, 1, p}},
        [CP_SLOT_RUN] = {{1, plan->run_bytes, 1}},
        [CP_SLOT_INDEX_QUERIES] = {{indexer->heads, indexer->dim, e},
                                   {indexer->heads, 1, e}},
        [CP_SLOT_INDEX_KEYS] = {{1, indexer->dim, e}},
        [CP_SLOT_LIST] = {{indexer->top_k, 1, sizeof(cp_candidate)}},
        [CP_SLOT_MOVED] = {{keys, dim, e}, {values, value_dim, e}},
        [CP_SLOT_NEXT] = {{keys, dim, e}, {values, value_dim, e}},
    };
    return tensors[kind][t];
}

const char *cp_slot_kind_name(cp_slot_kind kind) {
    static const char *const names[] = {
        "the cache",  "new tokens",     "queries",       "keys and values",
        "partials",   "runs of chunks", "index queries", "index keys",
        "candidates", "moving tokens",  "the next cache"};
    return names[kind];
}

void cp_plan_slots_needed(const cp_plan *plan, int rank, bool *needed) {
    const cp_program *program = &plan->programs[rank];
    cp_touch touch;
    memset(needed, 0, (size_t)plan->slot_count * sizeof(*needed));
    for (int slot = 0; slot < plan->slot_count; slot++)
        needed[slot] = plan->slots[slot].given || plan->slots[slot].final;
    for (int64_t n = 0; n < program->count; n++)
        for (int i = 0; cp_op_touch(plan, rank, &program->ops[n], i, &touch);
             i++)
            needed[touch.slot] = true;
    needed[plan->cache] = false;
}

const char *cp_op_name(cp_op_kind kind) {
    static const char *const names[] = {
        "append",     "pack",       "attend", "merge", "exchange", "wait",
        "all-to-all", "all-gather", "split",  "join",  "select"};
    return names[kind];
}
