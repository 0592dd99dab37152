/* Tangled from book/05-plan.nw; edit the chapter. */
/* Link the operations of a plan: waits to exchanges, halves of messages to each
 * other, communications to computations, attends to merges. */
#include "ring/link.h"

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

static bool receives(const cp_op *op, int from) {
    return op->kind == CP_OP_EXCHANGE && op->from == from;
}

static cp_status link_sends(const cp_plan *plan, int rank, int32_t *looked) {
    const cp_program *program = &plan->programs[rank];
    memset(looked, 0, (size_t)plan->layout->ranks * sizeof(*looked));
    for (int32_t n = 0; n < program->count; n++) {
        cp_op *op = &program->ops[n];
        if (op->kind != CP_OP_EXCHANGE || op->to == CP_NOBODY)
            continue;
        const cp_program *other = &plan->programs[op->to];
        int32_t *at = &looked[op->to];
        while (*at < other->count && !receives(&other->ops[*at], rank))
            ++*at;
        if (*at == other->count)
            return cp_fail(CP_BROKEN,
                           "rank %d, hop %d: what is sent to rank %d meets no "
                           "receive there",
                           rank, op->hop, op->to);
        other->ops[*at].got_from = n;
        op->sent_to = (*at)++;
    }
    return CP_OK;
}

static cp_status refuse_unsent(const cp_plan *plan, int rank) {
    const cp_program *program = &plan->programs[rank];
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        if (op->kind == CP_OP_EXCHANGE && op->from != CP_NOBODY &&
            op->got_from < 0)
            return cp_fail(CP_BROKEN,
                           "rank %d, hop %d: what is received from rank %d "
                           "meets no send there",
                           rank, op->hop, op->from);
    }
    return CP_OK;
}

static int32_t next_collective(const cp_program *program, int32_t n) {
    while (n < program->count && !cp_op_is_collective(&program->ops[n]))
        n++;
    return n;
}

static const char *place_name(const cp_program *program, int32_t n) {
    return n < program->count ? cp_op_name(program->ops[n].kind) : "end";
}

static cp_status link_collectives(const cp_plan *plan, int rank) {
    const cp_program *first = &plan->programs[0];
    const cp_program *mine = &plan->programs[rank];
    int32_t m = next_collective(first, 0), n = next_collective(mine, 0);
    while (m < first->count && n < mine->count &&
           first->ops[m].kind == mine->ops[n].kind) {
        mine->ops[n].sent_to = m;
        m = next_collective(first, m + 1);
        n = next_collective(mine, n + 1);
    }
    if (m == first->count && n == mine->count)
        return CP_OK;
    return cp_fail(CP_BROKEN, "rank 0 is at an %s, rank %d at an %s",
                   place_name(first, m), rank, place_name(mine, n));
}

/* Which computation touched a slot last; -1 = none. */
typedef struct {
    int32_t read, written;
} mark;

static void leave_marks(const cp_plan *plan, int rank, int32_t n, mark *marks) {
    const cp_op *op = &plan->programs[rank].ops[n];
    cp_touch touch;
    for (int i = 0; cp_op_touch(plan, rank, op, i, &touch); i++) {
        mark *slot = &marks[touch.slot];
        *(touch.writes ? &slot->written : &slot->read) = n;
    }
}

static int32_t last_mark(const cp_plan *plan, int rank, const cp_op *op,
                         const mark *marks) {
    int32_t last = -1;
    cp_touch touch;
    for (int i = 0; cp_op_touch(plan, rank, op, i, &touch); i++) {
        const mark *slot = &marks[touch.slot];
        if (slot->written > last)
            last = slot->written;
        if (touch.writes && slot->read > last)
            last = slot->read;
    }
    return last;
}

static void link_queues(const cp_plan *plan, int rank, mark *marks) {
    const cp_program *program = &plan->programs[rank];
    int32_t waited = -1;
    for (int slot = 0; slot < plan->slot_count; slot++)
        marks[slot] = (mark){-1, -1};
    for (int32_t n = 0; n < program->count; n++) {
        cp_op *op = &program->ops[n];
        if (!cp_op_talks(op)) {
            leave_marks(plan, rank, n, marks);
            continue;
        }
        const int32_t last = last_mark(plan, rank, op, marks);
        if (last > waited)
            op->after = waited = last;
    }
}

static bool is_read_later(const cp_program *program, int64_t n, int slot) {
    for (; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        if (op->kind == CP_OP_ATTEND && op->out.slot == slot)
            return false;
        if (op->kind == CP_OP_ALL_TO_ALL || op->in.slot == slot ||
            op->out.slot == slot)
            return true;
    }
    return false;
}

static void link_merges(const cp_plan *plan, int rank) {
    const cp_program *program = &plan->programs[rank];
    for (int64_t n = 0; n + 1 < program->count; n++) {
        cp_op *op = &program->ops[n];
        op->merged = op->kind == CP_OP_ATTEND && op[1].kind == CP_OP_MERGE &&
                     op[1].in.slot == op->out.slot &&
                     op->out.slot != plan->result &&
                     !is_read_later(program, n + 2, op->out.slot);
    }
}

static cp_status link_rank(const cp_plan *plan, int rank, mark *marks) {
    const cp_program *program = &plan->programs[rank];
    for (int64_t n = 0; n < program->count; n++) {
        cp_op *op = &program->ops[n];
        op->sent_to = op->got_from = op->ends = -1;
        op->merged = false;
    }
    link_queues(plan, rank, marks);
    link_merges(plan, rank);
    return link_waits(program, rank);
}

static cp_status link_all(const cp_plan *plan, mark *marks, int32_t *looked) {
    const int ranks = plan->layout->ranks;
    cp_status status = CP_OK;
    for (int k = 0; k < ranks && status == CP_OK; k++)
        status = link_rank(plan, k, marks);
    for (int k = 0; k < ranks && status == CP_OK; k++)
        status = link_sends(plan, k, looked);
    for (int k = 0; k < ranks && status == CP_OK; k++)
        status = refuse_unsent(plan, k);
    for (int k = 0; k < ranks && status == CP_OK; k++)
        status = link_collectives(plan, k);
    return status;
}

cp_status cp_plan_link(cp_plan *plan) {
    mark *marks = NULL;
    int32_t *looked = NULL;
    cp_status status =
        cp_allocate(&marks, plan->slot_count, sizeof(mark), "links");
    if (status == CP_OK)
        status =
            cp_allocate(&looked, plan->layout->ranks, sizeof(int32_t), "links");
    if (status == CP_OK)
        status = link_all(plan, marks, looked);
    free(marks);
    free(looked);
    return status;
}
