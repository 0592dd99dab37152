/* Tangled from book/16-sparse.nw; edit the chapter. */
/* A walker's operations for sparse attention. */
#include "reference/run/lists.h"

#include "reference/attend/select.h"

/* The positions [rows][top_k] that follow a block of queries. */
static int32_t *chosen_of(const cp_plan *plan, void *const *slots, int slot) {
    const cp_shape *shape = &plan->shape;
    float *queries = slots[slot];
    void *chosen =
        queries + plan->slots[slot].rows * shape->query_heads * shape->head_dim;
    return chosen;
}

float *cp_lists_weights(const cp_plan *plan, void *const *slots, int slot) {
    const cp_indexer *indexer = &plan->indexer;
    float *queries = slots[slot];
    return queries + plan->slots[slot].rows * indexer->heads * indexer->dim;
}

cp_status cp_lists_select(const cp_plan *plan, void *const *slots, int threads,
                          const cp_op *op, const cp_op *merge) {
    const cp_layout *layout = plan->layout;
    const int slot = merge != NULL ? merge->out.slot : op->out.slot;
    const int64_t room = plan->indexer.top_k;
    const cp_selection call = {
        .indexer = &plan->indexer,
        .query_pieces = &layout->queries[op->in.origin].pieces,
        .queries = slots[op->in.slot],
        .weights = cp_lists_weights(plan, slots, op->in.slot),
        .key_pieces = &layout->keys[op->keys.origin].pieces,
        .keys = slots[op->keys.slot],
        .threads = threads,
        .room = room,
        .candidates = slots[slot],
    };
    if (merge == NULL)
        cp_candidates_clear(call.candidates, plan->slots[slot].rows * room);
    return cp_select(&call);
}

cp_status cp_lists_merge(const cp_plan *plan, void *const *slots,
                         const cp_op *op) {
    const int64_t room = plan->indexer.top_k;
    cp_candidate *out = slots[op->out.slot];
    const cp_candidate *in = slots[op->in.slot];
    for (int64_t row = 0; row < plan->slots[op->in.slot].rows; row++)
        cp_candidates_merge(out + row * room, in + row * room, room);
    return CP_OK;
}

cp_status cp_lists_pack(const cp_plan *plan, void *const *slots,
                        const cp_op *op) {
    const cp_candidate *list = slots[op->in.slot];
    int32_t *chosen = chosen_of(plan, slots, op->out.slot);
    const int64_t count = plan->slots[op->in.slot].rows * plan->indexer.top_k;
    for (int64_t n = 0; n < count; n++)
        chosen[n] = list[n].position;
    return CP_OK;
}

cp_status cp_lists_attend(const cp_plan *plan, void *const *slots,
                          const cp_op *op, const cp_attention *call) {
    return cp_attend_chosen(call, chosen_of(plan, slots, op->in.slot),
                            plan->indexer.top_k);
}
