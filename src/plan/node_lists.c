/* Tangled from book/17-exact.nw; edit the chapter. */
/* The nodes of each partial in a plan. */
#include "plan/node_lists.h"

#include <stdlib.h>
#include <string.h>

#include "plan/order.h"

typedef struct {
    const cp_plan *plan;
    cp_plan *fit;     /* the same, if it may be changed */
    uint32_t *held;   /* [ranks][slots] */
    int *most, *sent; /* [slots] nodes held; nodes sent */
    bool grew;        /* did a message, after it was sent? */
} node_list_walk;

int64_t cp_plan_node_bytes(const cp_plan *plan, int slot) {
    const cp_shape shape = cp_plan_shape(plan, slot);
    return plan->slots[slot].rows * shape.query_heads *
           (cp_value_dim(&shape) + 1) * CP_PARTIAL_BYTES;
}

static bool is_partial(const node_list_walk *walk, int slot) {
    return walk->plan->slots[slot].kind == CP_SLOT_PARTIAL;
}

static uint32_t *held(const node_list_walk *walk, int rank, int slot) {
    return &walk->held[rank * (int64_t)walk->plan->slot_count + slot];
}

static uint32_t leaves_of(const node_list_walk *walk, int rank) {
    return cp_rank_leaves(&walk->plan->layout->owners, rank);
}

static int count_nodes(uint32_t leaves) {
    cp_node nodes[CP_NODES_MAX];
    return cp_leaves_nodes(leaves, nodes);
}

static void hold_leaves(const node_list_walk *walk, int rank, int slot,
                        uint32_t leaves) {
    *held(walk, rank, slot) = leaves;
    walk->most[slot] = (int)cp_max(walk->most[slot], count_nodes(leaves));
}

static void follow_local(const node_list_walk *walk, const cp_event *event) {
    const cp_op *op = event->op;
    uint32_t leaves = *held(walk, event->rank, op->in.slot);
    if (!is_partial(walk, op->out.slot))
        return;
    if (op->kind == CP_OP_ATTEND)
        leaves = leaves_of(walk, op->keys.origin);
    if (op->kind == CP_OP_MERGE)
        leaves |= *held(walk, event->rank, op->out.slot);
    hold_leaves(walk, event->rank, op->out.slot, leaves);
}

/* A message has the same length on both sides. */
static void send(node_list_walk *walk, int from, int slot, int to,
                 int arrives) {
    const uint32_t leaves = *held(walk, from, slot);
    const int source_count = walk->sent[slot];
    const int target_count = walk->sent[arrives];
    const int sent_count =
        (int)cp_max(count_nodes(leaves), cp_max(source_count, target_count));
    walk->grew |= (source_count > 0 && source_count < sent_count) ||
                  (target_count > 0 && target_count < sent_count);
    walk->sent[slot] = walk->sent[arrives] = sent_count;
    if (from != to)
        hold_leaves(walk, to, arrives, leaves);
}

static cp_status follow_transfer(node_list_walk *walk, const cp_event *event) {
    const cp_op *give = event->op;
    const cp_op *take = &walk->plan->programs[give->to].ops[give->sent_to];
    const uint32_t leaves = *held(walk, event->rank, give->in.slot);
    if (!is_partial(walk, give->in.slot))
        return CP_OK;
    send(walk, event->rank, give->in.slot, give->to, take->out.slot);
    uint32_t *expected = &walk->plan->programs[give->to].leaves[give->sent_to];
    if (walk->fit != NULL)
        *expected = leaves;
    else if (*expected != leaves)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: a partial of leaves %08x arrives "
                       "where one of %08x is expected",
                       give->to, take->hop, leaves, *expected);
    return CP_OK;
}

static cp_status follow_collective(node_list_walk *walk,
                                   const cp_event *event) {
    const cp_plan *plan = walk->plan;
    const int ranks = plan->layout->ranks;
    for (int n = 0; n < ranks * ranks; n++) {
        const int from = n / ranks, to = n % ranks;
        const cp_op *give = &plan->programs[from].ops[event->all[from]];
        const cp_op *take = &plan->programs[to].ops[event->all[to]];
        const int slot =
            give->in.slot + (give->kind == CP_OP_ALL_GATHER ? 0 : to);
        if (!is_partial(walk, slot))
            continue;
        if (from != to && *held(walk, from, slot) != leaves_of(walk, from))
            return cp_refuse("an %s of merged partials has no exact order",
                             cp_op_name(give->kind));
        send(walk, from, slot, to, take->out.slot + from);
    }
    return CP_OK;
}

static cp_status visit(void *context, const cp_event *event) {
    node_list_walk *walk = context;
    if (event->kind == CP_EVENT_LOCAL)
        follow_local(walk, event);
    if (event->kind == CP_EVENT_TRANSFER)
        return follow_transfer(walk, event);
    return event->kind == CP_EVENT_COLLECTIVE ? follow_collective(walk, event)
                                              : CP_OK;
}

static cp_status compare(const node_list_walk *walk) {
    const cp_plan *plan = walk->plan;
    for (int k = 0; k < plan->layout->ranks; k++)
        if (*held(walk, k, plan->result) != cp_all_leaves)
            return cp_fail(CP_BROKEN, "rank %d ends with leaves %08x alone", k,
                           *held(walk, k, plan->result));
    for (int slot = 0; slot < plan->slot_count; slot++) {
        const cp_slot *is = &plan->slots[slot];
        const int64_t node = cp_plan_node_bytes(plan, slot);
        const int64_t most = walk->most[slot] * node;
        const int64_t sent_count = walk->sent[slot] * node;
        if (is_partial(walk, slot) &&
            (is->held < most || is->bytes < sent_count))
            return cp_fail(CP_BROKEN,
                           "slot %d holds %ld bytes and sends %ld; expected "
                           "%ld and %ld",
                           slot, is->held, is->bytes, most, sent_count);
    }
    return CP_OK;
}

static cp_status follow(node_list_walk *walk) {
    const cp_plan *plan = walk->plan;
    const int64_t lists = plan->layout->ranks * (int64_t)plan->slot_count;
    CP_TRY(cp_allocate(&walk->held, lists, sizeof(uint32_t), "node lists"));
    CP_TRY(cp_allocate(&walk->most, 2 * (int64_t)plan->slot_count, sizeof(int),
                       "node lists"));
    walk->sent = walk->most + plan->slot_count;
    do {
        memset(walk->held, 0, (size_t)lists * sizeof(uint32_t));
        walk->grew = false;
        CP_TRY(cp_plan_order(plan, visit, walk));
    } while (walk->grew);
    for (int slot = 0; slot < plan->slot_count && walk->fit != NULL; slot++)
        if (is_partial(walk, slot)) {
            const int64_t node = cp_plan_node_bytes(plan, slot);
            const int64_t sent = cp_max(1, walk->sent[slot]);
            walk->fit->slots[slot].bytes = sent * node;
            walk->fit->slots[slot].held = cp_max(sent, walk->most[slot]) * node;
        }
    return walk->fit != NULL ? CP_OK : compare(walk);
}

static cp_status run(node_list_walk walk) {
    const cp_status status = follow(&walk);
    free(walk.held);
    free(walk.most);
    return status;
}

static cp_status check_rank(const cp_layout *layout, int rank) {
    const cp_pieces *keys = &layout->keys[rank].pieces;
    for (int64_t n = 0; n < keys->count; n++) {
        const cp_span span = keys->items[n].span;
        if (span.step != 1 ||
            cp_leaves_tokens(cp_rank_leaves(&layout->owners, rank), span.start,
                             span.count) != span.count)
            return cp_fail(CP_BROKEN,
                           "rank %d holds keys %ld to %ld of sequence %ld, "
                           "outside its leaves",
                           rank, span.start, cp_span_last(span), span.sequence);
    }
    return CP_OK;
}

static cp_status check_keys(const cp_layout *layout) {
    for (int k = 0; k < layout->ranks; k++)
        CP_TRY(check_rank(layout, k));
    return CP_OK;
}

void cp_node_lists_note(const cp_plan *plan, int rank, const cp_op *op,
                        uint32_t *held) {
    const cp_layout *layout = plan->layout;
    const cp_program *program = &plan->programs[rank];
    uint32_t *out = &held[op->out.slot];
    if (op->kind == CP_OP_ATTEND)
        *out = cp_rank_leaves(&layout->owners, op->keys.origin);
    if (op->kind == CP_OP_MERGE)
        *out |= held[op->in.slot];
    if (op->kind == CP_OP_JOIN)
        *out = held[op->in.slot];
    if (op->kind == CP_OP_EXCHANGE && op->from != CP_NO_RANK)
        *out = program->leaves[op - program->ops];
    for (int r = 0; r < layout->ranks && cp_op_is_collective(op); r++)
        if (r != rank)
            out[r] = cp_rank_leaves(&layout->owners, r);
}

cp_status cp_node_lists_fit(cp_plan *plan) {
    if (plan->indexer.top_k > 0)
        return cp_refuse("attention to chosen keys has no exact order");
    if (plan->wire != CP_WIRE_FP32)
        return cp_refuse("a rounded wire format has no exact order");
    CP_TRY(check_keys(plan->layout));
    for (int k = 0; k < plan->layout->ranks; k++)
        CP_TRY(cp_allocate(&plan->programs[k].leaves, plan->programs[k].count,
                           sizeof(uint32_t), "leaves"));
    return run((node_list_walk){.plan = plan, .fit = plan});
}

cp_status cp_node_lists_check(const cp_plan *plan) {
    CP_TRY(check_keys(plan->layout));
    return run((node_list_walk){.plan = plan});
}
