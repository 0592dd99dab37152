/* Tangled from book/17-exact.nw; edit the chapter. */
/* In exact order a partial is a forest: of a tree over all leaves (leaves.h)
 * the nodes that its keys are together. A merge unites two forests, and
 * siblings become their parent at once; so what a partial holds follows from
 * the ranks whose keys it has met, whatever the order. */
#ifndef CP_FOREST_H
#define CP_FOREST_H

#include "ring/leaves.h"
#include "ring/plan.h"

/* Bytes of one node in a slot of partials. */
int64_t cp_plan_node_bytes(const cp_plan *plan, int slot);

/* The last act of building a plan in exact order: follow which leaves each slot
 * holds, and give each as many nodes as it must hold, messages as few as
 * travel. Fails with CP_INVALID for what has no exact order, else as
 * cp_forest_check and cp_plan_order do, and for want of memory. */
cp_status cp_forest_fit(cp_plan *plan);

/* What an operation of a rank makes of the leaves that its slots hold,
 * [slot_count], in the order of its program. */
void cp_forest_note(const cp_plan *plan, int rank, const cp_op *op,
                    uint32_t *held);

/* Follow them again: fails with CP_BROKEN if a rank holds a key of no leaf of
 * its own, if a slot is too small, if an exchange receives other leaves than it
 * says, or if a result is not the root alone. */
cp_status cp_forest_check(const cp_plan *plan);

#endif
