/* longring simulate: what a call would take on a described machine. */
#include <math.h>
#include <string.h>

#include "app/command.h"
#include "app/io.h"
#include "app/options_call.h"
#include "predict/pipeline.h"
#include "predict/rules.h"
#include "variants/sparse.h"

typedef struct {
    cp_command_call call;
    const char *trace;
    cp_words set;
    int64_t piece; /* for a pipeline; -1: no pipeline */
    bool csv;
    /* Derived from the options. */
    cp_choice choice;
    cp_forecast forecast;
    double step;  /* seconds of the decode step after the call */
    int64_t lost; /* operations without room in the trace */
} simulate_run;

static cp_status constant_set(cp_hardware *hardware, const char *text) {
    const cp_description description = cp_hardware_description(hardware);
    char field[64], line[400];
    const char *equals = strchr(text, '=');
    const int length = equals == NULL ? 0 : (int)(equals - text);
    snprintf(field, sizeof(field), "%.*s", length < 63 ? length : 63, text);
    const int n = cp_description_field(&description, field);
    if (length == 0 || equals[1] == '\0')
        return cp_refuse("--set %.80s: expected FIELD=VALUE, with a field of a "
                         "machine description",
                         text);
    const char *near =
        cp_nearest(field, (int64_t)strlen(field), description.count,
                   &description.fields->name, sizeof(*description.fields));
    if (n < 0 && near != NULL)
        return cp_refuse("--set %.80s: no such field; did you mean %s?", text,
                         near);
    if (n < 0)
        return cp_refuse("--set %.80s: a machine description has no field %s",
                         text, field);
    snprintf(line, sizeof(line), "machine %s\n%s %.80s %s assumed --set\n",
             hardware->name, field, equals + 1, description.fields[n].unit);
    const cp_status status = cp_description_change(&description, "--set", line);
    const char *label = "--set:2:";
    if (status == CP_OK || strncmp(cp_message(), label, strlen(label)) != 0)
        return status;
    return cp_fail(status, "--set%s", cp_message() + strlen(label));
}

/* A pipeline passes rows, so it has fewer options. */
static cp_status pipeline_check(simulate_run *run) {
    cp_scenario *scenario = &run->call.scenario;
    if (scenario->variant != CP_AUTO && scenario->variant != CP_DECODE)
        return cp_refuse("--pipeline: --variant %s has no meaning; only decode",
                         cp_variant_name(scenario->variant));
    if (run->trace != NULL)
        return cp_refuse(
            "--pipeline and --trace exclude each other: only rings are traced");
    if (scenario->variant == CP_AUTO)
        scenario->variant = CP_PASS_KV;
    return cp_option_range("ranks of a --pipeline", run->call.ranks, 1,
                           run->call.sizes.layers);
}

/* Reject what cannot be simulated before any work, as bad use. */
static cp_status simulate_check(void *context) {
    simulate_run *run = context;
    cp_command_call *call = &run->call;
    const int64_t partial_bytes = call->scenario.partial_bytes;
    CP_TRY(cp_command_call_read(call));
    for (int64_t n = 0; n < run->set.count; n++)
        CP_TRY(constant_set(&call->hardware, run->set.items[n]));
    if (partial_bytes >= 0 && partial_bytes != 2 && partial_bytes != 4)
        return cp_refuse("--partials %ld: expected 2 or 4 bytes a number",
                         partial_bytes);
    CP_TRY(cp_command_call_check(call));
    return run->piece < 0 ? CP_OK : pipeline_check(run);
}

static const char *variant_name(const simulate_run *run) {
    return run->piece >= 0 ? "pipeline"
                           : cp_variant_name(run->call.scenario.variant);
}

static cp_status variant_choose(simulate_run *run) {
    const cp_command_call *call = &run->call;
    cp_scenario *scenario = &run->call.scenario;
    cp_setting reached =
        cp_setting_of(&call->hardware, &call->shape, call->sizes.cache_bytes,
                      scenario->ranks, false);
    reached.machine.wire = scenario->wire;
    if (scenario->variant != CP_AUTO)
        return CP_OK;
    if (scenario->indexer.top_k > 0)
        CP_TRY(cp_choose_sparse(
            &scenario->indexer, &call->shape, call->sizes.cache_bytes,
            scenario->wire, scenario->ranks, scenario->sequences,
            scenario->new_tokens, scenario->cached_tokens, &run->choice));
    else
        CP_TRY(cp_choose(&reached.machine, &call->shape, scenario->ranks,
                         scenario->sequences, scenario->new_tokens,
                         scenario->cached_tokens, &run->choice));
    scenario->variant = run->choice.variant;
    return CP_OK;
}

static void head_print(const simulate_run *run) {
    const cp_command_call *call = &run->call;
    const cp_scenario *scenario = &call->scenario;
    printf("%s on %s, %s: %ld %s%s of %ld GPU%s\n"
           "%s new token%s, %s cached, %s sequence%s",
           variant_name(run), call->hardware.name, call->sizes.name,
           call->ranks, run->piece < 0 ? "rank" : "stage",
           cp_plural(call->ranks), scenario->tensor,
           cp_plural(scenario->tensor), cp_group(call->fresh).text,
           cp_plural(call->fresh), cp_group(call->cached).text,
           cp_group(scenario->sequences).text, cp_plural(scenario->sequences));
    if (run->piece < 0 && scenario->wire == CP_WIRE_FP32)
        printf("; partials sent in %ld bytes a number",
               scenario->partial_bytes);
    printf("\n");
    if (call->order != 0) {
        printf("ring of devices");
        for (int r = 0; r < scenario->ranks; r++)
            printf(" %d", 1 + call->devices[r]);
        printf("\n");
    }
    if (run->choice.rule[0] != '\0') {
        printf("rule with the speeds reached: ");
        cp_write_wrapped(stdout, 30, 6, run->choice.rule);
    }
}

static cp_grouped microseconds(double seconds) {
    return cp_group_tenths(1e6 * seconds);
}

static void ring_print(const cp_forecast *f) {
    const double rest = fmax(0, f->ring - f->attending - f->exposed);
    printf("  ring             %12s\n    attention      %12s\n"
           "    exchanges      %12s  (%s each)\n"
           "    exposed        %12s\n    steps, merges  %12s\n",
           microseconds(f->ring).text, microseconds(f->attending).text,
           microseconds(f->exchanging).text, microseconds(f->exchange).text,
           microseconds(f->exposed).text, microseconds(rest).text);
}

static void pipe_print(const cp_forecast *f) {
    printf("  attention        %12s\n  bubbles          %12s\n"
           "\nfrom stage to stage %11s MB in %s message%s\n",
           microseconds(f->attending).text, microseconds(f->idle).text,
           cp_group_number(1e-6 * f->sent).text, cp_group(f->pieces).text,
           cp_plural(f->pieces));
}

/* Print what takes a layer's time, and a GPU's memory. */
static void shares_print(const cp_hardware *hardware, const cp_forecast *f) {
    const double all = f->weights + f->cache + f->buffers;
    printf("\na layer%-11s microseconds\n"
           "  linear layers    %12s\n  all-reduces      %12s\n",
           f->pieces > 0 ? ", all rows" : "", microseconds(f->linear).text,
           microseconds(f->reducing - f->routing).text);
    if (f->routed > 0)
        printf("  to experts, back %12s  (%s MB each way)\n",
               microseconds(f->routing).text,
               cp_group_number(1e-6 * f->routed).text);
    (f->pieces > 0 ? pipe_print : ring_print)(f);
    printf("\na GPU at most            GB\n  weights        %10.3f\n"
           "  cache          %10.3f\n  buffers        %10.3f\n"
           "  in all         %10.3f  of %.4g%s\n",
           1e-9 * f->weights, 1e-9 * f->cache, 1e-9 * f->buffers, 1e-9 * all,
           1e-9 * hardware->memory,
           all > hardware->memory ? ": DOES NOT FIT" : "");
}

/* Print which of its two forms a latent layer uses, and what that costs. */
static void form_print(const cp_forecast *f) {
    printf("%s: %s FLOPs a pair", f->made > 0 ? "expanded" : "absorbed",
           cp_group((int64_t)f->pair).text);
    if (f->made > 0)
        printf(", %s for each key that a rank sees",
               cp_group((int64_t)f->made).text);
    printf("\n");
}

static void forecast_print(const simulate_run *run) {
    const cp_forecast *f = &run->forecast;
    const bool decode = cp_variant_decodes(run->call.scenario.variant);
    head_print(run);
    if (run->call.sizes.latent > 0)
        form_print(f);
    printf("\n%s %17.6g s\n", decode ? "TTIT" : "TTFT", f->seconds);
    if (run->call.scenario.kept && run->call.hardware.call > 0)
        printf(
            "     %17.6g s  of this once, for a call over an existing cache\n",
            run->call.hardware.call);
    if (!decode)
        printf("TTIT %17.6g s  (the step after it)\n", run->step);
    printf("busy %17.1f %%  of the time, each compute queue\n"
           "rate %17.4g TFLOP/s per GPU, %.1f %% of the 16-bit peak\n",
           100 * f->busy, 1e-12 * f->flops_per_second,
           100 * f->flops_per_second / run->call.hardware.peak);
    shares_print(&run->call.hardware, f);
    cp_command_lost(run->lost);
    if (f->state.seconds > 0)
        printf("\na layer with a state microseconds\n"
               "  runs of tokens   %12s\n  scan             %12s  (%s)\n"
               "  in all           %12s\n",
               microseconds(f->state.run).text,
               microseconds(f->state.scan).text, cp_scan_name(f->state.by),
               microseconds(f->state.seconds).text);
}

static void csv_print(const simulate_run *run) {
    const cp_forecast *f = &run->forecast;
    printf("variant,seconds,next_step_seconds,busy,tflops_per_gpu,linear_us,"
           "reduce_us,ring_us,attend_us,exchange_us,exposed_us,weights_gb,"
           "cache_gb,buffers_gb,capacity_gb,kept_us\n"
           "%s,%.9g,%.9g,%.4f,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,"
           "%.6g,%.6g,%.6g\n",
           variant_name(run), f->seconds, run->step, f->busy,
           1e-12 * f->flops_per_second, 1e6 * f->linear, 1e6 * f->reducing,
           1e6 * f->ring, 1e6 * f->attending, 1e6 * f->exchanging,
           1e6 * f->exposed, 1e-9 * f->weights, 1e-9 * f->cache,
           1e-9 * f->buffers, 1e-9 * run->call.hardware.memory,
           run->call.scenario.kept ? 1e6 * run->call.hardware.call : 0);
}

static cp_status foresee(const simulate_run *run, const cp_scenario *scenario,
                         cp_forecast *forecast) {
    return run->piece < 0 ? cp_simulate(scenario, forecast)
                          : cp_pipeline(scenario, run->piece, forecast);
}

static cp_status call_simulate(simulate_run *run) {
    static const char *const queues[] = {"computing", "communicating"};
    cp_scenario *scenario = &run->call.scenario;
    if (run->trace != NULL)
        CP_TRY(cp_history_new(scenario->ranks, 2, queues, &scenario->trace));
    scenario->kept =
        !cp_variant_decodes(scenario->variant) && run->call.cached > 0;
    CP_TRY(foresee(run, scenario, &run->forecast));
    if (!isfinite(run->forecast.seconds))
        return cp_refuse("machine %s: too slow, its time is not finite",
                         run->call.hardware.name);
    return run->trace == NULL
               ? CP_OK
               : cp_history_write(scenario->trace, run->trace, &run->lost);
}

/* Simulate the decode step that follows the call; all the call's tokens are
 * then cached. */
static cp_status step_simulate(simulate_run *run) {
    cp_command_tokens *tokens = &run->call.tokens;
    cp_scenario next = run->call.scenario;
    cp_forecast forecast;
    for (int64_t i = 0; i < next.sequences; i++) {
        tokens->cached.items[i] += tokens->fresh.items[i];
        tokens->fresh.items[i] = 1;
    }
    next.variant = CP_DECODE;
    next.trace = NULL;
    next.kept = false;
    CP_TRY(foresee(run, &next, &forecast));
    run->step = forecast.seconds;
    return CP_OK;
}

static cp_status all_simulate(void *context) {
    simulate_run *run = context;
    CP_TRY(variant_choose(run));
    CP_TRY(call_simulate(run));
    return cp_variant_decodes(run->call.scenario.variant) ? CP_OK
                                                          : step_simulate(run);
}

static cp_status simulate_work(void *context) {
    simulate_run *run = context;
    CP_TRY(cp_command_simulating(&run->call, all_simulate, run));
    (run->csv ? csv_print : forecast_print)(run);
    return CP_OK;
}

int cp_command_simulate(int count, char *const *arguments) {
    simulate_run run = {.call = CP_COMMAND_CALL, .piece = -1};
    const cp_option options[] = {
        CP_COMMAND_CALL_OPTIONS(run.call),
        {"variant", CP_ONE_OF, &run.call.scenario.variant, cp_variant_names(),
         "which ring (default auto: by Algorithm 1); decode: one step"},
        {"pipeline", CP_COUNT, &run.piece, "P",
         "instead, split layers, not tokens, over the ranks, and prompts into "
         "pieces of P tokens; 0: the fastest size"},
        {"partials", CP_COUNT, &run.call.scenario.partial_bytes, "4|2",
         "bytes of a number in partials that are sent (default: as in the "
         "model's cache)"},
        {"set", CP_WORDS, &run.set, "FIELD=VALUE",
         "change a constant of the machine, in the unit of a description "
         "(link_rate=25 is 25 GB/s); may be repeated"},
        {"seed", CP_COUNT, &run.call.scenario.seed, "S",
         "seed of the jitter (default 0)"},
        {"trace", CP_OUTPUT, &run.trace, "OUT.json",
         "write what runs when in one call, for Perfetto"},
        {"csv", CP_FLAG, &run.csv, NULL, "for programs"},
        {0}};
    const cp_usage usage = {
        "simulate", "--new T,T,... [options]",
        "What a call would take on a described machine: time to the first "
        "token and for a step, exposed communication, and memory. Nothing is "
        "computed, so a million tokens on 128 GPUs are no problem.",
        options};
    const int result = cp_command_run(&usage, count, arguments, simulate_check,
                                      simulate_work, &run);
    cp_history_free(run.call.scenario.trace);
    return result;
}
