/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Choose a micro-kernel. */
#include "reference/attend/kernel_choice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The ratio is 1 with one unit, or halves. It is 2 with two units, and at least
 * 1.5 where only wide vectors lower the clock rate. */
static const double LEAST_GAIN = 1.25;

cp_kernel_choice cp_kernel_decide(const cp_processor *processor) {
    cp_kernel_choice choice = {0};
    if (processor->arch_type != NULL)
        snprintf(choice.reason, sizeof(choice.reason),
                 "BLIS_ARCH_TYPE=%.20s asks for it", processor->arch_type);
    else if (!processor->avx512)
        snprintf(choice.reason, sizeof(choice.reason),
                 "BLIS's choice; the processor has no AVX-512");
    else {
        choice.wide = processor->wide >= LEAST_GAIN * processor->narrow;
        snprintf(choice.reason, sizeof(choice.reason),
                 "%s512-bit FMA at %.2f times 256-bit",
                 choice.wide ? "" : "BLIS's choice; ",
                 processor->wide / processor->narrow);
    }
    return choice;
}

#if defined(__x86_64__)
enum { CHAINS = 10, STEPS = 4000, ROUNDS = 50, MOST_TURNS = 20 };

/* Seconds of one run of vectors of this width, in enough independent chains to
 * keep two units of four or five cycles busy. */
#define TIMED_RUN(name, features, vector, set, fused, sum)                     \
    __attribute__((target(features), noinline)) static double name(            \
        volatile float *sink) {                                                \
        const vector half = set(0.5f), one = set(1.0f);                        \
        vector sums[CHAINS];                                                   \
        for (int c = 0; c < CHAINS; c++)                                       \
            sums[c] = set(sink[0] + (float)c);                                 \
        const double start = cp_clock();                                       \
        for (int i = 0; i < STEPS; i++)                                        \
            for (int c = 0; c < CHAINS; c++)                                   \
                sums[c] = fused(sums[c], half, one);                           \
        const double seconds = cp_clock() - start;                             \
        for (int c = 1; c < CHAINS; c++)                                       \
            sums[0] = sum(sums[0], sums[c]);                                   \
        sink[0] = ((const float *)&sums[0])[0];                                \
        return seconds;                                                        \
    }

TIMED_RUN(run_wide, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps,
          _mm512_add_ps)
TIMED_RUN(run_narrow, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps,
          _mm256_add_ps)

/* Measure both in turn, so that both have the clock rate that wide vectors
 * allow, and take the median of their ratios: a neighbour who comes or goes
 * meanwhile slows both runs of a turn. Go on while that ratio is neither that
 * of one unit nor that of two. */
static void measure_rates(cp_processor *processor) {
    volatile float sink = 0.0f;
    double ratios[ROUNDS], ratio = LEAST_GAIN, least = INFINITY;
    for (int n = 0; n < MOST_TURNS && ratio >= 1.1 && ratio <= 1.5; n++) {
        for (int i = 0; i < ROUNDS; i++) {
            const double wide = run_wide(&sink), narrow = run_narrow(&sink);
            ratios[i] = 2 * narrow / wide;
            least = fmin(least, narrow);
        }
        ratio = cp_median(ratios, ROUNDS);
    }
    processor->narrow = 8.0 * CHAINS * STEPS / least;
    processor->wide = ratio * processor->narrow;
}

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

cp_processor cp_processor_read(void) {
    cp_processor processor = {.arch_type = getenv("BLIS_ARCH_TYPE")};
#if defined(__x86_64__)
    processor.avx512 = has_avx512();
    if (processor.arch_type == NULL && processor.avx512)
        measure_rates(&processor);
#endif
    return processor;
}
