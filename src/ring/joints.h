/* Tangled from book/13-streams.nw; edit the chapter. */
/* Where two queues that walk one program must meet. The plan's own waits are
 * one half of that; here is the other. */
#ifndef CP_JOINTS_H
#define CP_JOINTS_H

#include "ring/plan.h"

/* After which computation may each communication of a rank's program start?
 * after[n], for each operation n that is an exchange or a collective, becomes
 * the number of an append, pack, attend or merge before it, the last one that
 * writes what n sends or touches what n receives; or -1 if nothing does, or if
 * an earlier communication waits for as much. For other operations it is -1.
 * ends[n], for a wait, becomes the number of the exchange that it waits for; -1
 * elsewhere. Both hold an entry for each operation. Fails with CP_MEMORY. */
cp_status cp_plan_joints(const cp_plan *plan, int rank, int64_t *after,
                         int64_t *ends);

#endif
