/* Tensors to measure with. */
#include "measure/tensors.h"

enum { LINE = 16 }; /* floats */

void cp_measure_fill(float *tensor, int64_t first, int64_t count,
                     uint64_t seed) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t h = (uint64_t)(first + i) * 0x9E3779B97F4A7C15u + seed;
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
        tensor[i] = (float)(h >> 40) * 0x1p-23f - 1;
    }
}

cp_status cp_measure_tensors(int threads, int count, const int64_t *sizes,
                             float **tensors) {
    int64_t floats = 0;
    for (int i = 0; i < count; i++)
        floats += cp_ceil_divide(sizes[i], LINE) * LINE;
    CP_TRY(cp_allocate_lines(&tensors[0], floats, sizeof(float),
                             "what is measured"));
    for (int i = 1; i < count; i++)
        tensors[i] = tensors[i - 1] + cp_ceil_divide(sizes[i - 1], LINE) * LINE;
    for (int n = 0; n < count; n++)
#pragma omp parallel for num_threads(threads)
        for (int64_t i = 0; i < sizes[n]; i += LINE)
            cp_measure_fill(tensors[n] + i, i, LINE, (uint64_t)n + 1);
    return CP_OK;
}
