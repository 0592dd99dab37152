/* longring bench: how fast attention and the ring are on this machine. */
#include "app/command.h"
#include "app/opened.h"

#include <string.h>

#include "app/backends.h"
#include "ground/host.h"
#include "group/process_group.h"

typedef struct {
    const char *only, *model;
    cp_counts heads;
    int64_t threads, rounds; /* below 0: not given; so for bench.generate */
    int kernel;              /* 1: chapter 1's */
    bool csv;
    cp_command_ring ring; /* runner, timeout and order */
    /* Derived from the options. */
    int count; /* of arguments, for the file's header */
    char *const *arguments;
    cp_opened opened;
    cp_bench bench;
} bench_run;

enum { MOST_THREADS = 1024, MOST_TOKENS = INT32_MAX / 2 };

/* What can be measured: on a process group only the ring; on a GPU attention
 * and rings of ranks that share it, beside the GPU's own ceilings. */
static const char all_parts[] = "fma,micro,read,full,causal,decode,merge,ring";
static const char gpu_parts[] = "full,causal,decode,merge,ring";

static bool on_gpu(const bench_run *run) {
    return run->bench.runner == NULL;
}

static cp_status parts_take(bench_run *run, bool joined) {
    const char *all = on_gpu(run) ? gpu_parts : all_parts;
    const char *text = run->only != NULL ? run->only : joined ? "ring" : all;
    while (text != NULL) {
        const size_t length = strcspn(text, ",");
        int p = 0;
        while (p < CP_BENCH_PARTS && (strlen(cp_bench_names[p]) != length ||
                                      memcmp(cp_bench_names[p], text, length)))
            p++;
        if (p == CP_BENCH_PARTS)
            return cp_refuse("--only %.*s: no such part; there are %s",
                             (int)length, text, all);
        if (on_gpu(run) && strstr(gpu_parts, cp_bench_names[p]) == NULL)
            return cp_refuse("--only %s: on a GPU there are %s",
                             cp_bench_names[p], gpu_parts);
        if (joined && p != CP_BENCH_RING)
            return cp_refuse("--only %s: on mpi only ring can be measured",
                             cp_bench_names[p]);
        run->bench.parts[p] = true;
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    return CP_OK;
}

static cp_status meaning_check(const bench_run *run, bool joined) {
    const cp_bench *bench = &run->bench;
    const bool model = run->model != NULL;
    const struct {
        bool given;
        const char *option, *beside;
    } useless[] = {
        {model && run->only != NULL, "only", "with --model"},
        {model && run->kernel == 1, "kernel first", "with --model"},
        {model && joined, "model", "with --on mpi"},
        {run->kernel == 1 && on_gpu(run), "kernel", "on a GPU; all are timed"},
        {model && bench->tokens.count > 0, "tokens",
         "with --model; use --prompt"},
        {model && bench->keys.count > 0, "keys", "with --model; use --prompt"},
        {model && run->heads.count > 0, "heads", "with --model"},
        {!model && bench->prompts.count > 0, "prompt", "without --model"},
        {!model && bench->generate >= 0, "generate", "without --model"},
        {!model && run->ring.exact, "exact-order", "without --model"},
    };
    for (size_t n = 0; n < sizeof(useless) / sizeof(useless[0]); n++)
        if (useless[n].given)
            return cp_refuse("--%s has no meaning %s", useless[n].option,
                             useless[n].beside);
    return CP_OK;
}

static cp_status lists_take(bench_run *run, bool joined) {
    cp_bench *bench = &run->bench;
    const bool model = run->model != NULL, gpu = on_gpu(run);
    const struct {
        const char *name, *otherwise; /* NULL: stay empty */
        int64_t most;
        cp_counts *list;
    } lists[] = {
        {"tokens",
         model ? NULL
         : gpu ? "2048,4096,8192,16Ki,32Ki"
               : "2048,4096,8192",
         MOST_TOKENS, &bench->tokens},
        {"keys",
         model ? NULL
         : gpu ? "8Ki,64Ki"
               : "32Ki,64Ki",
         MOST_TOKENS, &bench->keys},
        {"heads",
         model ? NULL
         : gpu ? "64,8,128"
               : "8,2,128",
         CP_HEADS_MAX, &run->heads},
        {"prompt", model ? "512,2048,7000" : NULL, MOST_TOKENS,
         &bench->prompts},
        {"ranks",
         model ? "1,4"
         : gpu ? "4,8"
               : "4",
         CP_COMMAND_RANKS, &bench->ranks},
    };
    const bool by_group = joined && bench->ranks.count == 0;
    for (size_t n = 0; n < sizeof(lists) / sizeof(lists[0]); n++) {
        cp_counts *list = lists[n].list;
        if (list->count == 0 && lists[n].otherwise != NULL)
            CP_TRY(cp_counts_parse(lists[n].name, lists[n].otherwise, list));
        for (int64_t i = 0; i < list->count; i++)
            CP_TRY(cp_option_range(lists[n].name, list->items[i], 1,
                                   lists[n].most));
    }
    for (int64_t i = 0; i < bench->ranks.count; i++) {
        if (by_group)
            bench->ranks.items[i] = -1;
        CP_TRY(cp_command_ranks(&bench->ranks.items[i], 1));
    }
    return model ? CP_OK : cp_command_heads(&run->heads, false, &bench->shape);
}

static cp_status bench_check(void *context) {
    bench_run *run = context;
    cp_bench *bench = &run->bench;
    cp_command_ring *ring = &run->ring;
    const bool joined = cp_process_group_own()->broadcast != NULL;
    CP_TRY(cp_command_ring_check(ring));
    bench->dealing = ring->placement.dealing;
    bench->runner = cp_backend_cores(ring->backend);
    if (joined && on_gpu(run))
        return cp_refuse("--on %s: a single process measures a GPU",
                         ring->backend->name);
    CP_TRY(parts_take(run, joined));
    CP_TRY(meaning_check(run, joined));
    CP_TRY(lists_take(run, joined));
    if (run->rounds < 0)
        run->rounds = run->model != NULL ? 3 : on_gpu(run) ? 21 : 5;
    if (bench->generate < 0)
        bench->generate = 32;
    CP_TRY(cp_option_range("threads", run->threads, 1, MOST_THREADS));
    CP_TRY(cp_option_range("rounds", run->rounds, 1, CP_BENCH_ROUNDS));
    CP_TRY(cp_option_range("generate", bench->generate, 0, MOST_TOKENS));
    bench->threads = (int)run->threads;
    bench->rounds = (int)run->rounds;
    if (run->kernel == 1)
        bench->kernel = cp_attend;
    else if (bench->runner != NULL)
        bench->kernel = cp_runner_kernel(bench->runner);
    return CP_OK;
}

static void head_print(const bench_run *run) {
    cp_host_sign(stdout);
    printf("# command: longring bench");
    for (int i = 0; i < run->count; i++) {
        const char *last = strrchr(run->arguments[i], '/');
        printf(" %s", last != NULL ? last + 1 : run->arguments[i]);
    }
    printf("\n# micro-kernel: %s", cp_cores_kernel());
    puts("\nwhat,rate,unit,milliseconds,fraction,fraction_low,fraction_high,"
         "of,rounds");
}

static void title_print(const bench_run *run) {
    char machine[320];
    const cp_bench *bench = &run->bench;
    const cp_shape *shape = &bench->shape;
    cp_host_describe(machine, sizeof(machine));
    printf("%s\nmicro-kernel: %s\n", machine, cp_cores_kernel());
    printf("%ld query heads, %ld key and value heads of %ld;\n%d "
           "thread%s; median of %d round%s [lowest highest]\n\n",
           shape->query_heads, shape->kv_heads, shape->head_dim, bench->threads,
           cp_plural(bench->threads), bench->rounds, cp_plural(bench->rounds));
}

static void row_print(void *context, const cp_bench_row *row) {
    const bench_run *run = context;
    const cp_spread *part = &row->fraction;
    if (run->csv) {
        for (const char *c = row->what; *c != '\0'; c++)
            if (*c != ' ')
                putchar(*c);
        printf(",%.4g,%s,", row->value, row->unit);
        if (part->median > 0)
            printf("%.4g,%.4g,%.4g,%.4g", row->milliseconds, part->median,
                   part->low, part->high);
        printf("%s,%s,%d\n", part->median > 0 ? "" : ",,,", row->of,
               run->bench.rounds);
    } else {
        printf("%-20s %6.1f %-8s", row->what, row->value, row->unit);
        if (part->median > 0)
            printf(" %7.2f ms %.3f [%.3f %.3f] of %s", row->milliseconds,
                   part->median, part->low, part->high, row->of);
        putchar('\n');
    }
    fflush(stdout);
}

static cp_status weights_load(bench_run *run) {
    cp_bench *bench = &run->bench;
    run->opened.path = run->model;
    CP_TRY(cp_opened_weights(&run->opened, &run->ring));
    bench->model = run->opened.weights;
    bench->shape = run->opened.facts->shape;
    const int64_t room = run->opened.facts->positions;
    for (int64_t i = 0; i < bench->prompts.count; i++)
        if (bench->prompts.items[i] + bench->generate > room)
            return cp_fail(CP_CAPACITY,
                           "--prompt %ld: with %ld generated tokens it exceeds "
                           "the model's %ld positions",
                           bench->prompts.items[i], bench->generate, room);
    return CP_OK;
}

static cp_status bench_work(void *context) {
    bench_run *run = context;
    if (run->model != NULL)
        CP_TRY(weights_load(run));
    if (run->csv)
        head_print(run);
    else
        title_print(run);
    fflush(stdout);
    return cp_backend_bench(run->ring.backend, &run->bench);
}

int cp_command_bench(int count, char *const *arguments) {
    bench_run run = {
        .threads = cp_host_cores(),
        .rounds = -1,
        .bench = {.generate = -1, .row = row_print, .context = &run},
        .ring = CP_COMMAND_RING,
        .count = count,
        .arguments = arguments};
    const cp_option options[] = {
        {"only", CP_WORD, &run.only, "PART,...",
         "fma, micro, read, full, causal, decode, merge, ring (default: "
         "all)"},
        {"tokens", CP_COUNTS, &run.bench.tokens, "T,T,...",
         "lengths of prompts (default 2048,4096,8192; on a GPU to 32Ki)"},
        {"keys", CP_COUNTS, &run.bench.keys, "P,P,...",
         "lengths of the past in decode (default 32Ki,64Ki; on a GPU "
         "8Ki,64Ki)"},
        {"heads", CP_COUNTS, &run.heads, "H,KV,D",
         "query heads, key and value heads, head dimension (default 8,2,128; "
         "on a GPU 64,8,128)"},
        {"ranks", CP_COUNTS, &run.bench.ranks, "N,N,...",
         "sizes of the ring (default 4; with --model 1,4; on a GPU 4,8)"},
        {"threads", CP_COUNT, &run.threads, "N",
         "threads in total (default: one for each core)"},
        {"kernel", CP_ONE_OF, &run.kernel, "fast|first",
         "which attention kernel: the fast one, or chapter 1's (default fast)"},
        {"rounds", CP_COUNT, &run.rounds, "N",
         "rounds, in each of which everything is measured in turn (default 5; "
         "with --model 3; on a GPU 21)"},
        {"model", CP_INPUT, &run.model, "FILE.gguf",
         "measure a model instead: prompts (pp) and generation (tg)"},
        {"prompt", CP_COUNTS, &run.bench.prompts, "T,T,...",
         "lengths of the model's prompts (default 512,2048,7000)"},
        {"generate", CP_COUNT, &run.bench.generate, "K",
         "tokens generated after each (default 32)"},
        {"exact-order", CP_FLAG, &run.ring.exact, NULL,
         "with --model: sum in one order, whatever the ranks"},
        CP_COMMAND_ON_OPTION(run.ring.on),
        CP_COMMAND_TIMEOUT_OPTION(run.ring.timeout),
        {"csv", CP_FLAG, &run.csv, NULL,
         "for programs; the header has machine, date, commit and command"},
        {0}};
    const cp_usage usage = {
        "bench", "[options]",
        "Attention and ring on this machine, as fractions of what the machine "
        "can do: multiply-adds in registers (fma) and reading memory (read), "
        "measured in alternation with what is compared with them. On a GPU: "
        "every kernel that it has, compared with a matrix product and a copy.",
        options};
    const int result =
        cp_command_run(&usage, count, arguments, bench_check, bench_work, &run);
    cp_opened_close(&run.opened);
    return result;
}
