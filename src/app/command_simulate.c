/* longring simulate: what a call would take on a described machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "predict/rules.h"
#include "predict/simulate.h"
#include "ring/variants.h"

typedef struct {
    const char *machine, *model, *trace;
    cp_words set;
    cp_counts fresh, cached;
    int64_t ranks, tensor, batch, partials, seed;
    int variant;
    bool csv;
    /* What they come to. */
    cp_hardware hardware;
    cp_model_sizes facts;
    cp_choice choice;
    int64_t *new_tokens, *past;
    cp_scenario scenario;
} simulate_run;

static cp_status constant_set(cp_hardware *hardware, const char *text) {
    const cp_description description = cp_hardware_description(hardware);
    char field[64], line[400];
    const char *equals = strchr(text, '=');
    const int length = equals == NULL ? 0 : (int)(equals - text);
    snprintf(field, sizeof(field), "%.*s", length < 63 ? length : 63, text);
    const int n = cp_description_field(&description, field);
    if (n < 0 || equals[1] == '\0')
        return cp_fail(CP_INVALID,
                       "--set %.80s: FIELD=VALUE is due, with a "
                       "field of a machine description",
                       text);
    snprintf(line, sizeof(line), "machine %s\n%s %.80s %s assumed --set\n",
             hardware->name, field, equals + 1, description.fields[n].unit);
    const cp_status status = cp_description_change(&description, "--set", line);
    const char *label = "--set:2:";
    if (status == CP_OK || strncmp(cp_message(), label, strlen(label)) != 0)
        return status;
    return cp_fail(status, "--set%s", cp_message() + strlen(label));
}

static cp_status tokens_possible(const simulate_run *run) {
    int64_t fresh = 0, all = 0, whole;
    for (int64_t i = 0; i < run->fresh.count; i++) {
        const int64_t new = run->fresh.items[i];
        const int64_t past = run->cached.count > 0 ? run->cached.items[i] : 0;
        fresh = cp_max(fresh, new);
        if (!cp_add(all, new, &all) || !cp_add(all, past, &all) ||
            !cp_multiply(all, run->batch, &whole) || whole > INT32_MAX)
            return cp_fail(CP_INVALID,
                           "--new, --cached: with the %lld and %lld tokens of "
                           "sequence %lld there are more than the %d that can "
                           "be planned",
                           (long long)new, (long long)past, (long long)i,
                           INT32_MAX);
    }
    return fresh > 0 ? CP_OK : cp_fail(CP_INVALID, "--new: no new tokens");
}

/* What cannot be simulated is bad use, and known before any work. */
static cp_status simulate_check(void *context) {
    simulate_run *run = context;
    CP_TRY(cp_hardware_read(run->machine, &run->hardware));
    CP_TRY(cp_model_sizes_read(run->model, &run->facts));
    for (int64_t n = 0; n < run->set.count; n++)
        CP_TRY(constant_set(&run->hardware, run->set.items[n]));
    if (run->tensor < 0)
        run->tensor = run->hardware.gpus_per_node;
    if (run->partials < 0)
        run->partials = run->facts.cache_bytes > 2 ? 4 : 2;
    if (run->fresh.count == 0)
        return cp_fail(CP_INVALID, "simulate needs --new, the new tokens");
    if (run->cached.count > 0 && run->cached.count != run->fresh.count)
        return cp_fail(
            CP_INVALID, "--cached is of %lld sequences, and --new of %lld",
            (long long)run->cached.count, (long long)run->fresh.count);
    if (run->partials != 2 && run->partials != 4)
        return cp_fail(CP_INVALID, "--partials %lld: 2 or 4 bytes a number",
                       (long long)run->partials);
    if (run->batch < 1 || run->batch > 4096)
        return cp_fail(CP_INVALID, "--batch %lld: 1 to 4096 are possible",
                       (long long)run->batch);
    CP_TRY(cp_command_ranks(&run->ranks));
    cp_pace pace = {.hardware = &run->hardware,
                    .model = &run->facts,
                    .ranks = (int)run->ranks,
                    .tensor = run->tensor};
    CP_TRY(cp_pace_new(&pace));
    return tokens_possible(run);
}

static cp_status variant_choose(simulate_run *run) {
    const cp_hardware *hardware = &run->hardware;
    cp_shape shape = cp_model_sizes_shape(&run->facts);
    shape.query_heads = cp_max(shape.query_heads / run->tensor, 1);
    shape.kv_heads = cp_max(shape.kv_heads / run->tensor, 1);
    const cp_machine machine =
        cp_machine_of(hardware, run->facts.cache_bytes, false);
    if (run->variant != CP_AUTO)
        return CP_OK;
    CP_TRY(cp_choose(&machine, &shape, (int)run->ranks, run->scenario.sequences,
                     run->new_tokens, run->past, &run->choice));
    run->scenario.variant = run->choice.variant;
    return CP_OK;
}

static cp_status scenario_build(simulate_run *run) {
    const int64_t each = run->fresh.count, count = each * run->batch;
    CP_TRY(cp_allocate(&run->new_tokens, count, sizeof(int64_t), "sequences"));
    CP_TRY(cp_allocate(&run->past, count, sizeof(int64_t), "sequences"));
    for (int64_t i = 0; i < count; i++) {
        run->new_tokens[i] = run->fresh.items[i % each];
        run->past[i] = run->cached.count > 0 ? run->cached.items[i % each] : 0;
    }
    run->scenario = (cp_scenario){.hardware = &run->hardware,
                                  .model = &run->facts,
                                  .ranks = (int)run->ranks,
                                  .tensor = run->tensor,
                                  .sequences = count,
                                  .new_tokens = run->new_tokens,
                                  .cached_tokens = run->past,
                                  .variant = (cp_variant)run->variant,
                                  .partial_bytes = run->partials,
                                  .kept = run->variant != CP_DECODE &&
                                          cp_counts_sum(&run->cached) > 0,
                                  .seed = (uint64_t)run->seed};
    return variant_choose(run);
}

static void head_print(const simulate_run *run) {
    int64_t fresh = 0, past = 0;
    for (int64_t i = 0; i < run->scenario.sequences; i++) {
        fresh += run->new_tokens[i];
        past += run->past[i];
    }
    printf("%s on %s, %s: %lld rank%s of %lld GPU%s\n",
           cp_variant_name(run->scenario.variant), run->hardware.name,
           run->facts.name, (long long)run->ranks, cp_plural(run->ranks),
           (long long)run->tensor, cp_plural(run->tensor));
    printf("%s new token%s, %s cached, %lld sequence%s\n", cp_group(fresh).text,
           cp_plural(fresh), cp_group(past).text,
           (long long)run->scenario.sequences,
           cp_plural(run->scenario.sequences));
    if (run->choice.rule[0] != '\0') {
        printf("rule with the speeds reached: ");
        cp_write_wrapped(stdout, 30, 6, run->choice.rule);
    }
}

static void layer_print(const cp_forecast *f) {
    printf("\na layer            microseconds\n"
           "  linear layers    %12.6g\n  all-reduces      %12.6g\n"
           "  ring             %12.6g\n    attention      %12.6g\n"
           "    exchanges      %12.6g  (%.6g each)\n"
           "    exposed        %12.6g\n",
           1e6 * f->linear, 1e6 * f->reducing, 1e6 * f->ring,
           1e6 * f->attending, 1e6 * f->exchanging, 1e6 * f->exchange,
           1e6 * f->exposed);
}
static void memory_print(const cp_hardware *hardware, const cp_forecast *f) {
    const double all = f->weights + f->cache + f->buffers;
    printf("\na GPU at most            GB\n  weights        %10.3f\n"
           "  cache          %10.3f\n  buffers        %10.3f\n"
           "  in all         %10.3f  of %.4g%s\n",
           1e-9 * f->weights, 1e-9 * f->cache, 1e-9 * f->buffers, 1e-9 * all,
           1e-9 * hardware->memory,
           all > hardware->memory ? ": DOES NOT FIT" : "");
}

static void forecast_print(const simulate_run *run, const cp_forecast *f,
                           double step) {
    const bool decode = run->scenario.variant == CP_DECODE;
    const double peak = run->hardware.peak;
    head_print(run);
    printf("\n%s %17.6g s\n", decode ? "TTIT" : "TTFT", f->seconds);
    if (run->scenario.kept && run->hardware.call > 0)
        printf("     %17.6g s  of it once, for a call over a kept cache\n",
               run->hardware.call);
    if (!decode)
        printf("TTIT %17.6g s  (the step after it)\n", step);
    printf("busy %17.1f %%  of the time, each compute queue\n"
           "rate %17.4g TFLOP/s per GPU, %.1f %% of the 16-bit peak\n",
           100 * f->busy, 1e-12 * f->flops_per_second,
           100 * f->flops_per_second / peak);
    layer_print(f);
    memory_print(&run->hardware, f);
}

static void csv_print(const simulate_run *run, const cp_forecast *f,
                      double step) {
    printf("variant,seconds,next_step_seconds,busy,tflops_per_gpu,linear_us,"
           "reduce_us,ring_us,attend_us,exchange_us,exposed_us,weights_gb,"
           "cache_gb,buffers_gb,capacity_gb,kept_us\n"
           "%s,%.9g,%.9g,%.4f,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,"
           "%.6g,%.6g,%.6g\n",
           cp_variant_name(run->scenario.variant), f->seconds, step, f->busy,
           1e-12 * f->flops_per_second, 1e6 * f->linear, 1e6 * f->reducing,
           1e6 * f->ring, 1e6 * f->attending, 1e6 * f->exchanging,
           1e6 * f->exposed, 1e-9 * f->weights, 1e-9 * f->cache,
           1e-9 * f->buffers, 1e-9 * run->hardware.memory,
           run->scenario.kept ? 1e6 * run->hardware.call : 0);
}

static cp_status step_after(const simulate_run *run, double *seconds) {
    const int64_t count = run->scenario.sequences;
    cp_scenario next = run->scenario;
    int64_t *ones = NULL, *past = NULL;
    cp_forecast forecast;
    cp_status status = cp_allocate(&ones, count, sizeof(int64_t), "sequences");
    if (status == CP_OK)
        status = cp_allocate(&past, count, sizeof(int64_t), "sequences");
    for (int64_t i = 0; i < count && status == CP_OK; i++) {
        ones[i] = 1;
        past[i] = run->new_tokens[i] + run->past[i];
    }
    next.variant = CP_DECODE;
    next.new_tokens = ones;
    next.cached_tokens = past;
    next.trace = NULL;
    next.kept = false;
    if (status == CP_OK)
        status = cp_simulate(&next, &forecast);
    *seconds = status == CP_OK ? forecast.seconds : 0;
    free(ones);
    free(past);
    return status;
}

static cp_status call_simulate(simulate_run *run, cp_forecast *forecast) {
    static const char *const names[] = {"computing", "communicating"};
    cp_history *trace = NULL;
    cp_status status = CP_OK;
    if (run->trace != NULL)
        status = cp_history_new((int)run->ranks, 2, names, &trace);
    run->scenario.trace = trace;
    if (status == CP_OK)
        status = cp_simulate(&run->scenario, forecast);
    if (status == CP_OK && !isfinite(forecast->seconds))
        status = cp_fail(CP_INVALID, "machine %s is too slow for a time",
                         run->hardware.name);
    if (status == CP_OK && trace != NULL)
        status = cp_history_write(trace, 0, run->trace);
    cp_history_free(trace);
    run->scenario.trace = NULL;
    return status;
}

static cp_status simulate_work(void *context) {
    simulate_run *run = context;
    cp_forecast forecast;
    double step = 0;
    cp_status status = scenario_build(run);
    if (status == CP_OK)
        status = call_simulate(run, &forecast);
    if (status == CP_OK && run->scenario.variant != CP_DECODE)
        status = step_after(run, &step);
    if (status == CP_OK)
        (run->csv ? csv_print : forecast_print)(run, &forecast, step);
    free(run->new_tokens);
    free(run->past);
    return status;
}

int cp_command_simulate(int count, char *const *arguments) {
    simulate_run run = {.machine = "gtt",
                        .model = "llama3-405b",
                        .ranks = 4,
                        .batch = 1,
                        .tensor = -1,
                        .partials = -1};
    const cp_option options[] = {
        {"machine", CP_WORD, &run.machine, "NAME|FILE",
         "gtt (default), gti, h200, laptop, or a description"},
        {"model", CP_WORD, &run.model, "NAME|FILE",
         "llama3-405b (default), llama3-70b, llama3-8b, smollm2-135m, or a "
         "description"},
        {"ranks", CP_COUNT, &run.ranks, "N", "ranks of the ring (default 4)"},
        {"tensor", CP_COUNT, &run.tensor, "n",
         "GPUs that share the heads of a rank (default: those of a node)"},
        {"new", CP_COUNTS, &run.fresh, "T,T,...",
         "new tokens of each sequence"},
        {"cached", CP_COUNTS, &run.cached, "P,P,...",
         "cached tokens of each sequence (default none)"},
        {"batch", CP_COUNT, &run.batch, "B", "take these sequences B times"},
        {"variant", CP_ONE_OF, &run.variant, CP_COMMAND_VARIANTS,
         "which ring (default auto: by Algorithm 1); decode: a step"},
        {"partials", CP_COUNT, &run.partials, "4|2",
         "bytes of a number of the partials that travel (default: as of the "
         "model's cache)"},
        {"set", CP_WORDS, &run.set, "FIELD=VALUE",
         "change a constant of the machine; may be repeated"},
        {"seed", CP_COUNT, &run.seed, "S", "of the jitter (default 0)"},
        {"trace", CP_WORD, &run.trace, "OUT.json",
         "write what runs when in one call, for Perfetto"},
        {"csv", CP_FLAG, &run.csv, NULL, "for programs"},
        {0}};
    const cp_usage usage = {
        "simulate", "--new T,T,... [options]",
        "What a call would take on a described machine: time to the first "
        "token and of a step, what of the communication shows, and memory. "
        "Nothing is computed, so a million tokens on 128 GPUs are welcome.",
        options};
    return cp_command_run(&usage, count, arguments, simulate_check,
                          simulate_work, &run);
}
