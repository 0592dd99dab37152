/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* What AVX-512 does better than a loop: one tile of a product, and sixteen rows
 * turned into columns. Only where cp_kernel_decide says wide. */
#ifndef CP_WIDE_H
#define CP_WIDE_H

#include "ground/ground.h"

enum { CP_WIDE_SLICE = 8, CP_WIDE_PANEL = 48 };

/* As cp_micro_multiply, with a slice of 8 and a panel of 48, both without
 * padding. top: NULL, or [48], raised to the largest number of each column of a
 * whole tile. */
void cp_wide_multiply(int64_t rows, int64_t columns, int64_t depth,
                      const float *slice, const float *panel, bool add,
                      float *c, int64_t stride, float *top);

/* Turn 16 rows of dim numbers, times scale, into columns: number d of row i
 * goes to low[d * stride + i] if i < 8, to high[d * stride + i - 8] if not. */
void cp_wide_turn(const float *const *rows, int64_t dim, float scale,
                  float *low, float *high, int64_t stride);

#endif
