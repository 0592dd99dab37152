/* longring simulate: what a call would take on a described machine. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "predict/figures.h"
#include "predict/fit.h"
#include "predict/foresee.h"
#include "predict/sweeps.h"
#include "ring/variants.h"

typedef struct {
    const char *machine, *model, *trace;
    cp_words set;
    cp_counts fresh, cached;
    int64_t ranks, tensor, batch, partials, seed;
    int variant, table, figure, sweep;
    bool csv, fit;
    /* What they come to. */
    cp_hardware hardware;
    cp_model_sizes facts;
    cp_choice choice;
    int64_t *new_tokens, *past;
    cp_scenario scenario;
} simulate_run;

enum { TABLE_NONE, TABLE_ALL };
static const char *const table_names[] = {NULL, NULL, "4",    "5",      "6",
                                          "7",  "8",  "text", "summary"};

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
    const cp_status status = cp_description_parse(&description, "--set", line);
    const char *label = "--set:2:";
    if (status == CP_OK || strncmp(cp_message(), label, strlen(label)) != 0)
        return status;
    return cp_fail(status, "--set%s", cp_message() + strlen(label));
}

static cp_status one_thing(const simulate_run *run, bool call) {
    const int things = (run->table != TABLE_NONE) + (run->figure > 0) +
                       (run->sweep > 0) + run->fit;
    const cp_sweep sweep = (cp_sweep)(run->sweep - 1);
    const bool one = run->fresh.count <= 1 && run->batch == 1;
    if (things > 1)
        return cp_fail(CP_INVALID,
                       "one of --table, --figure, --sweep and --fit");
    if (!call && run->fresh.count > 0)
        return cp_fail(CP_INVALID, "--new is of a call or a sweep, not of "
                                   "--table, --figure or --fit");
    if (things > 0 && run->trace != NULL)
        return cp_fail(CP_INVALID, "--trace is of one call");
    if (!one && (sweep == CP_SWEEP_BATCH || sweep == CP_SWEEP_TOKENS))
        return cp_fail(CP_INVALID,
                       "--sweep tokens and --sweep batch are of one sequence");
    if (run->fit && run->set.count > 0)
        return cp_fail(CP_INVALID, "--fit writes the built-in description; "
                                   "it takes no --set");
    return CP_OK;
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

static cp_status possible(const simulate_run *run, bool call) {
    cp_pace pace = {.hardware = &run->hardware,
                    .model = &run->facts,
                    .ranks = (int)run->ranks,
                    .tensor = call ? run->tensor : 8};
    const cp_status status = cp_pace_new(&pace);
    int fitted = 0;
    for (int n = 0; n < CP_HARDWARE_FIELDS; n++)
        fitted += run->hardware.origins[n].source == CP_SOURCE_FITTED;
    if (status == CP_OK && run->fit && fitted == 0)
        return cp_fail(CP_INVALID, "--fit: %s has 0 fitted constants",
                       run->machine);
    return status == CP_OK && call ? tokens_possible(run) : status;
}
static cp_status simulate_check(void *context) {
    simulate_run *run = context;
    const bool call = run->table == 0 && run->figure == 0 && !run->fit;
    cp_status status = one_thing(run, call);
    if (status == CP_OK)
        status = cp_hardware_read(run->machine, &run->hardware);
    if (status == CP_OK)
        status = cp_model_sizes_read(run->model, &run->facts);
    for (int64_t n = 0; n < run->set.count && status == CP_OK; n++)
        status = constant_set(&run->hardware, run->set.items[n]);
    if (status != CP_OK)
        return status;
    if (run->tensor < 0)
        run->tensor = run->hardware.gpus_per_node;
    if (run->partials < 0)
        run->partials = run->facts.cache_bytes > 2 ? 4 : 2;
    /* Check the counts of a call. */
    if (call && run->fresh.count == 0)
        return cp_fail(CP_INVALID, "simulate needs --new, the new tokens, or "
                                   "--table, --figure or --fit");
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
    status = cp_command_ranks(&run->ranks);
    return status == CP_OK ? possible(run, call) : status;
}

static cp_status variant_choose(simulate_run *run) {
    const cp_hardware *hardware = &run->hardware;
    cp_shape shape = cp_model_sizes_shape(&run->facts);
    shape.query_heads = cp_max(shape.query_heads / run->tensor, 1);
    shape.kv_heads = cp_max(shape.kv_heads / run->tensor, 1);
    const cp_machine machine = cp_machine_of(hardware, run->facts.cache_bytes);
    if (run->variant != CP_AUTO)
        return CP_OK;
    const cp_status status =
        cp_choose(&machine, &shape, (int)run->ranks, run->scenario.sequences,
                  run->new_tokens, run->past, &run->choice);
    run->scenario.variant = run->choice.variant;
    return status;
}

static cp_status scenario_build(simulate_run *run) {
    const int64_t each = run->fresh.count, count = each * run->batch;
    cp_status status =
        cp_allocate(&run->new_tokens, count, sizeof(int64_t), "sequences");
    if (status == CP_OK)
        status = cp_allocate(&run->past, count, sizeof(int64_t), "sequences");
    for (int64_t i = 0; i < count && status == CP_OK; i++) {
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
                                  .seed = (uint64_t)run->seed};
    return status == CP_OK ? variant_choose(run) : status;
}

static void head_print(FILE *out, const simulate_run *run) {
    int64_t fresh = 0, past = 0;
    for (int64_t i = 0; i < run->scenario.sequences; i++) {
        fresh += run->new_tokens[i];
        past += run->past[i];
    }
    fprintf(out, "%s on %s, %s: %lld rank%s of %lld GPU%s\n",
            cp_variant_name(run->scenario.variant), run->hardware.name,
            run->facts.name, (long long)run->ranks, cp_plural(run->ranks),
            (long long)run->tensor, cp_plural(run->tensor));
    fprintf(out, "%s new token%s, %s cached, %lld sequence%s\n",
            cp_group(fresh).text, cp_plural(fresh), cp_group(past).text,
            (long long)run->scenario.sequences,
            cp_plural(run->scenario.sequences));
    if (run->choice.rule[0] != '\0') {
        fprintf(out, "rule with the speeds reached: ");
        cp_write_wrapped(out, 30, 6, run->choice.rule);
    }
}

static void layer_print(FILE *out, const cp_forecast *f) {
    fprintf(out,
            "\na layer            microseconds\n"
            "  linear layers    %12.6g\n  all-reduces      %12.6g\n"
            "  ring             %12.6g\n    attention      %12.6g\n"
            "    exchanges      %12.6g  (%.6g each)\n"
            "    exposed        %12.6g\n",
            1e6 * f->linear, 1e6 * f->reducing, 1e6 * f->ring,
            1e6 * f->attending, 1e6 * f->exchanging, 1e6 * f->exchange,
            1e6 * f->exposed);
}
static void memory_print(FILE *out, const cp_hardware *hardware,
                         const cp_forecast *f) {
    const double all = f->weights + f->cache + f->buffers;
    fprintf(out,
            "\na GPU at most            GB\n  weights        %10.3f\n"
            "  cache          %10.3f\n  buffers        %10.3f\n"
            "  in all         %10.3f  of %.4g%s\n",
            1e-9 * f->weights, 1e-9 * f->cache, 1e-9 * f->buffers, 1e-9 * all,
            1e-9 * hardware->memory,
            all > hardware->memory ? ": DOES NOT FIT" : "");
}

static void forecast_print(FILE *out, const simulate_run *run,
                           const cp_forecast *f, double step) {
    const bool decode = run->scenario.variant == CP_DECODE;
    const double peak = run->hardware.peak;
    head_print(out, run);
    fprintf(out, "\n%s %17.6g s\n", decode ? "TTIT" : "TTFT", f->seconds);
    if (!decode)
        fprintf(out, "TTIT %17.6g s  (the step after it)\n", step);
    fprintf(out,
            "busy %17.1f %%  of the time, each compute queue\n"
            "rate %17.4g TFLOP/s per GPU, %.1f %% of the 16-bit peak\n",
            100 * f->busy, 1e-12 * f->flops_per_second,
            100 * f->flops_per_second / peak);
    layer_print(out, f);
    memory_print(out, &run->hardware, f);
}

static void csv_print(FILE *out, const simulate_run *run, const cp_forecast *f,
                      double step) {
    fprintf(out,
            "variant,seconds,next_step_seconds,busy,tflops_per_gpu,linear_us,"
            "reduce_us,ring_us,attend_us,exchange_us,exposed_us,weights_gb,"
            "cache_gb,buffers_gb,memory_gb\n"
            "%s,%.9g,%.9g,%.4f,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,"
            "%.6g,%.6g\n",
            cp_variant_name(run->scenario.variant), f->seconds, step, f->busy,
            1e-12 * f->flops_per_second, 1e6 * f->linear, 1e6 * f->reducing,
            1e6 * f->ring, 1e6 * f->attending, 1e6 * f->exchanging,
            1e6 * f->exposed, 1e-9 * f->weights, 1e-9 * f->cache,
            1e-9 * f->buffers, 1e-9 * run->hardware.memory);
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
    if (status == CP_OK)
        status = cp_simulate(&next, &forecast);
    *seconds = status == CP_OK ? forecast.seconds : 0;
    free(ones);
    free(past);
    return status;
}

static cp_status call_simulate(simulate_run *run, FILE *out) {
    static const char *const names[] = {"computing", "communicating"};
    cp_history *trace = NULL;
    cp_forecast forecast;
    double step = 0;
    cp_status status = CP_OK;
    if (run->trace != NULL)
        status = cp_history_new((int)run->ranks, 2, names, &trace);
    run->scenario.trace = trace;
    if (status == CP_OK)
        status = cp_simulate(&run->scenario, &forecast);
    if (status == CP_OK && !isfinite(forecast.seconds))
        status = cp_fail(CP_INVALID, "machine %s is too slow for a time",
                         run->hardware.name);
    if (status == CP_OK && trace != NULL)
        status = cp_history_write(trace, 0, run->trace);
    cp_history_free(trace);
    run->scenario.trace = NULL;
    if (status == CP_OK && run->scenario.variant != CP_DECODE)
        status = step_after(run, &step);
    if (status == CP_OK)
        (run->csv ? csv_print : forecast_print)(out, run, &forecast, step);
    return status;
}

static cp_status fit_print(simulate_run *run, FILE *out) {
    char file[CP_NAME_BYTES + 16];
    cp_paper paper;
    cp_fit_report report;
    snprintf(file, sizeof(file), "%s.machine", run->machine);
    const char *text = cp_built_in_text(file);
    if (text == NULL)
        return cp_fail(CP_INVALID, "--fit: machine %s is not built in",
                       run->machine);
    cp_status status = cp_paper_new(NULL, &paper);
    if (status != CP_OK)
        return status;
    status = cp_fit(&run->hardware, &run->facts, &paper, &report);
    cp_paper_free(&paper);
    if (status != CP_OK)
        return status;
    cp_fit_write(&run->hardware, text, out);
    fprintf(stderr,
            "%d constants from %d numbers in %d rounds: root mean square "
            "error %.2f %%\n",
            report.constants, report.rows, report.rounds,
            100 * sqrt(report.after / report.rows));
    return CP_OK;
}

static cp_status simulate_write(simulate_run *run, FILE *out) {
    if (run->fit)
        return fit_print(run, out);
    if (run->table != TABLE_NONE)
        return cp_tables_print(out, table_names[run->table], run->csv,
                               &run->hardware, &run->facts);
    if (run->figure > 0)
        return cp_figure_print(out, run->figure + 5, run->csv, &run->hardware,
                               &run->facts);
    const cp_status status = scenario_build(run);
    if (status != CP_OK)
        return status;
    if (run->sweep > 0)
        return cp_sweep_print(out, (cp_sweep)(run->sweep - 1), &run->scenario);
    return call_simulate(run, out);
}

static cp_status simulate_work(void *context) {
    simulate_run *run = context;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return cp_fail(CP_MEMORY, "simulate: no memory for its text");
    cp_status status = simulate_write(run, out);
    if (fclose(out) != 0 && status == CP_OK)
        status = cp_fail(CP_MEMORY, "simulate: no memory for its text");
    if (status == CP_OK)
        fwrite(text, 1, bytes, stdout);
    free(text);
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
        /* Options of simulate. */
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
        {"seed", CP_COUNT, &run.seed, "S",
         "of the jitter of a call or a sweep (default 0)"},
        {"trace", CP_WORD, &run.trace, "OUT.json",
         "write what runs when in one call, for Perfetto"},
        {"table", CP_ONE_OF, &run.table, "none|all|4|5|6|7|8|text|summary",
         "the paper's numbers beside ours, with the errors"},
        {"figure", CP_ONE_OF, &run.figure, "none|6|7|8|9|10",
         "a figure of the paper with its points and ours"},
        {"sweep", CP_ONE_OF, &run.sweep,
         "none|ranks|tokens|network|batch|heads",
         "vary one thing of the call, as CSV"},
        {"fit", CP_FLAG, &run.fit, NULL,
         "fit the machine's fitted constants to the paper; print its "
         "description"},
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
