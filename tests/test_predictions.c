/* The simulator against the paper: held-out errors, winners, the fit, rules
 * learned from times, and the command's output. */
#define _GNU_SOURCE
#include "figures/fitting.h"
#include "figures/learn.h"
#include "harness/shell.h"
#include "expect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static paper_numbers paper;

static void read_paper(void) {
    paper_read(&paper);
    before_every_line("S=\"$L simulate\";");
}

AROUND_EACH(read_paper, NULL);

TEST(held_out_errors_are_below_the_bars) {
    const row_set prefills = {"", ROW_HELD, true, false, NULL};
    const row_set decodes = {"", ROW_HELD, false, true, NULL};
    const figure_errors prefill = paper_errors(&paper, &prefills, &paper.gtt);
    const figure_errors decode = paper_errors(&paper, &decodes, &paper.gtt);
    ck_assert_int_eq(prefill.count, 27);
    ck_assert_double_le(prefill.median, 2.5);
    ck_assert_double_le(prefill.mean, 3.5);
    ck_assert_double_le(prefill.most, 11.5);
    ck_assert_int_eq(decode.count, 19);
    ck_assert_double_le(decode.median, 8.5);
    ck_assert_double_le(decode.most, 25);
    for (int n = 0; n < paper.count; n++) {
        const paper_row *row = &paper.rows[n];
        const double error = fabs(paper_error(&paper, row, &paper.gtt));
        ck_assert_msg(error <= 2.5 || strcmp(row->table, "text") != 0, "%s",
                      row->id);
        ck_assert_msg(error <= 5 || row->role != ROW_FITTED, "%s", row->id);
    }
}

/* The time of pass-Q over that of pass-KV, with 128,000 tokens in all. */
static double ratio_at(int64_t fresh) {
    paper_row call = {.quantity = "ttft",
                      .ranks = 4,
                      .tensor = 8,
                      .new_tokens = fresh,
                      .cached_tokens = 128000 - fresh,
                      .batch = 1,
                      .variant = CP_PASS_KV,
                      .kept = true};
    const double pass_kv = paper_predict(&paper, &call, &paper.gtt);
    call.variant = CP_PASS_Q;
    return paper_predict(&paper, &call, &paper.gtt) / pass_kv;
}

TEST(winners_of_table_4_are_right) {
    int clear = 0, rows = 0;
    for (int n = 0; n < paper.count; n++) {
        const paper_row *kv = &paper.rows[n], *q = kv + 1;
        if (!paper_table_4(kv))
            continue;
        rows++;
        if (fabs(kv->value / q->value - 1) <= 0.02)
            continue;
        clear++;
        ck_assert_msg((kv->value < q->value) ==
                          (paper_predict(&paper, kv, &paper.gtt) <
                           paper_predict(&paper, q, &paper.gtt)),
                      "%s", kv->id);
    }
    ck_assert_int_eq(rows, 14);
    ck_assert_int_eq(clear, 12);
    /* The tie lies between the paper's bounds. */
    ck_assert_double_lt(ratio_at(3200), 1);
    ck_assert_double_gt(ratio_at(6577), 1);
}

TEST(roles_have_the_right_counts) {
    int roles[5] = {0}, constants = 0;
    for (int n = 0; n < paper.count; n++) {
        roles[paper.rows[n].role]++;
        for (int m = 0; m < n; m++)
            ck_assert_str_ne(paper.rows[n].id, paper.rows[m].id);
    }
    ck_assert_int_eq(roles[ROW_FITTED], 29);
    ck_assert_int_eq(roles[ROW_HELD], 46);
    ck_assert_int_eq(roles[ROW_CONTRADICTED], 5);
    for (int n = 0; n < CP_HARDWARE_FIELDS; n++)
        constants += paper.gtt.origins[n].source == CP_SOURCE_FITTED;
    ck_assert_int_eq(constants, 12);
}

static void fitted_is(cp_hardware *hardware, const char *committed) {
    const fit_report report = fit_constants(&paper, hardware);
    char *text = NULL;
    size_t bytes;
    ck_assert_int_eq(report.constants, 12);
    ck_assert_int_eq(report.rows, 29);
    ck_assert_double_lt(report.after, report.before / 100);
    FILE *out = open_memstream(&text, &bytes);
    fit_write(hardware, cp_built_in_text("gtt.machine"), out);
    fclose(out);
    ck_assert(committed == NULL || strcmp(text, committed) == 0);
    free(text);
}

TEST(the_fit_repeats_and_looks_nowhere_else) {
    const char *committed = cp_built_in_text("gtt.machine");
    cp_hardware other = paper.gtt;
    fitted_is(&other, committed);
    for (int n = 0; n < paper.count; n++)
        if (paper.rows[n].role != ROW_FITTED)
            paper.rows[n].value *= 3;
    other = paper.gtt;
    other.link_rate *= 5;
    other.step /= 7;
    other.jitter = 0.1;
    other.all_to_all_latency = NAN;
    fitted_is(&other, committed);
}

/* The paper's numbers cannot reveal a wrong slope, because the truth behind
 * them is unknown. These are from a known machine. */
TEST(the_fit_finds_a_machine_that_is_known) {
    cp_hardware truth = paper.gtt, found = paper.gtt;
    const struct {
        double *is, *was, value, tolerance;
    } constants[] = {
        {&found.linear_fraction, &truth.linear_fraction, 0.4, 0.01},
        {&found.attention_rate, &truth.attention_rate, 450e12, 0.01},
        {&found.link_rate, &truth.link_rate, 20e9, 0.01},
        {&found.link_latency, &truth.link_latency, 60e-6, 0.02},
        {&found.step, &truth.step, 200e-6, 0.1},
        {&found.decode_layer, &truth.decode_layer, 80e-6, 0.02},
        {&found.decode_attend, &truth.decode_attend, 10e-6, 0.02},
    };
    for (int n = 0; n < 7; n++)
        *constants[n].was = constants[n].value;
    for (int n = 0; n < paper.count; n++)
        paper.rows[n].value = paper_predict(&paper, &paper.rows[n], &truth);
    fitted_is(&found, NULL);
    for (int n = 0; n < 7; n++)
        ck_assert_double_eq_tol(*constants[n].is / constants[n].value, 1,
                                constants[n].tolerance);
}

static trials calls;

/* Calls over the plane, with winners by a known line. The times have ratios
 * e^(h/50), so near ties have little weight. One in flip is wrong. */
static void draw_trials(int count, uint64_t random, const cp_empirical *line,
                        int flip) {
    calls.count = count;
    for (int i = 0; i < count; i++) {
        const double u = 0.5 + 0.5 * (double)harness_uniform(&random);
        const double v = 0.5 + 0.5 * (double)harness_uniform(&random);
        const double fresh = floor(exp(10 * u)) + 1;
        const double cached = floor(exp(12 * v));
        double h = line->alpha * log(fresh) +
                   line->beta * log(fresh / (fresh + cached)) + line->gamma;
        if (flip > 0 && harness_random(&random) % (uint64_t)flip == 0)
            h = -h;
        calls.items[i] =
            (trial){4, (int64_t)fresh, (int64_t)cached, 1, exp(h / 50)};
    }
}

/* How many of a thousand other calls both lines judge alike. */
static int agreement(const cp_empirical *a, const cp_empirical *b) {
    int same = 0;
    draw_trials(1000, 99, a, 0);
    for (int i = 0; i < 1000; i++) {
        const trial *trial = &calls.items[i];
        const double fresh = (double)trial->fresh;
        const double rate = fresh / (fresh + (double)trial->cached);
        const double h = b->alpha * log(fresh) + b->beta * log(rate) + b->gamma;
        same += (h > 0) == (trial->pass_q > 1);
    }
    return same;
}

TEST(a_line_is_learned) {
    static const cp_empirical lines[3] = {
        {1, 1, -6}, {-1.059, 1.145, 7}, {0.3, 2.0, 1}};
    for (int n = 0; n < 3; n++)
        for (int lies = 0; lies < 2; lies++) {
            cp_empirical fit;
            bool apart = false;
            draw_trials(lies ? 300 : 400, 7 + (uint64_t)n, &lines[n],
                        lies ? 20 : 0);
            ck_assert(learn(&calls, &fit, &apart) && apart);
            ck_assert_int_ge(agreement(&lines[n], &fit), lies ? 900 : 985);
        }
}

TEST(table_4_teaches_a_threshold) {
    cp_empirical fit;
    bool apart = true;
    double low, high;
    trials_of_table_4(&paper, &calls);
    ck_assert_int_eq(calls.count, 14);
    for (int n = 0; n < 14; n++)
        ck_assert((calls.items[n].fresh < 12800) ==
                  (calls.items[n].pass_q < calls.items[n].pass_kv));
    ck_assert(learn(&calls, &fit, &apart) && !apart);
    const score left_out = learn_score(&calls);
    ck_assert(left_out.right == 14 && score_regret(&left_out) == 0);
    ck_assert_int_eq(
        learn_gamma(&calls, &cp_rules[CP_RULES - 1].fit, &low, &high), 14);
    ck_assert_double_eq_tol(low, 12.6516, 1e-4);
    ck_assert_double_eq_tol(high, 12.7112, 1e-4);
}

TEST(nothing_to_learn) {
    const cp_empirical *line = &cp_rules[CP_RULES - 1].fit;
    cp_empirical fit;
    bool apart;
    double low, high;
    calls =
        (trials){{{4, 10, 0, 1, 2}, {4, 100, 0, 1, 3}, {4, 99, 9, 1, 1}}, 3};
    ck_assert(!learn(&calls, &fit, &apart));
    ck_assert_int_eq(learn_score(&calls).right, 3);
    ck_assert_int_eq(learn_gamma(&calls, line, &low, &high), 3);
    ck_assert(isfinite(low) && high == INFINITY);
    calls.items[0].pass_q = calls.items[1].pass_q = 0.5;
    ck_assert_int_eq(learn_gamma(&calls, line, &low, &high), 3);
    ck_assert(low == -INFINITY && isfinite(high));
    calls.items[1].pass_q = 3; /* one step worse, only for full prefills */
    calls.count = 2;
    ck_assert_int_eq(learn_score(&calls).right, 0); /* each learned from the
                                                       other */
    ck_assert(learn(&calls, &fit, &apart));
    ck_assert(isfinite(fit.alpha) && fit.alpha > 0 && fit.beta == 0);
}

TEST(regret_is_relative_to_the_total) {
    const trial items[3] = {
        {0, 1000, 0, 4, 6}, {0, 10, 9990, 4, 5}, {0, 5, 5, 4, 4}};
    score total = {0};
    ck_assert(score_add(&total, &items[0], CP_PASS_KV));
    ck_assert(!score_add(&total, &items[1], CP_PASS_Q));
    ck_assert(score_add(&total, &items[2], CP_PASS_Q)); /* a draw */
    ck_assert(total.right == 2 && total.of == 3);
    ck_assert_double_eq_tol(score_regret(&total), 1.0 / 12, 1e-12);
}

TEST(calls_are_predicted) {
    static const char *const lines[][2] = {
        {"$S --ranks 16 --new 1M --partials 2", "pass-kv on gtt"},
        {"$S --ranks 16 --new 1M", "TTFT           77.8"},
        {"$S --ranks 16 --new 1M --partials 4", "TTFT           78."},
        {"$S --new 5K --cached 1M --tensor 16", "threshold 9,405.1"},
        {"$S --new 5K --cached 1M --tensor 16", "with the speeds reached"},
        {"$S --ranks 1 --new 1M", "DOES NOT FIT"},
        {"$S --new 3200 --cached 124800", "pass-q on gtt"},
        {"$S --new 3200 --cached 124800", "0.340165 s  of this once"},
        {"$S --new 3200 --cached 124800 --variant pass-kv --partials 2 --csv",
         "pass-kv,1.10"},
        {"$S --new 3200 --cached 0 --csv | tail -1 | cut -d, -f16", "0\n"},
        {"$S --new 1 --cached 128K --variant decode --csv | cut -d, -f16",
         "kept_us\n0\n"},
        {"$S --machine gti --new 128K --csv", "pass-kv,"},
        {"$S --machine laptop --model smollm2-135m --tensor 1 --new 4096",
         "pass-"},
        {"$S --machine h200 --model llama3-70b --tensor 1 --new 128K",
         "1 GPU\n"},
        {"$S --new 1 --cached 128K --variant decode --batch 4", "4 sequences"},
        {"$S --new 128K --set link_rate=1 --set jitter=0", "TTFT"},
        {"$S --new 5000 --trace /dev/stdout 2>/dev/null | head -c 99",
         "\"traceEvents\""},
        {"$S --new 5000 --trace /dev/stdout 2>/dev/null | grep -c step",
         "2018\n"},
        {"$S --new 5 --set attention_rate=1e15 --set link_rate=1e15", "TTFT"},
        {"$S --new 5 --set attention_rate=1e-15 --set link_rate=1e-15", "TTFT"},
        {"$S --new 1 --cached 5", "1 new token, 5 cached"},
        {"$S --help", "--set"},
    };
    for (int n = 0; n < COUNT_OF(lines); n++)
        accepted(lines[n][0], lines[n][1]);
}

TEST(bad_calls_are_refused) {
    static const struct {
        int status;
        const char *because, *line;
    } bad[] = {
        {2, "--new: with the 1", "$S --new 1000000000000000000"},
        {1, "machine nowhere: no file", "$S --new 5 --machine nowhere"},
        {1, "model gpt: no file", "$S --new 5 --model gpt"},
        {2, "link_rate: -1: it must be", "$S --new 5 --set link_rate=-1"},
        {2, "--set link_rate: expected FIELD=VALUE",
         "$S --new 5 --set link_rate"},
        {2, "--set link_rate=: expected FIELD", "$S --new 5 --set link_rate="},
        {2, "--set speed=4: a machine description has no field speed",
         "$S --new 5 --set speed=4"},
        {2, "--set linkrate=4: no such field; did you mean link_rate?",
         "$S --new 5 --set linkrate=4"},
        {2, "--set =4: expected FIELD=VALUE", "$S --new 5 --set =4"},
        {2, "--cached has 1 counts, --new has 2: give one",
         "$S --new 5,6 --cached 1"},
        {2, "--partials 3: expected 2 or 4", "$S --new 5 --partials 3"},
        {2, "--batch 0", "$S --new 5 --batch 0"},
        {2, "--ranks 0", "$S --new 5 --ranks 0"},
        {2, "--tensor 3: cannot share", "$S --new 5 --tensor 3"},
        {2, "0 new tokens in all", "$S --new 0"},
        {2, "laptop: no node_rate", "$S --new 5 --machine laptop --tensor 8"},
        {2, "--set step: x: not a number", "$S --new 5 --set step=x"},
        {1, "/no/where", "$S --new 5 --trace /no/where"},
        {1, "too slow, its time is not finite",
         "$S --new 5 --set link_rate=1e-320"},
    };
    for (int n = 0; n < COUNT_OF(bad); n++)
        refused(bad[n].status, bad[n].because, bad[n].line);
}
