/* Tangled from book/16-unlike.nw; edit the chapter. */
/* How keys and values are written to be sent: names and sizes. */
#include "ring/wire.h"

const char *cp_wire_names(void) {
    return "plain|int8";
}

int64_t cp_wire_bytes(cp_wire wire, int64_t dim, int64_t element_bytes) {
    return wire == CP_WIRE_INT8 ? 4 + cp_ceil_divide(dim, 4) * 4
                                : dim * element_bytes;
}
