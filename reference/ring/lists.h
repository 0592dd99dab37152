/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Sparse attention as operations of a walker. */
#ifndef CP_LISTS_H
#define CP_LISTS_H

#include "reference/attend/attend.h"
#include "ring/plan.h"

/* Slots are a rank's, by their numbers in the plan. Where the weights of index
 * queries lie in theirs. */
float *cp_lists_weights(const cp_plan *plan, void *const *slots, int slot);

/* A select, and with merge, if it is not NULL, the merge behind it. Fails with
 * CP_MEMORY. */
cp_status cp_lists_select(const cp_plan *plan, void *const *slots, int threads,
                          const cp_op *op, const cp_op *merge);

/* A merge of lists; and a pack of one behind its queries. */
cp_status cp_lists_merge(const cp_plan *plan, void *const *slots,
                         const cp_op *op);
cp_status cp_lists_pack(const cp_plan *plan, void *const *slots,
                        const cp_op *op);

/* An attend, to what its queries carry. */
cp_status cp_lists_attend(const cp_plan *plan, void *const *slots,
                          const cp_op *op, const cp_attention *call);

#endif
