/* Tangled from book/09-decode.nw; edit the chapter. */
/* The variants of ring attention by name, and a plan for each. */
#ifndef CP_VARIANTS_H
#define CP_VARIANTS_H

#include "plan/plan.h"

/* From a variant to "pass-kv" and so on, and back; false if unknown. */
const char *cp_variant_name(cp_variant variant);
bool cp_variant_parse(const char *name, cp_variant *variant);

/* All names, in their order: "auto|pass-kv|...". */
const char *cp_variant_names(void);

/* The use of a variant, in a line; is it for a decode step, with one new token
 * per sequence? */
const char *cp_variant_use(cp_variant variant);
bool cp_variant_decodes(cp_variant variant);

/* Build the plan of a variant as cp_plan_new does. CP_AUTO is refused here:
 * choosing needs a machine (cp_choose). */
cp_status cp_plan_build(cp_variant variant, const cp_layout *layout,
                        const cp_shape *shape, const cp_plan_options *options,
                        cp_plan **out);

#endif
