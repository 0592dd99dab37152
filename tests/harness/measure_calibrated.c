/* The simulator against rings of this machine. For each number of ranks, a
 * round of calibration and a round of the rings alternate; in a round each ring
 * runs some times. Medians of all runs are compared: none is left out, because
 * a rank that waits for a message looks like one that lost its core, and the
 * fastest of several would be a ring that nobody has on average. On a machine
 * with other users, run it at the highest priority:
 * echo -20 >/proc/self/autogroup; nice -n -20 measure_calibrated 9
 * Usage: measure_calibrated [rounds [times]]; prints
 * figures/data/calibrated.csv. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "app/subjects.h"
#include "reference/ring/store.h"
#include "reference/ring/threads.h"
#include "reference/ring/walk.h"
#include "predict/simulate.h"
#include "ring/variants.h"
#include "suite.h"

enum { MOST_ROUNDS = 64, MOST_TIMES = 16, CALLS = 18 };

static const cp_shape shape = {9, 3, 64}; /* of SmolLM2-135M */

typedef struct {
    cp_variant variant;
    int ranks;
    int64_t fresh, past;
    cp_cache *cache;
    cp_store *store;
    cp_layout *layout;
    cp_plan *plan;
    double start, seconds; /* of the last run */
    double measured[MOST_ROUNDS * MOST_TIMES], simulated;
    int count; /* measured */
} call;

static void need(cp_status status) {
    if (status != CP_OK) {
        fprintf(stderr, "%s\n", cp_message());
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void fill(float *tensor, int64_t count, uint64_t seed) {
    for (int64_t n = 0; n < count; n++)
        tensor[n] = harness_uniform(&seed);
}

static cp_status rank_main(cp_comm *comm, void *context) {
    call *it = context;
    const int rank = comm->rank;
    const int64_t rows = it->plan->layout->queries[rank].rows;
    const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    const cp_walk_options options = {
        .threads = cores / it->ranks > 1 ? cores / it->ranks : 1};
    cp_walker *walker;
    cp_status status = cp_walker_new(it->plan, rank, &options, &walker);
    if (status != CP_OK)
        return status;
    fill(cp_walker_queries(walker), rows * shape.query_heads * shape.head_dim,
         1 + (uint64_t)rank);
    fill(cp_walker_new_keys(walker), rows * shape.kv_heads * shape.head_dim,
         100 + (uint64_t)rank);
    fill(cp_walker_new_values(walker), rows * shape.kv_heads * shape.head_dim,
         200 + (uint64_t)rank);
    /* The second walk counts: a model walks the same slots in every layer. */
    for (int n = 0; n < 2 && status == CP_OK; n++) {
        status = cp_comm_barrier(comm);
        if (rank == 0)
            it->start = now();
        if (status == CP_OK)
            status = cp_walk(walker, comm, cp_store_keys(it->store, rank, 0),
                             cp_store_values(it->store, rank, 0));
        if (status == CP_OK)
            status = cp_comm_barrier(comm);
        if (rank == 0)
            it->seconds = now() - it->start;
    }
    cp_walker_free(walker);
    return status;
}

static void call_open(call *it) {
    const int64_t room = it->fresh + it->past + 16;
    need(cp_cache_new(it->ranks, 1, room, &it->cache));
    need(cp_store_new(it->ranks, 1, 1, room, &shape, &it->store));
    for (int rank = 0; rank < it->ranks; rank++) {
        const int64_t count = room * shape.kv_heads * shape.head_dim;
        fill(cp_store_keys(it->store, rank, 0), count, 7);
        fill(cp_store_values(it->store, rank, 0), count, 8);
    }
    if (it->past > 0) {
        need(cp_cache_prefill(it->cache, &it->past, &it->layout));
        need(cp_cache_commit(it->cache, it->layout));
        cp_layout_free(it->layout);
    }
    need(cp_cache_prefill(it->cache, &it->fresh, &it->layout));
    need(cp_plan_build(it->variant, it->layout, &shape, NULL, &it->plan));
}

static void measure(call *it, int times) {
    const cp_threads_options options = {it->ranks, 0, 0};
    for (int n = 0; n < times; n++) {
        need(cp_threads_run(&options, rank_main, it));
        it->measured[it->count++] = it->seconds;
    }
}

static const char model_text[] =
    "model ring\nlike smollm2-135m\nlayers 1 layers assumed\n"
    "width 1 numbers assumed\ninner 1 numbers assumed\n"
    "vocabulary 1 tokens assumed\n";

static void simulate(call *it, const cp_hardware *hardware) {
    cp_model_sizes model;
    cp_forecast forecast;
    need(cp_model_sizes_parse("ring", model_text, &model));
    const cp_scenario scenario = {.hardware = hardware,
                                  .model = &model,
                                  .ranks = it->ranks,
                                  .tensor = 1,
                                  .sequences = 1,
                                  .new_tokens = &it->fresh,
                                  .cached_tokens = &it->past,
                                  .variant = it->variant};
    need(cp_simulate(&scenario, &forecast));
    it->simulated = forecast.seconds;
}

static int64_t rows[] = {1, 4, 8, 16, 64, 256, 1024};
static int64_t keys[] = {64, 256, 1024, 4096, 16384};
static int64_t bytes[] = {64, 16384, 131072, 1048576, 8388608};

typedef struct {
    int ranks;
    cp_hardware hardware;
    cp_calibration wanted;
    cp_stage *stage;
    cp_calibrating *work;
} ring;

static void ring_open(ring *it, int ranks, int rounds) {
    const char *const blank = "machine here\nmemory 1 GB assumed\n"
                              "memory_rate 1 GB/s assumed\n"
                              "peak 1 TFLOP/s assumed\n"
                              "linear_fraction 1 of-peak assumed\n"
                              "attention_rate 1 TFLOP/s assumed\n"
                              "link_rate 1 GB/s assumed\n"
                              "link_latency 1 us assumed\n";
    it->ranks = ranks;
    it->wanted =
        (cp_calibration){.shape = shape,
                         .ranks = ranks,
                         .cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
                         .rounds = rounds,
                         .rows = {rows, sizeof(rows) / sizeof(rows[0])},
                         .keys = {keys, sizeof(keys) / sizeof(keys[0])},
                         .bytes = {bytes, sizeof(bytes) / sizeof(bytes[0])},
                         .hardware = &it->hardware};
    need(cp_hardware_parse("blank", blank, &it->hardware));
    need(cp_stage_new(&cp_place_threads, &it->wanted, &it->stage));
    need(cp_calibrating_new(cp_stage_laboratory(it->stage), &it->wanted,
                            &it->work));
    need(cp_calibrating_round(it->work, 0));
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count) {
    double sorted[MOST_ROUNDS * MOST_TIMES];
    memcpy(sorted, values, (size_t)count * sizeof(double));
    qsort(sorted, (size_t)count, sizeof(double), by_value);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static double report(call *it) {
    const double measured = median(it->measured, it->count);
    const double error = 100 * (it->simulated / measured - 1);
    printf("%s/%d/%lld,%d,%lld,%lld,%.3f,%.3f,%.1f\n",
           cp_variant_name(it->variant), it->ranks, (long long)it->fresh,
           it->ranks, (long long)it->fresh, (long long)it->past, 1e3 * measured,
           1e3 * it->simulated, error);
    return fabs(error);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 5;
    const int times = argc > 2 ? atoi(argv[2]) : 3;
    static const int64_t sizes[3][2] = {{2048, 0}, {256, 8192}, {64, 16384}};
    static call calls[CALLS];
    static ring rings[3];
    double errors[CALLS];
    if (rounds < 1 || rounds > MOST_ROUNDS || times < 1 || times > MOST_TIMES)
        return fprintf(stderr, "usage: measure_calibrated [1..%d [1..%d]]\n",
                       MOST_ROUNDS, MOST_TIMES),
               2;
    for (int n = 0; n < CALLS; n++) {
        calls[n] = (call){.variant = n % 2 == 0 ? CP_PASS_KV : CP_PASS_Q,
                          .ranks = 1 << n / 6,
                          .fresh = sizes[n / 2 % 3][0],
                          .past = sizes[n / 2 % 3][1]};
        call_open(&calls[n]);
        measure(&calls[n], 1); /* warms up */
        calls[n].count = 0;
    }
    for (int r = 0; r < 3; r++)
        ring_open(&rings[r], 1 << r, rounds);
    for (int round = 0; round < rounds; round++)
        for (int r = 0; r < 3; r++) {
            need(cp_calibrating_round(rings[r].work, round));
            for (int n = 0; n < CALLS; n++)
                if (calls[n].ranks == rings[r].ranks)
                    measure(&calls[n], times);
        }
    for (int r = 0; r < 3; r++)
        cp_calibrating_describe(rings[r].work);
    printf("call,ranks,new,cached,measured_ms,simulated_ms,error\n");
    for (int n = 0; n < CALLS; n++) {
        simulate(&calls[n], &rings[n / 6].hardware);
        errors[n] = report(&calls[n]);
    }
    printf("median,0,0,0,0,0,%.1f\n", median(errors, CALLS));
    double most_error = 0;
    for (int n = 0; n < CALLS; n++)
        most_error = fmax(most_error, errors[n]);
    printf("largest,0,0,0,0,0,%.1f\n", most_error);
    printf("count,0,0,0,0,0,%d\n", CALLS);
    printf("rounds,0,0,0,0,0,%d\n", rounds);
    printf("times,0,0,0,0,0,%d\n", times);
    return 0;
}
