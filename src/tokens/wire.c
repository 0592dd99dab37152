/* Tangled from book/17-wire.nw; edit the chapter. */
/* Wire formats of numbers: names and sizes. */
#include "tokens/wire.h"

const char *cp_wire_names(void) {
    return "fp32|bf16|fp8|int8";
}

cp_encoding cp_wire_encoding(cp_wire wire, cp_payload payload, int64_t held) {
    static const cp_encoding keys[] = {CP_ENCODING_NONE, CP_ENCODING_BF16,
                                       CP_ENCODING_FP8, CP_ENCODING_INT8};
    if (payload != CP_PAYLOAD_KEYS)
        return wire == CP_WIRE_FP32 || held <= 2 ? CP_ENCODING_NONE
                                                 : CP_ENCODING_BLOCK;
    return wire == CP_WIRE_BF16 && held <= 2 ? CP_ENCODING_NONE : keys[wire];
}

int64_t cp_encoding_bytes(cp_encoding encoding, int64_t dim, int64_t held) {
    const int64_t scale = encoding == CP_ENCODING_BF16 ? 0 : 4;
    const bool one =
        encoding == CP_ENCODING_FP8 || encoding == CP_ENCODING_INT8;
    if (encoding == CP_ENCODING_NONE || dim == 0)
        return dim * held;
    return scale + cp_ceil_divide(dim * (one ? 1 : 2), 4) * 4;
}

cp_head_bytes cp_head_bytes_of(cp_wire wire, const cp_shape *shape,
                               int64_t held) {
    const int64_t dim = shape->head_dim, value = cp_value_dim(shape);
    const cp_encoding keys = cp_wire_encoding(wire, CP_PAYLOAD_KEYS, held);
    const cp_encoding query = cp_wire_encoding(wire, CP_PAYLOAD_QUERIES, held);
    const cp_encoding partial =
        cp_wire_encoding(wire, CP_PAYLOAD_PARTIALS, CP_PARTIAL_BYTES);
    return (cp_head_bytes){
        cp_encoding_bytes(keys, dim, held) +
            cp_encoding_bytes(keys, shape->latent ? 0 : value, held),
        cp_encoding_bytes(query, dim, held),
        cp_encoding_bytes(partial, value, CP_PARTIAL_BYTES) + CP_PARTIAL_BYTES};
}
