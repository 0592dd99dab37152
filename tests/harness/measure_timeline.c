/* One ring on this machine, measured and simulated: when each operation of
 * each rank runs. Two ranks in threads pass keys and values, as in chapter 6.
 * The machine is calibrated in the same run. Kind 0 is an attention.
 * Usage: measure_timeline [1..99]: so many runs, of which the middle one counts,
 * as the calibration's medians do; prints figures/data/timeline.csv. */
#define _POSIX_C_SOURCE 200809L
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

enum { RANKS = 2, TOKENS = 4096, MOST_OPS = 32, MOST_RUNS = 99 };

typedef struct {
    cp_op_kind kind;
    double start, end;
} stretch;

typedef struct {
    int count;
    stretch stretches[MOST_OPS];
} line;

typedef struct {
    const cp_plan *plan;
    cp_store *store;
    double start;
    line lines[RANKS];
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

static void observe(void *context, const cp_walker *walker, const cp_op *op,
                    double start, double end) {
    line *mine = context;
    (void)walker;
    if (mine->count < MOST_OPS)
        mine->stretches[mine->count++] = (stretch){op->kind, start, end};
}

static cp_status rank_main(cp_comm *comm, void *context) {
    job *job = context;
    const int rank = comm->rank;
    const cp_shape *shape = &job->plan->shape;
    const int64_t rows = job->plan->layout->queries[rank].rows;
    const cp_walk_options options = {
        .threads = 1, .observe = observe, .context = &job->lines[rank]};
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
    job->lines[rank].count = 0;
    status = cp_comm_barrier(comm);
    if (rank == 0)
        job->start = now();
    if (status == CP_OK)
        status = cp_walk(walker, comm, cp_store_keys(job->store, rank, 0),
                         cp_store_values(job->store, rank, 0));
    if (status == CP_OK)
        status = cp_comm_barrier(comm);
    cp_walker_free(walker);
    return status;
}

static double last_end(const job *job) {
    double last = 0;
    for (int rank = 0; rank < RANKS; rank++)
        for (int n = 0; n < job->lines[rank].count; n++) {
            const double end = job->lines[rank].stretches[n].end - job->start;
            last = end > last ? end : last;
        }
    return last;
}

static int by_end(const void *a, const void *b) {
    const double x = last_end(a), y = last_end(b);
    return (x > y) - (x < y);
}

static void measure(int repeats) {
    static job runs[MOST_RUNS], run;
    const int64_t tokens = TOKENS;
    const cp_shape shape = {8, 2, 64};
    const cp_threads_options options = {RANKS, 0, 0};
    cp_cache *cache;
    cp_layout *layout;
    cp_plan *plan;
    need(cp_cache_new(RANKS, 1, TOKENS + 16, &cache));
    need(cp_store_new(RANKS, 1, 1, TOKENS + 16, &shape, &run.store));
    need(cp_cache_prefill(cache, &tokens, &layout));
    need(cp_plan_build(CP_PASS_KV, layout, &shape, NULL, &plan));
    run.plan = plan;
    for (int n = 0; n < repeats; n++) {
        need(cp_threads_run(&options, rank_main, &run));
        runs[n] = run;
    }
    qsort(runs, (size_t)repeats, sizeof(runs[0]), by_end);
    const job middle = runs[repeats / 2];
    for (int rank = 0; rank < RANKS; rank++)
        for (int n = 0; n < middle.lines[rank].count; n++) {
            const stretch *s = &middle.lines[rank].stretches[n];
            printf("measured,%d,%d,%s,%.3f,%.3f,%d,%d\n", rank, n,
                   cp_op_name(s->kind), 1e3 * (s->start - middle.start),
                   1e3 * (s->end - middle.start), 1 + 2 * rank,
                   s->kind != CP_OP_ATTEND);
        }
    printf("measured,all,0,all,0,%.3f,0,1\n", 1e3 * last_end(&middle));
    cp_plan_free(plan);
    cp_layout_free(layout);
    cp_store_free(run.store);
    cp_cache_free(cache);
}

static const char model_text[] =
    "model ring\nlike smollm2-135m\nlayers 1 layers assumed\n"
    "width 1 numbers assumed\ninner 1 numbers assumed\n"
    "query_heads 8 heads assumed\nkv_heads 2 heads assumed\n"
    "vocabulary 1 tokens assumed\n";

static void calibrate(cp_hardware *hardware) {
    static int64_t rows[] = {1, 64, 256, 1024}, keys[] = {256, 1024, 2048},
                   bytes[] = {64, 16384, 262144, 1048576, 4194304};
    const cp_calibration wanted = {.shape = {8, 2, 64},
                                   .ranks = RANKS,
                                   .cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
                                   .rounds = 9,
                                   .rows = {rows, 4},
                                   .keys = {keys, 3},
                                   .bytes = {bytes, 5},
                                   .hardware = hardware};
    need(cp_hardware_read("laptop", hardware));
    need(cp_calibrate_run(&cp_place_threads, &wanted));
}

static void simulate(void) {
    static const char *const names[] = {"compute", "messages"};
    const int64_t tokens = TOKENS, none = 0;
    cp_hardware laptop;
    cp_model_sizes model;
    cp_forecast forecast;
    cp_history *history;
    char path[] = "/tmp/longring-timeline-XXXXXX", row[1000], name[40];
    double start, length;
    int lane, n = 0;
    FILE *in;
    calibrate(&laptop);
    need(cp_model_sizes_parse("ring", model_text, &model));
    need(cp_history_new(RANKS, 2, names, &history));
    const cp_scenario scenario = {.hardware = &laptop,
                                  .model = &model,
                                  .ranks = RANKS,
                                  .tensor = 1,
                                  .sequences = 1,
                                  .new_tokens = &tokens,
                                  .cached_tokens = &none,
                                  .variant = CP_PASS_KV,
                                  .trace = history};
    need(cp_simulate(&scenario, &forecast));
    if (mkstemp(path) < 0 || cp_history_write(history, 0, path) != CP_OK ||
        (in = fopen(path, "r")) == NULL)
        exit(1);
    while (fgets(row, sizeof(row), in) != NULL)
        if (sscanf(row,
                   "{\"name\":\"%39[^\"]\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,"
                   "\"ts\":%lf,\"dur\":%lf",
                   name, &lane, &start, &length) == 4)
            printf("simulated,%d,%d,%s,%.3f,%.3f,%d,%d\n", lane / 2, n++, name,
                   start / 1e3, (start + length) / 1e3, 2 + lane / 2 * 2,
                   strcmp(name, cp_op_name(CP_OP_ATTEND)) != 0);
    printf("simulated,all,0,all,0,%.3f,0,1\n", 1e3 * forecast.seconds);
    fclose(in);
    remove(path);
    cp_history_free(history);
}

int main(int count, char **arguments) {
    const int repeats = count > 1 ? atoi(arguments[1]) : 20;
    if (repeats < 1 || repeats > MOST_RUNS)
        return fprintf(stderr, "usage: measure_timeline [1..99]\n"), 2;
    printf("what,rank,number,operation,start,end,lane,kind\n");
    measure(repeats);
    simulate();
    return 0;
}
