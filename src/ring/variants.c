/* Tangled from book/05-plan.nw; edit the chapter. */
/* The variants of ring attention: name, builder, and what each is for. */
#include "ring/variants.h"

#include <string.h>

#include "ring/build.h"

static const struct {
    const char *name;
    cp_plan_builder *build;
    const char *use;
} variants[] = {
    [CP_AUTO] = {"auto", NULL, "whichever ring is thought to be faster"},
    [CP_PASS_KV] = {"pass-kv", cp_plan_pass_kv,
                    "many new tokens: keys and values go round"},
    [CP_PASS_Q] = {"pass-q", cp_plan_pass_q,
                   "few new tokens, many cached: queries go round"},
    [CP_ALL_GATHER] = {"all-gather", cp_plan_all_gather,
                       "to compare with: everybody gets all keys first"},
    [CP_DECODE] = {"decode", cp_plan_decode, "one new token a sequence"},
};

const char *cp_variant_name(cp_variant variant) {
    return variants[variant].name;
}

const char *cp_variant_use(cp_variant variant) {
    return variants[variant].use;
}

bool cp_variant_parse(const char *name, cp_variant *variant) {
    for (int n = CP_AUTO; n <= CP_DECODE; n++)
        if (strcmp(name, variants[n].name) == 0) {
            *variant = (cp_variant)n;
            return true;
        }
    return false;
}

static void begin(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    plan->labelled = plan->variant == CP_DECODE;
    plan->status =
        cp_allocate(&plan->programs, ranks, sizeof(cp_program), "programs");
    if (ranks > INT16_MAX)
        plan->status =
            cp_refuse("%d ranks; a plan can name %d", ranks, INT16_MAX);
    plan->cache = cp_plan_add_slots(plan, CP_SLOT_CACHE, 1);
    plan->fresh = cp_plan_add_slots(plan, CP_SLOT_NEW, 1);
    plan->queries = cp_plan_add_slots(plan, CP_SLOT_QUERIES, 1);
    plan->result = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    for (int k = 0; k < ranks; k++)
        cp_emit(plan, k, 0, CP_OP_APPEND, cp_use_of(plan->fresh, k),
                cp_use_of(plan->cache, k));
}

cp_status cp_plan_build(cp_variant variant, const cp_layout *layout,
                        const cp_shape *shape, const cp_plan_options *options,
                        cp_plan **out) {
    static const cp_plan_options usual = {.element_bytes = 4, .spare = 1};
    const cp_plan_options *wanted = options != NULL ? options : &usual;
    cp_plan *plan;
    *out = NULL;
    CP_TRY(cp_shape_check(shape));
    if (wanted->spare < 1 || wanted->element_bytes < 1)
        return cp_refuse("%d spare slots of %ld-byte numbers", wanted->spare,
                         wanted->element_bytes);
    if (variants[variant].build == NULL)
        return cp_refuse("a plan needs a variant that has been chosen");
    CP_TRY(cp_allocate(&plan, 1, sizeof(*plan), "a plan"));
    *plan = (cp_plan){.variant = variant,
                      .shape = *shape,
                      .layout = layout,
                      .element_bytes = wanted->element_bytes,
                      .spare = wanted->spare};
    begin(plan);
    variants[variant].build(plan);
    const cp_status status =
        plan->status == CP_OK ? cp_plan_link(plan) : plan->status;
    if (status == CP_OK)
        *out = plan;
    else
        cp_plan_free(plan);
    return status;
}
