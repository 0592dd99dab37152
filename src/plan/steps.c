/* Tangled from book/05-steps.nw; edit the chapter. */
/* From operations on slots to steps between buffers. */
#include "plan/steps.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

#include "plan/node_lists.h"
#include "tokens/migrate.h"

typedef struct {
    const cp_plan *plan;
    int rank;
    cp_steps *out;
    uint32_t *leaves; /* [slot_count] that partials hold, in exact order */
    int32_t *last;    /* [ops] the last step of each operation */
    cp_status status; /* the first failure */
} lowering;

static void add(lowering *l, cp_step step) {
    cp_steps *s = l->out;
    if (l->status == CP_OK)
        l->status =
            cp_grow(&s->items, &s->room, s->count + 1, sizeof(step), "steps");
    if (l->status == CP_OK)
        s->items[s->count++] = step;
}

static int32_t add_list(lowering *l, const cp_pieces *of) {
    cp_steps *s = l->out;
    if (l->status == CP_OK)
        l->status = cp_grow(&s->lists, &s->list_room, s->list_count + 1,
                            sizeof(cp_row_list), "lists of rows");
    if (l->status != CP_OK)
        return 0;
    s->lists[s->list_count] = (cp_row_list){.of = of};
    return (int32_t)s->list_count++;
}

/* The list of these pieces, which is made when it is first asked for. */
static int32_t list_pieces(lowering *l, const cp_pieces *of) {
    const cp_steps *s = l->out;
    for (int32_t n = 0; n < s->list_count; n++)
        if (s->lists[n].of == of)
            return n;
    const int32_t list = add_list(l, of);
    if (l->status == CP_OK)
        l->status = cp_pieces_copy(&s->lists[list].pieces, of);
    return list;
}

static void add_move(lowering *l, int32_t list, cp_move move) {
    if (l->status != CP_OK)
        return;
    cp_moves *moves = &l->out->lists[list].moves;
    l->status = cp_grow(&moves->items, &moves->room, moves->count + 1,
                        sizeof(move), "rows of a step");
    if (l->status == CP_OK)
        moves->items[moves->count++] = move;
}

typedef struct {
    int64_t of[2];
} row_widths;

/* Is it the cache that a migration fills? */
static bool is_next(const cp_plan *plan, int slot) {
    return plan->migration != NULL && slot == plan->result;
}

static row_widths widths_of(const cp_plan *plan, int slot) {
    const cp_shape shape = cp_plan_shape(plan, slot);
    const cp_indexer *indexer = &plan->indexer;
    const int64_t e = plan->element_bytes, dim = shape.head_dim,
                  value_dim = cp_value_dim(&shape);
    const bool all_heads = plan->slots[slot].parts == 1;
    switch (is_next(plan, slot) ? CP_SLOT_CACHE : plan->slots[slot].kind) {
    case CP_SLOT_CACHE:
    case CP_SLOT_NEW:
    case CP_SLOT_KEYS:
        return (row_widths){
            {shape.kv_heads * dim * e,
             shape.latent ? 0 : shape.kv_heads * value_dim * e}};
    case CP_SLOT_QUERIES:
        return (row_widths){{shape.query_heads * dim * e,
                             all_heads ? indexer->top_k * CP_CHOSEN_BYTES : 0}};
    case CP_SLOT_PARTIAL:
        return (row_widths){{shape.query_heads * value_dim * CP_PARTIAL_BYTES,
                             shape.query_heads * CP_PARTIAL_BYTES}};
    case CP_SLOT_RUN:
        return (row_widths){{plan->run_bytes, 0}};
    case CP_SLOT_INDEX_QUERIES:
        return (row_widths){
            {indexer->heads * indexer->dim * e, indexer->heads * e}};
    case CP_SLOT_INDEX_KEYS:
        return (row_widths){{indexer->dim * e, 0}};
    case CP_SLOT_LIST:
        break;
    }
    return (row_widths){{indexer->top_k * (int64_t)sizeof(cp_candidate), 0}};
}

cp_columns cp_slot_columns(const cp_plan *plan, int slot, int t) {
    const row_widths widths = widths_of(plan, slot);
    const bool next = is_next(plan, slot);
    cp_columns tensor = {slot, 0, widths.of[t], widths.of[t]};
    if (slot == plan->cache || next)
        tensor.buffer = plan->slot_count + t +
                        (next ? CP_BUFFER_NEXT_KEYS : CP_BUFFER_KEYS);
    else
        tensor.first = t * plan->slots[slot].rows * widths.of[0];
    return tensor;
}

static cp_columns columns(const lowering *l, cp_use use, int t) {
    return cp_slot_columns(l->plan, use.slot, t);
}

static void attend(lowering *l, const cp_op *op, cp_step step) {
    const cp_plan *plan = l->plan;
    const cp_layout *layout = plan->layout;
    const bool home = op->keys.slot == plan->cache;
    const int64_t e = plan->element_bytes, head = cp_plan_first_head(plan, op);
    const cp_block *keys =
        home ? &layout->cache[l->rank] : &layout->keys[op->keys.origin];
    step.shape = cp_plan_shape(plan, op->in.slot);
    step.queries =
        list_pieces(l, &cp_plan_queries(plan, op->in.origin)->pieces);
    step.keys = list_pieces(l, &keys->pieces);
    step.in[3] = step.in[1]; /* the keys that the queries have chosen */
    step.in[1] = columns(l, op->keys, 0);
    step.in[2] = columns(l, op->keys, plan->shape.latent ? 0 : 1);
    /* Which of the keys' heads are attended to. */
    step.in[1].first += head * step.shape.head_dim * e;
    step.in[1].width = step.shape.kv_heads * step.shape.head_dim * e;
    step.in[2].first += head * cp_value_step(&step.shape) * e;
    step.in[2].width = step.shape.kv_heads * cp_value_dim(&step.shape) * e;
    add(l, step);
}

static void select_keys(lowering *l, const cp_op *op, cp_step step) {
    const cp_layout *layout = l->plan->layout;
    step.queries =
        list_pieces(l, &cp_plan_queries(l->plan, op->in.origin)->pieces);
    step.keys = list_pieces(l, &layout->keys[op->keys.origin].pieces);
    step.in[2] = columns(l, op->keys, 0);
    add(l, step);
}

static void move_pieces(lowering *l, int32_t list, const cp_block *from,
                        const cp_block *to) {
    assert(from->pieces.count == to->pieces.count);
    for (int64_t n = 0; n < from->pieces.count; n++) {
        const cp_piece piece = from->pieces.items[n];
        assert(piece.span.count == to->pieces.items[n].span.count);
        add_move(
            l, list,
            (cp_move){piece.row, to->pieces.items[n].row, piece.span.count});
    }
}

/* Where a cache moves: rows of the caches, and rows 0, 1, ... of the block. */
static void move_transfer(lowering *l, int32_t list, const cp_op *op) {
    const bool packs = op->kind == CP_OP_PACK;
    const cp_use use = packs ? op->out : op->in;
    const cp_moves *moves =
        &cp_transfer_of(l->plan->migration, use.origin, use.part)->moves;
    int64_t row = 0;
    for (int64_t n = 0; n < moves->count; row += moves->items[n++].count) {
        const cp_move move = moves->items[n];
        add_move(l, list,
                 (cp_move){packs ? move.from : row, packs ? row : move.to,
                           move.count});
    }
}

static int32_t list_rows(lowering *l, const cp_op *op) {
    const cp_layout *layout = l->plan->layout;
    const cp_slot *in = &l->plan->slots[op->in.slot];
    const int32_t list = add_list(l, NULL);
    if (l->plan->migration != NULL)
        move_transfer(l, list, op);
    else if (op->kind == CP_OP_APPEND)
        move_pieces(l, list, &layout->queries[l->rank],
                    &layout->appended[l->rank]);
    else if (in->kind == CP_SLOT_CACHE)
        move_pieces(l, list, &layout->cache[l->rank], &layout->keys[l->rank]);
    else
        add_move(l, list, (cp_move){0, 0, in->rows});
    return list;
}

static void copy(lowering *l, const cp_op *op, cp_step step) {
    step.rows = list_rows(l, op);
    add(l, step);
}

/* Each candidate of a list: its position goes behind the queries. */
static void copy_list(lowering *l, const cp_op *op, cp_step step) {
    const int64_t count =
        l->plan->slots[op->in.slot].rows * l->plan->indexer.top_k;
    step.rows = add_list(l, NULL);
    add_move(l, step.rows, (cp_move){0, 0, count});
    step.in[0] = (cp_columns){op->in.slot, offsetof(cp_candidate, position),
                              (int64_t)sizeof(cp_candidate), CP_CHOSEN_BYTES};
    step.out[0] = step.out[1];
    step.out[0].stride = step.out[0].width = CP_CHOSEN_BYTES;
    step.in[1].width = step.out[1].width = 0;
    add(l, step);
}

static void copy_parts(lowering *l, const cp_op *op, cp_step step) {
    const bool splits = op->kind == CP_OP_SPLIT;
    const cp_use full = splits ? op->in : op->out;
    cp_use part = splits ? op->out : op->in;
    const int parts = l->plan->slots[part.slot].parts;
    step.rows = list_rows(l, op);
    for (int p = 0; p < parts; p++, part.slot++) {
        for (int t = 0; t < 2; t++) {
            const cp_columns few = columns(l, part, t);
            cp_columns all = columns(l, full, t);
            if (few.width > 0)
                all.first += all.width * p / parts / few.width * few.width;
            all.width = few.width;
            step.in[t] = splits ? all : few;
            step.out[t] = splits ? few : all;
        }
        add(l, step);
    }
}

static void add_half(lowering *l, const cp_op *op, int peer, cp_touch touch,
                     int32_t first) {
    const cp_plan *plan = l->plan;
    cp_steps *s = l->out;
    cp_step_half half = {.peer = peer,
                         .receive = touch.writes,
                         .buffer = cp_steps_message(s, touch.slot),
                         .bytes = plan->slots[touch.slot].bytes,
                         .slot = touch.slot,
                         .tensors = cp_slot_tensors_of(plan, touch.slot)};
    half.encodes = cp_op_encodes(plan, l->rank, op, touch);
    /* An all-gather sends one message to all: it is encoded once. */
    for (int64_t n = first; n < s->half_count; n++)
        half.encodes &= s->halves[n].buffer != half.buffer;
    half.read_back =
        half.encodes && !half.receive && cp_slot_is_read_back(plan, touch.slot);
    if (l->status == CP_OK)
        l->status = cp_grow(&s->halves, &s->half_room, s->half_count + 1,
                            sizeof(half), "messages");
    if (l->status == CP_OK)
        s->halves[s->half_count++] = half;
}

static void communicate(lowering *l, const cp_op *op, cp_step step) {
    const bool all = cp_op_is_collective(op);
    const int each = op->kind == CP_OP_ALL_TO_ALL;
    step.half = (int32_t)l->out->half_count;
    for (int r = 0; r < l->plan->layout->ranks; r++) {
        const cp_touch sent = {op->in.slot + each * r, false};
        const cp_touch received = {op->out.slot + all * r, true};
        if (all ? r != l->rank : r == op->to)
            add_half(l, op, r, sent, step.half);
        if (all ? r != l->rank : r == op->from)
            add_half(l, op, r, received, step.half);
    }
    step.halves = (int32_t)l->out->half_count - step.half;
    step.after = op->after < 0 ? -1 : l->last[op->after];
    add(l, step);
    step.kind = CP_STEP_FINISH;
    step.after = (int32_t)l->out->count - 1;
    if (all)
        add(l, step);
}

static cp_step step_of(const lowering *l, const cp_op *op, bool merges) {
    static const cp_step_kind kinds[] = {
        [CP_OP_APPEND] = CP_STEP_COPY,      [CP_OP_PACK] = CP_STEP_COPY,
        [CP_OP_SPLIT] = CP_STEP_COPY,       [CP_OP_JOIN] = CP_STEP_COPY,
        [CP_OP_ATTEND] = CP_STEP_ATTEND,    [CP_OP_SELECT] = CP_STEP_SELECT,
        [CP_OP_MERGE] = CP_STEP_COMBINE,    [CP_OP_WAIT] = CP_STEP_FINISH,
        [CP_OP_EXCHANGE] = CP_STEP_START,   [CP_OP_ALL_TO_ALL] = CP_STEP_START,
        [CP_OP_ALL_GATHER] = CP_STEP_START,
    };
    const cp_layout *layout = l->plan->layout;
    const cp_use out = merges ? op[1].out : op->out;
    const cp_slot *slot = &l->plan->slots[out.slot];
    return (cp_step){.kind = kinds[op->kind],
                     .how = op->kind,
                     .op = (int32_t)(op - l->plan->programs[l->rank].ops),
                     .of = slot->kind,
                     .merges = merges,
                     .leaves =
                         layout->leaves && op->kind == CP_OP_ATTEND
                             ? cp_rank_leaves(&layout->owners, op->keys.origin)
                             : l->leaves[op->in.slot],
                     .held = l->leaves[out.slot],
                     .out_rows = slot->rows,
                     .in = {columns(l, op->in, 0), columns(l, op->in, 1)},
                     .out = {columns(l, out, 0), columns(l, out, 1)}};
}

static void lower(lowering *l, const cp_op *op, bool merges) {
    cp_step step = step_of(l, op, merges);
    switch (op->kind) {
    case CP_OP_PACK:
    case CP_OP_APPEND:
        if (l->plan->slots[op->in.slot].kind == CP_SLOT_LIST)
            copy_list(l, op, step);
        else
            copy(l, op, step);
        break;
    case CP_OP_SPLIT:
    case CP_OP_JOIN:
        copy_parts(l, op, step);
        break;
    case CP_OP_ATTEND:
        attend(l, op, step);
        break;
    case CP_OP_SELECT:
        select_keys(l, op, step);
        break;
    case CP_OP_EXCHANGE:
    case CP_OP_ALL_TO_ALL:
    case CP_OP_ALL_GATHER:
        communicate(l, op, step);
        break;
    case CP_OP_WAIT:
        step.after = l->last[op->ends];
        add(l, step);
        break;
    case CP_OP_MERGE:
        add(l, step);
    }
}

static void lower_all(lowering *l, bool fused) {
    const cp_program *program = &l->plan->programs[l->rank];
    for (int64_t n = 0; n < program->count && l->status == CP_OK; n++) {
        const cp_op *op = &program->ops[n];
        const bool merges = fused && op->merged;
        lower(l, op, merges);
        for (int i = 0; i <= merges; i++) {
            l->last[n + i] = (int32_t)l->out->count - 1;
            if (l->plan->layout->leaves)
                cp_node_lists_note(l->plan, l->rank, op + i, l->leaves);
        }
        n += merges;
    }
}

static cp_status size_buffers(const lowering *l) {
    const cp_plan *plan = l->plan;
    cp_steps *s = l->out;
    bool *needed, *encoded;
    s->slot_count = plan->slot_count;
    s->buffer_count = 2 * plan->slot_count + CP_CACHE_BUFFERS;
    CP_TRY(
        cp_allocate(&s->buffers, s->buffer_count, sizeof(int64_t), "buffers"));
    CP_TRY(cp_allocate(&needed, 2 * (int64_t)plan->slot_count, sizeof(bool),
                       "slots"));
    encoded = needed + plan->slot_count;
    cp_plan_slots_needed(plan, l->rank, needed);
    cp_plan_slots_encoded(plan, l->rank, encoded);
    for (int slot = 0; slot < plan->slot_count; slot++) {
        const int message = plan->slot_count + CP_CACHE_BUFFERS + slot;
        s->buffers[slot] = needed[slot] ? plan->slots[slot].held : 0;
        s->buffers[message] = encoded[slot] ? plan->slots[slot].bytes : 0;
    }
    free(needed);
    return CP_OK;
}

static cp_status make(lowering *l, bool fused) {
    CP_TRY(size_buffers(l));
    CP_TRY(cp_allocate(&l->last, l->plan->programs[l->rank].count,
                       sizeof(int32_t), "steps"));
    CP_TRY(cp_allocate(&l->leaves, l->plan->slot_count, sizeof(uint32_t),
                       "leaves"));
    lower_all(l, fused);
    for (int64_t n = 0; n < l->out->list_count; n++)
        l->out->lists[n].of = NULL;
    return l->status;
}

cp_status cp_steps_new(const cp_plan *plan, int rank, bool fused,
                       cp_steps *out) {
    lowering l = {.plan = plan, .rank = rank, .out = out};
    *out = (cp_steps){.indexer = plan->indexer};
    const cp_status status = make(&l, fused);
    free(l.last);
    free(l.leaves);
    if (status != CP_OK)
        cp_steps_free(out);
    return status;
}

void cp_steps_free(cp_steps *steps) {
    for (int64_t n = 0; n < steps->list_count; n++) {
        cp_pieces_free(&steps->lists[n].pieces);
        free(steps->lists[n].moves.items);
    }
    free(steps->items);
    free(steps->lists);
    free(steps->halves);
    free(steps->buffers);
    *steps = (cp_steps){0};
}
