/* Tangled from book/05-plan.nw; edit the chapter. */
/* Building plans: slots, operations, and the choice of builder. */
#include "ring/plan.h"

#include <stdlib.h>
#include <string.h>

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
        return 0;
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

static int add_slot(cp_plan *plan, cp_slot_kind kind) {
    if (plan->status != CP_OK)
        return 0;
    cp_slot *slots =
        realloc(plan->slots, (size_t)(plan->slot_count + 1) * sizeof(cp_slot));
    if (slots == NULL) {
        plan->status = cp_fail(CP_MEMORY, "no memory for a plan's slots");
        return 0;
    }
    plan->slots = slots;
    /* Fill in the new slot, or fail if its bytes overflow. */
    const int64_t rows = slot_rows(plan, kind);
    int64_t bytes;
    if (!cp_multiply(rows, row_bytes(plan, kind), &bytes)) {
        plan->status = cp_fail(CP_INVALID, "a slot of %lld rows overflows",
                               (long long)rows);
        return 0;
    }
    slots[plan->slot_count] = (cp_slot){kind, rows, bytes};
    return plan->slot_count++;
}

int cp_plan_add_slots(cp_plan *plan, cp_slot_kind kind, int count) {
    const int first = plan->slot_count;
    for (int n = 0; n < count; n++)
        add_slot(plan, kind);
    return first;
}

static void emit(cp_plan *plan, int rank, cp_op op) {
    if (plan->status != CP_OK)
        return;
    cp_program *program = &plan->programs[rank];
    /* Make room for one more operation. */
    if (program->count == program->room) {
        const int64_t room = program->room == 0 ? 16 : 2 * program->room;
        cp_op *ops = realloc(program->ops, (size_t)room * sizeof(cp_op));
        if (ops == NULL) {
            plan->status = cp_fail(CP_MEMORY, "no memory for %lld operations",
                                   (long long)room);
            return;
        }
        program->ops = ops;
        program->room = room;
    }
    program->ops[program->count++] = op;
}

void cp_emit_append(cp_plan *plan, int rank) {
    emit(plan, rank,
         (cp_op){.kind = CP_OP_APPEND,
                 .in = {plan->fresh, rank},
                 .out = {plan->cache, rank}});
}

void cp_emit_pack(cp_plan *plan, int rank, cp_use into) {
    emit(plan, rank,
         (cp_op){.kind = CP_OP_PACK, .in = {plan->cache, rank}, .out = into});
}

void cp_emit_attend(cp_plan *plan, int rank, int hop, cp_use queries,
                    cp_use keys, cp_use partial) {
    emit(plan, rank,
         (cp_op){.kind = CP_OP_ATTEND,
                 .hop = hop,
                 .in = queries,
                 .keys = keys,
                 .out = partial});
}

void cp_emit_merge(cp_plan *plan, int rank, int hop, cp_use partial,
                   cp_use into) {
    emit(plan, rank,
         (cp_op){.kind = CP_OP_MERGE, .hop = hop, .in = partial, .out = into});
}

void cp_emit_exchange(cp_plan *plan, int rank, int hop, cp_use send, int to,
                      cp_use receive, int from) {
    emit(plan, rank,
         (cp_op){.kind = CP_OP_EXCHANGE,
                 .hop = hop,
                 .to = to,
                 .from = from,
                 .in = send,
                 .out = receive});
}

void cp_emit_wait(cp_plan *plan, int rank, int hop) {
    emit(plan, rank, (cp_op){.kind = CP_OP_WAIT, .hop = hop});
}

void cp_emit_all_to_all(cp_plan *plan, int rank, int send, int receive) {
    emit(plan, rank,
         (cp_op){.kind = CP_OP_ALL_TO_ALL,
                 .in = {send, rank},
                 .out = {receive, rank}});
}

void cp_emit_all_gather(cp_plan *plan, int rank, cp_use send, int receive) {
    emit(plan, rank,
         (cp_op){.kind = CP_OP_ALL_GATHER, .in = send, .out = {receive, rank}});
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
    plan->cache = add_slot(plan, CP_SLOT_CACHE);
    plan->fresh = add_slot(plan, CP_SLOT_NEW);
    plan->queries = add_slot(plan, CP_SLOT_QUERIES);
    plan->result = add_slot(plan, CP_SLOT_PARTIAL);
    return plan;
}

cp_status cp_plan_finish(cp_plan *plan, cp_plan **out) {
    *out = NULL;
    if (plan == NULL)
        return CP_MEMORY;
    const cp_status status = plan->status;
    if (status == CP_OK)
        *out = plan;
    else
        cp_plan_free(plan);
    return status;
}

void cp_plan_free(cp_plan *plan) {
    if (plan == NULL)
        return;
    for (int r = 0; plan->programs != NULL && r < plan->layout->ranks; r++)
        free(plan->programs[r].ops);
    free(plan->programs);
    free(plan->slots);
    free(plan);
}

cp_status cp_plan_build(cp_variant variant, const cp_layout *layout,
                        const cp_shape *shape, const cp_plan_options *options,
                        cp_plan **out) {
    *out = NULL;
    const cp_status status = cp_shape_check(shape);
    if (status != CP_OK)
        return status;
    if (options != NULL && (options->spare < 1 || options->element_bytes < 1))
        return cp_fail(CP_INVALID, "%d spare slots of %lld-byte numbers",
                       options->spare, (long long)options->element_bytes);
    switch (variant) {
    case CP_PASS_KV:
        return cp_plan_pass_kv(layout, shape, options, out);
    case CP_PASS_Q:
        return cp_plan_pass_q(layout, shape, options, out);
    case CP_ALL_GATHER:
        return cp_plan_all_gather(layout, shape, options, out);
    case CP_DECODE:
        return cp_plan_decode(layout, shape, options, out);
    case CP_AUTO:
        break;
    }
    return cp_fail(CP_INVALID, "a plan needs a variant that has been chosen");
}

static void read_slot(cp_op_slots *slots, int slot) {
    slots->read[slots->read_count++] = slot;
}

static void write_slot(cp_op_slots *slots, int slot) {
    slots->write[slots->write_count++] = slot;
}

void cp_op_slots_list(const cp_plan *plan, int rank, const cp_op *op,
                      cp_op_slots *slots) {
    slots->read_count = slots->write_count = 0;
    const bool gather = op->kind == CP_OP_ALL_GATHER;
    switch (op->kind) {
    case CP_OP_WAIT:
        return;
    case CP_OP_ALL_TO_ALL:
    case CP_OP_ALL_GATHER:
        /* List one slot for each other rank. */
        for (int r = 0; r < plan->layout->ranks; r++) {
            if (r == rank)
                continue;
            if (!gather)
                read_slot(slots, op->in.slot + r);
            write_slot(slots, op->out.slot + r);
        }
        if (gather)
            read_slot(slots, op->in.slot);
        return;
    case CP_OP_EXCHANGE:
        /* List the halves that an exchange has. */
        if (op->to != CP_NOBODY)
            read_slot(slots, op->in.slot);
        if (op->from != CP_NOBODY)
            write_slot(slots, op->out.slot);
        return;
    default:
        /* List the slots of a local operation. */
        read_slot(slots, op->in.slot);
        if (op->kind == CP_OP_ATTEND)
            read_slot(slots, op->keys.slot);
        if (op->kind == CP_OP_MERGE)
            read_slot(slots, op->out.slot);
        write_slot(slots, op->out.slot);
    }
}

cp_status cp_plan_slots_needed(const cp_plan *plan, int rank, bool *needed) {
    const cp_program *program = &plan->programs[rank];
    const int room = plan->layout->ranks + 2;
    int *lists;
    const cp_status status =
        cp_allocate(&lists, 2 * (int64_t)room, sizeof(int), "a list of slots");
    if (status != CP_OK)
        return status;
    memset(needed, 0, (size_t)plan->slot_count * sizeof(*needed));
    needed[plan->fresh] = needed[plan->queries] = needed[plan->result] = true;
    cp_op_slots named = {0, 0, lists, lists + room};
    for (int64_t n = 0; n < program->count; n++) {
        cp_op_slots_list(plan, rank, &program->ops[n], &named);
        for (int i = 0; i < named.read_count; i++)
            needed[named.read[i]] = true;
        for (int i = 0; i < named.write_count; i++)
            needed[named.write[i]] = true;
    }
    needed[plan->cache] = false;
    free(lists);
    return CP_OK;
}

static const char *const variant_names[] = {"auto", "pass-kv", "pass-q",
                                            "all-gather", "decode"};

const char *cp_variant_name(cp_variant variant) {
    return variant_names[variant];
}

bool cp_variant_parse(const char *name, cp_variant *variant) {
    for (int n = 0; n < 5; n++) {
        if (strcmp(name, variant_names[n]) == 0) {
            *variant = (cp_variant)n;
            return true;
        }
    }
    return false;
}

const char *cp_op_name(cp_op_kind kind) {
    static const char *const names[] = {"append",     "pack",      "attend",
                                        "merge",      "exchange",  "wait",
                                        "all-to-all", "all-gather"};
    return names[kind];
}
