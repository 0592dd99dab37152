/* Tangled from book/09-decode.nw; edit the chapter. */
/* The variants of ring attention: names, builders and uses. */
#include "variants/variants.h"

#include <stdio.h>
#include <string.h>

#include "plan/build.h"

static const struct {
    const char *name;
    cp_plan_builder *build;
    bool decodes;
    const char *use;
} variants[CP_VARIANTS] = {
    [CP_AUTO] = {"auto", NULL, false, "the ring that is expected to be faster"},
    [CP_PASS_KV] = {"pass-kv", cp_plan_pass_kv, false,
                    "many new tokens: keys and values go round"},
    [CP_PASS_Q] = {"pass-q", cp_plan_pass_q, false,
                   "few new tokens, many cached: queries go round"},
    [CP_ALL_GATHER] = {"all-gather", cp_plan_all_gather, false,
                       "for comparison: each rank gets all keys first"},
    [CP_DECODE] = {"decode", cp_plan_decode, true,
                   "one new token per sequence"},
    /* The variants of other systems. */
    [CP_ULYSSES] =
        {"ulysses", cp_plan_ulysses, false,
         "heads for tokens, and back: each rank has some heads of all"},
    [CP_MESH] =
        {"mesh", cp_plan_mesh, false,
         "heads for tokens within a host, keys and values round the hosts"},
    [CP_GATHER_Q] = {"gather-q", cp_plan_gather_q, true,
                     "decode: all get all queries, partials return at once"},
    [CP_SCATTER_Q] = {"scatter-q", cp_plan_scatter_q, true,
                      "decode: the same, with partials summed on the way"},
    [CP_GATHER_O] = {"gather-o", cp_plan_gather_o, true,
                     "decode: all have all queries, and get all partials"},
    [CP_TREE] = {"tree", cp_plan_tree, true,
                 "decode: the same, in doubling steps"},
    [CP_HELIX] = {"helix", cp_plan_helix, true,
                  "decode: all have all queries, and get some heads' answers"},
};

static cp_plan_builder *const sparse[CP_VARIANTS] = {
    [CP_PASS_KV] = cp_plan_sparse_kv,
    [CP_PASS_Q] = cp_plan_sparse_q,
    [CP_ALL_GATHER] = cp_plan_sparse_gather,
    [CP_DECODE] = cp_plan_sparse_decode,
};

const char *cp_variant_name(cp_variant variant) {
    return variants[variant].name;
}

const char *cp_variant_use(cp_variant variant) {
    return variants[variant].use;
}

bool cp_variant_decodes(cp_variant variant) {
    return variants[variant].decodes;
}

const char *cp_variant_names(void) {
    static char names[32 * CP_VARIANTS];
    int64_t at = 0;
    for (int n = 0; n < CP_VARIANTS; n++)
        at += snprintf(names + at, sizeof(names) - (size_t)at, "%s%s",
                       n > 0 ? "|" : "", variants[n].name);
    return names;
}

bool cp_variant_parse(const char *name, cp_variant *variant) {
    for (int n = 0; n < CP_VARIANTS; n++)
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
        return cp_refuse("a plan needs a variant; choose one first");
    const bool chosen = options != NULL && options->indexer.top_k > 0;
    if (chosen && sparse[variant] == NULL)
        return cp_refuse("%s cannot attend to chosen keys alone; pass-kv, "
                         "pass-q, all-gather and decode can",
                         variants[variant].name);
    if (shape->window > 0 && chosen)
        return cp_refuse("a window of %ld tokens does not go with chosen keys",
                         shape->window);
    cp_plan_builder *build = chosen ? sparse[variant] : variants[variant].build;
    if (shape->window > 0 && variant == CP_PASS_KV && !layout->leaves)
        build = cp_plan_window;
    CP_TRY(cp_plan_new(build, layout, shape, options, out));
    (*out)->variant = variant;
    return CP_OK;
}
