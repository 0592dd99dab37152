/* How candidates are timed against each other, and against the machine. */
#define _POSIX_C_SOURCE 200809L /* thread clocks */
#include "measure/stopwatch.h"

#include <math.h>
#include <string.h>
#include <time.h>
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

cp_status cp_measure_rounds(int rounds, int count, cp_bench_case *entries) {
    for (int round = -1; round < rounds; round++)
        for (int i = 0; i < count; i++) {
            cp_bench_case *bench_case = &entries[i];
            double seconds = 0;
            if (round < 0 && bench_case->warm)
                continue;
            const double start = cp_clock();
            CP_TRY(bench_case->run(bench_case->context, &seconds));
            if (seconds <= 0)
                seconds = cp_clock() - start;
            if (round >= 0)
                bench_case->rates[round] =
                    bench_case->work / fmax(seconds, 1e-9);
        }
    return CP_OK;
}

/* The spread of values / base, round by round; base may be NULL. */
static cp_spread spread_of(int rounds, const double *values,
                           const double *base) {
    double sorted[CP_BENCH_ROUNDS];
    for (int i = 0; i < rounds; i++)
        sorted[i] = base != NULL ? values[i] / base[i] : values[i];
    const double median = cp_median(sorted, rounds);
    return (cp_spread){median, sorted[0], sorted[rounds - 1]};
}

void cp_measure_report(const cp_bench *bench, const cp_bench_case *bench_case,
                       const cp_bench_case *base) {
    const double rate =
        spread_of(bench->rounds, bench_case->rates, NULL).median;
    cp_bench_row row = {
        .value = rate / bench_case->scale, .unit = bench_case->unit, .of = ""};
    memcpy(row.what, bench_case->what, sizeof(row.what));
    if (base != NULL) {
        row.of = base->what;
        row.milliseconds = 1e3 * bench_case->work / rate;
        row.fraction = spread_of(bench->rounds, bench_case->rates, base->rates);
    }
    bench->row(bench->context, &row);
}

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
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < floats; i += LINE)
        cp_measure_fill(tensors[0] + i, i, LINE, 1);
    return CP_OK;
}

static double busy_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* What a rank measured, in seconds: core time, and time from start to end. */
typedef struct {
    double busy, elapsed;
} time_sample;

static cp_status rank_time(cp_comm *comm, void *context) {
    cp_common_work *common = context;
    time_sample seen[CP_MEASURE_RANKS], *sample = &seen[comm->rank];
    if (common->prepare != NULL)
        CP_TRY(common->prepare(comm, common->context));
    CP_TRY(cp_comm_barrier(comm));
    const double start = cp_clock(), busy = busy_seconds();
    CP_TRY(common->work(comm, common->context));
    sample->busy = busy_seconds() - busy;
    CP_TRY(cp_comm_barrier(comm));
    sample->elapsed = fmax(cp_clock() - start, 1e-9);
    CP_TRY(cp_comm_all_gather_in_place(comm, seen, sizeof(time_sample)));
    for (int r = 0; r < comm->ranks && comm->rank == common->reporter; r++) {
        common->seconds = fmax(common->seconds, seen[r].elapsed);
        common->busy[r] += seen[r].busy;
    }
    return CP_OK;
}

cp_status cp_measure_ranks(const cp_runner *runner, int ranks,
                           cp_common_work *common) {
    common->reporter = (int)cp_max(0, runner->only);
    common->seconds = 0;
    return runner->run(ranks, rank_time, common);
}
