/* Times whole attention calls over ranks in threads: each variant against one
 * rank with all cores, alternating, and the bytes that one rank sends.
 * Usage: measure_ring [repeats] prints figures/data/ring-cpu.csv's rows;
 * measure_ring choices [repeats] those of choose-cpu.csv, in which pass-KV and
 * pass-Q alternate over a grid of calls, with the heads of SmolLM2-135M. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "reference/ring/store.h"
#include "reference/ring/threads.h"
#include "reference/ring/walk.h"
#include "ring/check.h"
#include "ring/variants.h"
#include "suite.h"

typedef struct {
    const cp_plan *plan;
    cp_store *store;
    cp_walker *walkers[16];
    int repeats, threads;
    double seconds; /* the fastest repeat, between barriers */
} job;

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
    job *job = context;
    const int rank = comm->rank;
    const cp_shape *shape = &job->plan->shape;
    const int64_t rows = job->plan->layout->queries[rank].rows;
    const cp_walk_options options = {.threads = job->threads};
    cp_walker *walker;
    cp_status status = cp_walker_new(job->plan, rank, &options, &walker);
    if (status != CP_OK)
        return status;
    fill(cp_walker_queries(walker), rows * shape->query_heads * shape->head_dim,
         1 + (uint64_t)rank);
    fill(cp_walker_new_keys(walker), rows * shape->kv_heads * shape->head_dim,
         100 + (uint64_t)rank);
    fill(cp_walker_new_values(walker), rows * shape->kv_heads * shape->head_dim,
         200 + (uint64_t)rank);
    status = cp_comm_barrier(comm);
    const double start = now();
    if (status == CP_OK)
        status = cp_walk(walker, comm, cp_store_keys(job->store, rank, 0),
                         cp_store_values(job->store, rank, 0));
    if (status == CP_OK)
        status = cp_comm_barrier(comm);
    if (rank == 0)
        job->seconds = now() - start;
    cp_walker_free(walker);
    return status;
}

typedef struct {
    cp_cache *cache;
    cp_store *store;
    cp_layout *layout;
    cp_plan *plan;
    int ranks;
} bench;

static void open_bench(bench *it, cp_variant variant, cp_shape shape, int ranks,
                       int64_t fresh, int64_t past) {
    *it = (bench){.ranks = ranks};
    need(cp_cache_new(ranks, 1, fresh + past + 16, &it->cache));
    need(cp_store_new(ranks, 1, 1, fresh + past + 16, &shape, &it->store));
    for (int rank = 0; rank < ranks; rank++) {
        const int64_t count =
            (fresh + past + 16) * shape.kv_heads * shape.head_dim;
        fill(cp_store_keys(it->store, rank, 0), count, 7);
        fill(cp_store_values(it->store, rank, 0), count, 8);
    }
    if (past > 0) {
        need(cp_cache_prefill(it->cache, &past, &it->layout));
        need(cp_cache_commit(it->cache, it->layout));
        cp_layout_free(it->layout);
    }
    need(variant == CP_DECODE
             ? cp_cache_decode(it->cache, &fresh, &it->layout)
             : cp_cache_prefill(it->cache, &fresh, &it->layout));
    need(cp_plan_build(variant, it->layout, &shape, NULL, &it->plan));
}

static void close_bench(bench *it) {
    cp_plan_free(it->plan);
    cp_layout_free(it->layout);
    cp_store_free(it->store);
    cp_cache_free(it->cache);
}

static double run(const bench *it) {
    const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    job job = {.plan = it->plan,
               .store = it->store,
               .threads = cores / it->ranks > 1 ? cores / it->ranks : 1};
    const cp_threads_options options = {it->ranks, 0, 0};
    need(cp_threads_run(&options, rank_main, &job));
    return job.seconds;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof(double), by_value);
    return values[count / 2];
}

static void variants(int repeats) {
    const cp_shape shape = {8, 2, 64};
    const struct {
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
        bench ring, one;
        cp_plan_report report;
        open_bench(&ring, rows[n].variant, shape, rows[n].ranks, rows[n].fresh,
                   rows[n].past);
        open_bench(&one, rows[n].variant, shape, 1, rows[n].fresh,
                   rows[n].past);
        need(cp_plan_check(ring.plan, &report));
        double times[64], ratios[64];
        run(&ring);
        for (int i = 0; i < repeats; i++) {
            times[i] = run(&ring);
            ratios[i] = run(&one) / times[i];
        }
        printf("%s,%d,%lld,%lld,%.2f,%.3f,%.2f\n",
               cp_variant_name(rows[n].variant), rows[n].ranks,
               (long long)rows[n].fresh, (long long)rows[n].past,
               1e3 * median(times, repeats), median(ratios, repeats),
               (double)report.bytes[0] / 1e6);
        cp_plan_report_free(&report);
        close_bench(&ring);
        close_bench(&one);
    }
}

static double least(const double *values, int count) {
    double smallest = values[0];
    for (int i = 1; i < count; i++)
        smallest = values[i] < smallest ? values[i] : smallest;
    return smallest;
}

static void choice(int ranks, int64_t fresh, int64_t past, int repeats) {
    const cp_shape shape = {9, 3, 64}; /* SmolLM2 */
    bench kv, q;
    double times[2][64] = {{0}};
    open_bench(&kv, CP_PASS_KV, shape, ranks, fresh, past);
    open_bench(&q, CP_PASS_Q, shape, ranks, fresh, past);
    run(&kv);
    run(&q);
    for (int i = 0; i < repeats; i++) {
        times[0][i] = run(&kv);
        times[1][i] = run(&q);
    }
    printf("%d,%lld,%lld,%.4f,%.4f\n", ranks, (long long)fresh, (long long)past,
           1e3 * least(times[0], repeats), 1e3 * least(times[1], repeats));
    fflush(stdout);
    close_bench(&kv);
    close_bench(&q);
}

/* Both variants over new tokens and past; the fastest of each. */
static void choices(int repeats) {
    const int64_t past[7] = {0, 128, 512, 2048, 4096, 8192, 16384};
    const int64_t fresh[6] = {2, 8, 24, 64, 160, 400};
    printf("ranks,new,cached,pass_kv,pass_q\n");
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (int n = 0; n < 7 * 6; n++)
            choice(ranks, fresh[n % 6], past[n / 6], repeats);
}

int main(int argc, char **argv) {
    const bool grid = argc > 1 && strcmp(argv[1], "choices") == 0;
    const int repeats = argc > 1 + grid ? atoi(argv[1 + grid]) : 5;
    if (repeats < 1 || repeats > 64)
        return fprintf(stderr, "usage: measure_ring [choices] [1..64]\n"), 2;
    if (grid)
        choices(repeats);
    else
        variants(repeats);
    return 0;
}
