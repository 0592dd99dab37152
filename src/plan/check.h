/* Tangled from book/05-proof.nw; edit the chapter. */
/* Prove that a plan is right, by its spans and slots alone. Computes no
 * attention and takes next to no time; only exploring all orders of a small
 * plan takes some. */
#ifndef CP_CHECK_H
#define CP_CHECK_H

#include "plan/report.h"

/* Prove that a plan attends each causal pair exactly once, that its sends and
 * receives match, that no slot is touched while in flight, and that it ends. On
 * success the report is filled in (free it with cp_plan_report_free). Otherwise
 * fails with CP_BROKEN, and a message that says which query missed a key or met
 * it twice, which slot was overwritten, or which rank waits for which. */
cp_status cp_plan_check(const cp_plan *plan, cp_plan_report *report);

/* Visit every interleaving of a plan's operations and transfers. Fails with
 * CP_BROKEN if one of them deadlocks or touches a slot in flight, with
 * CP_INVALID if a rank has more than 64 operations, and with CP_CAPACITY if
 * there are more than most states. states may be NULL. */
cp_status cp_plan_explore(const cp_plan *plan, int64_t most, int64_t *states);

#endif
