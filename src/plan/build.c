/* Tangled from book/05-plan.nw; edit the chapter. */
/* Building plans: slots and operations. */
#include "plan/build.h"

#include <stdlib.h>

#include "plan/node_lists.h"

static int64_t row_bytes(const cp_plan *plan, cp_slot_kind kind, int parts,
                         bool sent) {
    int64_t bytes = 0;
    for (int t = 0; t < 2; t++) {
        const cp_tensor tensor = cp_plan_tensor(plan, kind, parts, t);
        bytes += tensor.heads *
                 cp_encoding_bytes(sent ? tensor.encoding : CP_ENCODING_NONE,
                                   tensor.dim, tensor.number);
    }
    return bytes;
}

static int64_t rows_of(const cp_plan *plan, cp_slot_kind kind) {
    const cp_layout *layout = plan->layout;
    const bool per_query = kind == CP_SLOT_QUERIES || kind == CP_SLOT_PARTIAL;
    if (kind == CP_SLOT_CACHE || kind == CP_SLOT_NEXT)
        return 0;
    if (kind == CP_SLOT_RUN)
        return 1;
    if (kind == CP_SLOT_KEYS || kind == CP_SLOT_INDEX_KEYS)
        return layout->keys->rows;
    return per_query && plan->begins != CP_OWN_TOKENS ? layout->all_queries.rows
                                                      : layout->queries->rows;
}

static void set_rows(cp_plan *plan, cp_slot *slot, int64_t rows) {
    slot->rows = rows;
    if (plan->status == CP_OK &&
        (!cp_multiply(rows, row_bytes(plan, slot->kind, slot->parts, false),
                      &slot->held) ||
         !cp_multiply(rows, row_bytes(plan, slot->kind, slot->parts, true),
                      &slot->bytes)))
        plan->status =
            cp_refuse("the bytes of a slot of %ld rows overflow", rows);
}

static cp_slot make_slot(cp_plan *plan, cp_slot_kind kind, int parts) {
    cp_slot slot = {.kind = kind, .parts = parts};
    if (plan->status == CP_OK && !cp_shape_divides(&plan->shape, parts))
        plan->status = cp_refuse(
            "%ld query heads over %ld key heads cannot be cut into %d parts",
            plan->shape.query_heads, plan->shape.kv_heads, parts);
    set_rows(plan, &slot, rows_of(plan, kind));
    return slot;
}

int cp_plan_add_parts(cp_plan *plan, cp_slot_kind kind, int count, int parts) {
    const int first = plan->slot_count;
    const int64_t all = (int64_t)first + count;
    const cp_slot slot = make_slot(plan, kind, parts);
    if (plan->status != CP_OK)
        return 0;
    if (all > INT16_MAX)
        plan->status =
            cp_refuse("%ld slots; at most %d are possible", all, INT16_MAX);
    else
        plan->status = cp_grow(&plan->slots, &plan->slot_room, all,
                               sizeof(cp_slot), "a plan's slots");
    if (plan->status != CP_OK)
        return 0;
    while (plan->slot_count < all)
        plan->slots[plan->slot_count++] = slot;
    return first;
}

int cp_plan_add_slots(cp_plan *plan, cp_slot_kind kind, int count) {
    return cp_plan_add_parts(plan, kind, count, 1);
}

static void replace(cp_plan *plan, int n, cp_slot_kind kind, int parts) {
    cp_slot slot = make_slot(plan, kind, parts);
    slot.given = plan->slots[n].given;
    slot.final = plan->slots[n].final;
    plan->slots[n] = slot;
}

static int parts_of(const cp_plan *plan, cp_ownership ownership) {
    return ownership == CP_OWN_HEADS ? plan->layout->ranks : 1;
}

void cp_plan_begin_with(cp_plan *plan, cp_ownership begins, cp_ownership ends) {
    if (plan->status != CP_OK)
        return;
    plan->begins = begins;
    plan->ends = ends;
    replace(plan, plan->queries, CP_SLOT_QUERIES, parts_of(plan, begins));
    replace(plan, plan->result, CP_SLOT_PARTIAL, parts_of(plan, ends));
}

void cp_plan_begin_bare(cp_plan *plan, cp_slot_kind given, cp_slot_kind final) {
    if (plan->status != CP_OK)
        return;
    replace(plan, plan->fresh, given, 1);
    replace(plan, plan->queries, given, 1);
    replace(plan, plan->result, final, 1);
    for (int k = 0; k < plan->layout->ranks; k++)
        plan->programs[k].count = 0;
}

void cp_plan_set_rows(cp_plan *plan, int slot, int64_t rows) {
    if (plan->status == CP_OK)
        set_rows(plan, &plan->slots[slot], rows);
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

void cp_emit_select(cp_plan *plan, int rank, int hop, cp_use queries,
                    cp_use keys, cp_use list) {
    const cp_op op = {
        .kind = CP_OP_SELECT, .in = queries, .keys = keys, .out = list};
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
static int add_given(cp_plan *plan, cp_slot_kind kind) {
    const int slot = cp_plan_add_slots(plan, kind, 1);
    if (plan->status == CP_OK)
        plan->slots[slot].given = true;
    return slot;
}

static void begin_sparse(cp_plan *plan) {
    plan->index_queries = add_given(plan, CP_SLOT_INDEX_QUERIES);
    plan->index_keys = add_given(plan, CP_SLOT_INDEX_KEYS);
    plan->list = cp_plan_add_slots(plan, CP_SLOT_LIST, 1);
}

static void begin(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    plan->status =
        cp_allocate(&plan->programs, ranks, sizeof(cp_program), "programs");
    if (ranks > INT16_MAX)
        plan->status =
            cp_refuse("%d ranks; at most %d are possible", ranks, INT16_MAX);
    plan->cache = cp_plan_add_slots(plan, CP_SLOT_CACHE, 1);
    plan->fresh = add_given(plan, CP_SLOT_NEW);
    plan->queries = add_given(plan, CP_SLOT_QUERIES);
    plan->result = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    if (plan->status == CP_OK)
        plan->slots[plan->result].final = true;
    if (plan->indexer.top_k > 0)
        begin_sparse(plan);
    for (int k = 0; k < ranks; k++)
        cp_emit(plan, k, 0, CP_OP_APPEND, cp_use_of(plan->fresh, k),
                cp_use_of(plan->cache, k));
}

static cp_status take_indexer(const cp_indexer *given, const cp_layout *layout,
                              cp_indexer *indexer) {
    int64_t longest = 1;
    for (int64_t s = 0; s < layout->sequences; s++)
        longest = cp_max(longest, layout->past[s] + layout->fresh[s]);
    *indexer = *given;
    indexer->top_k = cp_min(given->top_k, longest);
    if (given->top_k == 0 ||
        (given->top_k > 0 && given->heads > 0 && given->dim > 0 &&
         given->heads <= CP_HEADS_MAX && given->dim <= CP_HEADS_MAX))
        return CP_OK;
    return cp_refuse("an indexer of %ld heads of %ld chooses %ld keys",
                     given->heads, given->dim, given->top_k);
}

cp_status cp_plan_new(cp_plan_builder *build, const cp_layout *layout,
                      const cp_shape *shape, const cp_plan_options *options,
                      cp_plan **out) {
    static const cp_plan_options usual = {.element_bytes = 4, .spare = 1};
    const cp_plan_options *settings = options != NULL ? options : &usual;
    cp_indexer indexer;
    cp_plan *plan;
    *out = NULL;
    CP_TRY(cp_shape_check(shape));
    CP_TRY(take_indexer(&settings->indexer, layout, &indexer));
    if (settings->spare < 1 || settings->element_bytes < 1)
        return cp_refuse("%d spare slots of %ld-byte numbers", settings->spare,
                         settings->element_bytes);
    CP_TRY(cp_allocate(&plan, 1, sizeof(*plan), "a plan"));
    *plan = (cp_plan){.shape = *shape,
                      .layout = layout,
                      .element_bytes = settings->element_bytes,
                      .spare = settings->spare,
                      .run_bytes = settings->run_bytes,
                      .migration = settings->migration,
                      .indexer = indexer,
                      .wire = settings->wire};
    begin(plan);
    build(plan);
    cp_status status =
        plan->status == CP_OK ? cp_plan_link(plan) : plan->status;
    if (status == CP_OK && layout->leaves)
        status = cp_node_lists_fit(plan);
    if (status == CP_OK)
        *out = plan;
    else
        cp_plan_free(plan);
    return status;
}
