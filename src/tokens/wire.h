/* Tangled from book/17-wire.nw; edit the chapter. */
/* Wire formats of numbers: names and sizes. */
#ifndef CP_WIRE_H
#define CP_WIRE_H

#include "tokens/span.h"

enum { CP_PARTIAL_BYTES = 4 }; /* a number of a partial is always fp32 */

/* The values of --wire. */
typedef enum {
    CP_WIRE_FP32, /* all as held; on GPUs, keys and queries in bf16 */
    CP_WIRE_BF16, /* two bytes for every number */
    CP_WIRE_FP8,  /* the same, but one byte for keys and values */
    CP_WIRE_INT8,
    CP_WIRES,
} cp_wire;

typedef enum {
    CP_PAYLOAD_KEYS, /* and values */
    CP_PAYLOAD_QUERIES,
    CP_PAYLOAD_PARTIALS, /* their outputs; the LSE is sent as held */
} cp_payload;

/* How the numbers of a head are encoded. All but the first two encodings begin
 * with a scale, a float. */
typedef enum {
    CP_ENCODING_NONE,
    CP_ENCODING_BF16,
    CP_ENCODING_FP8,   /* e4m3, of which 448 is the largest */
    CP_ENCODING_INT8,  /* integers up to 127 */
    CP_ENCODING_BLOCK, /* integers up to 32,767; the scale is a power of
                         two: D numbers have one exponent */
} cp_encoding;

/* "fp32|bf16|fp8|int8". */
const char *cp_wire_names(void);

/* The encoding of a payload that is held with this many bytes per number. */
cp_encoding cp_wire_encoding(cp_wire wire, cp_payload payload, int64_t held);

/* The bytes of dim numbers of a head; a multiple of 4 in every encoding but
 * CP_ENCODING_NONE. */
int64_t cp_encoding_bytes(cp_encoding encoding, int64_t dim, int64_t held);

/* The bytes of a head in a message: the key and value of a token, a query, and
 * a partial with its LSE. */
typedef struct {
    int64_t keys, query, partial;
} cp_head_bytes;
cp_head_bytes cp_head_bytes_of(cp_wire wire, const cp_shape *shape,
                               int64_t held);

#endif
