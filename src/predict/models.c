/* Tangled from book/15-machines.nw; edit the chapter. */
/* Model descriptions: the fields, and what follows from them. */
#include "predict/models.h"

#define AT(field) offsetof(cp_model_sizes, field)
static const cp_field fields[CP_MODEL_FIELDS] = {
    {"layers", CP_FIELD_COUNT, AT(layers), "layers", 1, true, "blocks"},
    {"width", CP_FIELD_COUNT, AT(width), "numbers", 1, true,
     "of a token between layers"},
    {"inner", CP_FIELD_COUNT, AT(inner), "numbers", 1, true,
     "of a token in the feed-forward part"},
    {"query_heads", CP_FIELD_COUNT, AT(query_heads), "heads", 1, true,
     "heads of queries"},
    {"kv_heads", CP_FIELD_COUNT, AT(kv_heads), "heads", 1, true,
     "heads of keys and values"},
    {"head_dim", CP_FIELD_COUNT, AT(head_dim), "numbers", 1, true, "of a head"},
    {"vocabulary", CP_FIELD_COUNT, AT(vocabulary), "tokens", 1, true,
     "different tokens"},
    {"positions", CP_FIELD_COUNT, AT(positions), "tokens", 1, true,
     "that it was trained for"},
    {"parameters", CP_FIELD_COUNT, AT(parameters), "numbers", 1, true,
     "weights, as its makers count"},
    {"tables", CP_FIELD_COUNT, AT(tables), "tables", 1, true,
     "1: embedding and head are one"},
    {"attention_bits", CP_FIELD_POSITIVE, AT(attention_bits), "bits", 1, true,
     "of a weight of q, k, v, o"},
    {"inner_bits", CP_FIELD_POSITIVE, AT(inner_bits), "bits", 1, true,
     "of a weight of the feed-forward part"},
    {"head_bits", CP_FIELD_POSITIVE, AT(head_bits), "bits", 1, true,
     "of a weight of embedding and head"},
    {"cache_bytes", CP_FIELD_COUNT, AT(cache_bytes), "B", 1, true,
     "of a number of queries, keys and values"},
};
#undef AT

cp_shape cp_model_sizes_shape(const cp_model_sizes *facts) {
    return (cp_shape){facts->query_heads, facts->kv_heads, facts->head_dim};
}

double cp_model_attention_bytes(const cp_model_sizes *facts) {
    const double width = (double)facts->width, dim = (double)facts->head_dim;
    const double heads =
        2 * (double)facts->query_heads + 2 * (double)facts->kv_heads;
    return width * heads * dim * facts->attention_bits / 8;
}

double cp_model_inner_bytes(const cp_model_sizes *facts) {
    return 3 * (double)facts->width * (double)facts->inner * facts->inner_bits /
           8;
}

double cp_model_head_bytes(const cp_model_sizes *facts) {
    return (double)facts->width * (double)facts->vocabulary * facts->head_bits /
           8;
}

double cp_model_key_bytes(const cp_model_sizes *facts) {
    return 2 * (double)facts->kv_heads * (double)facts->head_dim *
           (double)facts->cache_bytes;
}

static cp_status checked(cp_status status, const cp_model_sizes *sizes,
                         const char *label) {
    const cp_shape shape = cp_model_sizes_shape(sizes);
    char why[200] = "";
    if (status != CP_OK)
        return status;
    if (sizes->layers > 100000)
        snprintf(why, sizeof(why), "layers: more than 100000");
    else if (sizes->cache_bytes > 8)
        snprintf(why, sizeof(why), "cache_bytes: more than 8");
    else if (sizes->tables > 2)
        snprintf(why, sizeof(why), "tables: more than 2");
    else if (cp_shape_check(&shape) != CP_OK)
        snprintf(why, sizeof(why), "query_heads, kv_heads: %s", cp_message());
    return why[0] == '\0' ? CP_OK : cp_fail(CP_INVALID, "%s: %s", label, why);
}

cp_status cp_model_sizes_parse(const char *label, const char *text,
                               cp_model_sizes *facts) {
    *facts = (cp_model_sizes){.name = ""};
    const cp_description description = {
        "model", fields, CP_MODEL_FIELDS, facts, facts->origins, facts->name};
    return checked(cp_description_parse(&description, label, text), facts,
                   label);
}

cp_status cp_model_sizes_read(const char *name, cp_model_sizes *facts) {
    *facts = (cp_model_sizes){.name = ""};
    const cp_description description = {
        "model", fields, CP_MODEL_FIELDS, facts, facts->origins, facts->name};
    return checked(cp_description_read(&description, name), facts, name);
}
