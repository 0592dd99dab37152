/* Times whole attention calls over ranks in threads: each variant against one
 * rank with all cores, alternating, and the bytes that one rank sends.
 * Usage: measure_ring [repeats] prints figures/data/ring-cpu.csv's rows;
 * measure_ring choices [repeats] those of choose-cpu.csv, in which pass-KV and
 * pass-Q alternate over a grid of calls, with the heads of SmolLM2-135M. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "figures/ring.h"
#include "plan/check.h"
#include "variants/variants.h"

static void variants(int repeats) {
    static const struct {
        cp_variant variant;
        int ranks;
        int64_t fresh, past;
    } rows[] = {
        {CP_PASS_KV, 1, 4096, 0},      {CP_PASS_KV, 2, 4096, 0},
        {CP_PASS_KV, 4, 4096, 0},      {CP_ALL_GATHER, 4, 4096, 0},
        {CP_PASS_Q, 4, 4096, 0},       {CP_PASS_KV, 4, 64, 32768},
        {CP_ALL_GATHER, 4, 64, 32768}, {CP_PASS_Q, 4, 64, 32768},
        {CP_DECODE, 4, 1, 32768},
    };
    printf("variant,ranks,new,cached,milliseconds,one_rank,megabytes\n");
    for (size_t n = 0; n < sizeof(rows) / sizeof(rows[0]); n++) {
        ring many = {.variant = rows[n].variant,
                     .shape = {8, 2, 64},
                     .ranks = rows[n].ranks,
                     .fresh = rows[n].fresh,
                     .past = rows[n].past};
        ring one = many;
        one.ranks = 1;
        double times[64], ratios[64];
        cp_plan_report report;
        ring_open(&many);
        ring_open(&one);
        need(cp_plan_check(many.plan, &report));
        ring_run(&many);
        for (int i = 0; i < repeats; i++) {
            times[i] = ring_run(&many);
            ratios[i] = ring_run(&one) / times[i];
        }
        printf("%s,%d,%ld,%ld,%.2f,%.3f,%.2f\n", cp_variant_name(many.variant),
               many.ranks, many.fresh, many.past, 1e3 * median(times, repeats),
               median(ratios, repeats), (double)report.bytes[0] / 1e6);
        cp_plan_report_free(&report);
        ring_close(&many);
        ring_close(&one);
    }
}

static void choice(int ranks, int64_t fresh, int64_t past, int repeats) {
    ring kv = {.variant = CP_PASS_KV,
               .shape = {9, 3, 64}, /* SmolLM2 */
               .ranks = ranks,
               .fresh = fresh,
               .past = past};
    ring q = kv;
    q.variant = CP_PASS_Q;
    double kv_best = INFINITY, q_best = INFINITY;
    ring_open(&kv);
    ring_open(&q);
    ring_run(&kv);
    ring_run(&q);
    for (int i = 0; i < repeats; i++) {
        kv_best = fmin(kv_best, ring_run(&kv));
        q_best = fmin(q_best, ring_run(&q));
    }
    printf("%d,%ld,%ld,%.4f,%.4f\n", ranks, fresh, past, 1e3 * kv_best,
           1e3 * q_best);
    fflush(stdout);
    ring_close(&kv);
    ring_close(&q);
}

/* Both variants over new tokens and past; the fastest of each. */
static void choices(int repeats) {
    static const int64_t past[7] = {0, 128, 512, 2048, 4096, 8192, 16384};
    static const int64_t fresh[6] = {2, 8, 24, 64, 160, 400};
    printf("ranks,new,cached,pass_kv,pass_q\n");
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (int p = 0; p < 7; p++)
            for (int f = 0; f < 6; f++)
                choice(ranks, fresh[f], past[p], repeats);
}

int main(int argc, char **argv) {
    const bool grid = argc > 1 && strcmp(argv[1], "choices") == 0;
    const int repeats = argc > 1 + grid ? atoi(argv[1 + grid]) : 5;
    if (repeats < 1 || repeats > 64)
        return fprintf(stderr, "usage: measure_ring [choices] [1..64]\n"), 2;
    (grid ? choices : variants)(repeats);
    return 0;
}
