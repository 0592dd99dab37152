/* How things are timed against each other, and against the machine. */
#include "app/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#include "reference/attend/fast.h"

cp_status cp_measure_rounds(const cp_bench *bench, int count,
                            cp_entrant *entrants) {
    for (int round = -1; round < bench->rounds; round++)
        for (int i = 0; i < count; i++) {
            cp_entrant *it = &entrants[i];
            double seconds = 0;
            if (round < 0 && it->warm)
                continue;
            const cp_status status = it->run(it->context, &seconds);
            if (status != CP_OK)
                return status;
            if (round >= 0)
                it->rates[round] = it->work / fmax(seconds, 1e-9);
        }
    return CP_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static cp_spread spread_of(const double *values, int count) {
    double sorted[CP_BENCH_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof(double));
    qsort(sorted, (size_t)count, sizeof(double), by_value);
    return (cp_spread){(sorted[(count - 1) / 2] + sorted[count / 2]) / 2,
                       sorted[0], sorted[count - 1]};
}

static cp_spread quotient(const cp_entrant *a, const cp_entrant *b,
                          int rounds) {
    double quotients[CP_BENCH_ROUNDS];
    for (int i = 0; i < rounds; i++)
        quotients[i] = a->rates[i] / b->rates[i];
    return spread_of(quotients, rounds);
}

void cp_measure_report(const cp_bench *bench, cp_bench_row row, double unit,
                       const cp_entrant *ours, const cp_entrant *base) {
    const int rounds = bench->rounds;
    const double rate = spread_of(ours->rates, rounds).median;
    row.rate = rate / unit;
    if (base != NULL) {
        row.milliseconds = 1e3 * ours->work / rate;
        row.fraction = quotient(ours, base, rounds);
    }
    bench->row(bench->context, &row);
}

#if defined(__AVX512F__)
typedef __m512 lanes;
#elif defined(__AVX__)
typedef __m256 lanes;
#else
typedef float lanes __attribute__((vector_size(16), may_alias));
#endif

enum { LANES = sizeof(lanes) / sizeof(float), CHAINS = 12, STEPS = 20000 };

/* a * b + c */
static inline lanes multiply_add(lanes a, lanes b, lanes c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

static double multiply_adds_of_a_thread(double least) {
    lanes sum[CHAINS], factor;
    for (int l = 0; l < LANES; l++)
        factor[l] = 0.5f;
    for (int c = 0; c < CHAINS; c++)
        sum[c] = factor * (float)c;
    int64_t steps = 0;
    double seconds;
    const double start = cp_clock();
    do {
        for (int64_t i = 0; i < STEPS; i++)
            for (int c = 0; c < CHAINS; c++)
                sum[c] = multiply_add(sum[c], factor, factor);
        steps += STEPS;
        seconds = cp_clock() - start;
    } while (seconds < least);
    /* Keep what was computed. */
    for (int c = 1; c < CHAINS; c++)
        sum[0] += sum[c];
    volatile float keep = sum[0][0];
    (void)keep;
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

cp_entrant cp_measure_fma(const int *threads) {
    return (cp_entrant){
        .run = fma_run, .context = (void *)threads, .work = 2e9};
}

enum { READ_FLOATS = 1 << 27, SUMS = 8, LINE = 16, AHEAD = 512 };

typedef struct {
    float *numbers; /* [READ_FLOATS] */
    int threads;
} reading;

static float sum_of(const float *numbers, int64_t count) {
    lanes sum[SUMS] = {{0}}, next;
    for (int64_t i = 0; i + SUMS * LANES <= count; i += SUMS * LANES) {
        for (int64_t line = 0; line < SUMS * LANES; line += LINE)
            __builtin_prefetch(numbers + i + line + AHEAD);
        for (int s = 0; s < SUMS; s++) {
            memcpy(&next, numbers + i + s * LANES, sizeof(next));
            sum[s] += next;
        }
    }
    for (int s = 1; s < SUMS; s++)
        sum[0] += sum[s];
    return sum[0][0];
}

static cp_status read_run(void *context, double *seconds) {
    const reading *it = context;
    const int64_t part = READ_FLOATS / it->threads;
    float total = 0;
    const double start = cp_clock();
#pragma omp parallel for num_threads(it->threads) schedule(static, 1)          \
    reduction(+ : total)
    for (int t = 0; t < it->threads; t++)
        total += sum_of(it->numbers + t * part, part);
    *seconds = cp_clock() - start;
    volatile float keep = total;
    (void)keep;
    return CP_OK;
}

static void reading_fill(const reading *it) {
    const int64_t part = READ_FLOATS / it->threads;
#pragma omp parallel for num_threads(it->threads) schedule(static, 1)
    for (int t = 0; t < it->threads; t++)
        for (int64_t i = t * part; i < (t + 1) * part; i++)
            it->numbers[i] = 1;
}

void cp_measure_read_free(cp_entrant *it) {
    reading *read = it->context;
    if (read != NULL)
        free(read->numbers);
    free(read);
    it->context = NULL;
}

cp_status cp_measure_read(int threads, cp_entrant *out) {
    reading *it;
    *out = (cp_entrant){.run = read_run};
    cp_status status = cp_allocate(&it, 1, sizeof(*it), "a bench");
    if (status != CP_OK)
        return status;
    out->context = it;
    out->work = (double)(READ_FLOATS / threads * threads) * sizeof(float);
    it->threads = threads;
    status = cp_allocate(&it->numbers, READ_FLOATS + AHEAD, sizeof(float),
                         "memory to be read");
    if (status != CP_OK) {
        cp_measure_read_free(out);
        return status;
    }
    reading_fill(it);
    return CP_OK;
}

void cp_measure_fill(float *tensor, int64_t first, int64_t count, uint64_t seed,
                     int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        uint64_t h = (uint64_t)(first + i) * 0x9E3779B97F4A7C15u + seed;
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
        tensor[i] = (float)(h >> 40) * 0x1p-23f - 1;
    }
}

cp_kernel cp_measure_kernel(const cp_bench *bench) {
    return bench->first_kernel ? cp_attend : cp_attend_fast;
}
