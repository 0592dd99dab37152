/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Weights in tiles: the bits of the file's blocks, sixteen outputs side by
 * side, and their values. linear.h multiplies many rows by them. */
#ifndef CP_MATRIX_H
#define CP_MATRIX_H

#include "ground/ground.h"

enum { CP_LANES = 16, CP_DEPTH = 32 };

typedef struct cp_tile_kind cp_tile_kind;

/* A matrix [out][in]: groups of CP_LANES outputs, of which two share tiles. A
 * tile has one or several parts of CP_DEPTH inputs. Excess values are 0. */
typedef struct {
    int64_t in, out;
    const cp_tile_kind *kind;
    const char *tiles; /* owned by the model */
} cp_matrix;

/* Bytes that the tiles of a matrix of a CP_GGUF_ type take, a multiple of 64.
 * Fails with CP_INVALID for another type, for rows that are not whole blocks,
 * and if the product overflows. */
cp_status cp_matrix_bytes(int type, int64_t in, int64_t out, int64_t *size);

/* Lay out a matrix for which cp_matrix_bytes succeeded.
 *   blocks   the file's tensor, [out] rows of whole blocks
 *   memory   that many bytes, preferably aligned to 64; *matrix points into it
 * All cores help. Cannot fail. */
void cp_matrix_fill(int type, int64_t in, int64_t out, const void *blocks,
                    void *memory, cp_matrix *matrix);

/* A group's values in one part, those of cp_dequantise, counted from 0:
 * values [CP_DEPTH][CP_LANES]. */
void cp_matrix_expand(const cp_matrix *matrix, int64_t group, int64_t part,
                      float *values);

/* The values of one output: values [in]. */
void cp_matrix_row(const cp_matrix *matrix, int64_t row, float *values);

/* Multiply an even group and the next by inputs from .. from + depth - 1 of
 * x [in], from a multiple of CP_DEPTH, and add one product after another to
 * sums [2][CP_LANES]. */
void cp_matrix_pair(const cp_matrix *matrix, int64_t group, int64_t from,
                    int64_t depth, const float *x, float (*sums)[CP_LANES]);

#endif
