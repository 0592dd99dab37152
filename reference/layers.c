/* Tangled from book/12-model.nw; edit the chapter. */
/* RMSNorm, rotary positions, linear layers, SwiGLU. */
#define _POSIX_C_SOURCE 200809L /* blis.h wants pthread barriers */
#include "layers.h"

#include <math.h>
#include <string.h>

#include <blis.h>

void cp_norm_rows(int64_t rows, int64_t width, const float *x,
                  const float *weight, double epsilon, int threads, float *y) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * width;
        float *to = y + r * width;
        double squares = 0.0;
        for (int64_t i = 0; i < width; i++)
            squares += (double)from[i] * (double)from[i];
        const float scale =
            (float)(1.0 / sqrt(squares / (double)width + epsilon));
        for (int64_t i = 0; i < width; i++)
            to[i] = from[i] * scale * weight[i];
    }
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

void cp_angles_at(int64_t position, int64_t pairs, const double *frequencies,
                  float *cosines, float *sines) {
    for (int64_t i = 0; i < pairs; i++) {
        const double angle = (double)position * frequencies[i];
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

static void product(int64_t rows, int64_t in, int64_t out, int64_t stride,
                    const float *x, const float *w, bool add, float *y) {
    rntm_t settings = BLIS_RNTM_INITIALIZER;
    bli_rntm_set_num_threads(1, &settings);
    if (rows >= 64)
        bli_rntm_disable_l3_sup(&settings);
    float one = 1.0f, keep = add ? 1.0f : 0.0f;
    /* BLIS's interface has no const, but it writes to y alone. */
    bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_TRANSPOSE, rows, out, in, &one,
                 (float *)(uintptr_t)x, in, 1, (float *)(uintptr_t)w, in, 1,
                 &keep, y, stride, 1, NULL, &settings);
}

static float dot(int64_t count, const float *a, const float *b) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static void one_row(int64_t in, int64_t out, const float *x, const float *w,
                    bool add, float *y) {
    for (int64_t o = 0; o < out; o++) {
        const float sum = dot(in, x, w + o * in);
        y[o] = add ? y[o] + sum : sum;
    }
}

void cp_linear_rows(int64_t rows, int64_t in, int64_t out, const float *x,
                    const float *w, bool add, int threads, float *y) {
    const int64_t share = 16 * cp_ceil_divide(cp_ceil_divide(out, threads), 16);
    const int64_t parts = cp_ceil_divide(out, share);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = part * share;
        const int64_t count = cp_min(share, out - first);
        if (rows == 1)
            one_row(in, count, x, w + first * in, add, y + first);
        else if (rows > 1)
            product(rows, in, count, out, x, w + first * in, add, y + first);
    }
}

static inline float exponential(float x) {
    const float magic = 12582912.0f;
    x = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
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

void cp_gate_values(int64_t count, const float *up, int threads, float *gate) {
#pragma omp parallel for simd num_threads(threads) if (count > 8192)
    for (int64_t i = 0; i < count; i++)
        gate[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}
