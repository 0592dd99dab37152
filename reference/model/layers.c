/* Tangled from book/12-model.nw; edit the chapter. */
/* RMSNorm, rotary positions, SwiGLU. */
#include "reference/model/layers.h"

#include <math.h>
#include <string.h>

enum { PART = 512 }; /* of a row of gates */

void cp_norm_rows(int64_t rows, int64_t width, const float *x,
                  const float *weight, double epsilon, int threads, float *y) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * width;
        float *to = y + r * width;
        double squares = 0.0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; i++)
            squares += (double)from[i] * (double)from[i];
        const float scale =
            (float)(1.0 / sqrt(squares / (double)width + epsilon));
        for (int64_t i = 0; i < width; i++)
            to[i] = from[i] * scale * weight[i];
    }
}

void cp_add_to_rows(int64_t rows, int64_t width, const float *bias, int threads,
                    float *x) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            x[r * width + i] += bias[i];
}

static void rotate_head(int64_t pairs, const float *cosines, const float *sines,
                        float *x) {
    for (int64_t i = 0; i < pairs; i++) {
        const float even = x[2 * i], odd = x[2 * i + 1];
        x[2 * i] = even * cosines[i] - odd * sines[i];
        x[2 * i + 1] = even * sines[i] + odd * cosines[i];
    }
}

void cp_rotate_rows(int64_t rows, int64_t heads, int64_t dim, cp_angles angles,
                    int threads, float *x) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t h = 0; h < heads; h++)
            rotate_head(angles.pairs, angles.cosines + r * angles.pairs,
                        angles.sines + r * angles.pairs,
                        x + (r * heads + h) * dim);
    }
}

static inline float exponential(float x) {
    const float magic = 12582912.0f;
    const float n = (x * 1.44269504f + magic) - magic;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float sum = 1.0f / 720.0f;
    sum = sum * r + 1.0f / 120.0f;
    sum = sum * r + 1.0f / 24.0f;
    sum = sum * r + 1.0f / 6.0f;
    sum = (sum * r + 0.5f) * r * r + r + 1.0f;
    const int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float power;
    memcpy(&power, &bits, sizeof(power));
    return sum * power;
}

static void limit(int64_t count, const float *gate, float *held) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        held[i] = -gate[i] > 87.0f ? 87.0f : -gate[i];
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        held[i] = held[i] < -87.0f ? -87.0f : held[i];
}

static void gate_part(int64_t count, const float *up, float *gate) {
    float held[PART];
    limit(count, gate, held);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        gate[i] = gate[i] / (1.0f + exponential(held[i])) * up[i];
}

static void open_part(int64_t count, const float *gate, float *x) {
    float held[PART];
    limit(count, gate, held);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        x[i] /= 1.0f + exponential(held[i]);
}

void cp_gate_values(int64_t count, const float *up, int threads, float *gate) {
#pragma omp parallel for num_threads(threads) if (count > 8192)
    for (int64_t first = 0; first < count; first += PART)
        gate_part(cp_min(PART, count - first), up + first, gate + first);
}

void cp_open_gates(int64_t count, const float *gate, int threads, float *x) {
#pragma omp parallel for num_threads(threads) if (count > 8192)
    for (int64_t first = 0; first < count; first += PART)
        open_part(cp_min(PART, count - first), gate + first, x + first);
}
