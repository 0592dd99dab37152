/* Tangled from book/09-decode.nw; edit the chapter. */
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

cp_status cp_plan_build(cp_variant variant, const cp_layout *layout,
                        const cp_shape *shape, const cp_plan_options *options,
                        cp_plan **out) {
    *out = NULL;
    if (variants[variant].build == NULL)
        return cp_refuse("a plan needs a variant that has been chosen");
    CP_TRY(cp_plan_new(variants[variant].build, layout, shape, options, out));
    (*out)->variant = variant;
    return CP_OK;
}
