/* Tangled from book/13-layers.nw; edit the chapter. */
/* Linear layers, by cuBLASLt or a kernel for few rows. Only the product: what
 * makes eight-bit rows is in model_kernels.h. */
#ifndef CP_MULTIPLY_H
#define CP_MULTIPLY_H

#include <cuda_runtime_api.h>

#include "ground/ground.h"

/* How the numbers of a product's operands are stored. */
typedef enum { CP_NUMBERS_F32, CP_NUMBERS_BF16, CP_NUMBERS_F8 } cp_numbers;

/* A linear layer's matrix, [out][in], on the device. F8 is e4m3, and row o
 * stands for values[o] * scales[o]. */
typedef struct {
    int64_t in, out;
    cp_numbers numbers;
    const void *values;
    const float *scales; /* [out], of F8; NULL otherwise */
} cp_device_matrix;

/* The library, its workspace, and the algorithms found so far, for the current
 * device. Whatever is put on streams with one multiplier must run in order:
 * one for each rank. Fails with CP_MEMORY or CP_BROKEN; free even then. */
typedef struct cp_multiplier cp_multiplier;
cp_status cp_multiplier_new(cp_multiplier **out);
void cp_multiplier_free(cp_multiplier *multiplier);

/* Whether the device multiplies such numbers: CP_INVALID, in a line that says
 * what it would take, if not. */
cp_status cp_multiplier_check(cp_multiplier *multiplier, cp_numbers numbers);

/* From now on the bits of a row of a product depend on it and on the matrix
 * alone (chapter 17): one algorithm for any number of rows, which splits no
 * sum. */
void cp_multiplier_keep_order(cp_multiplier *multiplier);

/* y = x w^T, or y += x w^T with add.
 *   x         [rows][w->in], of the matrix' numbers
 *   x_scales  [rows], of F8; NULL otherwise
 *   y         [rows][w->out] of fp32; not read unless add
 * Put on a stream; waits and allocates nothing. After one call with the same
 * sizes the same call can be captured in a graph. F8 takes widths and heights
 * that are multiples of 16, at addresses that are multiples of 16. Fails with
 * CP_INVALID, or with CP_BROKEN as the library does; nothing has been put on
 * the stream then. */
cp_status cp_device_multiply(cp_multiplier *multiplier,
                             const cp_device_matrix *w, int64_t rows,
                             const void *x, const float *x_scales, bool add,
                             float *y, cudaStream_t stream);

/* The same rounded to bf16, of a matrix that is not fp32, and added to
 * nothing. */
cp_status cp_device_multiply_bf16(cp_multiplier *multiplier,
                                  const cp_device_matrix *w, int64_t rows,
                                  const void *x, const float *x_scales, void *y,
                                  cudaStream_t stream);

#endif
