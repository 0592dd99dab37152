/* Tangled from book/06-pass-kv.nw; edit the chapter. */
/* All-gather KV: every rank first gets everybody's keys and values, then
 * attends. The baseline that the rings are measured against. */
#include "ring/plan.h"

static void program(cp_plan *plan, int k, int own, int gathered, int scratch) {
    const int ranks = plan->layout->ranks;
    const cp_use queries = {plan->queries, k}, result = {plan->result, k};
    cp_emit_append(plan, k);
    if (ranks > 1) {
        cp_emit_pack(plan, k, (cp_use){own, k});
        cp_emit_all_gather(plan, k, (cp_use){own, k}, gathered);
    }
    cp_emit_attend(plan, k, 0, queries, (cp_use){plan->cache, k}, result);
    for (int hop = 1; hop < ranks; hop++) {
        /* Attend to one of the gathered blocks. */
        const int s = (k - hop + ranks) % ranks;
        cp_emit_attend(plan, k, hop, queries, (cp_use){gathered + s, s},
                       (cp_use){scratch, k});
        cp_emit_merge(plan, k, hop, (cp_use){scratch, k}, result);
    }
}

cp_status cp_plan_all_gather(const cp_layout *layout, const cp_shape *shape,
                             const cp_plan_options *options, cp_plan **out) {
    cp_plan *plan = cp_plan_begin(CP_ALL_GATHER, layout, shape, options);
    if (plan == NULL)
        return CP_MEMORY;
    const int own = cp_plan_add_slots(plan, CP_SLOT_KEYS, 1);
    const int gathered = cp_plan_add_slots(plan, CP_SLOT_KEYS, layout->ranks);
    const int scratch = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    for (int k = 0; k < layout->ranks; k++)
        program(plan, k, own, gathered, scratch);
    return cp_plan_finish(plan, out);
}
