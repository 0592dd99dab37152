/* Tangled from book/05-plan.nw; edit the chapter. */
/* Link the operations of a plan: waits to exchanges, halves of messages to each
 * other, communications to computations, attends to merges. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

static cp_status link_waits(const cp_program *program, int rank) {
    int32_t oldest = 0;
    for (int64_t n = 0; n < program->count; n++) {
        if (program->ops[n].kind != CP_OP_WAIT)
            continue;
        while (oldest < n && program->ops[oldest].kind != CP_OP_EXCHANGE)
            oldest++;
        if (oldest == n)
            return cp_fail(CP_BROKEN,
                           "rank %d waits, but has no exchange to wait for",
                           rank);
        program->ops[n].ends = oldest++;
    }
    return CP_OK;
}

static cp_status unmatched(int rank, const cp_op *op, bool sent) {
    return cp_fail(CP_BROKEN,
                   "rank %d, hop %d: the message %s rank %d meets no %s there",
                   rank, op->hop, sent ? "to" : "from",
                   sent ? op->to : op->from, sent ? "receive" : "send");
}

static bool receives(const cp_op *op) {
    return op->kind == CP_OP_EXCHANGE && op->from != CP_NO_RANK;
}

static cp_status link_sends(const cp_plan *plan, int rank, int32_t *looked) {
    const cp_program *program = &plan->programs[rank];
    memset(looked, 0, (size_t)plan->layout->ranks * sizeof(*looked));
    for (int32_t n = 0; n < program->count; n++) {
        cp_op *op = &program->ops[n];
        if (op->kind != CP_OP_EXCHANGE || op->to == CP_NO_RANK)
            continue;
        const cp_program *other = &plan->programs[op->to];
        int32_t *at = &looked[op->to];
        while (*at < other->count &&
               (!receives(&other->ops[*at]) || other->ops[*at].from != rank))
            ++*at;
        if (*at == other->count)
            return unmatched(rank, op, true);
        other->ops[*at].got_from = n;
        op->sent_to = (*at)++;
    }
    return CP_OK;
}

static int32_t next_collective(const cp_program *program, int32_t n) {
    while (n < program->count && !cp_op_is_collective(&program->ops[n]))
        n++;
    return n;
}

static cp_status link_collectives(const cp_plan *plan, int rank) {
    const cp_program *first = &plan->programs[0];
    const cp_program *program = &plan->programs[rank];
    int32_t m = next_collective(first, 0), n = next_collective(program, 0);
    while (m < first->count && n < program->count &&
           first->ops[m].kind == program->ops[n].kind) {
        program->ops[n].sent_to = m;
        m = next_collective(first, m + 1);
        n = next_collective(program, n + 1);
    }
    if (m == first->count && n == program->count)
        return CP_OK;
    return cp_fail(
        CP_BROKEN, "rank 0 is at an %s, rank %d at an %s",
        m < first->count ? cp_op_name(first->ops[m].kind) : "end", rank,
        n < program->count ? cp_op_name(program->ops[n].kind) : "end");
}

/* The computation that last read or wrote a slot; -1 = none. */
typedef struct {
    int32_t touched, written;
} link_mark;

static void link_queues(const cp_plan *plan, int rank, link_mark *marks) {
    const cp_program *program = &plan->programs[rank];
    int32_t waited = -1;
    cp_touch touch;
    for (int slot = 0; slot < plan->slot_count; slot++)
        marks[slot] = (link_mark){-1, -1};
    for (int32_t n = 0; n < program->count; n++) {
        cp_op *op = &program->ops[n];
        const bool talks = cp_op_talks(op);
        op->merged = false;
        op->after = -1;
        if (talks)
            op->sent_to = op->got_from = -1;
        /* Leave marks on the slots, or read them. */
        for (int i = 0; cp_op_touch(plan, rank, op, i, &touch); i++) {
            link_mark *slot = &marks[touch.slot];
            const int32_t last = touch.writes ? slot->touched : slot->written;
            if (talks && last > waited)
                op->after = waited = last;
            if (!talks)
                slot->touched = n;
            if (!talks && touch.writes)
                slot->written = n;
        }
    }
}

static bool is_read_later(const cp_plan *plan, int rank, int64_t n, int slot) {
    const cp_program *program = &plan->programs[rank];
    cp_touch touch;
    for (; n < program->count; n++)
        for (int i = 0; cp_op_touch(plan, rank, &program->ops[n], i, &touch);
             i++)
            if (touch.slot == slot)
                return !touch.writes;
    return false;
}

static void link_merges(const cp_plan *plan, int rank) {
    const cp_program *program = &plan->programs[rank];
    for (int64_t n = 0; n + 1 < program->count; n++) {
        cp_op *op = &program->ops[n];
        op->merged = (op->kind == CP_OP_ATTEND || op->kind == CP_OP_SELECT) &&
                     op[1].kind == CP_OP_MERGE &&
                     op[1].in.slot == op->out.slot &&
                     op->out.slot != plan->result &&
                     !is_read_later(plan, rank, n + 2, op->out.slot);
    }
}

static cp_status link_all(const cp_plan *plan, link_mark *marks,
                          int32_t *looked) {
    const int ranks = plan->layout->ranks;
    for (int k = 0; k < ranks; k++) {
        link_queues(plan, k, marks);
        link_merges(plan, k);
    }
    for (int k = 0; k < ranks; k++) {
        CP_TRY(link_waits(&plan->programs[k], k));
        CP_TRY(link_sends(plan, k, looked));
        CP_TRY(link_collectives(plan, k));
    }
    for (int k = 0; k < ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            if (receives(op) && op->got_from < 0)
                return unmatched(k, op, false);
        }
    return CP_OK;
}

cp_status cp_plan_link(cp_plan *plan) {
    link_mark *marks;
    int32_t *looked = NULL;
    CP_TRY(cp_allocate(&marks, plan->slot_count, sizeof(link_mark), "links"));
    cp_status status =
        cp_allocate(&looked, plan->layout->ranks, sizeof(int32_t), "links");
    if (status == CP_OK)
        status = link_all(plan, marks, looked);
    free(marks);
    free(looked);
    return status;
}
