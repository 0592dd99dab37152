/* Tangled from book/17-wire.nw; edit the chapter. */
/* Which slots of a plan are encoded to be sent, and what they hold. */
#ifndef CP_MESSAGES_H
#define CP_MESSAGES_H

#include "plan/plan.h"

/* The contents of a slot that is sent: its tensors, one after the other. */
typedef struct {
    int64_t rows;
    cp_tensor of[2];
} cp_slot_tensors;
cp_slot_tensors cp_slot_tensors_of(const cp_plan *plan, int slot);

/* Does a rank encode what an operation sends out of a slot, or decode what
 * comes into it? It does not if the data is sent as held, or passed on
 * unchanged. */
bool cp_op_encodes(const cp_plan *plan, int rank, const cp_op *op,
                   cp_touch touch);

/* Does the sender of this slot continue with the numbers that the others got?
 * Then it decodes its own message. */
bool cp_slot_is_read_back(const cp_plan *plan, int slot);

/* The slots for which a rank has a message buffer: rewritten[slot_count]. */
void cp_plan_slots_encoded(const cp_plan *plan, int rank, bool *rewritten);

#endif
