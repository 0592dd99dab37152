/* Tangled from book/07-pass-q.nw; edit the chapter. */
/* The ring of queries, shared by pass-Q prefill and by decode. */
#ifndef CP_PASS_Q_H
#define CP_PASS_Q_H

#include "ring/plan.h"

/* Build the plan of a ring of queries under the name of a variant: CP_PASS_Q
 * or CP_DECODE, which differ only in the layout and the labels. */
cp_status cp_plan_query_ring(cp_variant variant, const cp_layout *layout,
                             const cp_shape *shape,
                             const cp_plan_options *options, cp_plan **out);

#endif
