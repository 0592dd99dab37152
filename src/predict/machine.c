/* Tangled from book/15-machines.nw; edit the chapter. */
/* Reads and writes machines and models by their tables of fields. */
#include "predict/machine.h"

cp_description cp_hardware_description(cp_hardware *hardware) {
#define ROW(...) CP_FIELD_ROW(cp_hardware, __VA_ARGS__)
    static const cp_field fields[] = {CP_HARDWARE(ROW)};
#undef ROW
    return (cp_description){"machine",          fields,
                            CP_HARDWARE_FIELDS, hardware,
                            hardware->origins,  hardware->name};
}

cp_status cp_hardware_read(const char *label, const char *text,
                           cp_hardware *hardware) {
    *hardware = (cp_hardware){.name = ""};
    const cp_description description = cp_hardware_description(hardware);
    return cp_description_parse(&description, label, text);
}

void cp_hardware_write(const cp_hardware *hardware, FILE *out) {
    cp_hardware copy = *hardware;
    const cp_description description = cp_hardware_description(&copy);
    cp_description_write(&description, out);
}

static cp_status experts_check(const char *label, const cp_model_sizes *sizes) {
    const int64_t experts = sizes->experts;
    if (sizes->experts_used > experts ||
        (experts > 0) != (sizes->experts_used > 0))
        return cp_refuse("%s: experts_used: %ld of %ld experts", label,
                         sizes->experts_used, experts);
    if ((experts > 0) != (sizes->expert_inner > 0))
        return cp_refuse("%s: expert_inner: %ld numbers of %ld experts", label,
                         sizes->expert_inner, experts);
    if (sizes->dense_layers > sizes->layers)
        return cp_refuse("%s: dense_layers: %ld of %ld layers", label,
                         sizes->dense_layers, sizes->layers);
    return CP_OK;
}

static cp_status latent_check(const char *label, const cp_model_sizes *sizes) {
    if (sizes->latent == 0 && (sizes->rotary > 0 || sizes->query_rank > 0))
        return cp_refuse("%s: rotary, query_rank: without a latent; set latent",
                         label);
    if (sizes->rotary >= sizes->head_dim)
        return cp_refuse("%s: rotary: %ld of the %ld numbers of a head", label,
                         sizes->rotary, sizes->head_dim);
    return CP_OK;
}

cp_shape cp_model_sizes_shape(const cp_model_sizes *sizes) {
    const int64_t heads = sizes->query_heads, kv_heads = sizes->kv_heads;
    if (sizes->latent > 0)
        return (cp_shape){
            heads,         kv_heads, sizes->latent + sizes->rotary,
            sizes->latent, true,     sizes->window};
    return (cp_shape){heads, kv_heads,     sizes->head_dim, sizes->value_dim,
                      false, sizes->window};
}

cp_status cp_model_sizes_read(const char *label, const char *text,
                              cp_model_sizes *sizes) {
#define ROW(...) CP_FIELD_ROW(cp_model_sizes, __VA_ARGS__)
    static const cp_field fields[] = {CP_MODEL(ROW)};
#undef ROW
    const cp_description description = {
        "model", fields, CP_MODEL_FIELDS, sizes, sizes->origins, sizes->name};
    *sizes = (cp_model_sizes){.name = ""};
    CP_TRY(cp_description_parse(&description, label, text));
    const cp_shape shape = cp_model_sizes_shape(sizes);
    if (sizes->layers > 100000)
        return cp_refuse("%s: layers: more than 100000", label);
    if (cp_attention_layers(sizes) < 1)
        return cp_refuse("%s: state_layers: all layers; one or more must "
                         "attend",
                         label);
    if (sizes->cache_bytes > 8)
        return cp_refuse("%s: cache_bytes: more than 8", label);
    if (sizes->tables > 2)
        return cp_refuse("%s: tables: more than 2", label);
    if (cp_shape_check(&shape) != CP_OK)
        return cp_refuse("%s: query_heads, kv_heads: %s", label, cp_message());
    CP_TRY(latent_check(label, sizes));
    return experts_check(label, sizes);
}
