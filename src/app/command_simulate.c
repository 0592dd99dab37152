/* longring simulate: what a call would take on a described machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "predict/rules.h"
#include "predict/simulate.h"

typedef struct {
    const char *machine, *model, *trace;
    cp_words set;
    cp_command_tokens tokens;
    int64_t fresh, cached; /* their sums, over all of the batch */
    int64_t ranks, batch;
    bool csv;
    cp_scenario scenario; /* which the options fill in, and what they come to */
    cp_hardware hardware;
    cp_model_sizes facts;
    cp_choice choice;
    cp_forecast forecast;
    double step; /* seconds of a step of decode after the call */
} simulate_run;

static cp_status constant_set(cp_hardware *hardware, const char *text) {
    const cp_description description = cp_hardware_description(hardware);
    char field[64], line[400];
    const char *equals = strchr(text, '=');
    const int length = equals == NULL ? 0 : (int)(equals - text);
    snprintf(field, sizeof(field), "%.*s", length < 63 ? length : 63, text);
    const int n = cp_description_field(&description, field);
    if (n < 0 || equals[1] == '\0')
        return cp_refuse("--set %.80s: FIELD=VALUE is due, with a field of a "
                         "machine description",
                         text);
    snprintf(line, sizeof(line), "machine %s\n%s %.80s %s assumed --set\n",
             hardware->name, field, equals + 1, description.fields[n].unit);
    const cp_status status = cp_description_change(&description, "--set", line);
    const char *label = "--set:2:";
    if (status == CP_OK || strncmp(cp_message(), label, strlen(label)) != 0)
        return status;
    return cp_fail(status, "--set%s", cp_message() + strlen(label));
}

/* What cannot be simulated is bad use, and known before any work. */
static cp_status simulate_check(void *context) {
    simulate_run *run = context;
    cp_scenario *scenario = &run->scenario;
    CP_TRY(cp_hardware_read(run->machine, &run->hardware));
    CP_TRY(cp_model_sizes_read(run->model, &run->facts));
    for (int64_t n = 0; n < run->set.count; n++)
        CP_TRY(constant_set(&run->hardware, run->set.items[n]));
    if (scenario->tensor < 0)
        scenario->tensor = run->hardware.gpus_per_node;
    if (scenario->partial_bytes < 0)
        scenario->partial_bytes = run->facts.cache_bytes > 2 ? 4 : 2;
    if (scenario->partial_bytes != 2 && scenario->partial_bytes != 4)
        return cp_refuse("--partials %ld: 2 or 4 bytes a number",
                         scenario->partial_bytes);
    CP_TRY(cp_command_tokens_check("simulate", &run->tokens));
    CP_TRY(cp_option_range("batch", run->batch, 1, 4096));
    const int64_t most = INT32_MAX / run->batch;
    int64_t sum = 0;
    CP_TRY(cp_command_tokens_sum("new", &run->tokens.fresh, most, &sum));
    run->fresh = sum * run->batch;
    CP_TRY(cp_command_tokens_sum("cached", &run->tokens.cached, most, &sum));
    run->cached = sum * run->batch - run->fresh;
    CP_TRY(cp_command_ranks(&run->ranks, 1));
    cp_pace pace;
    scenario->hardware = &run->hardware;
    scenario->model = &run->facts;
    scenario->ranks = (int)run->ranks;
    return cp_pace_new(scenario, &pace);
}

/* The counts again and again, so many times. */
static cp_status counts_repeat(cp_counts *counts, int64_t times) {
    const int64_t count = counts->count;
    int64_t *items;
    CP_TRY(cp_allocate(&items, count * times, sizeof(int64_t), "sequences"));
    for (int64_t i = 0; i < count * times; i++)
        items[i] = counts->items[i % count];
    free(counts->items);
    *counts = (cp_counts){items, count * times};
    return CP_OK;
}

static cp_status scenario_fill(simulate_run *run) {
    static const char *const queues[] = {"computing", "communicating"};
    cp_scenario *scenario = &run->scenario;
    cp_counts *fresh = &run->tokens.fresh, *cached = &run->tokens.cached;
    cp_shape shape = cp_model_sizes_shape(&run->facts);
    const cp_setting reached = cp_setting_of(
        &run->hardware, &shape, run->facts.cache_bytes, scenario->ranks, false);
    CP_TRY(counts_repeat(fresh, run->batch));
    CP_TRY(counts_repeat(cached, run->batch));
    scenario->sequences = fresh->count;
    scenario->new_tokens = fresh->items;
    scenario->cached_tokens = cached->items;
    if (run->trace != NULL)
        CP_TRY(cp_history_new(scenario->ranks, 2, queues, &scenario->trace));
    scenario->kept = scenario->variant != CP_DECODE && run->cached > 0;
    if (scenario->variant != CP_AUTO)
        return CP_OK;
    shape.query_heads = cp_max(shape.query_heads / scenario->tensor, 1);
    shape.kv_heads = cp_max(shape.kv_heads / scenario->tensor, 1);
    CP_TRY(cp_choose(&reached.machine, &shape, scenario->ranks, fresh->count,
                     fresh->items, cached->items, &run->choice));
    scenario->variant = run->choice.variant;
    return CP_OK;
}

static void head_print(const simulate_run *run) {
    const int64_t sequences = run->scenario.sequences;
    printf("%s on %s, %s: %ld rank%s of %ld GPU%s\n"
           "%s new token%s, %s cached, %ld sequence%s\n",
           cp_variant_name(run->scenario.variant), run->hardware.name,
           run->facts.name, run->ranks, cp_plural(run->ranks),
           run->scenario.tensor, cp_plural(run->scenario.tensor),
           cp_group(run->fresh).text, cp_plural(run->fresh),
           cp_group(run->cached).text, sequences, cp_plural(sequences));
    if (run->choice.rule[0] != '\0') {
        printf("rule with the speeds reached: ");
        cp_write_wrapped(stdout, 30, 6, run->choice.rule);
    }
}

/* What a layer spends its time on, and a GPU its memory. */
static void shares_print(const cp_hardware *hardware, const cp_forecast *f) {
    const double all = f->weights + f->cache + f->buffers;
    printf("\na layer            microseconds\n"
           "  linear layers    %12.6g\n  all-reduces      %12.6g\n"
           "  ring             %12.6g\n    attention      %12.6g\n"
           "    exchanges      %12.6g  (%.6g each)\n"
           "    exposed        %12.6g\n",
           1e6 * f->linear, 1e6 * f->reducing, 1e6 * f->ring,
           1e6 * f->attending, 1e6 * f->exchanging, 1e6 * f->exchange,
           1e6 * f->exposed);
    printf("\na GPU at most            GB\n  weights        %10.3f\n"
           "  cache          %10.3f\n  buffers        %10.3f\n"
           "  in all         %10.3f  of %.4g%s\n",
           1e-9 * f->weights, 1e-9 * f->cache, 1e-9 * f->buffers, 1e-9 * all,
           1e-9 * hardware->memory,
           all > hardware->memory ? ": DOES NOT FIT" : "");
}

static void forecast_print(const simulate_run *run) {
    const cp_forecast *f = &run->forecast;
    const bool decode = run->scenario.variant == CP_DECODE;
    head_print(run);
    printf("\n%s %17.6g s\n", decode ? "TTIT" : "TTFT", f->seconds);
    if (run->scenario.kept && run->hardware.call > 0)
        printf("     %17.6g s  of it once, for a call over a kept cache\n",
               run->hardware.call);
    if (!decode)
        printf("TTIT %17.6g s  (the step after it)\n", run->step);
    printf("busy %17.1f %%  of the time, each compute queue\n"
           "rate %17.4g TFLOP/s per GPU, %.1f %% of the 16-bit peak\n",
           100 * f->busy, 1e-12 * f->flops_per_second,
           100 * f->flops_per_second / run->hardware.peak);
    shares_print(&run->hardware, f);
}

static void csv_print(const simulate_run *run) {
    const cp_forecast *f = &run->forecast;
    printf("variant,seconds,next_step_seconds,busy,tflops_per_gpu,linear_us,"
           "reduce_us,ring_us,attend_us,exchange_us,exposed_us,weights_gb,"
           "cache_gb,buffers_gb,capacity_gb,kept_us\n"
           "%s,%.9g,%.9g,%.4f,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,"
           "%.6g,%.6g,%.6g\n",
           cp_variant_name(run->scenario.variant), f->seconds, run->step,
           f->busy, 1e-12 * f->flops_per_second, 1e6 * f->linear,
           1e6 * f->reducing, 1e6 * f->ring, 1e6 * f->attending,
           1e6 * f->exchanging, 1e6 * f->exposed, 1e-9 * f->weights,
           1e-9 * f->cache, 1e-9 * f->buffers, 1e-9 * run->hardware.memory,
           run->scenario.kept ? 1e6 * run->hardware.call : 0);
}

static cp_status call_simulate(simulate_run *run) {
    CP_TRY(cp_simulate(&run->scenario, &run->forecast));
    if (!isfinite(run->forecast.seconds))
        return cp_refuse("machine %s is too slow for a time",
                         run->hardware.name);
    return run->trace == NULL
               ? CP_OK
               : cp_history_write(run->scenario.trace, run->trace);
}

/* Simulate the step of decode that follows the call. */
static cp_status step_simulate(simulate_run *run) {
    const int64_t count = run->scenario.sequences;
    cp_scenario next = run->scenario;
    int64_t *steps;
    cp_forecast forecast;
    CP_TRY(cp_allocate(&steps, 2 * count, sizeof(int64_t), "sequences"));
    int64_t *past = steps + count;
    for (int64_t i = 0; i < count; i++) {
        steps[i] = 1;
        past[i] = next.new_tokens[i] + next.cached_tokens[i];
    }
    next.variant = CP_DECODE;
    next.new_tokens = steps;
    next.cached_tokens = past;
    next.trace = NULL;
    next.kept = false;
    const cp_status status = cp_simulate(&next, &forecast);
    free(steps);
    run->step = status == CP_OK ? forecast.seconds : 0;
    return status;
}

static cp_status simulate_work(void *context) {
    simulate_run *run = context;
    CP_TRY(scenario_fill(run));
    CP_TRY(call_simulate(run));
    if (run->scenario.variant != CP_DECODE)
        CP_TRY(step_simulate(run));
    (run->csv ? csv_print : forecast_print)(run);
    return CP_OK;
}

int cp_command_simulate(int count, char *const *arguments) {
    simulate_run run = {.machine = "gtt",
                        .model = "llama3-405b",
                        .ranks = 4,
                        .batch = 1,
                        .scenario = {.tensor = -1, .partial_bytes = -1}};
    const cp_option options[] = {
        {"machine", CP_INPUT, &run.machine, "NAME|FILE",
         "gtt (default), gti, h200, laptop, or a description"},
        {"model", CP_INPUT, &run.model, "NAME|FILE",
         "llama3-405b (default), llama3-70b, llama3-8b, smollm2-135m, or a "
         "description"},
        {"ranks", CP_COUNT, &run.ranks, "N", "ranks of the ring (default 4)"},
        {"tensor", CP_COUNT, &run.scenario.tensor, "n",
         "GPUs that share the heads of a rank (default: those of a node)"},
        CP_COMMAND_TOKENS_OPTIONS(run.tokens),
        {"batch", CP_COUNT, &run.batch, "B", "take these sequences B times"},
        {"variant", CP_ONE_OF, &run.scenario.variant, CP_COMMAND_VARIANTS,
         "which ring (default auto: by Algorithm 1); decode: a step"},
        {"partials", CP_COUNT, &run.scenario.partial_bytes, "4|2",
         "bytes of a number of the partials that travel (default: as of the "
         "model's cache)"},
        {"set", CP_WORDS, &run.set, "FIELD=VALUE",
         "change a constant of the machine; may be repeated"},
        {"seed", CP_COUNT, &run.scenario.seed, "S",
         "of the jitter (default 0)"},
        {"trace", CP_OUTPUT, &run.trace, "OUT.json",
         "write what runs when in one call, for Perfetto"},
        {"csv", CP_FLAG, &run.csv, NULL, "for programs"},
        {0}};
    const cp_usage usage = {
        "simulate", "--new T,T,... [options]",
        "What a call would take on a described machine: time to the first "
        "token and of a step, what of the communication shows, and memory. "
        "Nothing is computed, so a million tokens on 128 GPUs are welcome.",
        options};
    const int result = cp_command_run(&usage, count, arguments, simulate_check,
                                      simulate_work, &run);
    cp_history_free(run.scenario.trace);
    return result;
}
