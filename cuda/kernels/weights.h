/* Tangled from book/13-layers.nw; edit the chapter. */
/* Turning the blocks of a GGUF tensor into numbers, on the device. Not a
 * quantiser: for rows of eight bits see model_kernels.h. */
#ifndef CP_WEIGHTS_H
#define CP_WEIGHTS_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = the i-th of count values that blocks of a CP_GGUF_ type stand for:
 * exactly what cp_dequantise computes (dequantise.h), then rounded to element.
 *   blocks   on the device, aligned to 2 bytes
 *   out      [count], on the device
 * Fails with cudaErrorInvalidValue for another type, or a count that fills no
 * whole blocks. */
cudaError_t cp_device_expand(int gguf_type, const void *blocks, int64_t count,
                             cp_element element, void *out,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
