/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Convert the blocks of a GGUF tensor to floats. Not a quantiser. */
#ifndef CP_DEQUANTISE_H
#define CP_DEQUANTISE_H

#include "model/gguf.h"

/* Compute count values of a CP_GGUF_ type from its blocks.
 *   blocks   the packed bytes, at any address
 *   count    values; a multiple of the type's block
 *   out      [count]
 * Fails with CP_INVALID for another type or count, and leaves out untouched. */
cp_status cp_dequantise(int type, const void *blocks, int64_t count,
                        float *out);

#endif
