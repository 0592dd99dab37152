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
void cp_linear_rows(int64_t rows, int64_t in, const float *x,
                    const cp_product *products, int count, int threads,
                    float *scratch);

/* Floats of scratch that such a call needs; enough also for fewer rows or a
 * smaller in. -1 if the number overflows. */
int64_t cp_linear_scratch(int64_t rows, int64_t in, int threads);

#endif
