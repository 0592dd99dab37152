/* longring choose: which ring by each rule, where it turns, and its regret. */
#define _GNU_SOURCE
#include "app/command.h"

#include <stdlib.h>
#include <string.h>

#include "predict/learn.h"
#include "predict/simulate.h"
#include "ring/variants.h"

typedef struct {
    int64_t ranks, tensor; /* tensor -1: as the machine has GPUs in a node */
    cp_counts new_tokens, cached;
    const char *machine, *model, *flops, *bandwidth, *measured, *only;
    int speeds;
    bool learn, csv;
    /* What they come to. */
    cp_hardware hardware;
    cp_model_sizes sizes;
    cp_setting setting;
    cp_load load;
    cp_trials trials;
    cp_rule rules[CP_RULES + 1]; /* and perhaps one that was learned */
    int count;                   /* of rules */
    bool apart;
} choose_run;

enum { SPEEDS_PEAK, SPEEDS_REACHED };

static cp_status near(const char *name, double number, cp_rational *out) {
    char text[40];
    snprintf(text, sizeof(text), "%.15g", number);
    return cp_rational_parse(name, text, out);
}

static cp_status speeds_read(choose_run *run) {
    const cp_hardware *const h = &run->hardware;
    const bool peak = run->speeds == SPEEDS_PEAK;
    cp_speeds *const speeds = &run->setting.speeds;
    const struct {
        const char *name;
        double number;
        cp_rational *out;
    } fields[] = {
        {"peak", peak ? h->peak : h->attention_rate, &speeds->flops},
        {"link_rate", peak ? h->link_peak : h->link_rate, &speeds->bandwidth},
        {"link_latency", h->link_latency, &speeds->latency},
        {"all_to_all_rate", h->all_to_all_rate, &speeds->all_to_all_bandwidth},
        {"all_to_all_latency", h->all_to_all_latency,
         &speeds->all_to_all_latency},
    };
    cp_status status = CP_OK;
    for (int i = 0; i < 5 && status == CP_OK; i++)
        status = near(fields[i].name, fields[i].number, fields[i].out);
    /* Let the user's own speeds win. */
    if (status == CP_OK && run->flops != NULL)
        status = cp_rational_parse("--flops", run->flops, &speeds->flops);
    if (status == CP_OK && run->bandwidth != NULL)
        status = cp_rational_parse("--bandwidth", run->bandwidth,
                                   &speeds->bandwidth);
    return status;
}

static cp_status shape_divide(choose_run *run) {
    cp_shape *const shape = &run->setting.shape;
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
    cp_status status = cp_hardware_read(run->machine, &run->hardware);
    if (status == CP_OK)
        status = cp_model_sizes_read(run->model, &run->sizes);
    if (status == CP_OK)
        status = shape_divide(run);
    if (status == CP_OK)
        status = speeds_read(run);
    run->setting.ranks = (int)run->ranks;
    run->setting.element_bytes = run->sizes.cache_bytes;
    run->setting.output_bytes = run->sizes.cache_bytes;
    run->setting.shares_cores = run->hardware.overlap <= 0;
    return status == CP_OK ? cp_setting_check(&run->setting) : status;
}

static cp_status trials_read(choose_run *run) {
    char *text = NULL;
    int64_t bytes;
    cp_status status = CP_OK;
    if (strcmp(run->measured, "table-4") == 0)
        return cp_trials_parse("table-4", cp_built_in_text("paper.csv"), "t4/",
                               &run->trials);
    status = cp_file_read(run->measured, &text, &bytes);
    if (status == CP_OK && (int64_t)strlen(text) != bytes)
        status = cp_fail(CP_INVALID, "%s: has a zero byte, so it is no CSV",
                         run->measured);
    if (status == CP_OK)
        status = cp_trials_parse(run->measured, text, run->only, &run->trials);
    free(text);
    return status;
}

static cp_status rules_fill(choose_run *run) {
    cp_status status = CP_OK;
    memcpy(run->rules, cp_rules, sizeof(cp_rules));
    run->count = CP_RULES;
    if (run->learn) {
        cp_rule *const learned = &run->rules[run->count++];
        *learned = (cp_rule){"learned", CP_RULE_EMPIRICAL, false, {0, 0, 0}};
        status = cp_learn(&run->trials, &learned->fit, &run->apart);
    }
    return status;
}

/* Seconds of a call by pass-KV and by pass-Q. */
typedef struct {
    double pass_kv, pass_q;
} simulated;

static cp_status simulate(const choose_run *run, int ranks, int64_t sequences,
                          const int64_t *fresh, const int64_t *cached,
                          simulated *seconds) {
    cp_scenario scenario = {.hardware = &run->hardware,
                            .model = &run->sizes,
                            .ranks = ranks,
                            .tensor = run->tensor,
                            .sequences = sequences,
                            .new_tokens = fresh,
                            .cached_tokens = cached,
                            .variant = CP_PASS_KV,
                            .partial_bytes = run->setting.output_bytes};
    cp_forecast forecast;
    cp_status status = cp_simulate(&scenario, &forecast);
    seconds->pass_kv = forecast.seconds;
    scenario.variant = CP_PASS_Q;
    if (status == CP_OK)
        status = cp_simulate(&scenario, &forecast);
    seconds->pass_q = forecast.seconds;
    return status;
}

static cp_variant faster(const simulated *seconds) {
    return seconds->pass_kv <= seconds->pass_q ? CP_PASS_KV : CP_PASS_Q;
}

static cp_status simulation_score(const choose_run *run, cp_score *score,
                                  bool *wrong) {
    cp_scoring scoring = {{0, 0, 0}, 0, 0};
    cp_status status = CP_OK;
    for (int64_t i = 0; i < run->trials.count && status == CP_OK; i++) {
        const cp_trial *const trial = &run->trials.items[i];
        const int64_t ranks = trial->ranks > 0 ? trial->ranks : run->ranks;
        simulated seconds;
        status = simulate(run, (int)cp_min(ranks, INT32_MAX), 1, &trial->fresh,
                          &trial->cached, &seconds);
        const bool right = status == CP_OK &&
                           cp_scoring_add(&scoring, trial, faster(&seconds));
        if (wrong != NULL)
            wrong[i] = !right;
    }
    *score = scoring.score;
    return status;
}

static cp_status counts_check(const char *name, const cp_counts *counts) {
    for (int64_t s = 0; s < counts->count; s++)
        if (counts->items[s] > INT32_MAX)
            return cp_fail(CP_INVALID,
                           "--%s: %lld tokens in sequence %lld are more than "
                           "the %d that have positions",
                           name, (long long)counts->items[s], (long long)s,
                           INT32_MAX);
    return CP_OK;
}

static cp_status context_check(const choose_run *run) {
    int64_t sum = 0;
    for (int64_t s = 0; s < run->new_tokens.count; s++)
        sum += run->new_tokens.items[s] +
               (run->cached.count > 0 ? run->cached.items[s] : 0);
    if (sum > INT32_MAX)
        return cp_fail(CP_INVALID,
                       "--new, --cached: %lld tokens in all are more than the "
                       "%d that can be planned",
                       (long long)sum, INT32_MAX);
    return CP_OK;
}

static cp_status choose_check(void *context) {
    choose_run *run = context;
    if (run->new_tokens.count == 0 && run->measured == NULL)
        return cp_fail(CP_INVALID, "choose needs --new, the new tokens, or "
                                   "--measured, a file of times");
    if (run->cached.count > 0 && run->cached.count != run->new_tokens.count)
        return cp_fail(
            CP_INVALID, "--cached is of %lld sequences, and --new of %lld",
            (long long)run->cached.count, (long long)run->new_tokens.count);
    if (run->measured == NULL && (run->learn || run->only != NULL))
        return cp_fail(CP_INVALID, "--%s needs --measured, a file of times",
                       run->learn ? "learn" : "only");
    if (run->csv && (run->measured == NULL) != (run->new_tokens.count == 1))
        return cp_fail(CP_INVALID,
                       "--csv is for one sequence of --new, or for --measured");
    if (run->only != NULL && strcmp(run->measured, "table-4") == 0)
        return cp_fail(CP_INVALID, "--only is for a file, not for table-4");
    cp_status status = cp_command_ranks(&run->ranks);
    if (status == CP_OK)
        status = counts_check("new", &run->new_tokens);
    if (status == CP_OK)
        status = counts_check("cached", &run->cached);
    if (status == CP_OK)
        status = context_check(run);
    if (status == CP_OK && run->new_tokens.count > 0)
        status = cp_load_of(run->new_tokens.count, run->new_tokens.items,
                            run->cached.count > 0 ? run->cached.items : NULL,
                            &run->load);
    return status == CP_OK ? setting_read(run) : status;
}

static void head_print(FILE *out, const choose_run *run) {
    const cp_setting *const setting = &run->setting;
    const cp_shape *const shape = &setting->shape;
    char speeds[160];
    fprintf(out, "%s on %s, %s rank%s", run->sizes.name, run->hardware.name,
            cp_group(run->ranks).text, cp_plural(run->ranks));
    if (run->tensor > 1)
        fprintf(out, " of %lld GPUs", (long long)run->tensor);
    fprintf(out,
            "\n%lld query head%s and %lld key and value head%s of %lld%s\n",
            (long long)shape->query_heads, cp_plural(shape->query_heads),
            (long long)shape->kv_heads, cp_plural(shape->kv_heads),
            (long long)shape->head_dim, run->tensor > 1 ? " each" : "");
    /* Write the speeds. */
    snprintf(speeds, sizeof(speeds),
             "attention at %.6g TFLOP/s, exchanges at %.6g GB/s, %lld byte%s a "
             "number%s",
             1e-12 * cp_rational_value(setting->speeds.flops),
             1e-9 * cp_rational_value(setting->speeds.bandwidth),
             (long long)setting->element_bytes,
             cp_plural(setting->element_bytes),
             setting->shares_cores ? "; no transfer hides" : "");
    cp_write_wrapped(out, 0, 0, speeds);
}

static void thresholds_print(FILE *out, const choose_run *run) {
    const cp_setting *const setting = &run->setting;
    fprintf(out,
            "\n  keys and values are smaller   from a miss rate of %s "
            "(eq. 1)\n",
            cp_rational_text(cp_miss_rate_least(&setting->shape)).text);
    if (setting->shares_cores || setting->ranks == 1)
        return;
    fprintf(out, "  attention hides their ring    from %s new tokens (eq. 2)\n",
            cp_rational_text(cp_new_tokens_least(setting)).text);
    fprintf(out,
            "  attention hides the queries'  from %s new and cached tokens "
            "(eq. 3)\n",
            cp_rational_text(cp_context_least(setting)).text);
}

static cp_status turn_print(FILE *out, const choose_run *run,
                            const cp_rule *rule) {
    int64_t least;
    const int64_t context = (int64_t)run->load.keys.over;
    const cp_status status =
        cp_rule_least(rule, &run->setting, context, &least);
    if (status == CP_OK)
        fprintf(out, " %13s", least > context ? "never" : cp_group(least).text);
    return status;
}

static cp_status verdicts_print(FILE *out, const choose_run *run) {
    const bool single = run->load.sequences == 1;
    fprintf(out, "\n  rule                says    %s   because\n",
            single ? "   turns at T" : "");
    for (int r = 0; r < run->count; r++) {
        const cp_rule *const rule = &run->rules[r];
        cp_verdict verdict;
        if (rule->kind == CP_RULE_EMPIRICAL && !single)
            continue;
        cp_status status =
            cp_rule_ask(rule, &run->setting, &run->load, &verdict);
        if (status != CP_OK)
            return status;
        fprintf(out, "  %-19s %-7s", rule->name,
                cp_variant_name(verdict.variant));
        if (single)
            status = turn_print(out, run, rule);
        if (status != CP_OK)
            return status;
        fprintf(out, "   ");
        cp_write_wrapped(out, single ? 46 : 32, single ? 46 : 32,
                         verdict.because);
    }
    return CP_OK;
}

static cp_status simulation_print(FILE *out, const choose_run *run) {
    simulated seconds;
    char text[80];
    const int column = run->load.sequences == 1 ? 46 : 32;
    const cp_counts *const new = &run->new_tokens;
    int64_t *none = NULL;
    cp_status status =
        cp_allocate(&none, new->count, sizeof(int64_t), "cached tokens");
    if (status == CP_OK)
        status = simulate(run, (int)run->ranks, new->count, new->items,
                          run->cached.count > 0 ? run->cached.items : none,
                          &seconds);
    free(none);
    if (status != CP_OK)
        return status;
    fprintf(out, "  %-19s %-7s%*s", "simulation",
            cp_variant_name(faster(&seconds)), column - 29, "");
    snprintf(text, sizeof(text), "pass-kv %.4g s, pass-q %.4g s",
             seconds.pass_kv, seconds.pass_q);
    cp_write_wrapped(out, column, column, text);
    return CP_OK;
}

static cp_status call_print(FILE *out, const choose_run *run) {
    const cp_load *const load = &run->load;
    const cp_rational rate = cp_rational_divide(load->fresh, load->keys);
    const cp_rational past = cp_rational_subtract(load->keys, load->fresh);
    fprintf(out, "%s new token%s", cp_group((int64_t)load->fresh.over).text,
            cp_plural((int64_t)load->fresh.over));
    fprintf(out, " over %s cached", cp_group((int64_t)past.over).text);
    if (load->sequences > 1)
        fprintf(out, ", %lld sequences", (long long)load->sequences);
    fprintf(out, ": miss rate %.4g%%\n", 100 * cp_rational_value(rate));
    head_print(out, run);
    thresholds_print(out, run);
    const cp_status status = verdicts_print(out, run);
    return status == CP_OK ? simulation_print(out, run) : status;
}

static void wrong_print(FILE *out, const choose_run *run, const bool *wrong) {
    enum { SHOWN = 4, COLUMN = 50 };
    char text[160] = ""; /* four counts of 13 characters, and one of 19 */
    int length = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < run->trials.count; i++)
        if (wrong[i] && count++ < SHOWN)
            length += snprintf(text + length, sizeof(text) - (size_t)length,
                               "%s%s", count > 1 ? " " : "",
                               cp_group(run->trials.items[i].fresh).text);
    if (count > SHOWN)
        snprintf(text + length, sizeof(text) - (size_t)length, " and %lld more",
                 (long long)(count - SHOWN));
    fputs(count > 0 ? "   " : "", out);
    cp_write_wrapped(out, COLUMN, COLUMN, text);
}

static void score_print(FILE *out, const char *name, const cp_score *score) {
    fprintf(out, "  %-19s %5lld of %-5lld %9.4f%%", name,
            (long long)score->right, (long long)score->of, 100 * score->regret);
}

static cp_status scores_print(FILE *out, const choose_run *run) {
    bool *wrong = NULL;
    cp_score score;
    cp_status status = cp_allocate(&wrong, run->trials.count, 1, "scores");
    fprintf(out,
            "  rule                    right         regret    wrong at T\n");
    for (int r = 0; r < run->count && status == CP_OK; r++) {
        status = cp_trials_score(&run->trials, &run->rules[r], &run->setting,
                                 &score, wrong);
        if (status != CP_OK)
            break;
        score_print(out, run->rules[r].name, &score);
        wrong_print(out, run, wrong);
    }
    if (status == CP_OK)
        status = simulation_score(run, &score, wrong);
    if (status == CP_OK) {
        score_print(out, "simulation", &score);
        wrong_print(out, run, wrong);
    }
    free(wrong);
    return status;
}

static cp_status learned_print(FILE *out, const choose_run *run) {
    const cp_empirical *const fit = &run->rules[CP_RULES].fit;
    const cp_empirical *const printed = &cp_rules[CP_RULES - 1].fit;
    cp_score score;
    double low, high;
    const cp_status status = cp_learn_score(&run->trials, &score);
    if (status != CP_OK)
        return status;
    score_print(out, "learned, left out", &score);
    fprintf(out,
            "   each by a fit of the others\n\n"
            "learned: h = %.4g ln T %+.4g ln(T / (T + P)) %+.4g\n",
            fit->alpha, fit->beta, fit->gamma);
    if (!run->apart)
        fprintf(out, "  (these calls lie on one line of the plane, and tell "
                     "only the sum of the first\n  two: do not use it off "
                     "that line)\n");
    const int64_t right = cp_learn_gamma(&run->trials, printed, &low, &high);
    fprintf(out,
            "with Appendix D's %.4g and %.4g: %lld of %lld from gamma "
            "%.3f to %.3f\n",
            printed->alpha, printed->beta, (long long)right,
            (long long)run->trials.count, low, high);
    return CP_OK;
}

static cp_status measured_print(FILE *out, const choose_run *run) {
    fprintf(out, "%s: %s calls with times of both variants\n\n", run->measured,
            cp_group(run->trials.count).text);
    cp_status status = scores_print(out, run);
    if (status == CP_OK && run->learn)
        status = learned_print(out, run);
    return status;
}

static void score_csv(FILE *out, const char *name, const cp_score *score,
                      const cp_empirical *fit) {
    fprintf(out, "%s,%lld,%lld,%.5f,%.6g,%.6g,%.6g\n", name,
            (long long)score->right, (long long)score->of, 100 * score->regret,
            fit->alpha, fit->beta, fit->gamma);
}

static cp_status scores_csv(FILE *out, const choose_run *run) {
    const cp_empirical none = {0, 0, 0};
    cp_score score;
    cp_status status = CP_OK;
    fprintf(out, "rule,right,of,regret_percent,alpha,beta,gamma\n");
    for (int r = 0; r < run->count && status == CP_OK; r++) {
        const cp_rule *const rule = &run->rules[r];
        status =
            cp_trials_score(&run->trials, rule, &run->setting, &score, NULL);
        if (status == CP_OK)
            score_csv(out, rule->name, &score, &rule->fit);
    }
    if (status == CP_OK)
        status = simulation_score(run, &score, NULL);
    if (status == CP_OK)
        score_csv(out, "simulation", &score, &none);
    if (status == CP_OK && run->learn)
        status = cp_learn_score(&run->trials, &score);
    if (status == CP_OK && run->learn)
        score_csv(out, "learned left out", &score, &none);
    return status;
}

static cp_status verdicts_csv(FILE *out, const choose_run *run) {
    const int64_t context = (int64_t)run->load.keys.over;
    fprintf(out, "rule,variant,tie,turns_at,context\n");
    for (int r = 0; r < run->count; r++) {
        cp_verdict verdict;
        int64_t least;
        cp_status status =
            cp_rule_ask(&run->rules[r], &run->setting, &run->load, &verdict);
        if (status == CP_OK)
            status =
                cp_rule_least(&run->rules[r], &run->setting, context, &least);
        if (status != CP_OK)
            return status;
        fprintf(out, "%s,%s,%d,%lld,%lld\n", run->rules[r].name,
                cp_variant_name(verdict.variant), verdict.tie, (long long)least,
                (long long)context);
    }
    return CP_OK;
}

static cp_status choose_write(FILE *out, const choose_run *run) {
    cp_status status = CP_OK;
    if (run->csv)
        return run->measured != NULL ? scores_csv(out, run)
                                     : verdicts_csv(out, run);
    if (run->new_tokens.count > 0)
        status = call_print(out, run);
    else
        head_print(out, run);
    if (status == CP_OK && run->measured != NULL) {
        fprintf(out, "\n");
        status = measured_print(out, run);
    }
    return status;
}

static cp_status choose_deliver(const choose_run *run) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return cp_fail(CP_MEMORY, "choose: no memory for its text");
    cp_status status = choose_write(out, run);
    if (fclose(out) != 0 && status == CP_OK)
        status = cp_fail(CP_MEMORY, "choose: no memory for its text");
    if (status == CP_OK)
        fwrite(text, 1, size, stdout);
    free(text);
    return status;
}

static cp_status choose_work(void *context) {
    choose_run *run = context;
    cp_status status = CP_OK;
    if (run->measured != NULL)
        status = trials_read(run);
    if (status == CP_OK)
        status = rules_fill(run);
    if (status == CP_OK)
        status = choose_deliver(run);
    cp_trials_free(&run->trials);
    return status;
}

int cp_command_choose(int count, char *const *arguments) {
    choose_run run = {
        .ranks = 4, .tensor = -1, .machine = "gtt", .model = "llama3-405b"};
    const cp_option options[] = {
        /* Options of choose. */
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
        {"flops", CP_WORD, &run.flops, "X",
         "of attention, per second and GPU, instead: 504e12"},
        {"bandwidth", CP_WORD, &run.bandwidth, "X",
         "of an exchange, bytes per second and GPU, instead: 26.1e9"},
        {"measured", CP_WORD, &run.measured, "FILE|table-4",
         "CSV with columns new, cached, perhaps ranks, and pass_kv and pass_q, "
         "or "
         "variant and milliseconds: score the rules by it"},
        {"only", CP_WORD, &run.only, "START",
         "of the file, only rows that begin so"},
        {"learn", CP_FLAG, &run.learn, NULL,
         "fit the empirical rule to the measured times"},
        {"csv", CP_FLAG, &run.csv, NULL, "a row for each rule, for programs"},
        {0}};
    const cp_usage usage = {
        "choose", "--new T,T,... | --measured FILE [options]",
        /* What choose is about. */
        "Which ring, pass-kv or pass-q, by each rule that the paper has and "
        "some that it has not; where each rule turns; and, given measured "
        "times, how often each is right and what it costs. A tie is a tie: all "
        "but the empirical rule compute with fractions.",
        options};
    return cp_command_run(&usage, count, arguments, choose_check, choose_work,
                          &run);
}
