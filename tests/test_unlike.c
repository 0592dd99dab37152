/* Unlike devices: the order of their ring, their shares of a call by virtual
 * clocks, and when one of them is faster alone. */
#define _GNU_SOURCE
#include "expect.h"

#include <math.h>
#include <string.h>

#include "predict/alone.h"
#include "predict/ring_order.h"
#include "tests/harness/shell.h"

enum { MOST = 16 };

static void fill(double *seconds, int ranks, uint64_t seed, int values) {
    for (int n = 0; n < ranks * ranks; n++)
        seconds[n] = 1 + (double)(harness_random(&seed) % (uint64_t)values);
}

static double slowest_of(int ranks, const double *seconds, const int *order) {
    double worst = 0;
    for (int n = 0; n < ranks && ranks > 1; n++)
        worst = fmax(worst, seconds[order[n] * ranks + order[(n + 1) % ranks]]);
    return worst;
}

static double sum_of(int ranks, const double *seconds, const int *order) {
    double sum = 0;
    for (int n = 0; n < ranks && ranks > 1; n++)
        sum += seconds[order[n] * ranks + order[(n + 1) % ranks]];
    return sum;
}

/* Try all orders from position n on; finds the best slowest link and sum. */
static void try_all(int ranks, const double *seconds, int *order, int n,
                    double best[2]) {
    const double worst = slowest_of(ranks, seconds, order);
    const double sum = sum_of(ranks, seconds, order);
    if (n == ranks && (worst < best[0] || (worst == best[0] && sum < best[1])))
        memcpy(best, (double[]){worst, sum}, 2 * sizeof(double));
    for (int m = n; m < ranks; m++) {
        const int kept = order[n];
        order[n] = order[m];
        order[m] = kept;
        try_all(ranks, seconds, order, n + 1, best);
        order[m] = order[n];
        order[n] = kept;
    }
}

LOOP(small_rings_are_the_best_of_all, 1, 8) {
    double seconds[MOST * MOST];
    for (int seed = 1; seed <= (_i < 7 ? 20 : 3); seed++) {
        int order[MOST], trial[MOST] = {0, 1, 2, 3, 4, 5, 6, 7};
        double best[2] = {INFINITY, INFINITY};
        fill(seconds, _i, (uint64_t)seed, seed % 2 == 0 ? 4 : 1000);
        cp_ring_order(_i, seconds, order);
        try_all(_i, seconds, trial, 1, best);
        ck_assert_int_eq(order[0], 0);
        ck_assert(slowest_of(_i, seconds, order) == best[0]);
        ck_assert(sum_of(_i, seconds, order) == best[1]);
    }
}

/* Two hosts of n devices with a slow link between them: two slow links,
 * whatever the numbering. And all devices are in the ring once. */
LOOP(large_rings_cross_once, 8, 17) {
    double seconds[MOST * MOST];
    int order[MOST], seen[MOST] = {0}, slow = 0;
    for (int n = 0; n < _i * _i; n++)
        seconds[n] = n / _i % 2 == n % _i % 2 ? 1 : 10;
    cp_ring_order(_i, seconds, order);
    for (int n = 0; n < _i; n++) {
        seen[order[n]]++;
        slow += seconds[order[n] * _i + order[(n + 1) % _i]] > 1;
    }
    ck_assert_int_eq(slow, 2);
    for (int n = 0; n < _i; n++)
        ck_assert_int_eq(seen[n], 1);
}

static double simulated(const char *arguments) {
    static char line[400];
    snprintf(line, sizeof(line),
             "$L simulate --tensor 1 --new 32K --variant pass-kv --csv "
             "--machine %s",
             arguments);
    accepted(line, "variant,seconds");
    return strtod(strchr(output, '\n') + sizeof("pass-kv,"), NULL);
}

#define HOME "home --model llama3-8b --ranks 3 "

TEST(shares_by_speed_and_ring_order_save_time) {
    const double even = simulated(HOME);
    const double uneven = simulated(HOME "--placement uneven:1,1,5");
    const double wrong = simulated(HOME "--placement uneven:5,1,1");
    ck_assert_msg(uneven < even && even < wrong, "%g, %g, %g", uneven, even,
                  wrong);
    ck_assert(simulated(HOME "--order best") == even);
    accepted("$L choose --tensor 1 --new 32K --machine " HOME, "if it fits");
    accepted("$L choose --tensor 1 --new 1K --machine " HOME,
             "s,\n          and the ring is faster for no prompt");
    accepted("$L choose --tensor 1 --new 1K --placement uneven:1,1,5 "
             "--machine " HOME,
             "s,\n          and the ring is faster from 6");
    accepted("$L choose --new 1K --ranks 4", "the ring is faster from ");
    refused(2, "gtt has the links of 0 devices; expected 4",
            "$L simulate --new 1K --order best");
}
