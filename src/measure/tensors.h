/* Tensors to measure with: numbers between -1 and 1. */
#ifndef CP_TENSORS_H
#define CP_TENSORS_H

#include "ground/ground.h"

/* Fill a tensor with numbers that depend only on seed and index; tensor[0] has
 * index first. */
void cp_measure_fill(float *tensor, int64_t first, int64_t count,
                     uint64_t seed);

/* Allocate tensors of these many floats, in one block of memory, each aligned to
 * a line of 64 bytes, and fill them, the first with seed 1, the next with 2. The caller frees tensors[0], which is NULL
 * after a failure. Fails with CP_MEMORY. The sum of the sizes must not
 * overflow. */
cp_status cp_measure_tensors(int threads, int count, const int64_t *sizes,
                             float **tensors);

#endif
