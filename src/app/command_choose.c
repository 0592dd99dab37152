/* longring choose: which ring by each rule, and where it turns. */
#include "app/command.h"

#include <math.h>
#include <string.h>

#include "predict/rules.h"
#include "predict/simulate.h"

typedef struct {
    int64_t ranks, tensor; /* tensor -1: as the machine has GPUs in a node */
    cp_counts new_tokens, cached;
    const char *machine, *model;
    double flops, bandwidth; /* NAN: the machine's */
    int speeds;
    bool csv;
    /* What they come to. */
    cp_hardware hardware;
    cp_model_sizes sizes;
    cp_setting setting;
    cp_load load;
    /* What the rules say. */
    cp_verdict verdicts[CP_RULES];
    int64_t turns[CP_RULES]; /* of one sequence */
    double pass_kv, pass_q;  /* simulated seconds */
} choose_run;

enum { SPEEDS_PEAK, SPEEDS_REACHED };

static cp_status speed_take(const char *name, double number, int64_t *speed) {
    if (isnan(number))
        return CP_OK;
    if (number < 1 || number > 1e18)
        return cp_fail(CP_INVALID, "%s is %g: it must be from 1 to 1e18", name,
                       number);
    *speed = (int64_t)number;
    return CP_OK;
}

static cp_status shape_divide(choose_run *run, cp_shape *shape) {
    *shape = cp_model_sizes_shape(&run->sizes);
    if (run->tensor < 0)
        run->tensor = run->hardware.gpus_per_node;
    const int64_t gpus = run->tensor;
    if (gpus < 1 || shape->query_heads % gpus != 0 ||
        (shape->kv_heads % gpus != 0 && gpus % shape->kv_heads != 0))
        return cp_fail(CP_INVALID,
                       "--tensor %lld: %lld query heads and %lld key and "
                       "value heads cannot be dealt out so",
                       (long long)gpus, (long long)shape->query_heads,
                       (long long)shape->kv_heads);
    shape->query_heads /= gpus;
    shape->kv_heads = cp_max(shape->kv_heads / gpus, 1);
    return CP_OK;
}

static cp_status setting_read(choose_run *run) {
    cp_setting *const setting = &run->setting;
    cp_shape shape;
    CP_TRY(cp_hardware_read(run->machine, &run->hardware));
    CP_TRY(cp_model_sizes_read(run->model, &run->sizes));
    CP_TRY(shape_divide(run, &shape));
    *setting = cp_setting_of(&run->hardware, &shape, run->sizes.cache_bytes,
                             (int)run->ranks, run->speeds == SPEEDS_PEAK);
    CP_TRY(speed_take("flops", run->flops, &setting->machine.flops));
    return speed_take("bandwidth", run->bandwidth,
                      &setting->machine.bytes_per_second);
}

static cp_status count_check(const char *name, const cp_counts *counts,
                             int64_t *sum) {
    for (int64_t s = 0; s < counts->count; s++) {
        if (counts->items[s] > INT32_MAX)
            return cp_fail(CP_INVALID,
                           "--%s: %lld tokens in sequence %lld are more than "
                           "the %d that have positions",
                           name, (long long)counts->items[s], (long long)s,
                           INT32_MAX);
        *sum += counts->items[s];
    }
    return CP_OK;
}

/* Positions have 31 bits, and all of a call are planned together. */
static cp_status tokens_check(const choose_run *run) {
    int64_t sum = 0;
    CP_TRY(count_check("new", &run->new_tokens, &sum));
    CP_TRY(count_check("cached", &run->cached, &sum));
    if (sum > INT32_MAX)
        return cp_fail(CP_INVALID,
                       "--new, --cached: %lld tokens in all are more than the "
                       "%d that can be planned",
                       (long long)sum, INT32_MAX);
    return CP_OK;
}

static cp_status choose_check(void *context) {
    choose_run *run = context;
    cp_counts *const cached = &run->cached;
    const int64_t sequences = run->new_tokens.count;
    if (sequences == 0)
        return cp_fail(CP_INVALID, "choose needs --new, the new tokens");
    if (cached->count > 0 && cached->count != sequences)
        return cp_fail(CP_INVALID,
                       "--cached is of %lld sequences, and --new of %lld",
                       (long long)cached->count, (long long)sequences);
    if (run->csv && sequences != 1)
        return cp_fail(CP_INVALID, "--csv is for one sequence of --new");
    if (cached->count == 0)
        CP_TRY(cp_allocate(&cached->items, sequences, sizeof(int64_t),
                           "cached tokens"));
    CP_TRY(cp_command_ranks(&run->ranks));
    CP_TRY(tokens_check(run));
    CP_TRY(cp_load_of(sequences, run->new_tokens.items, cached->items,
                      &run->load));
    return setting_read(run);
}

/* The empirical rule knows no batches, and no rule turns along one. */
static cp_status rules_ask(choose_run *run) {
    const bool single = run->load.sequences == 1;
    for (int r = 0; r < CP_RULES; r++) {
        const cp_rule *const rule = &cp_rules[r];
        if (rule->kind == CP_RULE_EMPIRICAL && !single)
            continue;
        CP_TRY(cp_rule_ask(rule, &run->setting, &run->load, &run->verdicts[r]));
        if (single)
            CP_TRY(cp_rule_least(rule, &run->setting, (int64_t)run->load.keys,
                                 &run->turns[r]));
    }
    return CP_OK;
}

static cp_status call_simulate(choose_run *run) {
    cp_scenario scenario = {.hardware = &run->hardware,
                            .model = &run->sizes,
                            .ranks = (int)run->ranks,
                            .tensor = run->tensor,
                            .sequences = run->new_tokens.count,
                            .new_tokens = run->new_tokens.items,
                            .cached_tokens = run->cached.items,
                            .variant = CP_PASS_KV,
                            .partial_bytes = run->sizes.cache_bytes};
    cp_forecast forecast;
    CP_TRY(cp_simulate(&scenario, &forecast));
    run->pass_kv = forecast.seconds;
    scenario.variant = CP_PASS_Q;
    CP_TRY(cp_simulate(&scenario, &forecast));
    run->pass_q = forecast.seconds;
    return CP_OK;
}

static void head_print(const choose_run *run) {
    const cp_load *const load = &run->load;
    const cp_shape *const shape = &run->setting.shape;
    const cp_machine *const machine = &run->setting.machine;
    const int64_t fresh = (int64_t)load->fresh, keys = (int64_t)load->keys;
    char speeds[160];
    printf("%s new token%s", cp_group(fresh).text, cp_plural(fresh));
    printf(" over %s cached", cp_group(keys - fresh).text);
    if (load->sequences > 1)
        printf(", %lld sequences", (long long)load->sequences);
    printf(": miss rate %.4g%%\n", 100 * (double)fresh / (double)keys);
    printf("%s on %s, %s rank%s", run->sizes.name, run->hardware.name,
           cp_group(run->ranks).text, cp_plural(run->ranks));
    if (run->tensor > 1)
        printf(" of %lld GPUs", (long long)run->tensor);
    printf("\n%lld query head%s and %lld key and value head%s of %lld%s\n",
           (long long)shape->query_heads, cp_plural(shape->query_heads),
           (long long)shape->kv_heads, cp_plural(shape->kv_heads),
           (long long)shape->head_dim, run->tensor > 1 ? " each" : "");
    snprintf(speeds, sizeof(speeds),
             "attention at %.6g TFLOP/s, exchanges at %.6g GB/s, %lld byte%s a "
             "number%s",
             1e-12 * (double)machine->flops,
             1e-9 * (double)machine->bytes_per_second,
             (long long)machine->element_bytes,
             cp_plural(machine->element_bytes),
             machine->shares_cores ? "; no transfer hides" : "");
    cp_write_wrapped(stdout, 0, 0, speeds);
}

static void thresholds_print(const cp_setting *setting) {
    const cp_shape *const shape = &setting->shape;
    printf("\n  keys and values are smaller   from a miss rate of %s (eq. 1)\n",
           cp_fraction_text(2 * shape->kv_heads, shape->query_heads).text);
    if (setting->machine.shares_cores || setting->ranks == 1)
        return;
    printf("  attention hides their ring    from %.6g new tokens (eq. 2)\n"
           "  attention hides the queries'  from %.6g new and cached tokens "
           "(eq. 3)\n",
           cp_new_tokens_least(setting), cp_context_least(setting));
}

/* One line a rule; the simulation is no inequality and turns nowhere. */
static void verdicts_print(const choose_run *run) {
    const bool single = run->load.sequences == 1;
    const int column = single ? 46 : 32;
    char text[80];
    printf("\n  rule                says    %s   because\n",
           single ? "   turns at T" : "");
    for (int r = 0; r < CP_RULES; r++) {
        const cp_rule *const rule = &cp_rules[r];
        if (rule->kind == CP_RULE_EMPIRICAL && !single)
            continue;
        printf("  %-19s %-7s", rule->name,
               cp_variant_name(run->verdicts[r].variant));
        if (single)
            printf(" %13s", run->turns[r] > run->load.keys
                                ? "never"
                                : cp_group(run->turns[r]).text);
        printf("   ");
        cp_write_wrapped(stdout, column, column, run->verdicts[r].because);
    }
    printf(
        "  %-19s %-7s%*s", "simulation",
        cp_variant_name(run->pass_kv <= run->pass_q ? CP_PASS_KV : CP_PASS_Q),
        column - 29, "");
    snprintf(text, sizeof(text), "pass-kv %.4g s, pass-q %.4g s", run->pass_kv,
             run->pass_q);
    cp_write_wrapped(stdout, column, column, text);
}

static void csv_print(const choose_run *run) {
    printf("rule,variant,tie,turns_at,context\n");
    for (int r = 0; r < CP_RULES; r++)
        printf("%s,%s,%d,%lld,%lld\n", cp_rules[r].name,
               cp_variant_name(run->verdicts[r].variant), run->verdicts[r].tie,
               (long long)run->turns[r], (long long)run->load.keys);
}

static cp_status choose_work(void *context) {
    choose_run *run = context;
    CP_TRY(rules_ask(run));
    if (run->csv) {
        csv_print(run);
        return CP_OK;
    }
    CP_TRY(call_simulate(run));
    head_print(run);
    thresholds_print(&run->setting);
    verdicts_print(run);
    return CP_OK;
}

int cp_command_choose(int count, char *const *arguments) {
    choose_run run = {.ranks = 4,
                      .tensor = -1,
                      .machine = "gtt",
                      .model = "llama3-405b",
                      .flops = NAN,
                      .bandwidth = NAN};
    const cp_option options[] = {
        {"new", CP_COUNTS, &run.new_tokens, "T,T,...",
         "new tokens of each sequence: 128K is 128,000"},
        {"cached", CP_COUNTS, &run.cached, "P,P,...",
         "cached tokens of each sequence (default none)"},
        {"ranks", CP_COUNT, &run.ranks, "N", "how many ranks (default 4)"},
        {"machine", CP_WORD, &run.machine, "NAME|FILE",
         "its description (default gtt, the paper's)"},
        {"model", CP_WORD, &run.model, "NAME|FILE",
         "its description (default llama3-405b)"},
        {"tensor", CP_COUNT, &run.tensor, "GPUS",
         "GPUs of a rank, among which heads are dealt out (default: a node's)"},
        {"speeds", CP_ONE_OF, &run.speeds, "peak|reached",
         "the machine's data sheet, or what attention and exchanges reach "
         "(default peak, as in the paper)"},
        {"flops", CP_NUMBER, &run.flops, "X",
         "of attention, per second and GPU, instead: 504e12"},
        {"bandwidth", CP_NUMBER, &run.bandwidth, "X",
         "of an exchange, bytes per second and GPU, instead: 26.1e9"},
        {"csv", CP_FLAG, &run.csv, NULL, "a row for each rule, for programs"},
        {0}};
    const cp_usage usage = {
        "choose", "--new T,T,... [options]",
        "Which ring, pass-kv or pass-q, by each rule that the paper has and "
        "some that it has not, and where each rule turns. Ties of the paper's "
        "inequalities are exact.",
        options};
    return cp_command_run(&usage, count, arguments, choose_check, choose_work,
                          &run);
}
