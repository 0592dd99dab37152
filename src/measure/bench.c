/* The rows of the benchmark. */
#include "measure/bench.h"

#include <string.h>

const char *const cp_bench_names[CP_BENCH_PARTS] = {
    "fma", "micro", "read", "full", "causal", "decode", "merge", "ring"};

/* The spread of values / base, round by round; base may be NULL. */
static cp_spread spread_of(int rounds, const double *values,
                           const double *base) {
    double sorted[CP_BENCH_ROUNDS];
    for (int i = 0; i < rounds; i++)
        sorted[i] = base != NULL ? values[i] / base[i] : values[i];
    const double median = cp_median(sorted, rounds);
    return (cp_spread){median, sorted[0], sorted[rounds - 1]};
}

void cp_bench_report(const cp_bench *bench, const cp_bench_case *bench_case,
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
