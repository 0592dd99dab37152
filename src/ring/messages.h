/* Tangled from book/17-wire.nw; edit the chapter. */
/* What of a plan's slots is written to be sent, and what lies in them. */
#ifndef CP_MESSAGES_H
#define CP_MESSAGES_H

#include "ring/plan.h"

/* What lies in a slot that is sent: one tensor of rows of a head, or two, the
 * second right behind the first; and what travels as it is. */
typedef struct {
    cp_writing writing;
    int64_t rows, dims[2]; /* numbers of a row; 0: there is no second */
    int64_t number;        /* bytes of one, where it is held */
    int64_t rest;          /* bytes behind the tensors */
} cp_slot_tensors;
cp_slot_tensors cp_slot_tensors_of(const cp_plan *plan, int slot);

/* Does a rank write what an operation sends out of a slot, or read what comes
 * into it? It does not if that is sent as it is held, or is passed on as it
 * came. */
bool cp_op_rewrites(const cp_plan *plan, int rank, const cp_op *op,
                    cp_touch touch);

/* Does who sends this slot go on with what the others got? Then it reads its
 * own message. */
bool cp_slot_is_read_back(const cp_plan *plan, int slot);

/* The slots beside which a rank has a message: rewritten[slot_count]. */
void cp_plan_slots_rewritten(const cp_plan *plan, int rank, bool *rewritten);

#endif
