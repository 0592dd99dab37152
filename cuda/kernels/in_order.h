/* Tangled from book/17-exact.nw; edit the chapter. */
/* A trial of exact order: has a row of a product the same bits alone and among
 * others? */
#ifndef CP_IN_ORDER_H
#define CP_IN_ORDER_H

#include "cuda/kernels/multiply.h"

/* Multiply some rows of any numbers, which are the same each time, with a
 * matrix, and some of them again. Waits for the stream. Fails with CP_INVALID,
 * in a line, if any bit differs, and as a product does. */
cp_status cp_multiplier_try_order(cp_multiplier *multiplier,
                                  const cp_device_matrix *w,
                                  cudaStream_t stream);

#endif
