/* Tangled from book/05-plan.nw; edit the chapter. */
/* Building plans: slots and operations. */
#include "ring/build.h"

#include <stdlib.h>

static void measure(const cp_plan *plan, cp_slot_kind kind, int64_t *rows,
                    int64_t *row_bytes) {
    const cp_layout *layout = plan->layout;
    const cp_shape *shape = &plan->shape;
    const int64_t width = shape->head_dim * plan->element_bytes;
    *rows = (kind == CP_SLOT_KEYS ? layout->keys : layout->queries)->rows;
    *row_bytes = 0;
    switch (kind) {
    case CP_SLOT_CACHE:
        *rows = 0;
        break;
    case CP_SLOT_QUERIES:
        *row_bytes =
            shape->query_heads * width + (plan->labelled ? CP_LABEL_BYTES : 0);
        break;
    case CP_SLOT_NEW:
    case CP_SLOT_KEYS:
        *row_bytes = 2 * shape->kv_heads * width;
        break;
    case CP_SLOT_PARTIAL:
        *row_bytes =
            shape->query_heads * (shape->head_dim + 1) * CP_PARTIAL_BYTES;
    }
}
int cp_plan_add_slots(cp_plan *plan, cp_slot_kind kind, int count) {
    const int first = plan->slot_count;
    const int64_t all = (int64_t)first + count;
    int64_t rows, bytes;
    if (plan->status != CP_OK)
        return 0;
    measure(plan, kind, &rows, &bytes);
    if (!cp_multiply(rows, bytes, &bytes))
        plan->status = cp_refuse("a slot of %ld rows overflows", rows);
    else if (all > INT16_MAX)
        plan->status =
            cp_refuse("%ld slots; a plan can name %d", all, INT16_MAX);
    else
        plan->status = cp_grow(&plan->slots, &plan->slot_room, all,
                               sizeof(cp_slot), "a plan's slots");
    if (plan->status != CP_OK)
        return 0;
    while (plan->slot_count < all)
        plan->slots[plan->slot_count++] = (cp_slot){kind, rows, bytes};
    return first;
}

static void add(cp_plan *plan, int rank, int hop, cp_op op) {
    if (plan->status != CP_OK)
        return;
    cp_program *program = &plan->programs[rank];
    plan->status = cp_grow(&program->ops, &program->room, program->count + 1,
                           sizeof(cp_op), "a plan's operations");
    if (plan->status != CP_OK)
        return;
    op.hop = (int16_t)hop;
    program->ops[program->count++] = op;
}

void cp_emit(cp_plan *plan, int rank, int hop, cp_op_kind kind, cp_use in,
             cp_use out) {
    add(plan, rank, hop, (cp_op){.kind = kind, .in = in, .out = out});
}

void cp_emit_attend(cp_plan *plan, int rank, int hop, cp_use queries,
                    cp_use keys, cp_use partial) {
    const cp_op op = {
        .kind = CP_OP_ATTEND, .in = queries, .keys = keys, .out = partial};
    add(plan, rank, hop, op);
}

void cp_emit_exchange(cp_plan *plan, int rank, int hop, cp_use send, int to,
                      cp_use receive, int from) {
    add(plan, rank, hop,
        (cp_op){.kind = CP_OP_EXCHANGE,
                .to = (int16_t)to,
                .from = (int16_t)from,
                .in = send,
                .out = receive});
}

void cp_emit_wait(cp_plan *plan, int rank, int hop) {
    add(plan, rank, hop, (cp_op){.kind = CP_OP_WAIT});
}
