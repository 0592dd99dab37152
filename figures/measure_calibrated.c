/* The simulator against rings of this machine. For each number of ranks, a
 * round of calibration and a round of the rings alternate; in a round each ring
 * runs some times. Medians of all runs are compared: none is left out, because
 * a rank that waits for a message looks like one that lost its core, and the
 * fastest of several would be a ring that no user has on average. On a machine
 * with other users, run it at the highest priority:
 * echo -20 >/proc/self/autogroup; nice -n -20 measure_calibrated 9
 * Usage: measure_calibrated [rounds [times]]; prints
 * figures/data/calibrated.csv. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure/calibrate_cores.h"
#include "figures/ring.h"
#include "ground/host.h"
#include "predict/simulate.h"
#include "variants/variants.h"

enum { MOST_ROUNDS = 64, MOST_TIMES = 16, CALLS = 18 };

static const cp_shape shape = {9, 3, 64}; /* of SmolLM2-135M */

typedef struct {
    ring ring;
    double measured[MOST_ROUNDS * MOST_TIMES], simulated;
    int count; /* measured */
} timed_call;

static void measure(timed_call *timed, int times) {
    for (int n = 0; n < times; n++)
        timed->measured[timed->count++] = ring_run(&timed->ring);
}

static const char model_text[] =
    "model ring\nlike smollm2-135m\nlayers 1 layers assumed\n"
    "width 1 numbers assumed\ninner 1 numbers assumed\n"
    "vocabulary 1 tokens assumed\n";

static void simulate(timed_call *timed, const cp_hardware *hardware) {
    const ring *ring = &timed->ring;
    cp_model_sizes model;
    cp_forecast forecast;
    need(cp_model_sizes_read("ring", model_text, &model));
    const cp_scenario scenario = {.hardware = hardware,
                                  .model = &model,
                                  .ranks = ring->ranks,
                                  .tensor = 1,
                                  .sequences = 1,
                                  .new_tokens = &ring->fresh,
                                  .cached_tokens = &ring->past,
                                  .variant = ring->variant};
    need(cp_simulate(&scenario, &forecast));
    timed->simulated = forecast.seconds;
}

static int64_t rows[] = {1, 4, 8, 16, 64, 256, 1024};
static int64_t keys[] = {64, 256, 1024, 4096, 16384};
static int64_t bytes[] = {64, 16384, 131072, 1048576, 8388608};

enum { CALLS_OF_A_SIZE = 6 };

/* The calls of one number of ranks, and how often each runs in a round. */
typedef struct {
    timed_call *calls;
    int times;
} timed_turn;

static void measure_all(void *context) {
    const timed_turn *turn = context;
    for (int n = 0; n < CALLS_OF_A_SIZE; n++)
        measure(&turn->calls[n], turn->times);
}

/* Calibrate as many ranks as the calls have, which are measured meanwhile. */
static void calibrate(timed_turn *turn, int rounds, cp_hardware *hardware) {
    const char *const blank = "machine here\nmemory 1 GB assumed\n"
                              "memory_rate 1 GB/s assumed\n"
                              "peak 1 TFLOP/s assumed\n"
                              "linear_fraction 1 of-peak assumed\n"
                              "attention_rate 1 TFLOP/s assumed\n"
                              "link_rate 1 GB/s assumed\n"
                              "link_latency 1 us assumed\n";
    const cp_calibration request = {
        .shape = shape,
        .ranks = turn->calls[0].ring.ranks,
        .cores = cp_host_cores(),
        .rounds = rounds,
        .rows = {rows, sizeof(rows) / sizeof(rows[0])},
        .keys = {keys, sizeof(keys) / sizeof(keys[0])},
        .bytes = {bytes, sizeof(bytes) / sizeof(bytes[0])},
        .hardware = hardware,
        .between = measure_all,
        .context = turn};
    need(cp_hardware_read("blank", blank, hardware));
    need(cp_calibrate_cores(&cp_runner_threads, &request));
}

/* The size of its error, in percent. */
static double report(timed_call *timed) {
    const double measured = median(timed->measured, timed->count);
    const double error = 100 * (timed->simulated / measured - 1);
    const ring *ring = &timed->ring;
    printf("%s/%d/%ld,%d,%ld,%ld,%.3f,%.3f,%.1f\n",
           cp_variant_name(ring->variant), ring->ranks, ring->fresh,
           ring->ranks, ring->fresh, ring->past, 1e3 * measured,
           1e3 * timed->simulated, error);
    return fabs(error);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 5;
    const int times = argc > 2 ? atoi(argv[2]) : 3;
    static const int64_t sizes[3][2] = {{2048, 0}, {256, 8192}, {64, 16384}};
    static timed_call calls[CALLS];
    static cp_hardware machines[3];
    double errors[CALLS];
    if (rounds < 1 || rounds > MOST_ROUNDS || times < 1 || times > MOST_TIMES)
        return fprintf(stderr, "usage: measure_calibrated [1..%d [1..%d]]\n",
                       MOST_ROUNDS, MOST_TIMES),
               2;
    for (int n = 0; n < CALLS; n++) {
        /* The second walk counts: a model walks the same slots in every
         * layer. */
        calls[n].ring = (ring){.variant = n % 2 == 0 ? CP_PASS_KV : CP_PASS_Q,
                               .shape = shape,
                               .ranks = 1 << n / CALLS_OF_A_SIZE,
                               .fresh = sizes[n / 2 % 3][0],
                               .past = sizes[n / 2 % 3][1],
                               .walks = 2};
        ring_open(&calls[n].ring);
        measure(&calls[n], 1); /* warms up */
        calls[n].count = 0;
    }
    for (int r = 0; r < 3; r++)
        calibrate(&(timed_turn){&calls[CALLS_OF_A_SIZE * r], times}, rounds,
                  &machines[r]);
    printf("call,ranks,new,cached,measured_ms,simulated_ms,error\n");
    for (int n = 0; n < CALLS; n++) {
        simulate(&calls[n], &machines[n / CALLS_OF_A_SIZE]);
        errors[n] = report(&calls[n]);
    }
    const figure_errors all = errors_of(errors, CALLS);
    printf("median,0,0,0,0,0,%.1f\n", all.median);
    printf("largest,0,0,0,0,0,%.1f\n", all.most);
    printf("count,0,0,0,0,0,%d\n", CALLS);
    printf("rounds,0,0,0,0,0,%d\n", rounds);
    printf("times,0,0,0,0,0,%d\n", times);
    return 0;
}
