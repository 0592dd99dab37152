/* Tangled from book/13-streams.nw; edit the chapter. */
/* Find where two queues must meet. */
#include "ring/joints.h"

#include <stdlib.h>

typedef struct {
    int64_t read, written; /* by which computation, last; -1 = by none */
} touch;

static bool communicates(const cp_op *op) {
    return op->kind == CP_OP_EXCHANGE || op->kind == CP_OP_ALL_TO_ALL ||
           op->kind == CP_OP_ALL_GATHER;
}

static int64_t look(const cp_op_slots *slots, const touch *touched) {
    int64_t last = -1;
    for (int i = 0; i < slots->read_count; i++)
        last = cp_max(last, touched[slots->read[i]].written);
    for (int i = 0; i < slots->write_count; i++) {
        const touch *slot = &touched[slots->write[i]];
        last = cp_max(last, cp_max(slot->written, slot->read));
    }
    return last;
}

static void mark(const cp_op_slots *slots, touch *touched, int64_t n) {
    for (int i = 0; i < slots->read_count; i++)
        touched[slots->read[i]].read = n;
    for (int i = 0; i < slots->write_count; i++)
        touched[slots->write[i]].written = n;
}

static void go(const cp_plan *plan, int rank, touch *touched,
               cp_op_slots *slots, int64_t *after, int64_t *ends) {
    const cp_program *program = &plan->programs[rank];
    int64_t oldest = 0, waited = -1;
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        after[n] = ends[n] = -1;
        cp_op_slots_list(plan, rank, op, slots);
        if (op->kind == CP_OP_WAIT) {
            while (program->ops[oldest].kind != CP_OP_EXCHANGE)
                oldest++;
            ends[n] = oldest++;
        } else if (communicates(op)) {
            const int64_t last = look(slots, touched);
            after[n] = last > waited ? last : -1;
            waited = cp_max(waited, last);
        } else {
            mark(slots, touched, n);
        }
    }
}

cp_status cp_plan_joints(const cp_plan *plan, int rank, int64_t *after,
                         int64_t *ends) {
    const int room = plan->layout->ranks + 2;
    touch *touched = NULL;
    int *lists = NULL;
    cp_status status =
        cp_allocate(&touched, plan->slot_count, sizeof(touch), "touched slots");
    if (status == CP_OK)
        status = cp_allocate(&lists, 2 * room, sizeof(int), "slots");
    for (int slot = 0; status == CP_OK && slot < plan->slot_count; slot++)
        touched[slot] = (touch){-1, -1};
    cp_op_slots slots = {.read = lists, .write = lists + room};
    if (status == CP_OK)
        go(plan, rank, touched, &slots, after, ends);
    free(touched);
    free(lists);
    return status;
}
