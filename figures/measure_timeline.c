/* One ring on this machine, measured and simulated: when each operation of
 * each rank runs. Two ranks in threads pass keys and values, as in chapter 6.
 * The machine is calibrated in the same run. Kind 0 is an attention.
 * Usage: measure_timeline [1..99]: that many runs, of which the middle one counts,
 * as the calibration's medians do; prints figures/data/timeline.csv. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure/calibrate_cores.h"
#include "figures/ring.h"
#include "ground/host.h"
#include "predict/simulate.h"

enum { RANKS = 2, TOKENS = 4096, MOST_OPS = 32, MOST_RUNS = 99 };

typedef struct {
    cp_op_kind kind;
    double start, end;
} stretch;

typedef struct {
    int count;
    stretch stretches[MOST_OPS];
} timeline_line;

typedef struct {
    double start;
    timeline_line lines[RANKS];
} timeline_job;

static void observe(void *context, const cp_walker *walker, const cp_op *op,
                    double start, double end) {
    timeline_line *line = context;
    (void)walker;
    if (line->count < MOST_OPS)
        line->stretches[line->count++] = (stretch){op->kind, start, end};
}

static double last_end(const timeline_job *job) {
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
    static timeline_job runs[MOST_RUNS];
    ring ring = {.variant = CP_PASS_KV,
                 .shape = {8, 2, 64},
                 .ranks = RANKS,
                 .fresh = TOKENS,
                 .observe = observe};
    ring_open(&ring);
    for (int n = 0; n < repeats; n++) {
        for (int rank = 0; rank < RANKS; rank++)
            ring.contexts[rank] = &runs[n].lines[rank];
        ring_run(&ring);
        runs[n].start = ring.start;
    }
    qsort(runs, (size_t)repeats, sizeof(runs[0]), by_end);
    const timeline_job *middle = &runs[repeats / 2];
    for (int rank = 0; rank < RANKS; rank++)
        for (int n = 0; n < middle->lines[rank].count; n++) {
            const stretch *s = &middle->lines[rank].stretches[n];
            printf("measured,%d,%d,%s,%.3f,%.3f,%d,%d\n", rank, n,
                   cp_op_name(s->kind), 1e3 * (s->start - middle->start),
                   1e3 * (s->end - middle->start), 1 + 2 * rank,
                   s->kind != CP_OP_ATTEND);
        }
    printf("measured,all,0,all,0,%.3f,0,1\n", 1e3 * last_end(middle));
    ring_close(&ring);
}

static const char model_text[] =
    "model ring\nlike smollm2-135m\nlayers 1 layers assumed\n"
    "width 1 numbers assumed\ninner 1 numbers assumed\n"
    "query_heads 8 heads assumed\nkv_heads 2 heads assumed\n"
    "vocabulary 1 tokens assumed\n";

static void calibrate(cp_hardware *hardware) {
    static int64_t rows[] = {1, 64, 256, 1024}, keys[] = {256, 1024, 2048},
                   bytes[] = {64, 16384, 262144, 1048576, 4194304};
    const cp_calibration request = {.shape = {8, 2, 64},
                                    .ranks = RANKS,
                                    .cores = cp_host_cores(),
                                    .rounds = 9,
                                    .rows = {rows, 4},
                                    .keys = {keys, 3},
                                    .bytes = {bytes, 5},
                                    .hardware = hardware};
    need(cp_hardware_read("laptop", NULL, hardware));
    need(cp_calibrate_cores(&cp_runner_threads, &request));
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
    need(cp_model_sizes_read("ring", model_text, &model));
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
    int64_t lost;
    need(cp_simulate(&scenario, &forecast));
    if (mkstemp(path) < 0 || cp_history_write(history, path, &lost) != CP_OK ||
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
