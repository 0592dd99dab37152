/* Tangled from book/17-exact.nw; edit the chapter. */
/* In exact order a partial is a list of nodes of the tree over all leaves
 * (leaves.h): those that make up its keys. A merge joins two lists, and
 * siblings become their parent at once. So the ranks whose keys a partial has
 * met determine which nodes it holds, in whatever order it met them. */
#ifndef CP_NODE_LISTS_H
#define CP_NODE_LISTS_H

#include "tokens/leaves.h"
#include "plan/plan.h"

/* Bytes of one node in a slot of partials. */
int64_t cp_plan_node_bytes(const cp_plan *plan, int slot);

/* The last step of building a plan in exact order: follow which leaves each
 * slot holds, give each slot room for the nodes it must hold, and each message
 * room only for those it carries. Fails with CP_INVALID for a plan that has no
 * exact order, else as cp_node_lists_check and cp_plan_order do, and with
 * CP_MEMORY. */
cp_status cp_node_lists_fit(cp_plan *plan);

/* Apply an operation of a rank to the sets of leaves that its slots hold,
 * [slot_count]. Operations come in the order of its program. */
void cp_node_lists_note(const cp_plan *plan, int rank, const cp_op *op,
                        uint32_t *held);

/* Follow the sets again. Fails with CP_BROKEN if a rank holds a key outside its
 * leaves, if a slot is too small, if an exchange receives leaves other than
 * those it names, or if a result is not the root alone. */
cp_status cp_node_lists_check(const cp_plan *plan);

#endif
