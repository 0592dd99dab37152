/* longring bench: how fast attention and the ring are on this machine. */
#define _POSIX_C_SOURCE 200809L
#include "app/command.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "app/meter.h"
#include "ring/crew.h"
#include "ground/host.h"

#ifndef CP_COMMIT
#define CP_COMMIT "unknown"
#endif

typedef struct {
    const char *only, *model;
    cp_counts heads;
    int64_t threads, rounds, generate; /* below 0: not given */
    int kernel, on, variant;
    double timeout;
    bool csv;
    /* What they come to. */
    int count; /* of arguments, for the head of the file */
    char *const *arguments;
    const cp_backend *backend;
    cp_gguf *file;
    cp_model *weights;
    cp_bench bench;
} bench_run;

enum { KERNEL_FAST, KERNEL_FIRST };
enum { MOST_THREADS = 1024, MOST_TOKENS = INT32_MAX / 2 };

static const char *const part_names[CP_BENCH_PARTS] = {
    "fma",    "micro", "read", "full",   "causal",
    "decode", "merge", "ring", "million"};

static cp_status range_check(const char *name, int64_t value, int64_t most) {
    if (value >= 1 && value <= most)
        return CP_OK;
    return cp_fail(CP_INVALID, "--%s %lld: between 1 and %lld can be measured",
                   name, (long long)value, (long long)most);
}

static cp_status part_take(bench_run *run, const char *text, int64_t length) {
    for (int p = 0; p < CP_BENCH_PARTS; p++)
        if ((int64_t)strlen(part_names[p]) == length &&
            memcmp(part_names[p], text, (size_t)length) == 0) {
            run->bench.parts[p] = true;
            return CP_OK;
        }
    const char *near = cp_nearest(text, length, CP_BENCH_PARTS, part_names);
    if (near != NULL)
        return cp_fail(CP_INVALID,
                       "--only %.*s: no such part; did you mean %s?",
                       (int)length, text, near);
    return cp_fail(CP_INVALID,
                   "--only %.*s: no such part; there are fma, micro, read, "
                   "full, causal, decode, merge, ring and million",
                   (int)length, text);
}

static cp_status parts_take(bench_run *run) {
    const char *text = run->only != NULL ? run->only
                       : cp_crew_mine()->share != NULL
                           ? "ring"
                           : "fma,micro,read,full,causal,decode,merge,ring";
    bool *parts = run->bench.parts;
    int count = 0;
    while (text != NULL) {
        const int64_t length = (int64_t)strcspn(text, ",");
        CP_TRY(part_take(run, text, length));
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    for (int p = 0; p < CP_BENCH_PARTS; p++)
        count += parts[p];
    if (parts[CP_BENCH_MILLION] && count > 1)
        return cp_fail(CP_INVALID, "--only %s: million stands alone",
                       run->only);
    return CP_OK;
}

enum { OF_ATTENTION, OF_MODEL, OF_MILLION };

static const struct {
    const char *tokens, *keys, *prompts, *ranks;
    int64_t generate, rounds;
    cp_shape shape;
} defaults[] = {
    {"2048,4096,8192", "32Ki,64Ki", "1", "4", 0, 5, {8, 2, 128}},
    {"1", "1", "512,2048,7000", "1,4", 32, 3, {1, 1, 1}},
    {"128", "1M", "1", "4", 32, 1, {16, 1, 128}},
};

static int kind_of(const bench_run *run) {
    return run->model != NULL                   ? OF_MODEL
           : run->bench.parts[CP_BENCH_MILLION] ? OF_MILLION
                                                : OF_ATTENTION;
}

static cp_status useless(const char *option, const char *beside) {
    return cp_fail(CP_INVALID, "--%s has no meaning %s", option, beside);
}

static cp_status model_check(const bench_run *run) {
    const cp_bench *bench = &run->bench;
    if (run->only != NULL)
        return useless("only", "with --model");
    if (bench->tokens.count > 0)
        return useless("tokens", "with --model; --prompt has");
    if (bench->keys.count > 0)
        return useless("keys", "with --model; --prompt has");
    if (run->heads.count > 0)
        return useless("heads", "with --model");
    if (run->kernel == KERNEL_FIRST)
        return useless("kernel first", "with --model");
    if (run->variant != CP_AUTO)
        return useless("variant", "with --model");
    return CP_OK;
}

static cp_status crew_check(const bench_run *run) {
    const cp_bench *bench = &run->bench;
    if (run->model != NULL)
        return useless("model", "with --on mpi");
    for (int p = 0; p < CP_BENCH_PARTS; p++)
        if (bench->parts[p] && p != CP_BENCH_RING)
            return cp_fail(CP_INVALID,
                           "--only %s: on mpi the ring alone is "
                           "measured",
                           part_names[p]);
    for (int64_t i = 0; i < bench->ranks.count; i++)
        if (bench->ranks.items[i] != cp_crew_mine()->ranks)
            return cp_fail(
                CP_INVALID,
                "--ranks %lld: the launcher has started %d processes",
                (long long)bench->ranks.items[i], cp_crew_mine()->ranks);
    return CP_OK;
}

static cp_status attention_check(const bench_run *run) {
    const cp_bench *bench = &run->bench;
    const bool million = bench->parts[CP_BENCH_MILLION];
    if (bench->prompts.count > 0)
        return useless("prompt", "without --model");
    if (run->generate >= 0 && !million)
        return useless("generate", "without --model or --only million");
    if (run->variant != CP_AUTO && !million)
        return useless("variant", "without --only million");
    if (run->variant == CP_DECODE)
        return cp_fail(CP_INVALID, "--variant decode: a follow-up cannot");
    if (million && (bench->tokens.count > 1 || bench->keys.count > 1 ||
                    bench->ranks.count > 1))
        return cp_fail(CP_INVALID, "--tokens, --keys and --ranks: the million "
                                   "takes one count of each");
    return CP_OK;
}

static cp_status list_check(const char *name, const char *otherwise,
                            int64_t most, cp_counts *list) {
    if (list->count == 0)
        CP_TRY(cp_counts_parse(name, otherwise, list));
    for (int64_t i = 0; i < list->count; i++)
        CP_TRY(range_check(name, list->items[i], most));
    return CP_OK;
}

static cp_status lists_check(bench_run *run) {
    cp_bench *bench = &run->bench;
    const int kind = kind_of(run);
    char size[16];
    CP_TRY(list_check("tokens", defaults[kind].tokens, MOST_TOKENS,
                      &bench->tokens));
    CP_TRY(list_check("keys", defaults[kind].keys, MOST_TOKENS, &bench->keys));
    CP_TRY(list_check("prompt", defaults[kind].prompts, MOST_TOKENS,
                      &bench->prompts));
    snprintf(size, sizeof(size), "%d", cp_crew_mine()->ranks);
    return list_check(
        "ranks", cp_crew_mine()->share != NULL ? size : defaults[kind].ranks,
        CP_COMMAND_RANKS, &bench->ranks);
}

static cp_status shape_take(bench_run *run) {
    const cp_counts *heads = &run->heads;
    if (heads->count != 0 && heads->count != 3)
        return cp_fail(CP_INVALID,
                       "--heads: %lld counts; query heads, kv heads and "
                       "dimension are needed",
                       (long long)heads->count);
    run->bench.shape = defaults[kind_of(run)].shape;
    if (heads->count == 3)
        run->bench.shape =
            (cp_shape){heads->items[0], heads->items[1], heads->items[2]};
    return cp_shape_check(&run->bench.shape);
}

static cp_status numbers_take(bench_run *run) {
    cp_bench *bench = &run->bench;
    const int kind = kind_of(run);
    if (run->rounds < 0)
        run->rounds = defaults[kind].rounds;
    if (run->generate < 0)
        run->generate = defaults[kind].generate;
    CP_TRY(range_check("threads", run->threads, MOST_THREADS));
    CP_TRY(range_check("rounds", run->rounds, CP_BENCH_ROUNDS));
    if (run->generate > MOST_TOKENS)
        CP_TRY(range_check("generate", run->generate, MOST_TOKENS));
    bench->threads = (int)run->threads;
    bench->rounds = (int)run->rounds;
    bench->generate = run->generate;
    bench->variant = (cp_variant)run->variant;
    bench->first_kernel = run->kernel == KERNEL_FIRST;
    return CP_OK;
}

static cp_status bench_check(void *context) {
    bench_run *run = context;
    CP_TRY(parts_take(run));
    CP_TRY(run->model != NULL ? model_check(run) : attention_check(run));
    CP_TRY(shape_take(run));
    CP_TRY(numbers_take(run));
    CP_TRY(lists_check(run));
    if (cp_crew_mine()->share != NULL)
        CP_TRY(crew_check(run));
    CP_TRY(cp_command_backend(run->on, run->timeout, &run->backend));
    if (cp_meter_of(run->backend)->bench == NULL)
        return cp_fail(CP_INVALID, "--on %s: nothing is measured there yet",
                       run->backend->name);
    return CP_OK;
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
    if (kind_of(run) == OF_MILLION)
        puts("\nwhat,value,unit");
    else
        puts("\nwhat,rate,unit,milliseconds,fraction,fraction_low,"
             "fraction_high,of,rounds");
}

static void name_print(const char *what) {
    for (; *what != '\0'; what++)
        if (*what != ' ')
            putchar(*what);
}

static void row_for_programs(const bench_run *run, const cp_bench_row *row) {
    name_print(row->what);
    printf(",%.4g,%s", row->rate, row->unit);
    if (row->fraction.median > 0)
        printf(",%.4g,%.4g,%.4g,%.4g", row->milliseconds, row->fraction.median,
               row->fraction.low, row->fraction.high);
    else
        printf(",,,,");
    printf(",%s,%d\n", row->of, run->bench.rounds);
}

static void row_for_people(const cp_bench_row *row) {
    printf("%-22s %8.1f %-8s", row->what, row->rate, row->unit);
    if (row->fraction.median > 0)
        printf(" %9.2f ms   %.3f of %s [%.3f, %.3f]", row->milliseconds,
               row->fraction.median, row->of, row->fraction.low,
               row->fraction.high);
    printf("\n");
}

static void row_print(void *context, const cp_bench_row *row) {
    const bench_run *run = context;
    if (run->csv)
        row_for_programs(run, row);
    else
        row_for_people(row);
    fflush(stdout);
}

static void fact_print(void *context, const cp_bench_fact *fact) {
    const bench_run *run = context;
    printf(run->csv ? "%s,%.6g,%s\n" : "%-28s %12.6g %s\n", fact->what,
           fact->value, fact->unit);
    fflush(stdout);
}

static void title_print(const bench_run *run) {
    char machine[320];
    const cp_shape *shape = run->weights != NULL
                                ? &cp_model_describe(run->weights)->shape
                                : &run->bench.shape;
    cp_host_describe(machine, sizeof(machine));
    printf("%s\n%lld query heads, %lld key and value heads of %lld; %d "
           "thread%s; median of %d round%s [lowest, highest]\n\n",
           machine, (long long)shape->query_heads, (long long)shape->kv_heads,
           (long long)shape->head_dim, run->bench.threads,
           cp_plural(run->bench.threads), run->bench.rounds,
           cp_plural(run->bench.rounds));
}

static cp_status rooms_check(const cp_bench *bench) {
    const int64_t room = cp_model_describe(bench->model)->positions;
    for (int64_t i = 0; i < bench->prompts.count; i++)
        if (bench->prompts.items[i] + bench->generate > room)
            return cp_fail(CP_CAPACITY,
                           "--prompt %lld: with %lld generated more than the "
                           "model's %lld positions",
                           (long long)bench->prompts.items[i],
                           (long long)bench->generate, (long long)room);
    return CP_OK;
}

static cp_status weights_load(bench_run *run) {
    if (run->model == NULL)
        return CP_OK;
    cp_status status = cp_gguf_open(run->model, &run->file);
    if (status == CP_OK)
        status = cp_command_about(
            cp_model_open(run->backend, run->file, &run->weights), run->model);
    run->bench.model = run->weights;
    return status == CP_OK ? rooms_check(&run->bench) : status;
}

static cp_status bench_work(void *context) {
    bench_run *run = context;
    run->bench.row = row_print;
    run->bench.fact = fact_print;
    run->bench.context = run;
    cp_status status = weights_load(run);
    if (status == CP_OK) {
        if (run->csv)
            head_print(run);
        else
            title_print(run);
        fflush(stdout);
        status = cp_meter_of(run->backend)->bench(&run->bench);
    }
    cp_model_close(run->weights);
    cp_gguf_close(run->file);
    return status;
}

int cp_command_bench(int count, char *const *arguments) {
    bench_run run = {.threads = cp_host_cores(),
                     .rounds = -1,
                     .generate = -1,
                     .timeout = CP_COMMAND_TIMEOUT,
                     .count = count,
                     .arguments = arguments};
    const cp_option options[] = {
        {"only", CP_WORD, &run.only, "PART,...",
         "fma, micro, read, full, causal, decode, merge, ring (default: all "
         "these); or million: a follow-up and decode over 1,000,000 tokens"},
        {"tokens", CP_COUNTS, &run.bench.tokens, "T,T,...",
         "lengths of prompts (default 2048,4096,8192)"},
        {"keys", CP_COUNTS, &run.bench.keys, "P,P,...",
         "lengths of the past in decode (default 32Ki,64Ki)"},
        {"heads", CP_COUNTS, &run.heads, "H,KV,D",
         "query heads, key and value heads, head dimension (default 8,2,128; "
         "of "
         "the million 16,1,128)"},
        {"ranks", CP_COUNTS, &run.bench.ranks, "N,N,...",
         "sizes of the ring (default 4; with --model 1,4)"},
        {"threads", CP_COUNT, &run.threads, "N",
         "threads of everything together (default: one for each core)"},
        {"kernel", CP_ONE_OF, &run.kernel, "fast|first",
         "which attention kernel: the fast one, or chapter 1's (default fast)"},
        {"rounds", CP_COUNT, &run.rounds, "N",
         "how often each is measured, in turn (default 5; with --model 3)"},
        {"model", CP_WORD, &run.model, "FILE.gguf",
         "measure a model instead: prompts (pp) and generation (tg)"},
        {"prompt", CP_COUNTS, &run.bench.prompts, "T,T,...",
         "lengths of the model's prompts (default 512,2048,7000)"},
        {"generate", CP_COUNT, &run.generate, "K",
         "tokens generated after each (default 32)"},
        {"variant", CP_ONE_OF, &run.variant, CP_COMMAND_VARIANTS,
         "which ring, for the million (default auto: pass-q)"},
        {"on", CP_ONE_OF, &run.on, CP_COMMAND_PLACES,
         "where the ranks run (default threads)"},
        {"timeout", CP_NUMBER, &run.timeout, "SECONDS",
         "how long a process waits for another (default 60)"},
        {"csv", CP_FLAG, &run.csv, NULL,
         "for programs, with machine, date, commit and command in the head"},
        {0}};
    const cp_usage usage = {"bench", "[options]",
                            "Attention and ring on this machine, as fractions "
                            "of what the machine can do: "
                            "multiply-adds in registers (fma) and reading "
                            "memory (read), measured in turn "
                            "with what is held against them.",
                            options};
    return cp_command_run(&usage, count, arguments, bench_check, bench_work,
                          &run);
}
