/* Tangled from book/17-exact.nw; edit the chapter. */
/* A trial of exact order: does a row of a product have the same bits alone and
 * among others? */
#ifndef CP_IN_ORDER_H
#define CP_IN_ORDER_H

#include "cuda/kernels/multiply.h"

/* Multiply rows of arbitrary numbers, the same each time, by a matrix, then
 * some of them again. Waits for the stream. Fails with CP_INVALID, in one line,
 * if a bit differs; otherwise as a product does. */
cp_status cp_multiplier_try_order(cp_multiplier *multiplier,
                                  const cp_device_matrix *w,
                                  cudaStream_t stream);

#endif
