/* Tangled from book/16-sparse.nw; edit the chapter. */
/* A walker's operations for sparse attention. */
#ifndef CP_LISTS_H
#define CP_LISTS_H

#include "reference/attend/attend.h"
#include "plan/plan.h"

/* Where the weights of index queries are stored in their slot. Here and below,
 * slots are a rank's buffers, indexed as in the plan. */
float *cp_lists_weights(const cp_plan *plan, void *const *slots, int slot);

/* Run a select and, if merge is not NULL, the merge that follows it. Fails with
 * CP_MEMORY. */
cp_status cp_lists_select(const cp_plan *plan, void *const *slots, int threads,
                          const cp_op *op, const cp_op *merge);

/* Merge lists; append a list to its queries. Neither fails. */
cp_status cp_lists_merge(const cp_plan *plan, void *const *slots,
                         const cp_op *op);
cp_status cp_lists_pack(const cp_plan *plan, void *const *slots,
                        const cp_op *op);

/* Attend to the keys whose positions the queries carry. Fails as
 * cp_attend_chosen. */
cp_status cp_lists_attend(const cp_plan *plan, void *const *slots,
                          const cp_op *op, const cp_attention *call);

#endif
