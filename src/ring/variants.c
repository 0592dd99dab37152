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
    for (int n = CP_AUTO; n <= CP_DECODE; n++) {
        if (strcmp(name, variants[n].name) == 0) {
            *variant = (cp_variant)n;
            return true;
        }
    }
    return false;
}

cp_status cp_plan_build(cp_variant variant, const cp_layout *layout,
                        const cp_shape *shape, const cp_plan_options *options,
                        cp_plan **out) {
    *out = NULL;
    CP_TRY(cp_shape_check(shape));
    if (options != NULL && (options->spare < 1 || options->element_bytes < 1))
        return cp_fail(CP_INVALID, "%d spare slots of %ld-byte numbers",
                       options->spare, options->element_bytes);
    if (variants[variant].build == NULL)
        return cp_fail(CP_INVALID,
                       "a plan needs a variant that has been chosen");
    cp_plan *plan = cp_plan_begin(variant, layout, shape, options);
    if (plan == NULL)
        return CP_MEMORY;
    variants[variant].build(plan);
    return cp_plan_finish(plan, out);
}
