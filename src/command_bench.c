/* Tangled from book/11-bench.nw; edit the chapter. */
/* longring bench: how fast attention and the ring are on this machine. */
#define _POSIX_C_SOURCE 200809L
#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host.h"

#ifndef CP_COMMIT
#define CP_COMMIT "unknown"
#endif

typedef struct {
    const char *only;
    cp_counts heads;
    int64_t threads, rounds;
    int kernel, on, peer;
    const char *python;
    double patience;
    bool csv;
    /* What they come to. */
    int count; /* of arguments, for the head of the file */
    char *const *arguments;
    const cp_backend *backend;
    cp_bench bench;
} bench_run;

static const char *const part_names[CP_BENCH_PARTS] = {
    "fma", "read", "full", "causal", "decode", "merge", "ring"};
static cp_status part_take(bench_run *run, const char *text, int64_t length) {
    for (int p = 0; p < CP_BENCH_PARTS; p++)
        if ((int64_t)strlen(part_names[p]) == length &&
            memcmp(part_names[p], text, (size_t)length) == 0) {
            run->bench.parts[p] = true;
            return CP_OK;
        }
    const char *near = cp_nearest(text, length, CP_BENCH_PARTS, part_names);
    return cp_fail(CP_INVALID,
                   "--only %.*s: no such part%s%s; there are fma, read, full, "
                   "causal, decode, merge and ring",
                   (int)length, text, near != NULL ? "; did you mean " : "",
                   near != NULL ? near : "");
}

static cp_status parts_take(bench_run *run) {
    const char *text = run->only;
    cp_status status = CP_OK;
    if (text == NULL) {
        for (int p = 0; p < CP_BENCH_PARTS; p++)
            run->bench.parts[p] = true;
        return CP_OK;
    }
    while (text != NULL && status == CP_OK) {
        const int64_t length = (int64_t)strcspn(text, ",");
        status = part_take(run, text, length);
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    return status;
}
static cp_status list_check(const char *name, const char *otherwise,
                            int64_t most, cp_counts *list) {
    cp_status status = CP_OK;
    if (list->count == 0)
        status = cp_counts_parse(name, otherwise, list);
    for (int64_t i = 0; i < list->count && status == CP_OK; i++)
        if (list->items[i] < 1 || list->items[i] > most)
            status = cp_fail(CP_INVALID,
                             "--%s %lld: between 1 and %lld can be measured",
                             name, (long long)list->items[i], (long long)most);
    return status;
}

static cp_status shape_take(bench_run *run) {
    const cp_counts *heads = &run->heads;
    if (heads->count != 0 && heads->count != 3)
        return cp_fail(CP_INVALID,
                       "--heads: %lld counts; query heads, kv heads and "
                       "dimension are needed",
                       (long long)heads->count);
    run->bench.shape = (cp_shape){8, 2, 128};
    if (heads->count == 3)
        run->bench.shape =
            (cp_shape){heads->items[0], heads->items[1], heads->items[2]};
    return cp_shape_check(&run->bench.shape);
}
enum { MOST_THREADS = 1024, MOST_TOKENS = INT32_MAX / 2 };

static cp_status numbers_check(bench_run *run) {
    if (run->threads < 1 || run->threads > MOST_THREADS)
        return cp_fail(CP_INVALID, "--threads %lld: between 1 and %d",
                       (long long)run->threads, MOST_THREADS);
    if (run->rounds < 1 || run->rounds > CP_BENCH_ROUNDS)
        return cp_fail(CP_INVALID, "--rounds %lld: between 1 and %d",
                       (long long)run->rounds, CP_BENCH_ROUNDS);
    run->bench.threads = (int)run->threads;
    run->bench.rounds = (int)run->rounds;
    run->bench.first_kernel = run->kernel == 1;
    cp_status status =
        list_check("tokens", "2048,4096,8192", MOST_TOKENS, &run->bench.tokens);
    if (status == CP_OK)
        status = list_check("keys", "32Ki,64Ki", MOST_TOKENS, &run->bench.keys);
    if (status == CP_OK)
        status = list_check("ranks", "4", CP_COMMAND_RANKS, &run->bench.ranks);
    return status;
}

static cp_status bench_check(void *context) {
    bench_run *run = context;
    cp_status status = parts_take(run);
    if (status == CP_OK)
        status = shape_take(run);
    if (status == CP_OK)
        status = numbers_check(run);
    return status == CP_OK ? cp_command_backend(run->on, &run->backend)
                           : status;
}

static void head_print(const bench_run *run) {
    char machine[320], date[32];
    const time_t today = time(NULL);
    cp_host_describe(machine, sizeof(machine));
    strftime(date, sizeof(date), "%Y-%m-%d", localtime(&today));
    printf("# machine: %s\n# date: %s\n# commit: %s\n# command: longring bench",
           machine, date, CP_COMMIT);
    for (int i = 0; i < run->count; i++) {
        const char *last = strrchr(run->arguments[i], '/');
        printf(" %s", last != NULL ? last + 1 : run->arguments[i]);
    }
    puts("\nwhat,rate,unit,milliseconds,fraction,fraction_low,fraction_high,of,"
         "peer_rate,ratio,ratio_low,ratio_high,rounds");
}
static void spread_print(const cp_spread *it) {
    if (it->median > 0)
        printf(",%.4f,%.4f,%.4f", it->median, it->low, it->high);
    else
        printf(",,,");
}

static void row_for_programs(const bench_run *run, const cp_bench_row *row) {
    printf("%s,%.4g,%s,%.4g", row->what, row->rate, row->unit,
           row->milliseconds);
    spread_print(&row->fraction);
    printf(",%s", row->of);
    if (row->peer_rate > 0)
        printf(",%.4g", row->peer_rate);
    else
        printf(",");
    spread_print(&row->ratio);
    printf(",%d\n", run->bench.rounds);
}
static void row_for_people(const cp_bench_row *row) {
    printf("%-22s %8.1f %-8s", row->what, row->rate, row->unit);
    if (row->fraction.median > 0)
        printf(" %9.2f ms   %.3f of %s [%.3f, %.3f]", row->milliseconds,
               row->fraction.median, row->of, row->fraction.low,
               row->fraction.high);
    printf("\n");
    if (row->peer_rate > 0)
        printf("%22s %8.1f %-8s %9s      %.2f times as fast [%.2f, %.2f]\n",
               "the peer", row->peer_rate, row->unit, "", row->ratio.median,
               row->ratio.low, row->ratio.high);
}

static void row_print(void *context, const cp_bench_row *row) {
    const bench_run *run = context;
    if (run->csv)
        row_for_programs(run, row);
    else
        row_for_people(row);
    fflush(stdout);
}
static void title_print(const bench_run *run) {
    char machine[320];
    const cp_shape *shape = &run->bench.shape;
    cp_host_describe(machine, sizeof(machine));
    printf("%s\n%lld query heads, %lld key and value heads of %lld; %d "
           "thread%s; median of %d round%s [lowest, highest]\n\n",
           machine, (long long)shape->query_heads, (long long)shape->kv_heads,
           (long long)shape->head_dim, run->bench.threads,
           cp_plural(run->bench.threads), run->bench.rounds,
           cp_plural(run->bench.rounds));
}

enum { PEER_NONE, PEER_TORCH, PEER_LLAMA };

static cp_status peer_start(bench_run *run) {
    const char *python = run->python;
    if (run->peer == PEER_NONE)
        return CP_OK;
    if (python == NULL || python[0] == '\0')
        python = "python3";
    return cp_peer_start("torch", python, NULL, run->patience,
                         &run->bench.peer);
}

static cp_status bench_work(void *context) {
    bench_run *run = context;
    run->bench.row = row_print;
    run->bench.context = run;
    cp_status status = peer_start(run);
    if (status != CP_OK)
        return status;
    if (run->csv)
        head_print(run);
    else
        title_print(run);
    fflush(stdout);
    status = run->backend->bench(&run->bench);
    cp_peer_stop(run->bench.peer);
    return status;
}

int cp_command_bench(int count, char *const *arguments) {
    bench_run run = {.threads = cp_host_cores(),
                     .rounds = 5,
                     .python = getenv("PYTHON"),
                     .patience = 600,
                     .count = count,
                     .arguments = arguments};
    const cp_option options[] = {
        /* Bench options. */
        {"only", CP_WORD, &run.only, "PART,...",
         "fma, read, full, causal, decode, merge, ring (default: all)"},
        {"tokens", CP_COUNTS, &run.bench.tokens, "T,T,...",
         "lengths of prompts (default 2048,4096,8192)"},
        {"keys", CP_COUNTS, &run.bench.keys, "P,P,...",
         "lengths of the past in decode (default 32Ki,64Ki)"},
        {"heads", CP_COUNTS, &run.heads, "H,KV,D",
         "query heads, key and value heads, head dimension (default 8,2,128)"},
        {"ranks", CP_COUNTS, &run.bench.ranks, "N,N,...",
         "sizes of the ring that is held against one rank (default 4)"},
        {"threads", CP_COUNT, &run.threads, "N",
         "threads of everything together (default: one for each core)"},
        {"kernel", CP_ONE_OF, &run.kernel, "fast|first",
         "which attention kernel: the fast one, or chapter 1's (default fast)"},
        {"rounds", CP_COUNT, &run.rounds, "N",
         "how often each is measured, in turn (default 5)"},
        {"peer", CP_ONE_OF, &run.peer, "none|torch|llama",
         "who does the same beside us: PyTorch, or llama-cpp-python with "
         "--model"},
        {"python", CP_WORD, &run.python, "PATH",
         "the Python of the peer (default $PYTHON, or python3)"},
        {"patience", CP_NUMBER, &run.patience, "SECONDS",
         "how long a peer may take for an answer (default 600)"},
        {"on", CP_ONE_OF, &run.on, CP_COMMAND_PLACES,
         "where the ranks run (default threads)"},
        {"csv", CP_FLAG, &run.csv, NULL,
         "for programs, with machine, date, commit and command in the head"},
        {0}};
    const cp_usage usage = {"bench", "[options]",
                            /* What bench is about. */
                            "Attention and ring on this machine, as fractions "
                            "of what the machine can do: "
                            "multiply-adds in registers (fma) and reading "
                            "memory (read), measured in turn "
                            "with what is held against them.",
                            options};
    return cp_command_run(&usage, count, arguments, bench_check, bench_work,
                          &run);
}
