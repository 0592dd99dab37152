/* Tangled from book/13-layers.nw; edit the chapter. */
/* Linear layers, by cuBLASLt or a kernel for few rows. Only the product: the
 * kernels that write eight-bit rows are in model_kernels.h. */
#ifndef CP_MULTIPLY_H
#define CP_MULTIPLY_H

#include <cuda_runtime_api.h>

#include "ground/ground.h"

/* How the numbers of a product's operands are stored. */
typedef enum { CP_NUMBERS_F32, CP_NUMBERS_BF16, CP_NUMBERS_F8 } cp_numbers;

/* A linear layer's matrix, [out][in], on the device. F8 is e4m3, and row o
 * is values[o] * scales[o]. */
typedef struct {
    int64_t in, out;
    cp_numbers numbers;
    const void *values;
    const float *scales; /* [out] for F8; NULL otherwise */
} cp_device_matrix;

/* The library, its workspace, and the algorithms found so far, for the current
 * device. Products that one multiplier enqueues must run in order, so each rank
 * has its own. Fails with CP_MEMORY or CP_BROKEN; free it even then. */
typedef struct cp_multiplier cp_multiplier;
cp_status cp_multiplier_new(cp_multiplier **out);
void cp_multiplier_free(cp_multiplier *multiplier);

/* Check that the device can multiply numbers of this format. If not, fails with
 * CP_INVALID and a message that says what is needed. */
cp_status cp_multiplier_check(cp_multiplier *multiplier, cp_numbers numbers);

/* From now on the bits of a product's row depend only on the row of x and the
 * matrix (chapter 17): one algorithm serves any number of rows and splits no
 * sum. */
void cp_multiplier_keep_order(cp_multiplier *multiplier);

/* y = x w^T, or y += x w^T with add.
 *   x         [rows][w->in], in the matrix's format
 *   x_scales  [rows] for F8; NULL otherwise
 *   y         [rows][w->out] of fp32; not read unless add
 * Enqueued on a stream; waits for nothing and allocates nothing. After one call
 * with the same sizes the call can be captured in a graph. For F8, sizes and
 * addresses must be multiples of 16. Fails with CP_INVALID, or with CP_BROKEN
 * if the library fails; then nothing has been enqueued. */
cp_status cp_device_multiply(cp_multiplier *multiplier,
                             const cp_device_matrix *w, int64_t rows,
                             const void *x, const float *x_scales, bool add,
                             float *y, cudaStream_t stream);

/* The same with y rounded to bf16, without add; the matrix must not be fp32. */
cp_status cp_device_multiply_bf16(cp_multiplier *multiplier,
                                  const cp_device_matrix *w, int64_t rows,
                                  const void *x, const float *x_scales, void *y,
                                  cudaStream_t stream);

#endif
