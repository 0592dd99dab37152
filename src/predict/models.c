/* Tangled from book/15-machines.nw; edit the chapter. */
/* Model descriptions, read by the table of fields. */
#include "predict/models.h"

cp_shape cp_model_sizes_shape(const cp_model_sizes *sizes) {
    return (cp_shape){sizes->query_heads, sizes->kv_heads, sizes->head_dim};
}

static cp_description description_of(cp_model_sizes *sizes) {
#define ROW(...) CP_FIELD_ROW(cp_model_sizes, __VA_ARGS__)
    static const cp_field fields[] = {CP_MODEL(ROW)};
#undef ROW
    *sizes = (cp_model_sizes){.name = ""};
    return (cp_description){"model", fields,         CP_MODEL_FIELDS,
                            sizes,   sizes->origins, sizes->name};
}

static cp_status check(const cp_model_sizes *sizes, const char *label) {
    const cp_shape shape = cp_model_sizes_shape(sizes);
    if (sizes->layers > 100000)
        return cp_fail(CP_INVALID, "%s: layers: more than 100000", label);
    if (sizes->cache_bytes > 8)
        return cp_fail(CP_INVALID, "%s: cache_bytes: more than 8", label);
    if (sizes->tables > 2)
        return cp_fail(CP_INVALID, "%s: tables: more than 2", label);
    if (cp_shape_check(&shape) != CP_OK)
        return cp_fail(CP_INVALID, "%s: query_heads, kv_heads: %s", label,
                       cp_message());
    return CP_OK;
}

cp_status cp_model_sizes_parse(const char *label, const char *text,
                               cp_model_sizes *sizes) {
    const cp_description description = description_of(sizes);
    CP_TRY(cp_description_parse(&description, label, text));
    return check(sizes, label);
}

cp_status cp_model_sizes_read(const char *name, cp_model_sizes *sizes) {
    const cp_description description = description_of(sizes);
    CP_TRY(cp_description_read(&description, name));
    return check(sizes, name);
}
