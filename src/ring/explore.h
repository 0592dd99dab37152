/* Tangled from book/05-proof.nw; edit the chapter. */
/* Visit every interleaving of a small plan. */
#ifndef CP_EXPLORE_H
#define CP_EXPLORE_H

#include "ring/plan.h"

/* Visit every interleaving of a plan's operations and transfers. Fails with
 * CP_BROKEN if one of them deadlocks or touches a slot in flight, with
 * CP_INVALID if a rank has more than 64 operations, and with CP_CAPACITY if
 * there are more than most states. states may be NULL. */
cp_status cp_plan_explore(const cp_plan *plan, int64_t most, int64_t *states);

#endif
