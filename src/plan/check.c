/* Tangled from book/05-proof.nw; edit the chapter. */
/* Prove that a plan is right, and count its cost. */
#include "plan/check.h"

#include <stdlib.h>
#include <string.h>

#include "plan/node_lists.h"
#include "plan/order.h"
#include "tokens/layout_check.h"
#include "tokens/migrate.h"

typedef struct {
    int32_t met;         /* a partial: the keys of a rank, or a merge; or ALL */
    int16_t origin;      /* the rank of its tokens */
    int16_t part, parts; /* and which of their heads */
    cp_slot_kind kind : 8;
    bool full;   /* has contents */
    bool chosen; /* queries: they carry their list of chosen keys */
} slot_content;

enum { ALL = -1 }; /* the keys of all ranks, each once */

typedef struct {
    slot_content holds;
    int16_t sending; /* exchanges it is lent to, not waited for yet */
    bool receiving;  /* one of them fills it; its contents are unknown */
} slot_state;

typedef struct {
    int32_t left, right; /* what the two partials had met */
} merge_record;

typedef struct {
    const cp_plan *plan;
    slot_state *states; /* [ranks][slots] */
    merge_record
        *merges;    /* in the order in which they happen; the first is ranks */
    int32_t merged; /* how many have happened */
    int64_t *pairs; /* [ranks + 1][ranks] of a query and a key block; the last
                       queries are all ranks'. In a migration: how often a
                       transfer from one rank to another has arrived */
    uint8_t *times; /* [ranks] scratch: how often it was met */
    cp_plan_report *report;
} proof;

static slot_state *state_of_slot(const proof *proof, int rank, int slot) {
    return &proof->states[rank * (int64_t)proof->plan->slot_count + slot];
}
static cp_status check_slot(const proof *proof, int rank, const cp_op *op,
                            int slot, bool writes) {
    const slot_state *state = state_of_slot(proof, rank, slot);
    const char *problem = NULL;
    if (state->receiving)
        problem = "which a receive is still filling";
    else if (writes && state->sending)
        problem = "which a send is still reading";
    else if (!writes && !state->holds.full)
        problem = "which holds nothing";
    if (writes && slot == proof->plan->cache && op->kind != CP_OP_APPEND)
        problem = "which is the cache";
    if (problem == NULL)
        return CP_OK;
    return cp_fail(CP_BROKEN, "rank %d, hop %d: %s %s slot %d, %s", rank,
                   op->hop, cp_op_name(op->kind), writes ? "writes" : "reads",
                   slot, problem);
}

static cp_status check_slots(const proof *proof, int rank, const cp_op *op) {
    cp_touch touch;
    for (int n = 0; cp_op_touch(proof->plan, rank, op, n, &touch); n++)
        CP_TRY(check_slot(proof, rank, op, touch.slot, touch.writes));
    return CP_OK;
}

static cp_status check_use(const proof *proof, int rank, const cp_op *op,
                           cp_use use, cp_slot_kind kind) {
    const slot_content *content = &state_of_slot(proof, rank, use.slot)->holds;
    const bool cache = kind == CP_SLOT_KEYS && use.slot == proof->plan->cache;
    if (content->kind != kind && !cache)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: %s takes slot %d for another kind of "
                       "slot",
                       rank, op->hop, cp_op_name(op->kind), use.slot);
    if (kind == CP_SLOT_RUN &&
        (content->origin != use.origin || content->part != use.part))
        return cp_fail(
            CP_BROKEN,
            "rank %d, hop %d: %s expects chunks %d to %d in slot %d, "
            "which holds %d to %d",
            rank, op->hop, cp_op_name(op->kind), use.origin, use.part, use.slot,
            content->origin, content->part);
    if (content->origin != use.origin)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: %s expects the block of rank %d in "
                       "slot %d, which holds that of rank %d",
                       rank, op->hop, cp_op_name(op->kind), use.origin,
                       use.slot, content->origin);
    if (proof->plan->migration != NULL && content->part != use.part)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: %s expects the transfer from rank %d "
                       "to rank %d in slot %d, which holds that to rank %d",
                       rank, op->hop, cp_op_name(op->kind), use.origin,
                       use.part, use.slot, content->part);
    const int parts = proof->plan->slots[use.slot].parts;
    if (!cache && (content->part != use.part || content->parts != parts))
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: %s expects part %d of %d of the heads "
                       "in slot %d, which holds part %d of %d",
                       rank, op->hop, cp_op_name(op->kind), use.part, parts,
                       use.slot, content->part, content->parts);
    return CP_OK;
}

static cp_status accuse(const cp_plan *plan, int k, int r, int times,
                        bool list) {
    static const char *const how[2][2] = {
        {"never met", "met twice the"},
        {"chooses without", "chooses and met twice the"}};
    const cp_pieces *queries = &cp_plan_queries(plan, k)->pieces;
    const cp_pieces *keys = &plan->layout->keys[r].pieces;
    for (int64_t i = 0; i < queries->count; i++)
        for (int64_t j = 0; j < keys->count; j++) {
            const cp_span q = queries->items[i].span, s = keys->items[j].span;
            if (cp_span_pairs(q, s) > 0)
                return cp_fail(CP_BROKEN,
                               "query %ld of sequence %ld (rank %d) %s keys "
                               "%ld..%ld of rank %d",
                               cp_span_last(q), q.sequence, k,
                               how[list][times > 0], s.start, cp_span_last(s),
                               r);
        }
    return cp_fail(CP_BROKEN, "rank %d met the keys of rank %d %d times", k, r,
                   times);
}

/* The rank whose keys were met twice, or CP_NO_RANK. */
static int count_met(const proof *proof, int32_t met) {
    const int32_t ranks = proof->plan->layout->ranks;
    for (int32_t r = 0; met == ALL && r < ranks; r++)
        if (++proof->times[r] > 1)
            return r;
    if (met == ALL)
        return CP_NO_RANK;
    while (met >= ranks) {
        const int twice = count_met(proof, proof->merges[met - ranks].right);
        if (twice != CP_NO_RANK)
            return twice;
        met = proof->merges[met - ranks].left;
    }
    return ++proof->times[met] > 1 ? met : CP_NO_RANK;
}

static cp_status check_met(const proof *proof, int origin, int32_t met,
                           bool list) {
    const cp_plan *plan = proof->plan;
    const int64_t ranks = plan->layout->ranks;
    memset(proof->times, 0, (size_t)ranks);
    const int twice = count_met(proof, met);
    if (twice != CP_NO_RANK)
        return accuse(plan, origin, twice, 2, list);
    for (int r = 0; r < ranks; r++)
        if (proof->times[r] == 0 && proof->pairs[origin * ranks + r] > 0)
            return accuse(plan, origin, r, 0, list);
    return CP_OK;
}

static cp_status check_prefix(const proof *proof, int rank, int half) {
    const cp_use expected = cp_plan_prefix_run(proof->plan, rank, half);
    const slot_content *content =
        &state_of_slot(proof, rank, expected.slot)->holds;
    if (expected.part < 0 ||
        (content->full && content->kind == CP_SLOT_RUN &&
         content->origin == expected.origin && content->part == expected.part))
        return CP_OK;
    return cp_fail(CP_BROKEN,
                   "rank %d ends without the state of chunks 0 to %d, before "
                   "its chunk %d",
                   rank, expected.part, expected.part + 1);
}

static cp_status check_transfers(const proof *proof, int rank) {
    const cp_migration *migration = proof->plan->migration;
    for (int from = 0; from < migration->ranks; from++)
        if (cp_transfer_of(migration, from, rank)->rows > 0 &&
            proof->pairs[from * migration->ranks + rank] == 0)
            return cp_fail(CP_BROKEN,
                           "rank %d ends without the transfer from rank %d",
                           rank, from);
    return CP_OK;
}

static cp_status check_result(const proof *proof, int rank) {
    const cp_plan *plan = proof->plan;
    const slot_content *content =
        &state_of_slot(proof, rank, plan->result)->holds;
    const cp_use expected = cp_plan_ends(plan, rank);
    if (cp_plan_scans(plan)) {
        CP_TRY(check_prefix(proof, rank, 0));
        return check_prefix(proof, rank, 1);
    }
    if (plan->migration != NULL)
        return check_transfers(proof, rank);
    if (!content->full || content->kind != CP_SLOT_PARTIAL ||
        content->origin != expected.origin || content->part != expected.part ||
        content->parts != plan->slots[expected.slot].parts)
        return cp_fail(CP_BROKEN, "rank %d ends without its result", rank);
    return check_met(proof, content->origin, content->met, false);
}

static cp_status note_split(proof *proof, int rank, const cp_op *op) {
    const cp_slot *out = &proof->plan->slots[op->out.slot];
    slot_content holds = state_of_slot(proof, rank, op->in.slot)->holds;
    CP_TRY(check_use(proof, rank, op, op->in,
                     proof->plan->slots[op->in.slot].kind));
    holds.parts = (int16_t)out->parts;
    for (int p = 0; p < out->parts; p++) {
        const cp_use part = cp_use_part(op->out.slot + p, op->in.origin, p);
        holds.part = (int16_t)p;
        state_of_slot(proof, rank, part.slot)->holds = holds;
        CP_TRY(check_use(proof, rank, op, part, out->kind));
    }
    return CP_OK;
}

static cp_status note_join(proof *proof, int rank, const cp_op *op) {
    const int parts = proof->plan->slots[op->in.slot].parts;
    for (int p = 0; p < parts; p++) {
        const cp_use part = cp_use_part(op->in.slot + p, op->in.origin, p);
        CP_TRY(check_use(proof, rank, op, part, CP_SLOT_PARTIAL));
        CP_TRY(check_met(proof, part.origin,
                         state_of_slot(proof, rank, part.slot)->holds.met,
                         false));
    }
    state_of_slot(proof, rank, op->out.slot)->holds =
        (slot_content){.met = ALL,
                       .origin = op->in.origin,
                       .parts = 1,
                       .kind = CP_SLOT_PARTIAL,
                       .full = true};
    return check_use(proof, rank, op, op->out, CP_SLOT_PARTIAL);
}

static cp_status check_heads(const proof *proof, int rank, const cp_op *op) {
    const cp_slot *slots = proof->plan->slots;
    const int query_parts = slots[op->in.slot].parts;
    const int key_parts = slots[op->keys.slot].parts;
    if (key_parts == 1 ||
        (key_parts == query_parts && op->keys.part == op->in.part))
        return CP_OK;
    return cp_fail(CP_BROKEN,
                   "rank %d, hop %d: part %d of %d of the query heads meets "
                   "part %d of %d of the key heads",
                   rank, op->hop, op->in.part, query_parts, op->keys.part,
                   key_parts);
}

static cp_status note_runs(proof *proof, int rank, const cp_op *op) {
    slot_content *out = &state_of_slot(proof, rank, op->out.slot)->holds;
    CP_TRY(check_use(proof, rank, op, op->in, CP_SLOT_RUN));
    if (op->kind == CP_OP_PACK)
        *out = state_of_slot(proof, rank, op->in.slot)->holds;
    else if (out->kind != CP_SLOT_RUN || out->origin != op->in.part + 1)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: chunks %d to %d do not come before "
                       "chunks %d to %d",
                       rank, op->hop, op->in.origin, op->in.part, out->origin,
                       out->part);
    out->origin = op->in.origin;
    return check_use(proof, rank, op, op->out,
                     proof->plan->slots[op->out.slot].kind);
}

static cp_status note_migration(proof *proof, int rank, const cp_op *op) {
    const cp_plan *plan = proof->plan;
    const int ranks = plan->layout->ranks;
    const bool packs = op->kind == CP_OP_PACK;
    const cp_use use = packs ? op->out : op->in;
    slot_content *content = &state_of_slot(proof, rank, use.slot)->holds;
    if (packs)
        *content = (slot_content){.origin = (int16_t)rank,
                                  .part = use.part,
                                  .parts = 1,
                                  .kind = CP_SLOT_KEYS,
                                  .full = true};
    CP_TRY(check_use(proof, rank, op, use, plan->slots[use.slot].kind));
    if (content->kind != CP_SLOT_KEYS || use.part < 0 || use.part >= ranks ||
        plan->slots[use.slot].rows !=
            cp_transfer_of(plan->migration, use.origin, use.part)->rows ||
        (packs ? op->in.slot != plan->cache : op->out.slot != plan->result))
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: %s takes slot %d for another kind of "
                       "slot",
                       rank, op->hop, cp_op_name(op->kind), use.slot);
    if (!packs &&
        (use.part != rank || proof->pairs[use.origin * ranks + rank]++ > 0))
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: appends the transfer from rank %d to "
                       "rank %d%s",
                       rank, op->hop, use.origin, use.part,
                       use.part == rank ? " twice" : "");
    return CP_OK;
}

static cp_status note_chosen(proof *proof, int rank, const cp_op *op) {
    const slot_content *list = &state_of_slot(proof, rank, op->in.slot)->holds;
    CP_TRY(check_use(proof, rank, op, op->in, CP_SLOT_LIST));
    CP_TRY(check_use(proof, rank, op, op->out, CP_SLOT_QUERIES));
    if (op->in.origin != op->out.origin)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: queries of rank %d get the list of "
                       "those of rank %d",
                       rank, op->hop, op->out.origin, op->in.origin);
    state_of_slot(proof, rank, op->out.slot)->holds.chosen = true;
    return check_met(proof, list->origin, list->met, true);
}

static cp_status check_chosen(const proof *proof, int rank, const cp_op *op) {
    if (proof->plan->indexer.top_k == 0 ||
        state_of_slot(proof, rank, op->in.slot)->holds.chosen)
        return CP_OK;
    return cp_fail(CP_BROKEN,
                   "rank %d, hop %d: queries of rank %d attend to the keys of "
                   "rank %d but have chosen none",
                   rank, op->hop, op->in.origin, op->keys.origin);
}

/* The kinds of an operation's input and output. */
static const struct {
    cp_slot_kind in, out;
} kinds[] = {
    [CP_OP_APPEND] = {CP_SLOT_NEW, CP_SLOT_CACHE},
    [CP_OP_PACK] = {CP_SLOT_CACHE, CP_SLOT_KEYS},
    [CP_OP_ATTEND] = {CP_SLOT_QUERIES, CP_SLOT_PARTIAL},
    [CP_OP_MERGE] = {CP_SLOT_PARTIAL, CP_SLOT_PARTIAL},
    [CP_OP_SELECT] = {CP_SLOT_INDEX_QUERIES, CP_SLOT_LIST},
};

static cp_use operand_of(const cp_op *op, int rank) {
    if (op->kind == CP_OP_ATTEND || op->kind == CP_OP_SELECT)
        return op->in;
    return op->kind == CP_OP_MERGE ? op->out : cp_use_of(0, rank);
}

/* Note which keys the tokens of the output have met. */
static cp_status note_met(proof *proof, int rank, const cp_op *op,
                          cp_slot_kind kind) {
    slot_content *out = &state_of_slot(proof, rank, op->out.slot)->holds;
    if (op->kind == CP_OP_ATTEND) {
        CP_TRY(check_use(proof, rank, op, op->keys, CP_SLOT_KEYS));
        CP_TRY(check_heads(proof, rank, op));
        CP_TRY(check_chosen(proof, rank, op));
        out->met = op->keys.origin;
    } else if (op->kind == CP_OP_SELECT) {
        CP_TRY(check_use(proof, rank, op, op->keys, CP_SLOT_INDEX_KEYS));
        out->met = op->keys.origin;
    } else if (op->kind == CP_OP_MERGE) {
        CP_TRY(check_use(proof, rank, op, op->out, kind));
        proof->merges[proof->merged] = (merge_record){
            out->met, state_of_slot(proof, rank, op->in.slot)->holds.met};
        out->met = proof->plan->layout->ranks + proof->merged++;
    }
    return CP_OK;
}

static cp_status note_local(proof *proof, const cp_event *event) {
    const cp_op *op = event->op;
    const int rank = event->rank;
    slot_content *out = &state_of_slot(proof, rank, op->out.slot)->holds;
    const cp_use of = operand_of(op, rank);
    CP_TRY(check_slots(proof, rank, op));
    /* Note heads that are cut, or runs. */
    if (op->kind == CP_OP_SPLIT)
        return note_split(proof, rank, op);
    if (op->kind == CP_OP_JOIN)
        return note_join(proof, rank, op);
    if (proof->plan->slots[op->in.slot].kind == CP_SLOT_RUN)
        return note_runs(proof, rank, op);
    if (proof->plan->migration != NULL)
        return note_migration(proof, rank, op);
    const bool list = proof->plan->slots[op->in.slot].kind == CP_SLOT_LIST;
    if (op->kind == CP_OP_PACK && list)
        return note_chosen(proof, rank, op);
    CP_TRY(check_use(proof, rank, op,
                     cp_use_part(op->in.slot, of.origin, of.part),
                     list ? CP_SLOT_LIST : kinds[op->kind].in));
    const cp_slot_kind made = list ? CP_SLOT_LIST : kinds[op->kind].out;
    CP_TRY(note_met(proof, rank, op, made));
    *out =
        (slot_content){.met = out->met,
                       .origin = of.origin,
                       .part = of.part,
                       .parts = (int16_t)proof->plan->slots[op->in.slot].parts,
                       .kind = made,
                       .full = true};
    return check_use(proof, rank, op,
                     cp_use_part(op->out.slot, of.origin, of.part),
                     proof->plan->slots[op->out.slot].kind);
}

static cp_status deliver(proof *proof, const cp_event *event, int from,
                         int to) {
    const cp_program *programs = proof->plan->programs;
    const cp_op *give = &programs[from].ops[event->all[from]];
    const cp_op *take = &programs[to].ops[event->all[to]];
    const bool gather = give->kind == CP_OP_ALL_GATHER;
    const int slot = give->in.slot + (gather ? 0 : to);
    state_of_slot(proof, to, take->out.slot + from)->holds =
        state_of_slot(proof, from, slot)->holds;
    cp_use expected = gather ? give->in : cp_plan_ends(proof->plan, to);
    expected.slot = (int16_t)slot;
    return check_use(proof, from, give, expected,
                     proof->plan->slots[slot].kind);
}

static cp_status note_start(proof *proof, const cp_event *event) {
    const cp_op *op = event->op;
    CP_TRY(check_slots(proof, event->rank, op));
    /* Mark the slot that an exchange fills. */
    if (op->from != CP_NO_RANK) {
        if (op->to != CP_NO_RANK && op->in.slot == op->out.slot)
            return cp_fail(CP_BROKEN,
                           "rank %d, hop %d: exchange writes slot %d, which "
                           "its own send is still reading",
                           event->rank, op->hop, op->out.slot);
        state_of_slot(proof, event->rank, op->out.slot)->receiving = true;
    }
    if (op->to == CP_NO_RANK)
        return CP_OK;
    state_of_slot(proof, event->rank, op->in.slot)->sending++;
    return check_use(proof, event->rank, op, op->in,
                     proof->plan->slots[op->in.slot].kind);
}

static cp_status note_transfer(proof *proof, const cp_event *event) {
    const cp_op *send = event->op;
    const cp_op *receive = &proof->plan->programs[send->to].ops[send->sent_to];
    state_of_slot(proof, send->to, receive->out.slot)->holds =
        state_of_slot(proof, event->rank, send->in.slot)->holds;
    return CP_OK;
}

static cp_status note_wait(proof *proof, const cp_event *event) {
    const cp_program *program = &proof->plan->programs[event->rank];
    const cp_op *op = &program->ops[event->op->ends];
    if (op->to != CP_NO_RANK)
        state_of_slot(proof, event->rank, op->in.slot)->sending--;
    if (op->from == CP_NO_RANK)
        return CP_OK;
    state_of_slot(proof, event->rank, op->out.slot)->receiving = false;
    return check_use(proof, event->rank, op, op->out,
                     proof->plan->slots[op->out.slot].kind);
}

static cp_status note_collective(proof *proof, const cp_event *event) {
    const int ranks = proof->plan->layout->ranks;
    for (int k = 0; k < ranks; k++) {
        const cp_op *op = &proof->plan->programs[k].ops[event->all[k]];
        CP_TRY(check_slots(proof, k, op));
    }
    for (int from = 0; from < ranks; from++)
        for (int to = 0; to < ranks; to++)
            if (to != from)
                CP_TRY(deliver(proof, event, from, to));
    return CP_OK;
}

static cp_status visit(void *context, const cp_event *event) {
    static cp_status (*const notes[])(proof *, const cp_event *) = {
        [CP_EVENT_LOCAL] = note_local,           [CP_EVENT_START] = note_start,
        [CP_EVENT_TRANSFER] = note_transfer,     [CP_EVENT_WAIT] = note_wait,
        [CP_EVENT_COLLECTIVE] = note_collective,
    };
    return notes[event->kind](context, event);
}

static void fill_in(const proof *proof, int rank, cp_use use) {
    const cp_slot *slot = &proof->plan->slots[use.slot];
    state_of_slot(proof, rank, use.slot)->holds =
        (slot_content){.full = true,
                       .origin = use.origin,
                       .part = use.part,
                       .parts = (int16_t)slot->parts,
                       .kind = slot->kind};
}

static cp_status begin(proof *proof) {
    const cp_plan *plan = proof->plan;
    const cp_layout *layout = plan->layout;
    const int64_t ranks = layout->ranks;
    int64_t merges = 0; /* at most */
    for (int k = 0; k < ranks; k++)
        merges += plan->programs[k].count;
    CP_TRY(cp_allocate(&proof->states, ranks * plan->slot_count,
                       sizeof(slot_state), "a proof"));
    CP_TRY(
        cp_allocate(&proof->merges, merges, sizeof(merge_record), "a proof"));
    CP_TRY(cp_allocate(&proof->pairs, (ranks + 1) * ranks, 8, "pairs"));
    CP_TRY(cp_allocate(&proof->times, ranks, 1, "a proof"));
    for (int k = 0; k < ranks; k++) {
        const bool runs = cp_plan_scans(plan);
        fill_in(proof, k,
                runs ? cp_plan_own_run(plan, k, 0) : cp_use_of(plan->fresh, k));
        fill_in(proof, k,
                runs ? cp_plan_own_run(plan, k, 1) : cp_plan_begins(plan, k));
        if (plan->migration != NULL)
            fill_in(proof, k, cp_use_of(plan->cache, k));
        if (plan->indexer.top_k > 0) {
            fill_in(proof, k, cp_use_of(plan->index_queries, k));
            fill_in(proof, k, cp_use_of(plan->index_keys, k));
        }
    }
    for (int k = 0; k <= ranks && plan->migration == NULL; k++)
        for (int r = 0; r < ranks; r++)
            proof->pairs[k * ranks + r] =
                cp_block_pairs(cp_plan_queries(plan, k), &layout->keys[r]);
    return CP_OK;
}

static int64_t pairs_of(const proof *proof, const cp_op *op) {
    return proof
        ->pairs[op->in.origin * proof->plan->layout->ranks + op->keys.origin];
}

static double sparse_flops(const proof *proof, const cp_op *op) {
    const cp_plan *plan = proof->plan;
    const cp_indexer *indexer = &plan->indexer;
    const cp_pieces *queries = &cp_plan_queries(plan, op->in.origin)->pieces;
    const double pairs = (double)pairs_of(proof, op);
    if (op->kind == CP_OP_SELECT)
        return 2 * (double)(indexer->heads * indexer->dim) * pairs;
    return 2 * (double)plan->shape.query_heads *
           (double)(plan->shape.head_dim + cp_value_dim(&plan->shape)) * pairs *
           cp_indexer_share(indexer, queries);
}

/* Pairs of some heads count as fractions of a pair: add whole ones and the
 * remainders, since not all products with heads would fit. */
static void count_rank(const proof *proof, int k) {
    const cp_plan *plan = proof->plan;
    const cp_shape *shape = &plan->shape;
    const cp_program *program = &plan->programs[k];
    cp_plan_report *report = proof->report;
    const bool sparse = plan->indexer.top_k > 0;
    const double a_score = 2 * (double)(shape->head_dim + cp_value_dim(shape));
    int64_t hops = 0, left = 0;
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        const int64_t messages = cp_op_messages(plan, op);
        report->messages[k] += messages;
        report->bytes[k] += messages * plan->slots[op->in.slot].bytes;
        hops += op->kind == CP_OP_EXCHANGE && op->to != CP_NO_RANK;
        if (op->kind != CP_OP_ATTEND && op->kind != CP_OP_SELECT)
            continue;
        const int64_t heads = cp_plan_shape(plan, op->in.slot).query_heads;
        const int64_t pairs = pairs_of(proof, op);
        report->flops[k] += sparse ? sparse_flops(proof, op)
                                   : a_score * (double)heads * (double)pairs;
        if (sparse && op->kind == CP_OP_ATTEND)
            continue;
        report->pairs[k] += pairs / shape->query_heads * heads;
        left += pairs % shape->query_heads * heads;
    }
    report->pairs[k] += left / shape->query_heads;
    report->hops = cp_max(report->hops, hops);
}

static cp_status make_report(const proof *proof) {
    const cp_plan *plan = proof->plan;
    const int ranks = plan->layout->ranks;
    cp_plan_report *report = proof->report;
    double sum = 0;
    int64_t most = 0;
    CP_TRY(cp_allocate(&report->pairs, 3 * (int64_t)ranks, 8, "a report"));
    CP_TRY(cp_allocate(&report->flops, ranks, sizeof(double), "a report"));
    report->ranks = ranks;
    report->bytes = report->pairs + ranks;
    report->messages = report->bytes + ranks;
    for (int n = 0; n < plan->slot_count; n++)
        report->slot_bytes += plan->slots[n].held;
    for (int k = 0; k < ranks; k++) {
        count_rank(proof, k);
        sum += (double)report->pairs[k];
        most = cp_max(most, report->pairs[k]);
    }
    report->balance = sum > 0 ? (double)most * ranks / sum : 1;
    return CP_OK;
}

void cp_plan_report_free(cp_plan_report *report) {
    free(report->pairs);
    free(report->flops);
    *report = (cp_plan_report){0};
}

static cp_status check_placement(const cp_plan *plan) {
    return plan->migration != NULL ? cp_migration_check(plan->migration)
                                   : cp_layout_check(plan->layout);
}

static cp_status check_results(const proof *proof) {
    for (int k = 0; k < proof->plan->layout->ranks; k++)
        CP_TRY(check_result(proof, k));
    return proof->plan->layout->leaves ? cp_node_lists_check(proof->plan)
                                       : CP_OK;
}

static cp_status prove(proof *proof) {
    CP_TRY(check_placement(proof->plan));
    CP_TRY(begin(proof));
    CP_TRY(cp_plan_order(proof->plan, visit, proof));
    CP_TRY(check_results(proof));
    return make_report(proof);
}

cp_status cp_plan_check(const cp_plan *plan, cp_plan_report *report) {
    proof proof = {.plan = plan, .report = report};
    *report = (cp_plan_report){0};
    const cp_status status = prove(&proof);
    free(proof.states);
    free(proof.merges);
    free(proof.pairs);
    free(proof.times);
    return status;
}
