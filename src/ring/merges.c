/* Tangled from book/05-walk.nw; edit the chapter. */
/* Find attends whose merge can be done on the way. */
#include "ring/merges.h"

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

void cp_plan_find_merges(const cp_plan *plan, int rank, bool *in_one) {
    const cp_program *program = &plan->programs[rank];
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        in_one[n] = n + 1 < program->count && op->kind == CP_OP_ATTEND &&
                    op[1].kind == CP_OP_MERGE &&
                    op[1].in.slot == op->out.slot &&
                    op->out.slot != plan->result &&
                    !is_read_later(program, n + 2, op->out.slot);
    }
}
