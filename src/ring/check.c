/* Tangled from book/05-proof.nw; edit the chapter. */
/* Prove that a plan is right, and count what it costs. */
#include "ring/check.h"

#include <stdlib.h>
#include <string.h>

#include "ring/order.h"

typedef struct {
    cp_span span;
    int rank;
} owned;

static int by_sequence_and_start(const void *left, const void *right) {
    const cp_span *a = &((const owned *)left)->span;
    const cp_span *b = &((const owned *)right)->span;
    if (a->sequence != b->sequence)
        return a->sequence < b->sequence ? -1 : 1;
    return (a->start > b->start) - (a->start < b->start);
}

static cp_status collect(const cp_block *blocks, int ranks, owned **list,
                         int64_t *count) {
    *count = 0;
    for (int rank = 0; rank < ranks; rank++)
        *count += blocks[rank].pieces.count;
    CP_TRY(cp_allocate(list, *count, sizeof(owned), "spans"));
    int64_t n = 0;
    for (int rank = 0; rank < ranks; rank++)
        for (int64_t i = 0; i < blocks[rank].pieces.count; i++)
            (*list)[n++] = (owned){blocks[rank].pieces.items[i].span, rank};
    qsort(*list, (size_t)n, sizeof(owned), by_sequence_and_start);
    return CP_OK;
}

static cp_status refuse_shared(const owned *list, int64_t count,
                               const char *what) {
    for (int64_t i = 0; i < count; i++) {
        const cp_span a = list[i].span;
        for (int64_t j = i + 1; j < count; j++) {
            const cp_span b = list[j].span;
            if (b.sequence != a.sequence || b.start > cp_span_last(a))
                break;
            const int64_t shared = cp_span_shared(a, b);
            if (shared >= 0)
                return cp_fail(
                    CP_BROKEN,
                    "%s %ld of sequence %ld is held by rank %d and by rank %d",
                    what, shared, a.sequence, list[i].rank, list[j].rank);
        }
    }
    return CP_OK;
}

static cp_status refuse_missing(const cp_layout *layout, const owned *list,
                                int64_t count, const char *what, bool keys) {
    int64_t n = 0;
    for (int64_t i = 0; i < layout->sequences; i++) {
        const int64_t first = keys ? 0 : layout->past[i];
        const int64_t end = layout->past[i] + layout->fresh[i];
        int64_t tokens = 0;
        for (; n < count && list[n].span.sequence == i; n++) {
            /* Refuse a span that leaves its sequence. */
            if (list[n].span.start < first || cp_span_last(list[n].span) >= end)
                return cp_fail(CP_BROKEN,
                               "rank %d holds %s %ld of sequence %ld, which "
                               "has %ld to %ld",
                               list[n].rank, what, cp_span_last(list[n].span),
                               i, first, (end - 1));
            tokens += list[n].span.count;
        }
        if (tokens != end - first)
            return cp_fail(CP_BROKEN,
                           "of %s positions %ld to %ld of sequence %ld, %ld "
                           "are held by no rank",
                           what, first, (end - 1), i, (end - first - tokens));
    }
    if (n < count)
        return cp_fail(CP_BROKEN, "rank %d holds a %s of sequence %ld of %ld",
                       list[n].rank, what, list[n].span.sequence,
                       layout->sequences);
    return CP_OK;
}

static cp_status check_partition(const cp_layout *layout, bool keys) {
    const char *what = keys ? "key" : "query";
    owned *list = NULL;
    int64_t count;
    cp_status status = collect(keys ? layout->keys : layout->queries,
                               layout->ranks, &list, &count);
    if (status == CP_OK)
        status = refuse_shared(list, count, what);
    if (status == CP_OK)
        status = refuse_missing(layout, list, count, what, keys);
    free(list);
    return status;
}

static cp_status check_rows(const cp_block *blocks, const char *what,
                            int rank) {
    const cp_block *block = &blocks[rank];
    int64_t next = 0;
    for (int64_t n = 0; n < block->pieces.count; n++) {
        const cp_piece piece = block->pieces.items[n];
        if (piece.row < next)
            return cp_fail(CP_BROKEN,
                           "row %ld of the %s block of rank %d is used twice",
                           piece.row, what, rank);
        next = piece.row + piece.span.count;
    }
    if (next > block->rows || block->rows != blocks[0].rows)
        return cp_fail(CP_BROKEN,
                       "the %s block of rank %d needs %ld rows and has %ld; "
                       "that of rank 0 has %ld",
                       what, rank, next, block->rows, blocks[0].rows);
    return CP_OK;
}

static cp_status check_same(const cp_block *blocks, const cp_block *lists,
                            const char *what, const char *where, int rank) {
    const cp_pieces *here = &blocks[rank].pieces, *there = &lists[rank].pieces;
    const int64_t count = cp_min(here->count, there->count);
    int64_t n = 0;
    while (n < count && memcmp(&here->items[n].span, &there->items[n].span,
                               sizeof(cp_span)) == 0)
        n++;
    if (n == here->count && n == there->count)
        return CP_OK;
    const cp_span lost = (n < here->count ? here : there)->items[n].span;
    return cp_fail(
        CP_BROKEN,
        "rank %d: the %s from %ld to %ld of sequence %ld are not the same %s",
        rank, what, lost.start, cp_span_last(lost), lost.sequence, where);
}

static cp_status check_cache(const cp_layout *layout, int rank) {
    const cp_pieces *cache = &layout->cache[rank].pieces;
    int64_t next = 0;
    for (int64_t n = 0; n < cache->count; n++) {
        const cp_piece piece = cache->items[n];
        const int64_t first = piece.span.sequence * layout->room;
        const int64_t row = cp_max(next, first);
        next = row + piece.span.count;
        if (piece.row != row || next > first + layout->room)
            return cp_fail(
                CP_BROKEN,
                "rank %d has %ld keys of sequence %ld, from %ld on, in row %ld "
                "of its cache: due is row %ld, and room ends before %ld",
                rank, piece.span.count, piece.span.sequence, piece.span.start,
                piece.row, row, (first + layout->room));
    }
    return CP_OK;
}

static bool lies_in(cp_piece piece, cp_piece whole) {
    const cp_span a = piece.span, b = whole.span;
    const int64_t ahead = a.start - b.start, rows = piece.row - whole.row;
    return a.sequence == b.sequence && (a.count == 1 || a.step == b.step) &&
           rows >= 0 && rows + a.count <= b.count && ahead == rows * b.step;
}

static cp_status check_appended(const cp_layout *layout, int rank) {
    const cp_pieces *cache = &layout->cache[rank].pieces;
    const cp_pieces *added = &layout->appended[rank].pieces;
    int64_t at = 0;
    for (int64_t n = 0; n < added->count; n++) {
        const cp_piece piece = added->items[n];
        while (at < cache->count && !lies_in(piece, cache->items[at]))
            at++;
        if (at == cache->count)
            return cp_fail(CP_BROKEN,
                           "rank %d appends token %ld of sequence %ld in row "
                           "%ld, where its cache does not have it",
                           rank, piece.span.start, piece.span.sequence,
                           piece.row);
    }
    return CP_OK;
}

static cp_status check_layout(const cp_layout *layout) {
    CP_TRY(check_partition(layout, true));
    CP_TRY(check_partition(layout, false));
    for (int rank = 0; rank < layout->ranks; rank++) {
        CP_TRY(check_rows(layout->keys, "key", rank));
        CP_TRY(check_rows(layout->queries, "query", rank));
        CP_TRY(check_same(layout->keys, layout->cache, "keys", "in its cache",
                          rank));
        CP_TRY(check_same(layout->queries, layout->appended, "new tokens",
                          "where they are appended", rank));
        CP_TRY(check_cache(layout, rank));
        CP_TRY(check_appended(layout, rank));
    }
    return CP_OK;
}

typedef struct {
    int32_t met;    /* a partial: the keys of a rank, or a merge */
    int16_t origin; /* whose tokens */
    cp_slot_kind kind : 8;
    bool full : 1;      /* has contents */
    bool sending : 1;   /* lent to an exchange that was not waited for */
    bool receiving : 1; /* likewise; its contents are unknown */
} content;

typedef struct {
    int32_t left, right; /* what both of two partials had met */
} merge;

typedef struct {
    const cp_plan *plan;
    content *contents; /* [ranks][slots] */
    merge *merges;  /* in the order in which they happen, ranks is the first */
    int32_t merged; /* how many have */
    int64_t *pairs; /* [ranks][ranks] of a query and a key block */
    int64_t *hops;  /* [ranks] exchanges with a send half */
    uint8_t *times; /* [ranks] scratch: was it met? */
    cp_plan_report *report;
} proof;

static content *content_of(const proof *proof, int rank, int slot) {
    const int64_t slots = proof->plan->slot_count;
    return &proof->contents[rank * slots + slot];
}

static void copy_content(content *to, const content *from) {
    to->full = from->full;
    to->kind = from->kind;
    to->origin = from->origin;
    to->met = from->met;
}

static cp_status check_slot(const proof *proof, int rank, const cp_op *op,
                            int slot, bool writes) {
    const content *it = content_of(proof, rank, slot);
    const char *problem = NULL;
    if (it->receiving)
        problem = "which a receive is still filling";
    else if (writes && it->sending)
        problem = "which a send is still reading";
    else if (!writes && !it->full)
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
    const cp_plan *plan = proof->plan;
    const content *it = content_of(proof, rank, use.slot);
    const bool cache = kind == CP_SLOT_KEYS && use.slot == plan->cache;
    if (it->kind != kind && !cache)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: %s takes slot %d for what "
                       "it is not",
                       rank, op->hop, cp_op_name(op->kind), use.slot);
    if (it->origin != use.origin)
        return cp_fail(CP_BROKEN,
                       "rank %d, hop %d: %s wants the block of rank %d in slot "
                       "%d, which holds that of rank %d",
                       rank, op->hop, cp_op_name(op->kind), use.origin,
                       use.slot, it->origin);
    return CP_OK;
}

static cp_status note_local(proof *proof, const cp_event *event) {
    const cp_op *op = event->op;
    const int rank = event->rank, ranks = proof->plan->layout->ranks;
    content *out = content_of(proof, rank, op->out.slot);
    cp_status status = CP_OK;
    switch (op->kind) {
    case CP_OP_ATTEND:
        /* Note an attention. */
        status = check_use(proof, rank, op, op->in, CP_SLOT_QUERIES);
        if (status == CP_OK)
            status = check_use(proof, rank, op, op->keys, CP_SLOT_KEYS);
        out->met = op->keys.origin;
        out->origin = op->in.origin;
        proof->report->pairs[rank] +=
            proof->pairs[op->in.origin * ranks + op->keys.origin];
        break;
    case CP_OP_MERGE:
        /* Note a merge. */
        status = check_use(proof, rank, op, op->in, CP_SLOT_PARTIAL);
        if (status == CP_OK)
            status = check_use(proof, rank, op, op->out, CP_SLOT_PARTIAL);
        proof->merges[proof->merged] =
            (merge){out->met, content_of(proof, rank, op->in.slot)->met};
        out->met = ranks + proof->merged++;
        break;
    default:
        out->origin = (int16_t)rank;
    }
    out->full = true;
    out->kind = proof->plan->slots[op->out.slot].kind;
    return status;
}

static cp_status deliver(proof *proof, const cp_event *event, int from,
                         int to) {
    const cp_program *programs = proof->plan->programs;
    const cp_op *give = &programs[from].ops[event->all[from]];
    const cp_op *take = &programs[to].ops[event->all[to]];
    const bool gather = give->kind == CP_OP_ALL_GATHER;
    const int slot = give->in.slot + (gather ? 0 : to);
    const cp_use use = cp_use_of(slot, gather ? from : to);
    const cp_slot_kind kind = gather ? CP_SLOT_KEYS : CP_SLOT_PARTIAL;
    copy_content(content_of(proof, to, take->out.slot + from),
                 content_of(proof, from, slot));
    return check_use(proof, from, give, use, kind);
}

static void count_sent(proof *proof, int rank, int copies, int slot) {
    proof->report->messages[rank] += copies;
    proof->report->bytes[rank] += copies * proof->plan->slots[slot].bytes;
}

static cp_status note_start(proof *proof, const cp_event *event) {
    const cp_op *op = event->op;
    /* Mark the slot that an exchange fills. */
    if (op->from != CP_NOBODY) {
        content *filled = content_of(proof, event->rank, op->out.slot);
        if (op->to != CP_NOBODY && op->in.slot == op->out.slot)
            return cp_fail(
                CP_BROKEN,
                "rank %d, hop %d: exchange writes slot %d, which its "
                "own send is still reading",
                event->rank, op->hop, op->out.slot);
        filled->receiving = true;
    }
    if (op->to == CP_NOBODY)
        return CP_OK;
    content_of(proof, event->rank, op->in.slot)->sending = true;
    count_sent(proof, event->rank, 1, op->in.slot);
    proof->hops[event->rank]++;
    return check_use(proof, event->rank, op, op->in,
                     proof->plan->slots[op->in.slot].kind);
}

static void note_transfer(proof *proof, const cp_event *event) {
    const cp_op *send = event->op;
    const cp_op *receive = &proof->plan->programs[send->to].ops[send->sent_to];
    copy_content(content_of(proof, send->to, receive->out.slot),
                 content_of(proof, event->rank, send->in.slot));
}

static cp_status note_wait(proof *proof, const cp_event *event) {
    const cp_program *program = &proof->plan->programs[event->rank];
    const cp_op *op = &program->ops[event->op->ends];
    if (op->to != CP_NOBODY)
        content_of(proof, event->rank, op->in.slot)->sending = false;
    if (op->from == CP_NOBODY)
        return CP_OK;
    content_of(proof, event->rank, op->out.slot)->receiving = false;
    return check_use(proof, event->rank, op, op->out,
                     proof->plan->slots[op->out.slot].kind);
}

static cp_status note_collective(proof *proof, const cp_event *event) {
    const cp_plan *plan = proof->plan;
    const int ranks = plan->layout->ranks;
    const bool gather = event->op->kind == CP_OP_ALL_GATHER;
    cp_status status = CP_OK;
    for (int k = 0; k < ranks && status == CP_OK; k++) {
        const cp_op *op = &plan->programs[k].ops[event->all[k]];
        status = check_slots(proof, k, op);
        count_sent(proof, k, ranks - 1, gather ? op->in.slot : plan->result);
    }
    for (int from = 0; from < ranks && status == CP_OK; from++)
        for (int to = 0; to < ranks && status == CP_OK; to++)
            if (to != from)
                status = deliver(proof, event, from, to);
    return status;
}

static cp_status visit(void *context, const cp_event *event) {
    proof *proof = context;
    cp_status status = CP_OK;
    if (event->kind == CP_EVENT_LOCAL || event->kind == CP_EVENT_START)
        status = check_slots(proof, event->rank, event->op);
    if (status != CP_OK)
        return status;
    switch (event->kind) {
    case CP_EVENT_LOCAL:
        return note_local(proof, event);
    case CP_EVENT_START:
        return note_start(proof, event);
    case CP_EVENT_TRANSFER:
        note_transfer(proof, event);
        return CP_OK;
    case CP_EVENT_WAIT:
        return note_wait(proof, event);
    case CP_EVENT_COLLECTIVE:
        return note_collective(proof, event);
    }
    return CP_OK;
}

static cp_status accuse(const cp_layout *layout, int k, int r, int times) {
    const cp_pieces *queries = &layout->queries[k].pieces;
    const cp_pieces *keys = &layout->keys[r].pieces;
    for (int64_t i = 0; i < queries->count; i++)
        for (int64_t j = 0; j < keys->count; j++) {
            const cp_span q = queries->items[i].span, s = keys->items[j].span;
            if (cp_span_pairs(q, s) > 0)
                return cp_fail(CP_BROKEN,
                               "query %ld of sequence %ld (rank %d) %s keys "
                               "%ld..%ld of rank %d",
                               cp_span_last(q), q.sequence, k,
                               times == 0 ? "never met" : "met twice the",
                               s.start, cp_span_last(s), r);
        }
    return cp_fail(CP_BROKEN, "rank %d met the keys of rank %d %d times", k, r,
                   times);
}

/* The rank whose keys were met twice, or CP_NOBODY. */
static int count_met(const proof *proof, int32_t met) {
    const int32_t ranks = proof->plan->layout->ranks;
    while (met >= ranks) {
        const int twice = count_met(proof, proof->merges[met - ranks].right);
        if (twice != CP_NOBODY)
            return twice;
        met = proof->merges[met - ranks].left;
    }
    return ++proof->times[met] > 1 ? met : CP_NOBODY;
}

static cp_status check_result(const proof *proof, int rank) {
    const cp_layout *layout = proof->plan->layout;
    const content *it = content_of(proof, rank, proof->plan->result);
    if (!it->full || it->origin != rank || it->kind != CP_SLOT_PARTIAL)
        return cp_fail(CP_BROKEN, "rank %d ends without its result", rank);
    memset(proof->times, 0, (size_t)layout->ranks);
    const int twice = count_met(proof, it->met);
    if (twice != CP_NOBODY)
        return accuse(layout, rank, twice, 2);
    for (int r = 0; r < layout->ranks; r++)
        if (proof->times[r] == 0 && proof->pairs[rank * layout->ranks + r] > 0)
            return accuse(layout, rank, r, 0);
    return CP_OK;
}

static void fill_in(proof *proof) {
    const cp_plan *plan = proof->plan;
    const cp_layout *layout = plan->layout;
    const int ranks = layout->ranks;
    for (int k = 0; k < ranks; k++) {
        const int full[2] = {plan->fresh, plan->queries};
        for (int n = 0; n < 2; n++) {
            content *input = content_of(proof, k, full[n]);
            input->full = true;
            input->origin = (int16_t)k;
            input->kind = plan->slots[full[n]].kind;
        }
        for (int r = 0; r < ranks; r++)
            proof->pairs[k * ranks + r] =
                cp_block_pairs(&layout->queries[k], &layout->keys[r]);
    }
}

static cp_status begin(proof *proof) {
    const cp_plan *plan = proof->plan;
    const int64_t ranks = plan->layout->ranks;
    int64_t merges = 0; /* at most */
    for (int k = 0; k < ranks; k++)
        merges += plan->programs[k].count;
    CP_TRY(cp_allocate(&proof->contents, ranks * plan->slot_count,
                       sizeof(content), "a proof"));
    CP_TRY(cp_allocate(&proof->merges, merges, sizeof(merge), "a proof"));
    CP_TRY(cp_allocate(&proof->pairs, ranks * ranks + ranks, 8, "pairs"));
    CP_TRY(cp_allocate(&proof->times, ranks, 1, "a proof"));
    proof->hops = proof->pairs + ranks * ranks;
    fill_in(proof);
    return CP_OK;
}

static cp_status make_report(const cp_plan *plan, cp_plan_report *report) {
    const int64_t ranks = plan->layout->ranks;
    *report = (cp_plan_report){.ranks = (int)ranks};
    for (int n = 0; n < plan->slot_count; n++)
        report->slot_bytes += plan->slots[n].bytes;
    CP_TRY(cp_allocate(&report->pairs, 4 * ranks, sizeof(int64_t), "a report"));
    report->flops = report->pairs + ranks;
    report->bytes = report->flops + ranks;
    report->messages = report->bytes + ranks;
    return CP_OK;
}

void cp_plan_report_free(cp_plan_report *report) {
    free(report->pairs);
    *report = (cp_plan_report){0};
}

static void finish(const proof *proof) {
    cp_plan_report *report = proof->report;
    const cp_shape *shape = &proof->plan->shape;
    double sum = 0;
    int64_t most = 0;
    for (int k = 0; k < report->ranks; k++) {
        report->flops[k] =
            4 * shape->head_dim * shape->query_heads * report->pairs[k];
        report->hops = cp_max(report->hops, proof->hops[k]);
        sum += (double)report->pairs[k];
        most = cp_max(most, report->pairs[k]);
    }
    report->balance = sum > 0 ? (double)most * report->ranks / sum : 1;
}

cp_status cp_plan_check(const cp_plan *plan, cp_plan_report *report) {
    proof proof = {.plan = plan, .report = report};
    cp_status status = make_report(plan, report);
    if (status == CP_OK)
        status = check_layout(plan->layout);
    if (status == CP_OK)
        status = begin(&proof);
    if (status == CP_OK)
        status = cp_plan_order(plan, visit, &proof);
    for (int k = 0; k < plan->layout->ranks && status == CP_OK; k++)
        status = check_result(&proof, k);
    if (status == CP_OK)
        finish(&proof);
    else
        cp_plan_report_free(report);
    free(proof.contents);
    free(proof.merges);
    free(proof.pairs);
    free(proof.times);
    return status;
}
