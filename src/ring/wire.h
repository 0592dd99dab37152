/* Tangled from book/16-unlike.nw; edit the chapter. */
/* How keys and values are written to be sent: names and sizes. */
#ifndef CP_WIRE_H
#define CP_WIRE_H

#include "ground/ground.h"

typedef enum {
    CP_WIRE_PLAIN, /* as they are */
    CP_WIRE_INT8,  /* of each head's row a float, the scale, and bytes */
    CP_WIRES,
} cp_wire;

/* "plain|int8". */
const char *cp_wire_names(void);

/* The bytes of a head's row of dim numbers that have element_bytes where they
 * are plain; of any other writing a multiple of 4. */
int64_t cp_wire_bytes(cp_wire wire, int64_t dim, int64_t element_bytes);

#endif
