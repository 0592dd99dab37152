/* The parts of the benchmark, and its rows. */
#include "measure/bench.h"

#include <string.h>

const char *const cp_bench_names[CP_BENCH_PARTS] = {
    "fma", "micro", "read", "full", "causal", "decode", "merge", "ring"};

cp_span cp_bench_queries(cp_bench_part part, int64_t keys) {
    if (part == CP_BENCH_DECODE)
        return (cp_span){0, keys - 1, 1, 1};
    return (cp_span){0, part == CP_BENCH_FULL ? keys : 0, keys, 1};
}

double cp_bench_work(cp_bench_part part, const cp_shape *shape, int64_t keys,
                     int64_t element_bytes) {
    const cp_span seen = {0, 0, keys, 1};
    if (part == CP_BENCH_DECODE)
        return 2.0 * (double)(keys * shape->kv_heads * shape->head_dim *
                              element_bytes);
    return 4.0 * (double)(shape->query_heads * shape->head_dim) *
           (double)cp_span_pairs(cp_bench_queries(part, keys), seen);
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
