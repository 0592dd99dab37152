/* longring choose: which ring each rule chooses, and where its choice
 * changes. */
#include "app/command.h"
#include "app/options_call.h"

#include <math.h>

#include "predict/alone.h"
#include "predict/comparison.h"
#include "predict/rules.h"

typedef struct {
    cp_command_call call;
    double flops, bandwidth; /* NAN: the machine's */
    int speeds;
    bool csv, all;
    /* Derived from the options. */
    cp_setting setting;
    cp_load load;
    cp_verdict verdicts[CP_RULES];
    int64_t turns[CP_RULES]; /* new tokens of one sequence: pass-KV from here */
    cp_forecast pass_kv, pass_q, alone;
    int64_t together; /* the shortest prompt that the ring reads faster */
    cp_comparison_entry entries[CP_COMPARISON_ENTRIES];
    int count;
} choose_run;

enum { SPEEDS_PEAK, SPEEDS_REACHED };

static cp_status speed_take(const char *name, double number, int64_t *speed) {
    if (isnan(number))
        return CP_OK;
    if (number < 1 || number > 1e18)
        return cp_refuse("%s is %g: it must be from 1 to 1e18", name, number);
    *speed = (int64_t)number;
    return CP_OK;
}

static cp_status choose_check(void *context) {
    choose_run *run = context;
    cp_command_call *call = &run->call;
    const cp_scenario *scenario = &call->scenario;
    cp_machine *machine = &run->setting.machine;
    CP_TRY(cp_command_call_read(call));
    CP_TRY(cp_command_call_check(call));
    if (scenario->indexer.top_k > 0 && !run->all)
        return cp_refuse("--top-k: the rules do not cover sparse attention; "
                         "--all simulates it");
    if (run->csv && !run->all && scenario->sequences != 1)
        return cp_refuse("--csv: expected one sequence in --new");
    if (run->all && call->ranks * scenario->tensor > CP_COMMAND_RANKS)
        return cp_refuse(
            "--all: %ld ranks of %ld GPUs; expected at most %d GPUs",
            call->ranks, scenario->tensor, CP_COMMAND_RANKS);
    CP_TRY(cp_load_of(scenario->sequences, scenario->new_tokens,
                      scenario->cached_tokens, call->shape.window, &run->load));
    run->setting =
        cp_setting_of(&call->hardware, &call->shape, call->sizes.cache_bytes,
                      scenario->ranks, run->speeds == SPEEDS_PEAK);
    machine->wire = scenario->wire;
    CP_TRY(speed_take("flops", run->flops, &machine->flops));
    return speed_take("bandwidth", run->bandwidth, &machine->bytes_per_second);
}

/* The empirical rule does not cover batches. */
static bool rule_applies(const choose_run *run, const cp_rule *rule) {
    return run->load.sequences == 1 || rule->kind != CP_RULE_EMPIRICAL;
}

static cp_status rules_ask(choose_run *run) {
    for (int r = 0; r < CP_RULES; r++) {
        const cp_rule *rule = &cp_rules[r];
        if (!rule_applies(run, rule))
            continue;
        CP_TRY(cp_rule_ask(rule, &run->setting, &run->load, &run->verdicts[r]));
        if (run->load.sequences == 1)
            CP_TRY(cp_rule_least(rule, &run->setting, (int64_t)run->load.keys,
                                 &run->turns[r]));
    }
    return CP_OK;
}

static void call_print(const choose_run *run) {
    const cp_load *load = &run->load;
    const int64_t fresh = (int64_t)load->fresh, keys = (int64_t)load->keys;
    printf("%s new token%s over %s cached", cp_group(fresh).text,
           cp_plural(fresh), cp_group(keys - fresh).text);
    if (load->sequences > 1)
        printf(", %s sequences", cp_group(load->sequences).text);
    printf(": miss rate %.4g%%\n%s on %s, ", 100 * (double)fresh / (double)keys,
           run->call.sizes.name, run->call.hardware.name);
}

static void head_print(const choose_run *run) {
    const cp_shape *shape = &run->setting.shape;
    const cp_machine *machine = &run->setting.machine;
    char speeds[160];
    call_print(run);
    printf("%s rank%s", cp_group(run->call.ranks).text,
           cp_plural(run->call.ranks));
    if (run->call.scenario.tensor > 1)
        printf(" of %ld GPUs", run->call.scenario.tensor);
    printf("\n%ld query head%s and %ld key and value head%s of %s%s\n",
           shape->query_heads, cp_plural(shape->query_heads), shape->kv_heads,
           cp_plural(shape->kv_heads), cp_command_dims_of(shape).text,
           run->call.scenario.tensor > 1 ? " each" : "");
    snprintf(
        speeds, sizeof(speeds),
        "for the rules, attention at %.6g TFLOP/s, exchanges at %.6g GB/s, "
        "%ld byte%s a number%s",
        1e-12 * (double)machine->flops,
        1e-9 * (double)machine->bytes_per_second, machine->element_bytes,
        cp_plural(machine->element_bytes),
        machine->shares_cores ? "; no transfer hides" : "");
    cp_write_wrapped(stdout, 0, 0, speeds);
    if (machine->wire == CP_WIRE_FP32)
        return;
    const cp_head_bytes head =
        cp_head_bytes_of(machine->wire, shape, machine->element_bytes);
    printf("a head sends %ld bytes of a key and its value, %ld of a query, %ld "
           "of a partial\n",
           head.keys, head.query, head.partial);
}

static void thresholds_print(const cp_setting *setting) {
    const cp_shape *const shape = &setting->shape;
    const cp_widths widths = cp_widths_of(&setting->machine, shape);
    printf("\n  keys and values are smaller   from a miss rate of %s (eq. 1)\n",
           cp_fraction_text((cp_wide)shape->kv_heads * widths.kept,
                            (cp_wide)shape->query_heads * widths.query)
               .text);
    if (setting->machine.shares_cores || setting->ranks == 1)
        return;
    printf("  attention hides their ring    from %s new tokens (eq. 2)\n"
           "  attention hides the queries'  from %s new and cached tokens "
           "(eq. 3)\n",
           cp_group_number(cp_new_tokens_least(setting)).text,
           cp_group_number(cp_context_least(setting)).text);
}

/* A number with at most that many digits; from a thousand on, a whole one. */
static cp_grouped rounded(int digits, double number) {
    cp_grouped grouped;
    if (!(number < 999.5))
        return cp_group_number(round(number));
    snprintf(grouped.text, sizeof(grouped.text), "%.*g", digits, number);
    return grouped;
}

/* One line: a rule, its choice, where that changes (for one sequence), and
 * why. */
static void row_print(bool single, const char *name, cp_variant variant,
                      const char *turns, const char *because) {
    const int column = single ? 46 : 32;
    printf("  %-19s %-7s", name, cp_variant_name(variant));
    if (single)
        printf(" %13s", turns);
    printf("   ");
    cp_write_wrapped(stdout, column, column, because);
}

/* The simulation is no inequality: it has no turning point. */
static void verdicts_print(const choose_run *run) {
    const bool single = run->load.sequences == 1;
    char text[120];
    printf("\n  rule                says    %s   because\n",
           single ? "   turns at T" : "");
    for (int r = 0; r < CP_RULES; r++)
        if (rule_applies(run, &cp_rules[r]))
            row_print(single, cp_rules[r].name, run->verdicts[r].variant,
                      run->turns[r] > run->load.keys
                          ? "never"
                          : cp_group(run->turns[r]).text,
                      run->verdicts[r].because);
    const double kv = run->pass_kv.seconds, q = run->pass_q.seconds;
    snprintf(text, sizeof(text), "speeds reached: pass-kv %s s, pass-q %s s",
             rounded(4, kv).text, rounded(4, q).text);
    row_print(single, "simulation", kv <= q ? CP_PASS_KV : CP_PASS_Q, "", text);
    if (run->setting.ranks == 1)
        return;
    const cp_forecast *alone = &run->alone;
    const double all = alone->weights + alone->cache + alone->buffers;
    printf("\n--cp off: one rank alone takes %s s%s,\n"
           "          and the ring is faster ",
           rounded(4, alone->seconds).text,
           all > run->call.hardware.memory ? ", if it fits" : "");
    if (run->together > CP_TOGETHER_MOST)
        printf("for no prompt\n");
    else
        printf("from %s tokens\n", cp_group(run->together).text);
}

static void csv_print(const choose_run *run) {
    printf("rule,variant,tie,turns_at,context\n");
    for (int r = 0; r < CP_RULES; r++)
        printf("%s,%s,%d,%ld,%ld\n", cp_rules[r].name,
               cp_variant_name(run->verdicts[r].variant), run->verdicts[r].tie,
               run->turns[r], (int64_t)run->load.keys);
}

static void entry_print(const cp_comparison_entry *entry, double best) {
    const cp_forecast *f = &entry->forecast;
    char split[32], memory[40];
    if (!entry->runs) {
        printf("  %-10s  ", entry->name);
        cp_write_wrapped(stdout, 14, 14, entry->why);
        return;
    }
    snprintf(split, sizeof(split), "%d x %ld", entry->ranks, entry->tensor);
    snprintf(memory, sizeof(memory), "%s%s",
             rounded(4, 1e-9 * (f->weights + f->cache + f->buffers)).text,
             entry->fits ? "" : "!");
    printf("  %-10s %9s %10s %7s %10s %8s   %s\n", entry->name, split,
           rounded(4, f->seconds).text, rounded(3, f->seconds / best).text,
           rounded(4, 1e-6 * f->sent).text, memory, entry->limit);
}

static void entry_write(const cp_comparison_entry *entry) {
    const cp_forecast *f = &entry->forecast;
    if (entry->runs)
        printf("%s,%d,%ld,%.6g,%.6g,%.6g,%d,%s\n", entry->name, entry->ranks,
               entry->tensor, f->seconds, f->sent,
               f->weights + f->cache + f->buffers, entry->fits, entry->limit);
}

/* By how much the best is faster than another, as text; "" without another. */
typedef struct {
    char text[160];
} lead;

static lead lead_of(const cp_comparison_entry *best,
                    const cp_comparison_entry *other, const char *whose) {
    lead lead = {""};
    if (other == NULL)
        return lead;
    const double times = other->forecast.seconds / best->forecast.seconds;
    char much[64] = ", hardly faster than";
    if (times >= 1.005)
        snprintf(much, sizeof(much), ", %s times as fast as",
                 rounded(3, times).text);
    snprintf(lead.text, sizeof(lead.text), "%s %s%s", much, whose, other->name);
    return lead;
}

/* Print the fastest, and its lead over the next and over the paper's best. */
static void winner_print(const cp_comparison_entry *all, int count) {
    const cp_comparison_entry *best = &all[0], *next = NULL, *paper = NULL;
    char text[400];
    int able = 0;
    while (able < count && all[able].runs && all[able].fits)
        able++;
    if (able == 0) {
        printf("\nNone fits in memory.\n");
        return;
    }
    if (able > 1)
        next = &all[1];
    for (int n = able - 1; n >= 0; n--)
        if (cp_comparison_entry_is_of_the_paper(&all[n]))
            paper = &all[n];
    if (paper == best || paper == next)
        paper = NULL;
    snprintf(text, sizeof(text), "\nFastest: %s%s%s; limited by %s.",
             best->name, lead_of(best, next, "").text,
             lead_of(best, paper, "the paper's ").text, best->limit);
    cp_write_wrapped(stdout, 0, 0, text);
}

static void comparison_print(const choose_run *run) {
    const cp_comparison_entry *all = run->entries;
    const int count = run->count;
    const int64_t gpus = run->call.ranks * run->call.scenario.tensor;
    call_print(run);
    printf("%ld GPU%s, each builder with its fastest split\n\n  builder       "
           "split    seconds   times    MB sent       GB   limited by\n",
           gpus, cp_plural(gpus));
    for (int n = 0; n < count; n++)
        entry_print(&all[n], all[0].forecast.seconds);
    winner_print(all, count);
    cp_write_wrapped(
        stdout, 0, 0,
        "\nsplit: ranks, or pipeline stages, x GPUs that share a rank's heads; "
        "the fastest of all splits. MB sent: by a GPU in a layer's attention; "
        "by a stage to the next. GB: memory of a GPU; !: more than it has. "
        "Speeds are the reached ones in the machine's description.");
}

static void comparison_write(const choose_run *run) {
    printf("builder,ranks,tensor,seconds,sent,memory,fits,limit\n");
    for (int n = 0; n < run->count; n++)
        entry_write(&run->entries[n]);
}

static cp_status choose_simulate(void *context) {
    choose_run *run = context;
    if (run->all)
        return cp_compare_builders(&run->call.scenario, run->entries,
                                   &run->count);
    run->call.scenario.variant = CP_PASS_KV;
    CP_TRY(cp_simulate(&run->call.scenario, &run->pass_kv));
    run->call.scenario.variant = CP_PASS_Q;
    CP_TRY(cp_simulate(&run->call.scenario, &run->pass_q));
    CP_TRY(cp_alone(&run->call.scenario, &run->alone));
    return cp_together_least(&run->call.scenario, &run->together);
}

static cp_status choose_work(void *context) {
    choose_run *run = context;
    if (!run->all)
        CP_TRY(rules_ask(run));
    if (run->all || !run->csv)
        CP_TRY(cp_command_simulating(&run->call, choose_simulate, run));
    if (run->all || run->csv) {
        (!run->all  ? csv_print
         : run->csv ? comparison_write
                    : comparison_print)(run);
        return CP_OK;
    }
    head_print(run);
    thresholds_print(&run->setting);
    verdicts_print(run);
    return CP_OK;
}

int cp_command_choose(int count, char *const *arguments) {
    choose_run run = {.call = CP_COMMAND_CALL, .flops = NAN, .bandwidth = NAN};
    const cp_option options[] = {
        CP_COMMAND_CALL_OPTIONS(run.call),
        {"speeds", CP_ONE_OF, &run.speeds, "peak|reached",
         "speeds of the data sheet, or those that attention and exchanges "
         "reach (default peak, as in the paper)"},
        {"flops", CP_NUMBER, &run.flops, "X",
         "FLOPs of attention per second and GPU instead: 504e12"},
        {"bandwidth", CP_NUMBER, &run.bandwidth, "X",
         "bytes of an exchange per second and GPU instead: 26.1e9"},
        {"all", CP_FLAG, &run.all, NULL,
         "instead, simulate every builder over every split of the GPUs"},
        {"csv", CP_FLAG, &run.csv, NULL,
         "for programs: a row for each rule, or builder"},
        {0}};
    const cp_usage usage = {
        "choose", "--new T,T,... [options]",
        "Which ring, pass-kv or pass-q, each rule of the paper and some others "
        "choose, and where each choice changes. Ties in the paper's "
        "inequalities are exact.",
        options};
    return cp_command_run(&usage, count, arguments, choose_check, choose_work,
                          &run);
}
