/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* The innermost loop of a matrix product, BLIS's or ours, on operands the caller
 * has packed. Not a matrix product: one tile of one. */
#ifndef CP_MICRO_H
#define CP_MICRO_H

#include "ground/ground.h"

/* One call multiplies a slice by a panel: slice rows by panel columns. */
typedef struct {
    int64_t slice, panel; /* AVX2: 6, 16; AVX-512: 8, 48; NEON: 12, 8 */
    int64_t slice_stride, panel_stride; /* floats per step of depth */
    bool rows;     /* a panel is BLIS's right operand, not its left one */
    bool in_order; /* adds one product after another, as cp_fused does */
    bool fuses;    /* adds them and rounds once, whatever cp_fused does */
    bool wide;     /* not BLIS's: wide.h's, 8 by 48 */
    void (*kernel)(void);
    const void *context;
    char about[160]; /* its name, its tile, and why this one */
} cp_micro;

/* The micro-kernel for this processor; the same at every call. Any thread
 * may call it. */
const cp_micro *cp_micro_get(void);

/* c[i * stride + j] = or, with add, += the sum over k < depth of
 *   slice[k * slice_stride + i] * panel[k * panel_stride + j]
 * for i < rows <= micro->slice and j < columns <= micro->panel. Nothing else
 * of c is touched; without add it is not read. Both operands are read whole,
 * beyond rows and columns too, and up to one more step after the panel's last;
 * these may be any numbers. A panel must be aligned to the size of one of its
 * steps, up to 64 bytes. */
void cp_micro_multiply(const cp_micro *micro, int64_t rows, int64_t columns,
                       int64_t depth, const float *slice, const float *panel,
                       bool add, float *c, int64_t stride);

#endif
