/* Tangled from book/14-hopper.nw; edit the chapter. */
/* Attention for many queries on Hopper: the rungs of chapter 14. bf16 only, and
 * dimensions of 64 and 128. */
#ifndef CP_PREFILL_H
#define CP_PREFILL_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CP_PREFILL_RUNGS = 5 };

/* As cp_device_attend, by the rung, from 1 on, with one split. The tensors begin
 * at multiples of 16 bytes. */
cudaError_t cp_device_prefill(const cp_device_attention *call, int rung,
                              cudaStream_t stream);

/* Tokens of a query tile, at most. */
int64_t cp_device_prefill_tile(const cp_shape *shape);

#ifdef __cplusplus
}
#endif

#endif
