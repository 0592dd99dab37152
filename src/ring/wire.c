/* Tangled from book/17-wire.nw; edit the chapter. */
/* Wire formats of numbers: names and sizes. */
#include "ring/wire.h"

const char *cp_wire_names(void) {
    return "fp32|bf16|fp8|int8";
}

cp_writing cp_wire_writing(cp_wire wire, cp_cargo cargo, int64_t held) {
    static const cp_writing keys[] = {CP_WRITING_NONE, CP_WRITING_BF16,
                                      CP_WRITING_FP8, CP_WRITING_INT8};
    if (cargo != CP_CARGO_KEYS)
        return wire == CP_WIRE_FP32 || held <= 2 ? CP_WRITING_NONE
                                                 : CP_WRITING_BLOCK;
    return wire == CP_WIRE_BF16 && held <= 2 ? CP_WRITING_NONE : keys[wire];
}

int64_t cp_writing_bytes(cp_writing writing, int64_t dim, int64_t held) {
    const int64_t scale = writing == CP_WRITING_BF16 ? 0 : 4;
    const bool one = writing == CP_WRITING_FP8 || writing == CP_WRITING_INT8;
    if (writing == CP_WRITING_NONE || dim == 0)
        return dim * held;
    return scale + cp_ceil_divide(dim * (one ? 1 : 2), 4) * 4;
}

cp_head_bytes cp_head_bytes_of(cp_wire wire, const cp_shape *shape,
                               int64_t held) {
    const int64_t dim = shape->head_dim, value = cp_value_dim(shape);
    const cp_writing keys = cp_wire_writing(wire, CP_CARGO_KEYS, held);
    const cp_writing query = cp_wire_writing(wire, CP_CARGO_QUERIES, held);
    const cp_writing partial =
        cp_wire_writing(wire, CP_CARGO_PARTIALS, CP_PARTIAL_BYTES);
    return (cp_head_bytes){
        cp_writing_bytes(keys, dim, held) +
            cp_writing_bytes(keys, shape->latent ? 0 : value, held),
        cp_writing_bytes(query, dim, held),
        cp_writing_bytes(partial, value, CP_PARTIAL_BYTES) + CP_PARTIAL_BYTES};
}
