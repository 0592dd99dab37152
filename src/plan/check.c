/* Tangled from book/05-proof.nw; edit the chapter. */
/* Prove that a plan is right. */
#include "plan/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/node_lists.h"
#include "plan/order.h"
#include "tokens/layout_check.h"
#include "tokens/migrate.h"
#include "tokens/window.h"

typedef struct {
    int32_t met;         /* a partial: the keys of a rank, a merge, ALL, NONE */
    int16_t origin;      /* the rank of its tokens */
    int16_t part, parts; /* and which of their heads */
    cp_slot_kind kind : 8;
    bool full : 1;   /* has contents */
    bool chosen : 1; /* queries: they carry their list of chosen keys */
} slot_content;

enum {
    ALL = -1, /* the keys of all ranks, each once */
    NONE = -2,
};

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
                       queries are all ranks'. A migration: the rows that move
                       to a rank from another */
    uint8_t *times; /* [ranks] scratch: how often it was met */
} proof;

static slot_state *state_of_slot(const proof *proof, int rank, int slot) {
    return &proof->states[rank * (int64_t)proof->plan->slot_count + slot];
}

static slot_content *holds(const proof *proof, int rank, cp_use use) {
    return &state_of_slot(proof, rank, use.slot)->holds;
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

static const char *describe(char *text, size_t room, cp_slot_kind kind,
                            int origin, int part, int parts) {
    if (kind == CP_SLOT_RUN)
        snprintf(text, room, "chunks %d to %d", origin, part);
    else if (kind == CP_SLOT_MOVED)
        snprintf(text, room, "the transfer from rank %d to rank %d", origin,
                 part);
    else if (parts == 1)
        snprintf(text, room, "the block of rank %d", origin);
    else
        snprintf(text, room, "part %d of %d of the heads of rank %d", part,
                 parts, origin);
    return text;
}

static cp_status wrong_kind(int rank, const cp_op *op, int slot) {
    return cp_fail(CP_BROKEN,
                   "rank %d, hop %d: %s takes slot %d for another kind of slot",
                   rank, op->hop, cp_op_name(op->kind), slot);
}

static cp_status check_use(const proof *proof, int rank, const cp_op *op,
                           cp_use use) {
    const slot_content *content = &state_of_slot(proof, rank, use.slot)->holds;
    const cp_slot *slot = &proof->plan->slots[use.slot];
    char expected[80], held[80];
    if (content->kind != slot->kind)
        return wrong_kind(rank, op, use.slot);
    if (content->origin == use.origin && content->part == use.part &&
        content->parts == slot->parts)
        return CP_OK;
    return cp_fail(CP_BROKEN,
                   "rank %d, hop %d: %s expects %s in slot %d, not %s", rank,
                   op->hop, cp_op_name(op->kind),
                   describe(expected, sizeof(expected), slot->kind, use.origin,
                            use.part, slot->parts),
                   use.slot,
                   describe(held, sizeof(held), slot->kind, content->origin,
                            content->part, content->parts));
}

static cp_status accuse(const cp_plan *plan, cp_slot_kind kind, int k, int r,
                        int times) {
    static const char *const how[2][2] = {
        {"never met", "met twice the"},
        {"chooses without", "chooses and met twice the"}};
    if (kind == CP_SLOT_NEXT)
        return cp_fail(CP_BROKEN, "rank %d %s the transfer from rank %d", k,
                       times > 0 ? "appends twice" : "ends without", r);
    const cp_pieces *queries = &cp_plan_queries(plan, k)->pieces;
    const cp_pieces *keys = &plan->layout->keys[r].pieces;
    for (int64_t i = 0; i < queries->count; i++)
        for (int64_t j = 0; j < keys->count; j++) {
            const cp_span q = queries->items[i].span, s = keys->items[j].span;
            if (cp_window_pairs(q, s, plan->shape.window) > 0)
                return cp_fail(CP_BROKEN,
                               "query %ld of sequence %ld (rank %d) %s keys "
                               "%ld..%ld of rank %d",
                               cp_span_last(q), q.sequence, k,
                               how[kind == CP_SLOT_LIST][times > 0], s.start,
                               cp_span_last(s), r);
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
    return met != NONE && ++proof->times[met] > 1 ? met : CP_NO_RANK;
}

static cp_status check_met(const proof *proof, cp_slot_kind kind, int origin,
                           int32_t met) {
    const cp_plan *plan = proof->plan;
    const int64_t ranks = plan->layout->ranks;
    memset(proof->times, 0, (size_t)ranks);
    const int twice = count_met(proof, met);
    if (twice != CP_NO_RANK)
        return accuse(plan, kind, origin, twice, 2);
    for (int r = 0; r < ranks; r++)
        if (proof->times[r] == 0 && proof->pairs[origin * ranks + r] > 0)
            return accuse(plan, kind, origin, r, 0);
    return CP_OK;
}

static cp_status check_result(const proof *proof, int rank, int slot) {
    const cp_plan *plan = proof->plan;
    const cp_slot_kind kind = plan->slots[slot].kind;
    const int parts = plan->slots[slot].parts;
    const cp_use expected = cp_plan_own(plan, rank, slot);
    const slot_content *content = holds(proof, rank, expected);
    char text[80];
    if (kind == CP_SLOT_RUN && expected.part < 0)
        return CP_OK;
    if (!content->full || content->kind != kind ||
        content->origin != expected.origin || content->part != expected.part ||
        content->parts != parts)
        return cp_fail(CP_BROKEN, "rank %d ends without %s in slot %d", rank,
                       describe(text, sizeof(text), kind, expected.origin,
                                expected.part, parts),
                       slot);
    return kind == CP_SLOT_RUN
               ? CP_OK
               : check_met(proof, kind, content->origin, content->met);
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

static cp_status check_chosen(const proof *proof, int rank, const cp_op *op) {
    if (proof->plan->indexer.top_k == 0 ||
        state_of_slot(proof, rank, op->in.slot)->holds.chosen)
        return CP_OK;
    return cp_fail(CP_BROKEN,
                   "rank %d, hop %d: queries of rank %d attend to the keys of "
                   "rank %d but have chosen none",
                   rank, op->hop, op->in.origin, op->keys.origin);
}

/* The input is about these tokens; now the output is. */
static cp_status note(proof *proof, int rank, const cp_op *op, cp_use tokens,
                      int32_t met) {
    const cp_slot *slots = proof->plan->slots;
    tokens.slot = op->in.slot;
    CP_TRY(check_use(proof, rank, op, tokens));
    *holds(proof, rank, op->out) =
        (slot_content){.met = met,
                       .origin = tokens.origin,
                       .part = tokens.part,
                       .parts = (int16_t)slots[op->in.slot].parts,
                       .kind = slots[op->out.slot].kind,
                       .full = true};
    return check_use(proof, rank, op, op->out);
}

static cp_status note_own(proof *proof, int rank, const cp_op *op) {
    return note(proof, rank, op, cp_use_of(op->in.slot, rank), NONE);
}

static int32_t join(proof *proof, int32_t left, int32_t right) {
    proof->merges[proof->merged] = (merge_record){left, right};
    return proof->plan->layout->ranks + proof->merged++;
}

static cp_status note_merge(proof *proof, int rank, const cp_op *op) {
    CP_TRY(check_use(proof, rank, op, op->out));
    return note(proof, rank, op, op->out,
                join(proof, holds(proof, rank, op->out)->met,
                     holds(proof, rank, op->in)->met));
}

static cp_status note_attend(proof *proof, int rank, const cp_op *op) {
    CP_TRY(check_use(proof, rank, op, op->keys));
    CP_TRY(check_heads(proof, rank, op));
    CP_TRY(check_chosen(proof, rank, op));
    return note(proof, rank, op, op->in, op->keys.origin);
}

static cp_status note_split(proof *proof, int rank, const cp_op *op) {
    const int parts = proof->plan->slots[op->out.slot].parts;
    CP_TRY(check_use(proof, rank, op, op->in));
    for (int p = 0; p < parts; p++) {
        const cp_use part = cp_use_part(op->out.slot + p, op->in.origin, p);
        slot_content *out = holds(proof, rank, part);
        *out = *holds(proof, rank, op->in);
        out->parts = (int16_t)parts;
        out->part = (int16_t)p;
        CP_TRY(check_use(proof, rank, op, part));
    }
    return CP_OK;
}

static cp_status note_join(proof *proof, int rank, const cp_op *op) {
    const int parts = proof->plan->slots[op->in.slot].parts;
    for (int p = 0; p < parts; p++) {
        const cp_use part = cp_use_part(op->in.slot + p, op->in.origin, p);
        CP_TRY(check_use(proof, rank, op, part));
        CP_TRY(check_met(proof, CP_SLOT_PARTIAL, part.origin,
                         holds(proof, rank, part)->met));
    }
    *holds(proof, rank, op->out) = (slot_content){.met = ALL,
                                                  .origin = op->in.origin,
                                                  .parts = 1,
                                                  .kind = CP_SLOT_PARTIAL,
                                                  .full = true};
    return check_use(proof, rank, op, op->out);
}

static cp_status note_run(proof *proof, int rank, const cp_op *op) {
    return note(proof, rank, op, op->in, NONE);
}

static cp_status note_longer_run(proof *proof, int rank, const cp_op *op) {
    slot_content *out = holds(proof, rank, op->out);
    CP_TRY(check_use(proof, rank, op, op->in));
    if (out->kind != CP_SLOT_RUN || out->origin != op->in.part + 1)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: chunks %d to %d do not come before "
                       "chunks %d to %d",
                       rank, op->hop, op->in.origin, op->in.part, out->origin,
                       out->part);
    out->origin = op->in.origin;
    return check_use(proof, rank, op, op->out);
}

static cp_status note_departure(proof *proof, int rank, const cp_op *op) {
    const cp_plan *plan = proof->plan;
    const cp_use out = op->out;
    CP_TRY(check_use(proof, rank, op, cp_use_of(op->in.slot, rank)));
    if (out.part < 0 || out.part >= plan->layout->ranks ||
        plan->slots[out.slot].rows !=
            cp_transfer_of(plan->migration, rank, out.part)->rows)
        return wrong_kind(rank, op, out.slot);
    *holds(proof, rank, out) = (slot_content){.origin = (int16_t)rank,
                                              .part = out.part,
                                              .parts = 1,
                                              .kind = CP_SLOT_MOVED,
                                              .full = true};
    return check_use(proof, rank, op, out);
}

static cp_status note_arrival(proof *proof, int rank, const cp_op *op) {
    slot_content *next = holds(proof, rank, op->out);
    CP_TRY(check_use(proof, rank, op, op->in));
    if (op->in.part != rank)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: appends the transfer from rank %d to "
                       "rank %d",
                       rank, op->hop, op->in.origin, op->in.part);
    next->met = join(proof, next->met, op->in.origin);
    return check_use(proof, rank, op, op->out);
}

static cp_status note_select(proof *proof, int rank, const cp_op *op) {
    CP_TRY(check_use(proof, rank, op, op->keys));
    return note(proof, rank, op, op->in, op->keys.origin);
}

static cp_status note_choice(proof *proof, int rank, const cp_op *op) {
    const slot_content *list = holds(proof, rank, op->in);
    CP_TRY(check_use(proof, rank, op, op->in));
    CP_TRY(check_use(proof, rank, op, op->out));
    if (op->in.origin != op->out.origin)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: queries of rank %d get the list of "
                       "those of rank %d",
                       rank, op->hop, op->out.origin, op->in.origin);
    holds(proof, rank, op->out)->chosen = true;
    return check_met(proof, CP_SLOT_LIST, list->origin, list->met);
}

/* Keys are the last: an operation without any names slot 0, the cache. */
static const struct {
    cp_op_kind op;
    cp_slot_kind in, out;
    cp_status (*note)(proof *proof, int rank, const cp_op *op);
    cp_slot_kind keys;
} rules[] = {
    {CP_OP_APPEND, CP_SLOT_NEW, CP_SLOT_CACHE, note_own},
    {CP_OP_PACK, CP_SLOT_CACHE, CP_SLOT_KEYS, note_own},
    {CP_OP_ATTEND, CP_SLOT_QUERIES, CP_SLOT_PARTIAL, note_attend, CP_SLOT_KEYS},
    {CP_OP_ATTEND, CP_SLOT_QUERIES, CP_SLOT_PARTIAL, note_attend},
    {CP_OP_MERGE, CP_SLOT_PARTIAL, CP_SLOT_PARTIAL, note_merge},
    /* The rules of later chapters. */
    {CP_OP_SPLIT, CP_SLOT_QUERIES, CP_SLOT_QUERIES, note_split},
    {CP_OP_SPLIT, CP_SLOT_KEYS, CP_SLOT_KEYS, note_split},
    {CP_OP_JOIN, CP_SLOT_PARTIAL, CP_SLOT_PARTIAL, note_join},
    {CP_OP_PACK, CP_SLOT_RUN, CP_SLOT_RUN, note_run},
    {CP_OP_MERGE, CP_SLOT_RUN, CP_SLOT_RUN, note_longer_run},
    {CP_OP_SELECT, CP_SLOT_INDEX_QUERIES, CP_SLOT_LIST, note_select,
     CP_SLOT_INDEX_KEYS},
    {CP_OP_MERGE, CP_SLOT_LIST, CP_SLOT_LIST, note_merge},
    {CP_OP_PACK, CP_SLOT_LIST, CP_SLOT_QUERIES, note_choice},
    {CP_OP_PACK, CP_SLOT_CACHE, CP_SLOT_MOVED, note_departure},
    {CP_OP_APPEND, CP_SLOT_MOVED, CP_SLOT_NEXT, note_arrival},
};

static cp_status note_local(proof *proof, const cp_event *event) {
    const cp_op *op = event->op;
    const cp_slot *slots = proof->plan->slots;
    const bool meets = op->kind == CP_OP_ATTEND || op->kind == CP_OP_SELECT;
    const int keys = meets ? op->keys.slot : proof->plan->cache;
    int wrong = op->in.slot;
    CP_TRY(check_slots(proof, event->rank, op));
    for (size_t n = 0; n < sizeof(rules) / sizeof(rules[0]); n++)
        if (op->kind != rules[n].op || slots[op->in.slot].kind != rules[n].in)
            continue;
        else if (slots[keys].kind != rules[n].keys)
            wrong = keys;
        else if (slots[op->out.slot].kind != rules[n].out)
            wrong = op->out.slot;
        else
            return rules[n].note(proof, event->rank, op);
    return wrong_kind(event->rank, op, wrong);
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
    return check_use(proof, from, give, expected);
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
    return check_use(proof, event->rank, op, op->in);
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
    return check_use(proof, event->rank, op, op->out);
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

static void fill_in(const proof *proof, int rank, int slot) {
    const cp_use use = cp_plan_own(proof->plan, rank, slot);
    *holds(proof, rank, use) =
        (slot_content){.met = NONE,
                       .full = true,
                       .origin = use.origin,
                       .part = use.part,
                       .parts = (int16_t)proof->plan->slots[slot].parts,
                       .kind = proof->plan->slots[slot].kind};
}

static int64_t pairs_between(const cp_plan *plan, int k, int r) {
    if (plan->migration == NULL)
        return cp_block_pairs(cp_plan_queries(plan, k), &plan->layout->keys[r],
                              plan->shape.window);
    return k == plan->layout->ranks
               ? 0
               : cp_transfer_of(plan->migration, r, k)->rows;
}

static cp_status begin(proof *proof) {
    const cp_plan *plan = proof->plan;
    const int64_t ranks = plan->layout->ranks;
    int64_t merges = 0; /* at most */
    for (int k = 0; k < ranks; k++)
        merges += plan->programs[k].count;
    CP_TRY(cp_allocate(&proof->states, ranks * plan->slot_count,
                       sizeof(slot_state), "a proof"));
    CP_TRY(
        cp_allocate(&proof->merges, merges, sizeof(merge_record), "a proof"));
    CP_TRY(cp_allocate(&proof->pairs, (ranks + 1) * ranks, 8, "pairs"));
    CP_TRY(cp_allocate(&proof->times, ranks, 1, "a proof"));
    for (int k = 0; k < ranks; k++)
        for (int slot = 0; slot < plan->slot_count; slot++)
            if (plan->slots[slot].given)
                fill_in(proof, k, slot);
    for (int k = 0; k <= ranks; k++)
        for (int r = 0; r < ranks; r++)
            proof->pairs[k * ranks + r] = pairs_between(plan, k, r);
    return CP_OK;
}

static cp_status check_placement(const cp_plan *plan) {
    return plan->migration != NULL ? cp_migration_check(plan->migration)
                                   : cp_layout_check(plan->layout);
}

static cp_status check_results(const proof *proof) {
    for (int k = 0; k < proof->plan->layout->ranks; k++)
        for (int slot = 0; slot < proof->plan->slot_count; slot++)
            if (proof->plan->slots[slot].final)
                CP_TRY(check_result(proof, k, slot));
    return proof->plan->layout->leaves ? cp_node_lists_check(proof->plan)
                                       : CP_OK;
}

static cp_status prove(proof *proof) {
    CP_TRY(check_placement(proof->plan));
    CP_TRY(begin(proof));
    CP_TRY(cp_plan_order(proof->plan, visit, proof));
    return check_results(proof);
}

cp_status cp_plan_check(const cp_plan *plan, cp_plan_report *report) {
    proof proof = {.plan = plan};
    *report = (cp_plan_report){0};
    cp_status status = prove(&proof);
    if (status == CP_OK)
        status = cp_plan_report_new(plan, proof.pairs, report);
    free(proof.states);
    free(proof.merges);
    free(proof.pairs);
    free(proof.times);
    return status;
}
