/* Unlike devices: the order of their ring, their shares of a call by virtual
 * clocks, and when one of them does better alone. */
#define _GNU_SOURCE
#include "expect.h"

#include <math.h>
#include <string.h>

#include "predict/alone.h"
#include "model/backend.h"
#include "predict/ring_order.h"
#include "reference/ring/rewrite.h"
#include "tests/harness/shell.h"

enum { MOST = 16 };

static void fill(double *seconds, int ranks, uint64_t seed, int values) {
    for (int n = 0; n < ranks * ranks; n++)
        seconds[n] = 1 + (double)(harness_random(&seed) % (uint64_t)values);
}

static double sum_of(int ranks, const double *seconds, const int *order) {
    double sum = 0;
    for (int n = 0; n < ranks && ranks > 1; n++)
        sum += seconds[order[n] * ranks + order[(n + 1) % ranks]];
    return sum;
}

/* All orders from the n-th place on; the least slowest link and sum. */
static void try_all(int ranks, const double *seconds, int *order, int n,
                    double best[2]) {
    const double worst = cp_ring_slowest(ranks, seconds, order);
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
        ck_assert(cp_ring_slowest(_i, seconds, order) == best[0]);
        ck_assert(sum_of(_i, seconds, order) == best[1]);
    }
}

/* Two hosts of n devices, slow between them: two slow links, whatever the
 * numbers. And all devices are in the ring once. */
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

TEST(shares_by_speed_and_the_order_of_the_ring_pay) {
    const double even = simulated(HOME);
    const double uneven = simulated(HOME "--placement uneven:1,1,5");
    const double wrong = simulated(HOME "--placement uneven:5,1,1");
    ck_assert_msg(uneven < even && even < wrong, "%g, %g, %g", uneven, even,
                  wrong);
    ck_assert(simulated(HOME "--order best") == even);
    accepted("$L choose --tensor 1 --new 32K --machine " HOME, "if it fits");
    accepted("$L choose --tensor 1 --new 1K --machine " HOME,
             "s,\n     and the ring is faster for no prompt");
    accepted("$L choose --tensor 1 --new 1K --placement uneven:1,1,5 "
             "--machine " HOME,
             "s,\n     and the ring is faster from 6");
    accepted("$L choose --new 1K --ranks 4", "the ring is faster from ");
    refused(2, "gtt has the links of 0 devices; 4 are due",
            "$L simulate --new 1K --order best");
}

/* Rows of every length and size: off by half a step at most, zero stays zero,
 * and what is no number is not hidden. */
LOOP(bytes_are_off_by_half_a_step, 1, 40) {
    const int64_t words = cp_wire_bytes(CP_WIRE_INT8, _i, 4) / 4;
    float row[40], back[40], sent[12];
    uint64_t random = (uint64_t)_i;
    ck_assert_int_eq(words, 1 + (_i + 3) / 4);
    for (int size = -44; size <= 38; size += 2) {
        float most = 0;
        for (int d = 0; d < _i; d++) {
            row[d] = (float)pow(10, size) *
                     ((float)(harness_random(&random) % 2001) - 1000);
            most = fmaxf(most, fabsf(row[d]));
        }
        if (isinf(most))
            continue;
        cp_wire_write(CP_WIRE_INT8, 1, _i, row, sent);
        cp_wire_read(CP_WIRE_INT8, 1, _i, sent, back);
        for (int d = 0; d < _i; d++)
            hold(fabs((double)back[d] - (double)row[d]) <=
                 fmax(most / 254.0 * 1.00001, 1.5e-36));
    }
    row[_i / 2] = _i % 2 == 0 ? INFINITY : NAN;
    cp_wire_write(CP_WIRE_INT8, 1, _i, row, sent);
    cp_wire_read(CP_WIRE_INT8, 1, _i, sent, back);
    hold(isnan(back[0]) && isnan(back[_i - 1]));
}

enum { FRESH = 61, PAST = 23, HEADS = 8, KV_HEADS = 4, DIM = 20 };

/* Attention of some numbers over N ranks, whose blocks are sent so. */
static void attend(int ranks, cp_variant variant, cp_wire wire, float scale,
                   float *output, float *lse, cp_wire_error *bound) {
    static float q[FRESH * HEADS * DIM];
    static float k[(FRESH + PAST) * KV_HEADS * DIM];
    static float v[(FRESH + PAST) * KV_HEADS * DIM];
    const int64_t fresh = FRESH, turns = 1;
    const cp_turn past = {false, PAST}, *const pasts[] = {&past};
    uint64_t random = 5;
    for (int n = 0; n < COUNT_OF(q); n++)
        q[n] = scale * (float)(harness_random(&random) % 999) / 500 - scale;
    for (int n = 0; n < COUNT_OF(k); n++) {
        k[n] = (float)(harness_random(&random) % 999) / 500 - 1;
        v[n] = (float)(harness_random(&random) % 999) / 5 - 100;
    }
    cp_attend_job job = {.shape = {HEADS, KV_HEADS, DIM},
                         .ranks = ranks,
                         .sequences = 1,
                         .new_tokens = &fresh,
                         .turns = &turns,
                         .history = pasts,
                         .variant = variant,
                         .wire = wire,
                         .queries = q,
                         .keys = k,
                         .values = v,
                         .output = output,
                         .lse = lse};
    must(cp_backend_threads.attend(&job));
    *bound = cp_wire_bound(wire, &job.shape, fresh, q, FRESH + PAST, k, v);
}

LOOP(answers_are_within_the_bound, 1, 6) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                          CP_MESH};
    static float output[2][FRESH * HEADS * DIM], lse[2][FRESH * HEADS];
    for (int n = 0; n < 4 * COUNT_OF(variants); n++) {
        const cp_variant variant = variants[n / 4];
        const float scale = (float[]){0.1f, 1, 10, 100}[n % 4];
        cp_wire_error bound, none, error = {0, 0};
        if (variant == CP_MESH && _i != 2 && _i != 4)
            continue;
        attend(_i, variant, CP_WIRE_PLAIN, scale, output[0], lse[0], &none);
        attend(_i, variant, CP_WIRE_INT8, scale, output[1], lse[1], &bound);
        for (int i = 0; i < COUNT_OF(output[0]); i++)
            error.output =
                fmax(error.output, fabsf(output[0][i] - output[1][i]));
        for (int i = 0; i < COUNT_OF(lse[0]); i++)
            error.lse = fmax(error.lse, fabsf(lse[0][i] - lse[1][i]));
        ck_assert(none.output == 0 && none.lse == 0);
        ck_assert_msg(error.output <= bound.output && error.lse <= bound.lse,
                      "output off by %g of %g, LSE by %g of %g", error.output,
                      bound.output, error.lse, bound.lse);
        ck_assert((error.lse > 0) == (_i > 1 && variant != CP_PASS_Q));
    }
}

TEST(the_bound_of_one_query_is_as_by_hand) {
    const cp_shape one = {1, 1, 4};
    const float q[] = {1, -2, 3, -4}, k[] = {127, 0, 0, 0, 0, 254, 0, 0};
    const float v[] = {0, 0, 0, 2, 1, 1, 1, 1};
    const cp_wire_error bound =
        cp_wire_bound(CP_WIRE_INT8, &one, 1, q, 2, k, v);
    ck_assert_double_eq_tol(bound.lse, 10.0 / 2 * 254 / 254, 1e-3);
    ck_assert_double_eq_tol(bound.output, 2 * (1 / 254.0 + 2 * tanh(2.5)),
                            1e-3);
    const cp_shape two = {2, 2, 1};
    const float asked[] = {1, 5}, held[] = {1, 254};
    const cp_wire_error second =
        cp_wire_bound(CP_WIRE_INT8, &two, 1, asked, 1, held, held);
    ck_assert_double_eq_tol(second.lse, 5, 1e-3);
}
