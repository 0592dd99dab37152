/* The simulator against the paper: held-out errors, winners, the fit, and what
 * the command prints. */
#define _GNU_SOURCE
#include "harness/shell.h"
#include "harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "predict/fit.h"
#include "predict/tables.h"

static cp_hardware gtt;
static cp_model_sizes model;
static cp_paper paper;

static void setup(void) {
    ck_assert_int_eq(cp_hardware_read("gtt", &gtt), CP_OK);
    ck_assert_int_eq(cp_model_sizes_read("llama3-405b", &model), CP_OK);
    ck_assert_int_eq(cp_paper_new(NULL, &paper), CP_OK);
}

static void teardown(void) {
    cp_paper_free(&paper);
}

static double error_of(const cp_paper_row *row) {
    double value;
    ck_assert_msg(cp_paper_predict(row, &gtt, &model, &value) == CP_OK, "%s",
                  cp_message());
    return 100 * fabs(value / row->value - 1);
}
START_TEST(held_out_errors_are_below_the_bars) {
    cp_errors prefill, decode;
    ck_assert_int_eq(cp_tables_errors(&gtt, &model, false, &prefill), CP_OK);
    ck_assert_int_eq(cp_tables_errors(&gtt, &model, true, &decode), CP_OK);
    ck_assert_int_eq(prefill.count, 27);
    ck_assert_double_le(prefill.median, 2.5);
    ck_assert_double_le(prefill.mean, 3.5);
    ck_assert_double_le(prefill.most, 11.5);
    ck_assert_int_eq(decode.count, 19);
    ck_assert_double_le(decode.median, 8.5);
    ck_assert_double_le(decode.most, 25);
    for (int n = 0; n < paper.count; n++) {
        const cp_paper_row *row = &paper.rows[n];
        if (strcmp(row->table, "text") == 0)
            ck_assert_msg(error_of(row) <= 2.5, "%s", row->id);
        if (row->role == CP_ROW_FITTED)
            ck_assert_msg(error_of(row) <= 5, "%s", row->id);
    }
}
END_TEST
/* Time of pass-Q over time of pass-KV, 128,000 tokens in all. */
static double ratio_at(int64_t fresh) {
    double times[2];
    for (int n = 0; n < 2; n++) {
        const cp_paper_row row = {.quantity = "ttft",
                                  .ranks = 4,
                                  .tensor = 8,
                                  .new_tokens = fresh,
                                  .cached_tokens = 128000 - fresh,
                                  .batch = 1,
                                  .variant = n == 0 ? CP_PASS_KV : CP_PASS_Q,
                                  .kept = true};
        ck_assert_int_eq(cp_paper_predict(&row, &gtt, &model, &times[n]),
                         CP_OK);
    }
    return times[1] / times[0];
}

START_TEST(winners_of_table_4_are_right) {
    int clear = 0, rows = 0;
    for (int n = 0; n + 1 < paper.count; n++) {
        const cp_paper_row *kv = &paper.rows[n], *q = &paper.rows[n + 1];
        double kv_time, q_time;
        if (strcmp(kv->table, "4") != 0 || kv->variant != CP_PASS_KV)
            continue;
        ck_assert_int_eq(cp_paper_predict(kv, &gtt, &model, &kv_time), CP_OK);
        ck_assert_int_eq(cp_paper_predict(q, &gtt, &model, &q_time), CP_OK);
        rows++;
        if (fabs(kv->value / q->value - 1) <= 0.02)
            continue;
        clear++;
        ck_assert_msg((kv->value < q->value) == (kv_time < q_time), "%s",
                      kv->id);
    }
    ck_assert_int_eq(rows, 14);
    ck_assert_int_eq(clear, 12);
    /* The tie lies between the paper's bounds. */
    ck_assert_double_lt(ratio_at(3200), 1);
    ck_assert_double_gt(ratio_at(6577), 1);
}
END_TEST

START_TEST(roles_are_as_many_as_they_should_be) {
    int roles[5] = {0}, constants = 0;
    for (int n = 0; n < paper.count; n++) {
        roles[paper.rows[n].role]++;
        for (int m = 0; m < n; m++)
            ck_assert_str_ne(paper.rows[n].id, paper.rows[m].id);
    }
    ck_assert_int_eq(roles[CP_ROW_FITTED], 29);
    ck_assert_int_eq(roles[CP_ROW_HELD], 46);
    ck_assert_int_eq(roles[CP_ROW_CONTRADICTED], 5);
    for (int n = 0; n < CP_HARDWARE_FIELDS; n++)
        constants += gtt.origins[n].source == CP_SOURCE_FITTED;
    ck_assert_int_eq(constants, 12);
}
END_TEST

static char *fitted(cp_hardware *hardware, const cp_paper *numbers) {
    cp_fit_report report;
    char *text = NULL;
    size_t bytes;
    ck_assert_msg(cp_fit(hardware, &model, numbers, &report) == CP_OK, "%s",
                  cp_message());
    ck_assert_int_eq(report.constants, 12);
    ck_assert_int_eq(report.rows, 29);
    ck_assert_double_lt(report.after, report.before / 100);
    FILE *out = open_memstream(&text, &bytes);
    cp_fit_write(hardware, cp_built_in_text("gtt.machine"), out);
    fclose(out);
    return text;
}

START_TEST(the_fit_repeats_and_looks_nowhere_else) {
    const char *committed = cp_built_in_text("gtt.machine");
    cp_hardware other = gtt;
    char *text = fitted(&other, &paper);
    ck_assert_str_eq(text, committed);
    free(text);
    for (int n = 0; n < paper.count; n++)
        if (paper.rows[n].role != CP_ROW_FITTED)
            paper.rows[n].value *= 3;
    other = gtt;
    other.link_rate *= 5;
    other.step /= 7;
    other.jitter = 0.1;
    other.all_to_all_latency = NAN;
    text = fitted(&other, &paper);
    ck_assert_str_eq(text, committed);
    free(text);
}
END_TEST
START_TEST(the_fit_finds_a_machine_that_is_known) {
    cp_hardware truth = gtt, found = gtt;
    truth.linear_fraction = 0.4;
    truth.attention_rate = 450e12;
    truth.link_rate = 20e9;
    truth.link_latency = 60e-6;
    truth.step = 200e-6;
    truth.decode_layer = 80e-6;
    truth.decode_attend = 10e-6;
    for (int n = 0; n < paper.count; n++)
        ck_assert_int_eq(cp_paper_predict(&paper.rows[n], &truth, &model,
                                          &paper.rows[n].value),
                         CP_OK);
    free(fitted(&found, &paper));
    ck_assert_double_eq_tol(found.linear_fraction / 0.4, 1, 0.01);
    ck_assert_double_eq_tol(found.attention_rate / 450e12, 1, 0.01);
    ck_assert_double_eq_tol(found.link_rate / 20e9, 1, 0.01);
    ck_assert_double_eq_tol(found.link_latency / 60e-6, 1, 0.02);
    ck_assert_double_eq_tol(found.step / 200e-6, 1, 0.1);
    ck_assert_double_eq_tol(found.decode_layer / 80e-6, 1, 0.02);
    ck_assert_double_eq_tol(found.decode_attend / 10e-6, 1, 0.02);
}
END_TEST

START_TEST(bad_numbers_are_refused) {
    static const char *const lines[] = {
        "x",
        "a,4,ttft,1,ms,fitted,4,8,1,1,1,pass-kv",
        "a,4,ttft,0,ms,fitted,4,8,1,1,1,pass-kv,0",
        "a,4,ttft,1,ms,guessed,4,8,1,1,1,pass-kv,0",
        "a,4,ttft,1,ms,fitted,4,8,1,1,1,pass-v,0",
        "a,4,ttft,1,ms,fitted,4,8,1,1,0,pass-kv,0",
        "a,4,ttft,1,ms,fitted,4,8,1,1,65,pass-kv,0"};
    char text[400];
    cp_paper numbers;
    cp_fit_report report;
    for (int n = 0; n < 7; n++) {
        snprintf(text, sizeof(text), "# head\nid,table\n%s\n", lines[n]);
        ck_assert_int_eq(cp_paper_new(text, &numbers), CP_INVALID);
        ck_assert_ptr_nonnull(strstr(cp_message(), "line 3"));
    }
    ck_assert_int_eq(cp_paper_new("id\n", &numbers), CP_OK);
    ck_assert_int_eq(cp_fit(&gtt, &model, &numbers, &report), CP_INVALID);
    ck_assert_ptr_nonnull(strstr(cp_message(), "12 fitted constants, 0"));
    cp_paper_free(&numbers);
}
END_TEST

static void set_up_shell(void) {
    before_every_line("S=\"$L simulate\";");
}
START_TEST(calls_are_predicted) {
    accepted("$S --ranks 16 --new 1M --partials 2", "pass-kv on gtt");
    accepted("$S --ranks 16 --new 1M", "TTFT           77.8");
    accepted("$S --ranks 16 --new 1M --partials 4", "TTFT           78.");
    accepted("$S --new 5K --cached 1M --tensor 16", "threshold 9405.11");
    accepted("$S --new 5K --cached 1M --tensor 16", "with the speeds reached");
    accepted("$S --ranks 1 --new 1M", "DOES NOT FIT");
    accepted("$S --new 3200 --cached 124800", "pass-q on gtt");
    accepted("$S --machine gti --new 128K --csv", "pass-kv,");
    accepted("$S --machine laptop --model smollm2-135m --tensor 1 --new 4096",
             "pass-");
    accepted("$S --machine h200 --model llama3-70b --tensor 1 --new 128K",
             "1 GPU\n");
    accepted("$S --new 1 --cached 128K --variant decode --batch 4",
             "4 sequences");
    accepted("$S --new 128K --set link_rate=1 --set jitter=0", "TTFT");
    accepted("$S --new 5000 --trace /dev/stdout 2>/dev/null | head -c 99",
             "\"traceEvents\"");
    accepted("$S --new 5000 --trace /dev/stdout 2>/dev/null | grep -c step",
             "2017\n");
    accepted("$S --new 5 --set attention_rate=1e15 --set link_rate=1e15",
             "TTFT");
    accepted("$S --new 5 --set attention_rate=1e-15 --set link_rate=1e-15",
             "TTFT");
    accepted("$S --new 1 --cached 5", "1 new token, 5 cached");
    accepted("$S --help", "--sweep");
}
END_TEST
START_TEST(bad_calls_are_refused) {
    refused(2, "simulate needs --new", "$S");
    refused(2, "--new, --cached: with the 1", "$S --new 1000000000000000000");
    refused(2, "--new, --cached: with the 9",
            "$S --sweep batch --new 9000000000000000000 --cached "
            "9000000000000000000");
    refused(2, "machine nowhere: no file", "$S --new 5 --machine nowhere");
    refused(2, "model gpt: no file", "$S --new 5 --model gpt");
    refused(2, "link_rate: -1: it must be", "$S --new 5 --set link_rate=-1");
    refused(2, "--set link_rate: FIELD=VALUE", "$S --new 5 --set link_rate");
    refused(2, "--set link_rate=: FIELD", "$S --new 5 --set link_rate=");
    refused(2, "--set speed=4: FIELD=VALUE", "$S --new 5 --set speed=4");
    refused(2, "--cached is of 1 sequences", "$S --new 5,6 --cached 1");
    refused(2, "--partials 3: 2 or 4", "$S --new 5 --partials 3");
    refused(2, "--batch 0", "$S --new 5 --batch 0");
    refused(2, "--ranks 0", "$S --new 5 --ranks 0");
    refused(2, "--tensor 0: cannot share", "$S --new 5 --tensor 0");
    refused(2, "--tensor 3: cannot share", "$S --new 5 --tensor 3");
    refused(2, "no new tokens", "$S --new 0");
    refused(2, "laptop: no node_rate", "$S --table 4 --machine laptop");
    refused(2, "--table 9: choose one of", "$S --table 9");
    refused(2, "/dev/null: no memory (GB", "$S --new 5 --machine /dev/null");
    refused(2, "h200 has 0 fitted constants", "$S --fit --machine h200");
    refused(2, "it takes no --set", "$S --fit --set link_rate=5");
    refused(2, "one of --table", "$S --table 4 --figure 6");
    refused(2, "one of --table", "$S --fit --sweep ranks --new 5");
    refused(2, "--new is of a call", "$S --table 4 --new 5");
    refused(2, "--trace is of one call", "$S --sweep ranks --new 5 --trace x");
    refused(2, "are of one sequence", "$S --sweep batch --new 5,6");
    refused(2, "are of one sequence", "$S --sweep tokens --new 5 --batch 2");
    refused(2, "--set step: x: not a number", "$S --new 5 --set step=x");
    refused(1, "/no/where", "$S --new 5 --trace /no/where");
    refused(1, "too slow for a time", "$S --new 5 --set link_rate=1e-320");
}
END_TEST
static int lines_of_csv(const char *line) {
    int lines = 0, fields = 0;
    accepted(line, "");
    for (const char *at = output; *at != '\0'; at += strcspn(at, "\n") + 1) {
        int commas = 0;
        for (const char *c = at; *c != '\n'; c++)
            commas += *c == ',';
        fields = lines++ == 0 ? commas : fields;
        ck_assert_msg(commas == fields, "%s: line %d of '%.300s'", line, lines,
                      output);
    }
    ck_assert_ptr_null(strstr(output, "inf"));
    return lines;
}

START_TEST(tables_figures_and_sweeps_are_printed) {
    accepted("$S --table all", "predicted-prefill             27 numbers");
    ck_assert_int_eq(lines_of_csv("$S --table summary --csv"), 10);
    accepted("$S --table 4", "in 13 of 14 rows, 10 of 11 held out;\n");
    accepted("$S --table 4", "over 2 %, in 12 of 12, 9 of 9 held out\n");
    accepted("$S --table 6", "disputed, predicted");
    accepted("$S --table 4 --machine h200", "not fitted");
    accepted("$S --figure 8 --machine h200", "not fitted");
    ck_assert_ptr_null(strstr(output, "predicted"));
    accepted("$S --table summary --set step=100", "other-prefill");
    ck_assert_ptr_null(strstr(output, "predicted"));
    ck_assert_int_eq(lines_of_csv("$S --table all --csv"), 89);
    ck_assert_int_eq(lines_of_csv("$S --table 7 --csv"), 11);
    ck_assert_int_eq(lines_of_csv("$S --figure 6 --csv"), 64);
    ck_assert_int_eq(lines_of_csv("$S --figure 7 --csv"), 9);
    ck_assert_int_eq(lines_of_csv("$S --figure 8 --csv"), 9);
    ck_assert_int_eq(lines_of_csv("$S --figure 9 --csv"), 15);
    ck_assert_int_ge(lines_of_csv("$S --figure 10 --csv"), 10);
    ck_assert_int_eq(lines_of_csv("$S --sweep network --new 128K"), 19);
    ck_assert_int_eq(lines_of_csv("$S --sweep batch --new 128K"), 8);
    ck_assert_int_eq(lines_of_csv("$S --sweep heads --new 128K"), 17);
    ck_assert_int_eq(lines_of_csv("$S --sweep tokens --new 1 --ranks 2"), 19);
    accepted("$S --figure 8", "predicted");
}
END_TEST

static Suite *suite(void) {
    Suite *suite = suite_create("predictions");
    TCase *tests = harness_case("predictions");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_checked_fixture(tests, set_up_shell, NULL);
    tcase_add_test(tests, held_out_errors_are_below_the_bars);
    tcase_add_test(tests, winners_of_table_4_are_right);
    tcase_add_test(tests, roles_are_as_many_as_they_should_be);
    tcase_add_test(tests, the_fit_repeats_and_looks_nowhere_else);
    tcase_add_test(tests, the_fit_finds_a_machine_that_is_known);
    tcase_add_test(tests, bad_numbers_are_refused);
    tcase_add_test(tests, calls_are_predicted);
    tcase_add_test(tests, bad_calls_are_refused);
    tcase_add_test(tests, tables_figures_and_sweeps_are_printed);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(suite)
