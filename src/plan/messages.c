/* Tangled from book/17-wire.nw; edit the chapter. */
/* Which slots of a plan are encoded to be sent. */
#include "plan/messages.h"

#include <string.h>

cp_slot_tensors cp_slot_tensors_of(const cp_plan *plan, int number) {
    const cp_slot *slot = &plan->slots[number];
    return (cp_slot_tensors){
        slot->rows,
        {cp_plan_tensor(plan, slot->kind, slot->parts, 0),
         cp_plan_tensor(plan, slot->kind, slot->parts, 1)}};
}

bool cp_op_encodes(const cp_plan *plan, int rank, const cp_op *op,
                   cp_touch touch) {
    const bool passed = op->kind == CP_OP_EXCHANGE && !touch.writes &&
                        plan->slots[touch.slot].kind != CP_SLOT_PARTIAL &&
                        op->in.origin != rank;
    return cp_op_talks(op) && !passed &&
           cp_slot_encoding(plan, touch.slot) != CP_ENCODING_NONE;
}

bool cp_slot_is_read_back(const cp_plan *plan, int slot) {
    return plan->slots[slot].kind == CP_SLOT_PARTIAL &&
           plan->ends == CP_OWN_ALL;
}

void cp_plan_slots_encoded(const cp_plan *plan, int rank, bool *rewritten) {
    const cp_program *program = &plan->programs[rank];
    cp_touch touch;
    memset(rewritten, 0, (size_t)plan->slot_count * sizeof(*rewritten));
    for (int64_t n = 0; n < program->count; n++)
        for (int i = 0; cp_op_touch(plan, rank, &program->ops[n], i, &touch);
             i++)
            rewritten[touch.slot] |=
                cp_op_encodes(plan, rank, &program->ops[n], touch);
}
