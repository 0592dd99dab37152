/* Tangled from book/05-plan.nw; edit the chapter. */
/* Building plans: slots and operations. */
#include "ring/build.h"

#include <stdlib.h>

static int64_t slot_rows(const cp_plan *plan, cp_slot_kind kind) {
    if (kind == CP_SLOT_CACHE)
        return 0;
    if (kind == CP_SLOT_KEYS)
        return plan->layout->keys[0].rows;
    return plan->layout->queries[0].rows;
}

static int64_t row_bytes(const cp_plan *plan, cp_slot_kind kind) {
    const cp_shape *shape = &plan->shape;
    const int64_t width = shape->head_dim * plan->element_bytes;
    switch (kind) {
    case CP_SLOT_CACHE:
        break;
    case CP_SLOT_QUERIES:
        return shape->query_heads * width +
               (plan->labelled ? CP_LABEL_BYTES : 0);
    case CP_SLOT_NEW:
    case CP_SLOT_KEYS:
        return 2 * shape->kv_heads * width;
    case CP_SLOT_PARTIAL:
        return shape->query_heads * (shape->head_dim + 1) * CP_PARTIAL_BYTES;
    }
    return 0;
}

static cp_status make_room(cp_plan *plan, int64_t count) {
    cp_slot *slots = realloc(plan->slots, (size_t)count * sizeof(cp_slot));
    if (slots == NULL)
        return cp_fail(CP_MEMORY, "no memory for a plan's slots");
    plan->slots = slots;
    return CP_OK;
}

int cp_plan_add_slots(cp_plan *plan, cp_slot_kind kind, int count) {
    const int first = plan->slot_count;
    const int64_t rows = slot_rows(plan, kind);
    const int64_t all = (int64_t)first + count;
    int64_t bytes;
    if (plan->status != CP_OK)
        return 0;
    if (!cp_multiply(rows, row_bytes(plan, kind), &bytes))
        plan->status =
            cp_fail(CP_INVALID, "a slot of %ld rows overflows", rows);
    else if (all > INT16_MAX)
        plan->status = cp_fail(CP_INVALID, "%ld slots; a plan can name %d", all,
                               INT16_MAX);
    else
        plan->status = make_room(plan, all);
    if (plan->status != CP_OK)
        return 0;
    while (plan->slot_count < all)
        plan->slots[plan->slot_count++] = (cp_slot){kind, rows, bytes};
    return first;
}

static void emit(cp_plan *plan, int rank, int hop, cp_op op) {
    if (plan->status != CP_OK)
        return;
    cp_program *program = &plan->programs[rank];
    /* Make room for one more operation. */
    if (program->count == program->room) {
        const int64_t room = program->room == 0 ? 16 : 2 * program->room;
        cp_op *ops = realloc(program->ops, (size_t)room * sizeof(cp_op));
        if (ops == NULL) {
            plan->status =
                cp_fail(CP_MEMORY, "no memory for %ld operations", room);
            return;
        }
        program->ops = ops;
        program->room = room;
    }
    op.hop = (int16_t)hop;
    program->ops[program->count++] = op;
}

void cp_emit_append(cp_plan *plan, int rank) {
    emit(plan, rank, 0,
         (cp_op){.kind = CP_OP_APPEND,
                 .in = cp_use_of(plan->fresh, rank),
                 .out = cp_use_of(plan->cache, rank)});
}

void cp_emit_pack(cp_plan *plan, int rank, cp_use into) {
    const cp_use cache = cp_use_of(plan->cache, rank);
    emit(plan, rank, 0, (cp_op){.kind = CP_OP_PACK, .in = cache, .out = into});
}

void cp_emit_attend(cp_plan *plan, int rank, int hop, cp_use queries,
                    cp_use keys, cp_use partial) {
    const cp_op op = {
        .kind = CP_OP_ATTEND, .in = queries, .keys = keys, .out = partial};
    emit(plan, rank, hop, op);
}

void cp_emit_merge(cp_plan *plan, int rank, int hop, cp_use partial,
                   cp_use into) {
    emit(plan, rank, hop,
         (cp_op){.kind = CP_OP_MERGE, .in = partial, .out = into});
}

void cp_emit_exchange(cp_plan *plan, int rank, int hop, cp_use send, int to,
                      cp_use receive, int from) {
    emit(plan, rank, hop,
         (cp_op){.kind = CP_OP_EXCHANGE,
                 .to = (int16_t)to,
                 .from = (int16_t)from,
                 .in = send,
                 .out = receive});
}

void cp_emit_wait(cp_plan *plan, int rank, int hop) {
    emit(plan, rank, hop, (cp_op){.kind = CP_OP_WAIT});
}

void cp_emit_all_to_all(cp_plan *plan, int rank, int send, int receive) {
    emit(plan, rank, 0,
         (cp_op){.kind = CP_OP_ALL_TO_ALL,
                 .in = cp_use_of(send, rank),
                 .out = cp_use_of(receive, rank)});
}

void cp_emit_all_gather(cp_plan *plan, int rank, cp_use send, int receive) {
    emit(plan, rank, 0,
         (cp_op){.kind = CP_OP_ALL_GATHER,
                 .in = send,
                 .out = cp_use_of(receive, rank)});
}

cp_plan *cp_plan_begin(cp_variant variant, const cp_layout *layout,
                       const cp_shape *shape, const cp_plan_options *options) {
    cp_plan *plan;
    if (cp_allocate(&plan, 1, sizeof(*plan), "a plan") != CP_OK)
        return NULL;
    plan->variant = variant;
    plan->shape = *shape;
    plan->element_bytes = options == NULL ? 4 : options->element_bytes;
    plan->spare = options == NULL ? 1 : options->spare;
    plan->layout = layout;
    plan->labelled = variant == CP_DECODE;
    plan->status = cp_allocate(&plan->programs, layout->ranks,
                               sizeof(cp_program), "programs");
    if (layout->ranks > INT16_MAX)
        plan->status = cp_fail(CP_INVALID, "%d ranks; a plan can name %d",
                               layout->ranks, INT16_MAX);
    plan->cache = cp_plan_add_slots(plan, CP_SLOT_CACHE, 1);
    plan->fresh = cp_plan_add_slots(plan, CP_SLOT_NEW, 1);
    plan->queries = cp_plan_add_slots(plan, CP_SLOT_QUERIES, 1);
    plan->result = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    return plan;
}

cp_status cp_plan_finish(cp_plan *plan, cp_plan **out) {
    cp_status status = plan->status;
    if (status == CP_OK)
        status = cp_plan_link(plan);
    *out = status == CP_OK ? plan : NULL;
    if (status != CP_OK)
        cp_plan_free(plan);
    return status;
}
