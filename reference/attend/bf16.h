/* Tangled from book/11-bf16.nw; edit the chapter. */
/* Products of numbers in bf16, summed in fp32, a tile of 32 by 32 at a time: by
 * AMX, by AVX512-BF16, or in loops that any processor has. */
#ifndef CP_BF16_H
#define CP_BF16_H

#include "ground/ground.h"

/* A tile's side, and the numbers of a step of its depth. Left of a product
 * stand rows, a step of each after the other; right of it, pairs: two rows of
 * the right matrix, number by number, sixteen columns wide.
 *   left   [steps][32 rows][32]
 *   right  [steps][2][16 pairs][16 columns][2] */
enum { CP_BF16_SIDE = 32, CP_BF16_STEP = 32, CP_BF16_TILE = 1024 };

/* How this processor multiplies: "AMX", "AVX512-BF16" or "loops". */
const char *cp_bf16_about(void);

/* Does it turn rows into columns by AVX-512 (wide.h)? */
bool cp_bf16_is_wide(void);

/* c[i * stride + j] = or, with add, += the sum over k of left row i, number k,
 * times right row k, number j, for i < rows <= 32 and j < columns <= 32, with
 * steps * 32 such k. Nothing else of c is touched. */
void cp_bf16_multiply(int64_t rows, int64_t columns, int64_t steps,
                      const uint16_t *left, const uint16_t *right, bool add,
                      float *c, int64_t stride);

/* A thread calls these before and after its calls of cp_bf16_multiply. */
void cp_bf16_begin(void);
void cp_bf16_end(void);

/* Left of a product: count <= 32 rows of dim numbers, stride apart; and 32 rows,
 * of which only count are there, as columns: left row i is their number i, for
 * i < 16 and i < dim. Missing numbers are 0. */
void cp_bf16_rows(const float *from, int64_t stride, int64_t count, int64_t dim,
                  uint16_t *left);
void cp_bf16_columns(const float *from, int64_t stride, int64_t count,
                     int64_t dim, uint16_t *left);

/* Right of a product, a half of 16 columns: count <= 32 rows of 16 numbers, for
 * one step; and 16 rows of dim numbers, times scale, as columns. A row that is
 * NULL is 0. */
void cp_bf16_pairs(const float *from, int64_t stride, int64_t count,
                   uint16_t *right);
void cp_bf16_turn(const float *const *rows, int64_t dim, float scale,
                  uint16_t *right);

/* Only where cp_bf16_is_wide: turn count rows of 32 scores, in base 2, into
 * weights on the right of a product, in whole steps. Their sums are added to
 * total, all relative to level, which rises to the largest of a column if that
 * is more than 8 above; rescale is then the factor of the past. Returns whether
 * a level that was not -inf has moved. */
bool cp_bf16_weigh(const float *scores, int64_t count, float *level,
                   float *total, float *rescale, uint16_t *weights);

#endif
