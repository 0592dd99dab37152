/* Tangled from book/14-hopper.nw; edit the chapter. */
/* Attention for many queries on Hopper: cp_device_prefill of kernels.h, for
 * bf16 and heads of 64 or 128 dimensions. All tensors begin at multiples of 16
 * bytes. */
#ifndef CP_PREFILL_H
#define CP_PREFILL_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most tokens that a tile of queries can have. */
int64_t cp_device_prefill_tile(const cp_shape *shape);

#ifdef __cplusplus
}
#endif

#endif
