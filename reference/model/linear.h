/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Linear layers: rows times matrices in tiles. A few rows are multiplied in
 * registers; many go through BLIS's micro-kernel. */
#ifndef CP_LINEAR_H
#define CP_LINEAR_H

#include "reference/model/matrix.h"

/* y [rows][out] = x w^T, or += with add. */
typedef struct {
    const cp_matrix *matrix;
    bool add;
    float *y;
} cp_product;

/* Multiply x [rows][in] by count matrices, all with this in.
 *   scratch   cp_linear_scratch(rows, in, threads) floats */
typedef void cp_linear(int64_t rows, int64_t in, const float *x,
                       const cp_product *products, int count, int threads,
                       float *scratch);
cp_linear cp_linear_rows;

/* The same with many rows rounded to bf16, as are weights; sums are fp32. */
cp_linear cp_linear_bf16;

/* Floats of scratch that such a call needs; enough also for fewer rows or a
 * smaller in. -1 if the number overflows. */
int64_t cp_linear_scratch(int64_t rows, int64_t in, int threads);

#endif
