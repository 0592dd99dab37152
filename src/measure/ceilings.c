/* What cores can do at most, timed. */
#include "measure/ceilings.h"

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "measure/tensors.h"

#if defined(__AVX512F__)
typedef __m512 fma_lanes;
#elif defined(__AVX__)
typedef __m256 fma_lanes;
#elif defined(__ARM_NEON)
typedef float32x4_t fma_lanes;
#else
typedef float fma_lanes __attribute__((vector_size(16), may_alias));
#endif

/* Enough chains to keep every unit busy, and no more than there are registers:
 * AVX has 16; ARM's widest cores have four units of four cycles. */
#ifdef __ARM_NEON
enum { CHAINS = 16 };
#else
enum { CHAINS = 12 };
#endif
enum { LANES = sizeof(fma_lanes) / sizeof(float), STEPS = 20000 };

/* One multiply-add of a chain. The chain runs through a factor; on ARM reading
 * runs through the addend, which ARM's instruction overwrites, so as to need no
 * copy. */
static inline fma_lanes go_on(fma_lanes sum, fma_lanes factor) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(sum, factor, factor);
#elif defined(__AVX__) && defined(__FMA__)
    return _mm256_fmadd_ps(sum, factor, factor);
#elif defined(__ARM_NEON)
    return vfmaq_f32(sum, factor, factor);
#else
    return sum * factor + factor;
#endif
}

static double multiply_adds_of_a_thread(double least) {
    volatile float half = 0.5f; /* unknown to the compiler */
    const fma_lanes factor = (fma_lanes){0} + half;
    fma_lanes sum[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        sum[c] = factor * (float)c;
    int64_t steps = 0;
    double seconds;
    const double start = cp_clock();
    do {
        for (int64_t i = 0; i < STEPS; i++)
            for (int c = 0; c < CHAINS; c++)
                sum[c] = go_on(sum[c], factor);
        steps += STEPS;
        seconds = cp_clock() - start;
    } while (seconds < least);
    /* Use the results, so that the loop is not optimized away. */
    for (int c = 1; c < CHAINS; c++)
        sum[0] += sum[c];
    volatile float sink = sum[0][0];
    (void)sink;
    return (double)(LANES * CHAINS * steps) / seconds;
}

static cp_status fma_run(void *context, double *seconds) {
    const int *threads = context;
    double rate = 0;
#pragma omp parallel num_threads(*threads) reduction(+ : rate)
    rate += multiply_adds_of_a_thread(0.02);
    *seconds = 1e9 / rate;
    return CP_OK;
}

cp_bench_case cp_measure_fma(const int *threads) {
    return (cp_bench_case){.what = "fma",
                           .unit = "GFLOP/s",
                           .scale = 1e9,
                           .work = 2e9,
                           .run = fma_run,
                           .context = (void *)threads};
}

enum { READ_FLOATS = 1 << 27, SUMS = 128, LINE = 16, AHEAD = 512 };

static float sum_of(const float *numbers, int64_t count) {
    float sums[SUMS] = {0}, sum = 0;
    for (int64_t i = 0; i + SUMS <= count; i += SUMS) {
        for (int64_t line = i; line < i + SUMS; line += LINE)
            __builtin_prefetch(numbers + line + AHEAD);
#pragma omp simd
        for (int s = 0; s < SUMS; s++)
            sums[s] += numbers[i + s];
    }
    for (int s = 0; s < SUMS; s++)
        sum += sums[s];
    return sum;
}

static cp_status read_run(void *context, double *seconds) {
    const cp_reading *reading = context;
    const int64_t part = READ_FLOATS / reading->threads;
    float total = 0;
    (void)seconds;
#pragma omp parallel for num_threads(reading->threads) schedule(static, 1)          \
    reduction(+ : total)
    for (int t = 0; t < reading->threads; t++)
        total += sum_of(reading->numbers + t * part, part);
    volatile float sink = total;
    (void)sink;
    return CP_OK;
}

cp_status cp_measure_read(cp_reading *memory, cp_bench_case *out) {
    const int64_t floats = READ_FLOATS + AHEAD;
    *out = (cp_bench_case){.what = "read",
                           .unit = "GB/s",
                           .scale = 1e9,
                           .work = (double)READ_FLOATS * sizeof(float),
                           .run = read_run,
                           .context = memory};
    return cp_measure_tensors(memory->threads, 1, &floats, &memory->numbers);
}
