/* Tangled from book/05-walk.nw; edit the chapter. */
/* Which merges of a plan need no pass of their own. */
#ifndef CP_MERGES_H
#define CP_MERGES_H

#include "ring/plan.h"

/* Which operations of a rank are an attend whose kernel may do the merge that
 * follows as well, because nobody else reads what would lie in between?
 * in_one has an entry for each operation. */
void cp_plan_find_merges(const cp_plan *plan, int rank, bool *in_one);

#endif
