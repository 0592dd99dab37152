/* Measures the attention kernel against the multiply-adds that one core can
 * do, over the length of the sequence; prints CSV for the figure of the
 * chapter on attention. Not a test: nothing fails when it is slow.
 * Time is what the thread ran, and the peak is measured anew for each length,
 * so that other programs on the machine disturb the fractions little. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "figures/tools.h"
#include "measure/attention_cores.h"
#include "measure/bench.h"

enum { CHAINS = 12, LANES = 8, REPEATS = 4, LONGEST = 4096 };

/* GFLOP/s of independent chains of multiply-adds that stay in registers. */
typedef float wide_lanes __attribute__((vector_size(LANES * sizeof(float))));

static double peak_once(void) {
    const int64_t steps = 2000000;
    wide_lanes sum[CHAINS], factor;
    for (int l = 0; l < LANES; l++)
        factor[l] = 0.999f;
    for (int c = 0; c < CHAINS; c++)
        sum[c] = factor * (float)c;
    const double start = cp_thread_clock();
    for (int64_t i = 0; i < steps; i++)
        for (int c = 0; c < CHAINS; c++)
            for (int l = 0; l < LANES; l++)
                sum[c][l] = fmaf(sum[c][l], factor[l], factor[l]);
    const double seconds = cp_thread_clock() - start;
    for (int c = 1; c < CHAINS; c++)
        sum[0] += sum[c];
    volatile float sink = sum[0][0];
    (void)sink;
    return 2.0 * LANES * CHAINS * (double)steps / seconds * 1e-9;
}

/* GFLOP/s of a part of the benchmark. */
static double attend_once(cp_timed_attention *attention, cp_bench_part part,
                          int64_t tokens) {
    cp_timed_attention_set(attention, 1, cp_bench_queries(part, tokens),
                           (cp_span){0, 0, tokens, 1});
    const double start = cp_thread_clock();
    need(cp_attend(&attention->call));
    const double seconds = cp_thread_clock() - start;
    return cp_bench_work(part, &attention->shape, tokens, 4) / seconds * 1e-9;
}

/* The best fraction of the peak of several runs, causal and full. */
static void measure(cp_shape shape, int64_t tokens) {
    const cp_span all = {0, 0, tokens, 1};
    cp_timed_attention attention = {.shape = shape};
    double causal = 0.0, full = 0.0, peak = 0.0;
    need(cp_timed_attention_new(&attention, 1, all, all));
    for (int r = 0; r < REPEATS; r++) {
        peak = fmax(peak, peak_once());
        for (int64_t again = 0; again <= 1024 / tokens; again++) {
            causal =
                fmax(causal, attend_once(&attention, CP_BENCH_CAUSAL, tokens));
            full = fmax(full, attend_once(&attention, CP_BENCH_FULL, tokens));
        }
    }
    printf(",%.1f,%.1f,%.1f,%.3f,%.3f", peak, causal, full, causal / peak,
           full / peak);
    free(attention.tensors[0]);
}

static void column_names(int dim) {
    const char *names[] = {"peak", "causal_gflops", "full_gflops", "causal",
                           "full"};
    for (int n = 0; n < 5; n++)
        printf(",%s_%d", names[n], dim);
}

int main(void) {
    printf("tokens");
    column_names(64);
    column_names(128);
    for (int64_t tokens = 16; tokens <= LONGEST; tokens *= 2) {
        printf("\n%d", (int)tokens);
        measure((cp_shape){9, 3, 64}, tokens);
        measure((cp_shape){8, 2, 128}, tokens);
        fflush(stdout);
    }
    printf("\n");
    return 0;
}
