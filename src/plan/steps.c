/* Tangled from book/05-steps.nw; edit the chapter. */
/* From operations on slots to steps between buffers. */
#include "plan/steps.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "plan/node_lists.h"
#include "tokens/migrate.h"

typedef struct {
    const cp_plan *plan;
    int rank;
    cp_steps_options options;
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

static int32_t add_list(lowering *l, cp_row_kind kind, const cp_pieces *of) {
    cp_steps *s = l->out;
    if (l->status == CP_OK)
        l->status = cp_grow(&s->lists, &s->list_room, s->list_count + 1,
                            sizeof(cp_row_list), "lists of rows");
    if (l->status != CP_OK)
        return 0;
    s->lists[s->list_count] = (cp_row_list){.kind = kind, .of = of, .most = 1};
    return (int32_t)s->list_count++;
}

static void add_move(lowering *l, int32_t list, cp_move move) {
    if (l->status == CP_OK)
        l->status = cp_moves_append(&l->out->lists[list].moves, move);
}

typedef struct {
    int64_t longest, count;
    cp_pieces *to; /* NULL: only count */
} tile_cursor;

static void cut(tile_cursor *tiles, cp_piece piece) {
    for (int64_t i = 0; i < piece.span.count;
         i += cp_min(tiles->longest, piece.span.count - i)) {
        if (tiles->to != NULL)
            tiles->to->items[tiles->to->count++] =
                cp_piece_part(piece, i, tiles->longest);
        tiles->count++;
    }
}

static void cut_padding(tile_cursor *tiles, int64_t row, int64_t end) {
    cut(tiles, (cp_piece){{-1, -1, end - row, 1}, row});
}

static int64_t cut_block(const lowering *l, cp_row_kind kind,
                         const cp_block *block, cp_pieces *to) {
    const bool decodes = l->plan->layout->placement == CP_ROUND_ROBIN;
    const int64_t query_tile = decodes ? 1 : l->options.query_tile;
    const bool padded = kind == CP_ROWS_QUERIES && l->options.query_tile > 0;
    const int64_t tile = padded                 ? query_tile
                         : kind == CP_ROWS_KEYS ? l->options.key_tile
                                                : 0;
    tile_cursor tiles = {tile > 0 ? tile : INT64_MAX, 0, to};
    int64_t row = 0;
    for (int64_t p = 0; p < block->pieces.count; p++) {
        const cp_piece piece = block->pieces.items[p];
        if (padded)
            cut_padding(&tiles, row, piece.row);
        cut(&tiles, piece);
        row = piece.row + piece.span.count;
    }
    if (padded)
        cut_padding(&tiles, row, cp_max(block->rows, l->options.query_rows));
    return tiles.count;
}

/* The list of the n-th of these blocks, which is made when it is first asked
 * for. */
static int32_t list_block(lowering *l, cp_row_kind kind, const cp_block *blocks,
                          int n) {
    const cp_layout *layout = l->plan->layout;
    const int count = blocks == &layout->all_queries ? 1 : layout->ranks;
    const cp_steps *s = l->out;
    for (int32_t list = 0; list < s->list_count; list++)
        if (s->lists[list].of == &blocks[n].pieces)
            return list;
    const int32_t list = add_list(l, kind, &blocks[n].pieces);
    if (l->status != CP_OK)
        return 0;
    cp_row_list *rows = &s->lists[list];
    for (int r = 0; r < count; r++)
        rows->most = cp_max(rows->most, cut_block(l, kind, &blocks[r], NULL));
    l->status = cp_pieces_reserve(&rows->pieces, rows->most);
    if (l->status == CP_OK)
        cut_block(l, kind, &blocks[n], &rows->pieces);
    return list;
}

static int32_t list_queries(lowering *l, int origin) {
    const cp_layout *layout = l->plan->layout;
    return origin < layout->ranks
               ? list_block(l, CP_ROWS_QUERIES, layout->queries, origin)
               : list_block(l, CP_ROWS_QUERIES, &layout->all_queries, 0);
}

/* The slot of the cache that a migration fills, or 0. */
static int next_of(const cp_plan *plan) {
    return plan->slots[plan->result].kind == CP_SLOT_NEXT ? plan->result : 0;
}

cp_columns cp_slot_columns(const cp_plan *plan, int slot, int t) {
    const cp_tensor tensor = cp_plan_tensor(plan, plan->slots[slot].kind,
                                            plan->slots[slot].parts, t);
    const int64_t width = tensor.heads * tensor.dim * tensor.number;
    return (cp_columns){2 * slot + t, 0, width, width};
}

static cp_columns columns(const lowering *l, cp_use use, int t) {
    return cp_slot_columns(l->plan, use.slot, t);
}

static void attend(lowering *l, const cp_op *op, cp_step step) {
    const cp_plan *plan = l->plan;
    const cp_layout *layout = plan->layout;
    const bool home = op->keys.slot == plan->cache;
    const int64_t e = plan->element_bytes, head = cp_plan_first_head(plan, op);
    step.shape = cp_plan_shape(plan, op->in.slot);
    step.queries = list_queries(l, op->in.origin);
    step.keys = list_block(l, CP_ROWS_KEYS, home ? layout->cache : layout->keys,
                           home ? l->rank : op->keys.origin);
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
    step.queries = list_queries(l, op->in.origin);
    step.keys =
        list_block(l, CP_ROWS_KEYS, l->plan->layout->keys, op->keys.origin);
    step.in[2] = columns(l, op->keys, 0);
    add(l, step);
}

static int32_t list_moves(lowering *l, const cp_block *from,
                          const cp_block *to) {
    const int32_t list = add_list(l, CP_ROWS_MOVED, NULL);
    const cp_pieces *read = &from[l->rank].pieces;
    const cp_pieces *written = &to[l->rank].pieces;
    assert(read->count == written->count);
    for (int64_t n = 0; n < read->count; n++) {
        const cp_piece piece = read->items[n];
        assert(piece.span.count == written->items[n].span.count);
        add_move(l, list,
                 (cp_move){piece.row, written->items[n].row, piece.span.count});
    }
    for (int r = 0; r < l->plan->layout->ranks && l->status == CP_OK; r++)
        l->out->lists[list].most =
            cp_max(l->out->lists[list].most, to[r].pieces.count);
    return list;
}

/* Where a cache moves: rows of the caches, and rows 0, 1, ... of the block. */
static int32_t list_transfer(lowering *l, const cp_op *op) {
    const int32_t list = add_list(l, CP_ROWS_MOVED, NULL);
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
    if (l->status == CP_OK)
        l->out->lists[list].most = moves->count;
    return list;
}

static int32_t list_all(lowering *l, int64_t rows) {
    const int32_t list = add_list(l, CP_ROWS_ALL, NULL);
    add_move(l, list, (cp_move){0, 0, rows});
    return list;
}

static int32_t list_rows(lowering *l, const cp_op *op) {
    const cp_layout *layout = l->plan->layout;
    const cp_slot *in = &l->plan->slots[op->in.slot];
    if (in->kind == CP_SLOT_MOVED ||
        l->plan->slots[op->out.slot].kind == CP_SLOT_MOVED)
        return list_transfer(l, op);
    if (op->kind == CP_OP_APPEND)
        return list_moves(l, layout->queries, layout->appended);
    if (in->kind == CP_SLOT_CACHE)
        return list_moves(l, layout->cache, layout->keys);
    return list_all(l, in->rows);
}

static void copy(lowering *l, const cp_op *op, cp_step step) {
    step.rows = list_rows(l, op);
    add(l, step);
}

/* Each candidate of a list: its position goes behind the queries. */
static void copy_list(lowering *l, const cp_op *op, cp_step step) {
    step.rows =
        list_all(l, l->plan->slots[op->in.slot].rows * l->plan->indexer.top_k);
    step.in[0].first = offsetof(cp_candidate, position);
    step.in[0].stride = (int64_t)sizeof(cp_candidate);
    step.in[0].width = CP_CHOSEN_BYTES;
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
    cp_step_half half = {.step = (int32_t)s->count,
                         .peer = peer,
                         .receive = touch.writes,
                         .buffer = cp_steps_message(s, touch.slot),
                         .bytes = plan->slots[touch.slot].bytes,
                         .held = 2 * (int64_t)touch.slot,
                         .tensors = cp_slot_tensors_of(plan, touch.slot)};
    half.encodes = cp_op_encodes(plan, l->rank, op, touch);
    /* An all-gather sends one message to all: it is encoded once. */
    for (int64_t n = first; n < s->half_count; n++)
        half.encodes &= s->halves[n].buffer != half.buffer;
    for (int64_t n = s->half_count - 1; n >= 0 && half.turn == 0; n--)
        if (s->halves[n].peer == peer && s->halves[n].receive == half.receive)
            half.turn = s->halves[n].turn + 1;
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
                     .hop = op->hop,
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

static void lower_all(lowering *l) {
    const cp_program *program = &l->plan->programs[l->rank];
    for (int64_t n = 0; n < program->count && l->status == CP_OK; n++) {
        const cp_op *op = &program->ops[n];
        const bool merges = l->options.fused && op->merged;
        lower(l, op, merges);
        for (int i = 0; i <= merges; i++) {
            l->last[n + i] = (int32_t)l->out->count - 1;
            if (l->plan->layout->leaves)
                cp_node_lists_note(l->plan, l->rank, op + i, l->leaves);
        }
        n += merges;
    }
}

static bool same_shape(const cp_shape *a, const cp_shape *b) {
    return a->query_heads == b->query_heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->value_dim == b->value_dim &&
           a->window == b->window && a->latent == b->latent;
}

static bool same_columns(const cp_columns *a, const cp_columns *b) {
    return a->buffer == b->buffer && a->first == b->first &&
           a->stride == b->stride && a->width == b->width;
}

/* Does a step, or a message that it starts or finishes, touch a slot? */
static bool touches(const cp_steps *s, const cp_step *step, int64_t slot) {
    const cp_step *started =
        step->kind == CP_STEP_FINISH ? &s->items[step->after] : step;
    bool touched = false;
    for (int n = 0; n < started->halves; n++)
        touched |= s->halves[started->half + n].held / 2 == slot;
    for (int t = 0; t < 4; t++)
        touched |= step->in[t].width > 0 && step->in[t].buffer / 2 == slot;
    for (int t = 0; t < 2; t++)
        touched |= step->out[t].width > 0 && step->out[t].buffer / 2 == slot;
    return touched;
}

static bool continues(const cp_step *last, const cp_step *step) {
    return step->merges && step->queries == last->queries &&
           same_shape(&step->shape, &last->shape) &&
           same_columns(&step->in[0], &last->in[0]) &&
           same_columns(&step->out[0], &last->out[0]);
}

static void find_chains(cp_steps *s) {
    cp_step *last = NULL;
    for (int64_t n = 0; n < s->count; n++) {
        cp_step *step = &s->items[n];
        const bool attends =
            step->kind == CP_STEP_ATTEND && step->in[3].width == 0;
        step->begins = step->ends = true;
        if (last != NULL && attends && continues(last, step))
            step->begins = last->ends = false;
        else if (last != NULL && (touches(s, step, last->in[0].buffer / 2) ||
                                  touches(s, step, last->out[0].buffer / 2)))
            last = NULL;
        if (attends)
            last = step;
    }
}

static void size_slot(cp_steps *s, const cp_plan *plan, int slot) {
    const int64_t first =
        plan->slots[slot].rows * cp_slot_columns(plan, slot, 0).width;
    s->buffers[2 * slot] = first;
    s->buffers[2 * slot + 1] = plan->slots[slot].held - first;
    s->given[2 * slot] = s->given[2 * slot + 1] = plan->slots[slot].given;
}

static cp_status size_buffers(const lowering *l) {
    const cp_plan *plan = l->plan;
    cp_steps *s = l->out;
    bool *needed, *encoded;
    CP_TRY(
        cp_allocate(&s->buffers, s->buffer_count, sizeof(int64_t), "buffers"));
    CP_TRY(cp_allocate(&s->given, s->buffer_count, sizeof(bool), "buffers"));
    CP_TRY(cp_allocate(&needed, 2 * (int64_t)plan->slot_count, sizeof(bool),
                       "slots"));
    encoded = needed + plan->slot_count;
    cp_plan_slots_needed(plan, l->rank, needed);
    cp_plan_slots_encoded(plan, l->rank, encoded);
    for (int slot = 0; slot < plan->slot_count; slot++) {
        if (needed[slot] && slot != s->next)
            size_slot(s, plan, slot);
        s->buffers[2 * plan->slot_count + slot] =
            encoded[slot] ? plan->slots[slot].bytes : 0;
    }
    free(needed);
    return CP_OK;
}

static cp_status make(lowering *l) {
    CP_TRY(size_buffers(l));
    CP_TRY(cp_allocate(&l->last, l->plan->programs[l->rank].count,
                       sizeof(int32_t), "steps"));
    CP_TRY(cp_allocate(&l->leaves, l->plan->slot_count, sizeof(uint32_t),
                       "leaves"));
    lower_all(l);
    find_chains(l->out);
    for (int64_t n = 0; n < l->out->list_count; n++)
        l->out->lists[n].of = NULL;
    return l->status;
}

cp_status cp_steps_new(const cp_plan *plan, int rank,
                       const cp_steps_options *options, cp_steps *out) {
    lowering l = {.plan = plan, .rank = rank, .options = *options, .out = out};
    *out = (cp_steps){.slot_count = plan->slot_count,
                      .buffer_count = 3 * plan->slot_count,
                      .cache = plan->cache,
                      .next = next_of(plan),
                      .sequences = plan->layout->sequences,
                      .leaves = plan->layout->leaves,
                      .indexer = plan->indexer};
    const cp_status status = make(&l);
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
    free(steps->given);
    *steps = (cp_steps){0};
}
static bool same_step(const cp_step *a, const cp_step *b) {
    return a->kind == b->kind && a->how == b->how && a->op == b->op &&
           a->of == b->of && a->merges == b->merges && a->rows == b->rows &&
           a->queries == b->queries && a->keys == b->keys &&
           a->half == b->half && a->halves == b->halves &&
           a->after == b->after && a->leaves == b->leaves &&
           a->held == b->held && same_shape(&a->shape, &b->shape) &&
           memcmp(a->in, b->in, sizeof(a->in)) == 0 &&
           memcmp(a->out, b->out, sizeof(a->out)) == 0;
}

static bool same_half(const cp_step_half *a, const cp_step_half *b) {
    return a->peer == b->peer && a->receive == b->receive &&
           a->encodes == b->encodes && a->read_back == b->read_back &&
           a->buffer == b->buffer &&
           a->tensors.of[0].encoding == b->tensors.of[0].encoding;
}

bool cp_steps_alike(const cp_steps *a, const cp_steps *b) {
    bool alike = a->count == b->count && a->list_count == b->list_count &&
                 a->half_count == b->half_count &&
                 a->slot_count == b->slot_count &&
                 a->sequences == b->sequences && a->leaves == b->leaves &&
                 a->indexer.top_k == b->indexer.top_k;
    for (int64_t n = 0; alike && n < a->count; n++)
        alike = same_step(&a->items[n], &b->items[n]);
    for (int64_t n = 0; alike && n < a->half_count; n++)
        alike = same_half(&a->halves[n], &b->halves[n]);
    for (int64_t n = 0; alike && n < a->list_count; n++)
        alike = a->lists[n].kind == b->lists[n].kind;
    return alike;
}
