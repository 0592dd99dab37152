/* What a session is told, files of times, learned rules, and the command. */
#define _GNU_SOURCE
#include "ring/choose.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "predict/description.h"
#include "predict/learn.h"
#include "tests/harness/shell.h"
#include "tests/harness/suite.h"

static const struct {
    int64_t fresh;
    bool pass_q; /* was faster */
} table_4[] = {
    {1280, true},    {3200, true},    {4160, true},   {6400, true},
    {12800, false},  {25600, false},  {38400, false}, {51200, false},
    {64000, false},  {76800, false},  {89600, false}, {102400, false},
    {115200, false}, {128000, false},
};

static const cp_shape llama3_405b = {128, 8, 128};
static const cp_machine peak = {"peak", 800000000000000, 50000000000, 2, false};
static const cp_machine achieved = {"achieved", 504000000000000, 26100000000, 2,
                                    false};

static cp_choice ask(const cp_machine *machine, const cp_shape *shape,
                     int ranks, int64_t fresh, int64_t cached) {
    cp_choice choice;
    ck_assert_int_eq(
        cp_choose(machine, shape, ranks, 1, &fresh, &cached, &choice), CP_OK);
    return choice;
}

static int right_in_table_4(const cp_machine *machine) {
    int right = 0;
    for (int n = 0; n < 14; n++) {
        const cp_choice choice = ask(machine, &llama3_405b, 4, table_4[n].fresh,
                                     128000 - table_4[n].fresh);
        right += (choice.variant == CP_PASS_Q) == table_4[n].pass_q;
    }
    return right;
}

START_TEST(test_table_4) {
    ck_assert_int_eq(right_in_table_4(&peak), 12);
    ck_assert_int_eq(right_in_table_4(&achieved), 13);
}
END_TEST

START_TEST(test_nothing_hides_between_threads) {
    const cp_choice kv = ask(&cp_machine_threads, &llama3_405b, 4, 4000, 0);
    const cp_choice q = ask(&cp_machine_threads, &llama3_405b, 4, 4000, 90000);
    ck_assert_int_eq(kv.variant, CP_PASS_KV);
    ck_assert_int_eq(q.variant, CP_PASS_Q);
    ck_assert_str_eq(q.rule, "no transfer hides between threads, miss rate "
                             "4000/94000 = 4.26% < 12.5% (eq. 1): queries are "
                             "smaller");
}
END_TEST

START_TEST(test_thresholds) { /* invariant 23 */
    for (int ranks = 2; ranks <= 128; ranks *= 2) {
        const int64_t least = 1000 * ranks;
        for (int64_t past = 100000000; past < 1000000000000; past *= 100) {
            ck_assert_int_eq(
                ask(&peak, &llama3_405b, ranks, least, past).variant,
                CP_PASS_KV);
            ck_assert_int_eq(
                ask(&peak, &llama3_405b, ranks, least - 1, past).variant,
                CP_PASS_Q);
        }
        ck_assert_double_eq(ask(&peak, &llama3_405b, ranks, 1, 0).threshold,
                            (double)least);
    }
}
END_TEST

START_TEST(test_ends) { /* invariant 24, and ties */
    ck_assert_int_eq(ask(&peak, &llama3_405b, 4, 1, 0).variant, CP_PASS_KV);
    ck_assert_int_eq(ask(&peak, &llama3_405b, 4, 1, 128000).variant, CP_PASS_Q);
    ck_assert_int_eq(ask(&peak, &llama3_405b, 4, 125, 875).variant, CP_PASS_KV);
    ck_assert_int_eq(ask(&peak, &llama3_405b, 4, 125, 876).variant, CP_PASS_Q);
    const cp_choice one = ask(&peak, &llama3_405b, 1, 1, 128000);
    ck_assert_int_eq(one.variant, CP_PASS_KV);
    ck_assert_str_eq(one.rule, "one rank: nothing to send");
}
END_TEST

START_TEST(test_words) {
    const cp_choice q = ask(&peak, &llama3_405b, 4, 30, 2970);
    ck_assert_str_eq(q.rule, "T = 30 new tokens < threshold 4000 (eq. 2), miss "
                             "rate 30/3000 = 1% < 12.5% (eq. 1): queries are "
                             "smaller");
    const cp_choice kv = ask(&peak, &llama3_405b, 4, 5000, 2970);
    ck_assert_str_eq(kv.rule, "T = 5000 new tokens >= threshold 4000 (eq. 2): "
                              "attention hides the transfer");
}
END_TEST

START_TEST(test_batch) {
    int64_t fresh[17], cached[17];
    for (int s = 0; s < 17; s++) {
        fresh[s] = s < 16 ? 300 : 0;
        cached[s] = s < 16 ? 100000 : 1000000000;
    }
    cp_choice choice;
    ck_assert_int_eq(
        cp_choose(&peak, &llama3_405b, 4, 17, fresh, cached, &choice), CP_OK);
    ck_assert_int_eq(choice.variant, CP_PASS_Q);
    ck_assert_double_eq_tol(choice.new_tokens, 300.0, 1e-9);
    fresh[3] = 200000;
    ck_assert_int_eq(
        cp_choose(&peak, &llama3_405b, 4, 17, fresh, cached, &choice), CP_OK);
    ck_assert_int_eq(choice.variant, CP_PASS_KV);
}
END_TEST

START_TEST(test_refusals) {
    const int64_t none = 0, less = -1, most = INT64_MAX;
    const int64_t many[3] = {most, most, most};
    cp_choice c;
    const cp_shape *s = &llama3_405b;
    ck_assert_int_ne(cp_choose(&peak, s, 4, 1, &none, &most, &c), CP_OK);
    ck_assert_int_ne(cp_choose(&peak, s, 4, 1, &less, &most, &c), CP_OK);
    ck_assert_int_ne(cp_choose(&peak, s, 4, 3, many, many, &c), CP_OK);
    ck_assert_int_eq(cp_choose(&peak, s, 4, 1, &most, &none, &c), CP_OK);
    ck_assert_int_eq(c.variant, CP_PASS_KV);
}
END_TEST

static const char wide[] = "# machine: none\n"
                           "new,cached,note,pass_q,pass_kv\r\n"
                           "\n"
                           "128, 32K ,\"x\",2.5,2e0\r\n"
                           "  # not a row\n"
                           "1,0,,0.5,1";
static const char lengthy[] = "id,variant,ranks,new,cached,milliseconds,x\n"
                              "a1,pass-q,4,1,0,.5,\n"
                              "a2,decode,4,1,0,x,y\n"
                              "a3,pass-kv,4,128,32K,2,\n"
                              "b4,pass-kv,8,128,32K,nonsense,\n"
                              "a5,pass-kv,4,1,0,1,\n"
                              "a6,pass-kv,2,7,7,7,\n"
                              "a7,pass-q,4,128,32K,2.5,\n";

START_TEST(both_forms_of_a_file_are_read) {
    cp_trials a, b;
    ck_assert_msg(cp_trials_parse("wide", wide, NULL, &a) == CP_OK, "%s",
                  cp_message());
    ck_assert_msg(cp_trials_parse("long", lengthy, "a", &b) == CP_OK, "%s",
                  cp_message());
    ck_assert_int_eq(a.count, 2);
    ck_assert_int_eq(b.count, 2);
    for (int n = 0; n < 2; n++) { /* sorted by tokens there, as given here */
        const cp_trial x = a.items[n], y = b.items[1 - n];
        ck_assert(x.ranks == 0 && y.ranks == 4 && x.fresh == y.fresh &&
                  x.cached == y.cached);
        ck_assert(x.fresh == (n == 0 ? 128 : 1) &&
                  x.cached == (n == 0 ? 32000 : 0));
        ck_assert(x.pass_kv == y.pass_kv && x.pass_q == y.pass_q);
        ck_assert(x.pass_kv == 2 - n && x.pass_q == (n == 0 ? 2.5 : 0.5));
    }
    cp_trials_free(&a);
    cp_trials_free(&b);
}
END_TEST

START_TEST(a_mark_and_a_call_that_comes_again) {
    cp_trials trials;
    const char *const text = "\xef\xbb\xbfnew,cached,pass_kv,pass_q\n"
                             "5,6,1,2\n5,6,2,1\n";
    ck_assert_msg(cp_trials_parse("f", text, NULL, &trials) == CP_OK, "%s",
                  cp_message());
    ck_assert_int_eq(trials.count, 2);
    ck_assert(trials.items[0].pass_q == 2 && trials.items[1].pass_q == 1);
    cp_trials_free(&trials);
}
END_TEST

START_TEST(bad_files_are_refused_by_line) {
    static const struct {
        const char *text, *because;
    } bad[] = {
        {"", "no call has both"},
        {"new,cached,pass_kv,pass_q\n", "no call has both"},
        {"new,cached,pass_kv\n1,2,3\n", "f:1: neither pass_kv and pass_q"},
        {"new,cached,variant\n", "f:1: neither"},
        {"cached,pass_kv,pass_q\n", "f:1: no column new"},
        {"#\nnew,pass_kv,pass_q\n", "f:2: no column cached"},
        {"new,cached,new,pass_q,pass_kv\n", "f:1: a second column"},
        {"new,cached,pass_kv,pass_q\n1,2,3,4\n1,2,3\n",
         "f:3: 3 cells, and there are 4 columns"},
        {"new,cached,pass_kv,pass_q\n1,2,3,4,5\n", "f:2: 5 cells"},
        {"new,cached,pass_kv,pass_q\n0,2,3,4\n", "f:2: '0' is not a count"},
        {"new,cached,pass_kv,pass_q\n1,-2,3,4\n", "f:2: '-2' is not a count"},
        {"new,cached,pass_kv,pass_q\n3G,0,3,4\n", "f:2: '3G' is more than"},
        {"new,cached,pass_kv,pass_q\n1,2147483647,3,4\n",
         "f:2: '2147483647' is more than 2147483646"},
        {"new,cached,pass_kv,pass_q,ranks\n1,2,3,4,1025\n",
         "f:2: '1025' is more than 1024"},
        {"\"new\",\"cached\",\"pass_kv\",\"pass_q\"\n",
         "f:1: no column new (names have no quotes)"},
        {"new,cached,pass_kv,pass_q\n1,2,0,4\n", "f:2: '0' is not a time"},
        {"new,cached,pass_kv,pass_q\n1,2,3,-4\n", "f:2: '-4' is not a time"},
        {"new,cached,pass_kv,pass_q\n1,2,nan,4\n", "f:2: 'nan' is not a time"},
        {"new,cached,pass_kv,pass_q\n1,2,inf,4\n", "f:2: 'inf' is not a time"},
        {"new,cached,pass_kv,pass_q\n1,2,,4\n", "f:2: '' is not a time"},
        {"new,cached,pass_kv,pass_q\n1,2,3 s,4\n", "f:2: '3 s' is not a time"},
        {"new,cached,pass_kv,pass_q,ranks\n1,2,3,4,0\n", "f:2: '0' is not"},
        {"new,cached,variant,value\n1,2,pass-q,4\n1,2,pass-q,5\n",
         "f:3: pass-q of 1 new token over 2 is in line 2 already"},
        {"new,cached,variant,value\n1,2,pass-q,4\n1,3,pass-kv,5\n",
         "no call has both"},
        {"new,cached,variant,value,seconds\n", "f:1: a second column"},
    };
    for (size_t n = 0; n < sizeof(bad) / sizeof(bad[0]); n++) {
        cp_trials trials;
        ck_assert_int_eq(cp_trials_parse("f", bad[n].text, NULL, &trials),
                         CP_INVALID);
        ck_assert_msg(strstr(cp_message(), bad[n].because) != NULL,
                      "'%s' for '%s'", cp_message(), bad[n].text);
        ck_assert(trials.items == NULL && trials.count == 0);
    }
}
END_TEST

START_TEST(regret_is_of_the_total) {
    cp_trial items[3] = {
        {0, 1000, 0, 4, 6}, {0, 10, 9990, 4, 3}, {0, 5, 5, 4, 4}};
    const cp_trials trials = {items, 3};
    const cp_setting setting = {
        .shape = llama3_405b,
        .ranks = 4,
        .element_bytes = 2,
        .output_bytes = 2,
        .speeds = {{1, 1}, {1, 1}, {0, 1}, {1, 1}, {0, 1}}};
    cp_score score;
    bool wrong[3];
    ck_assert_int_eq(
        cp_trials_score(&trials, &cp_rules[0], &setting, &score, wrong), CP_OK);
    ck_assert(score.right == 3 && score.of == 3 && score.regret == 0);
    items[1].pass_q = 5;
    items[1].ranks = 8;
    ck_assert_int_eq(
        cp_trials_score(&trials, &cp_rules[0], &setting, &score, wrong), CP_OK);
    ck_assert(score.right == 2 && score.of == 3);
    ck_assert(!wrong[0] && wrong[1] && !wrong[2]);
    ck_assert_double_eq_tol(score.regret, 1.0 / 12, 1e-12);
    items[1].ranks = 1; /* nothing to send: pass-KV, which was faster */
    ck_assert_int_eq(
        cp_trials_score(&trials, &cp_rules[0], &setting, &score, NULL), CP_OK);
    ck_assert_int_eq(score.right, 3);
}
END_TEST

static void draw_trials(cp_trial *items, int64_t count, uint64_t random,
                        const cp_empirical *line, int flip) {
    for (int64_t i = 0; i < count; i++) {
        const double u = 0.5 + 0.5 * (double)harness_uniform(&random);
        const double v = 0.5 + 0.5 * (double)harness_uniform(&random);
        const double fresh = floor(exp(10 * u)) + 1;
        const double cached = floor(exp(12 * v));
        double h = line->alpha * log(fresh) +
                   line->beta * log(fresh / (fresh + cached)) + line->gamma;
        if (flip > 0 && harness_random(&random) % (uint64_t)flip == 0)
            h = -h;
        items[i] =
            (cp_trial){4, (int64_t)fresh, (int64_t)cached, 1, exp(h / 50)};
    }
}

static int64_t agreement(const cp_empirical *a, const cp_empirical *b) {
    static cp_trial items[1000];
    int64_t same = 0;
    draw_trials(items, 1000, 99, a, 0);
    for (int i = 0; i < 1000; i++) {
        const double fresh = (double)items[i].fresh;
        const double rate = fresh / (fresh + (double)items[i].cached);
        const double h = b->alpha * log(fresh) + b->beta * log(rate) + b->gamma;
        same += (h > 0) == (items[i].pass_q > 1);
    }
    return same;
}

START_TEST(a_line_is_learned) {
    static cp_trial items[400];
    const cp_empirical lines[3] = {
        {1, 1, -6}, {-1.059, 1.145, 7}, {0.3, 2.0, 1}};
    for (int n = 0; n < 6; n++) {
        const cp_empirical *const line = &lines[n % 3];
        const cp_trials trials = {items, n < 3 ? 400 : 300};
        cp_empirical fit;
        bool apart = false;
        draw_trials(items, trials.count, 7 + (uint64_t)n, line, n < 3 ? 0 : 20);
        ck_assert_int_eq(cp_learn(&trials, &fit, &apart), CP_OK);
        ck_assert(apart);
        ck_assert_msg(agreement(line, &fit) >= (n < 3 ? 985 : 900),
                      "line %d: %lld: %g %g %g", n,
                      (long long)agreement(line, &fit), fit.alpha, fit.beta,
                      fit.gamma);
    }
}
END_TEST

START_TEST(table_4_teaches_a_threshold) {
    cp_trials trials;
    cp_score score;
    cp_empirical fit;
    bool apart = true;
    double low, high;
    ck_assert_int_eq(
        cp_trials_parse("paper", cp_built_in_text("paper.csv"), "t4/", &trials),
        CP_OK);
    ck_assert_int_eq(trials.count, 14);
    for (int n = 0; n < 14; n++)
        ck_assert(trials.items[n].fresh == table_4[n].fresh &&
                  table_4[n].pass_q ==
                      (trials.items[n].pass_q < trials.items[n].pass_kv));
    ck_assert_int_eq(cp_learn(&trials, &fit, &apart), CP_OK);
    ck_assert(!apart);
    ck_assert_int_eq(cp_learn_score(&trials, &score), CP_OK);
    ck_assert(score.right == 14 && score.of == 14 && score.regret == 0);
    ck_assert_int_eq(cp_learn_gamma(&trials, &cp_rules[6].fit, &low, &high),
                     14);
    ck_assert_double_eq_tol(low, 12.6516, 1e-4);
    ck_assert_double_eq_tol(high, 12.7112, 1e-4);
    cp_trials_free(&trials);
}
END_TEST

START_TEST(nothing_to_learn) {
    cp_trial items[3] = {{4, 10, 0, 1, 2}, {4, 100, 0, 1, 3}, {4, 99, 9, 1, 1}};
    cp_trials trials = {items, 3};
    cp_empirical fit;
    cp_score score;
    bool apart;
    double low, high;
    ck_assert_int_eq(cp_learn(&trials, &fit, &apart), CP_INVALID);
    ck_assert_int_eq(cp_learn_score(&trials, &score), CP_OK);
    ck_assert(score.of == 3 && score.right == 3);
    ck_assert_int_eq(cp_learn_gamma(&trials, &cp_rules[6].fit, &low, &high), 3);
    ck_assert(isfinite(low) && high == INFINITY);
    items[0].pass_q = items[1].pass_q = 0.5;
    ck_assert_int_eq(cp_learn_gamma(&trials, &cp_rules[6].fit, &low, &high), 3);
    ck_assert(low == -INFINITY && isfinite(high));
    trials.count = 1;
    ck_assert_int_eq(cp_learn_score(&trials, &score), CP_INVALID);
    items[1].pass_q = 3; /* a step down, for full prefills only */
    trials.count = 2;
    ck_assert_int_eq(cp_learn_score(&trials, &score), CP_OK);
    ck_assert(score.of == 2 && score.right == 0); /* each by the other alone */
    ck_assert_int_eq(cp_learn(&trials, &fit, &apart), CP_OK);
    ck_assert(isfinite(fit.alpha) && fit.alpha > 0 && fit.beta == 0);
}
END_TEST

static const char *choose(const char *arguments) {
    static char line[512];
    snprintf(line, sizeof(line), "$L choose %s", arguments);
    return line;
}

static void prints(const char *arguments, const char *wanted) {
    accepted(choose(arguments), wanted);
}

START_TEST(the_command_prints_scores) {
    const char *const scores = "--measured table-4 --csv";
    const char *const reached =
        "--measured table-4 --csv --flops 504e12 --bandwidth 26.1e9";
    prints(scores, "\nAlgorithm 1,12,14,0.02925,");
    prints(scores, "\nAlgorithm 5,11,14,0.11262,");
    prints(scores, "\nAppendix D,4,14,6.67604,-1.059,1.145,12.112\n");
    prints(reached, "\nAlgorithm 1,13,14,0.00464,");
    prints(reached, "\nAlgorithm 5,12,14,0.02925,");
    prints("--measured table-4 --csv --speeds reached", "Algorithm 1,13,14");
    prints("--measured table-4 --learn", "from gamma 12.652 to 12.711\n");
    prints("--measured table-4", " 0.0293%   4,160 6,400\n");
    prints("--new 1 --cached 9 --ranks 1", "1 new token over 9 cached");
    prints("--new 3200 --cached 124800",
           "Algorithm 5         pass-kv         3,200   T 3200 < 4000 (eq. 2), "
           "miss rate");
    prints("--new 3200 --cached 124800 --csv",
           "\nAlgorithm 5,pass-kv,1,3200,128000\n");
    prints("--new 16,16 --cached 1K,1M", "2 sequences");
    prints("--new 5 --ranks 1", "one rank: nothing to send");
}
END_TEST

START_TEST(lines_fit_eighty_columns) {
    static const char *const calls[] = {
        "--new 3200 --cached 124800",
        "--new 2M --cached 2000M --speeds reached --flops 12345678901.5",
        "--new 1 --cached 3M --machine laptop",
        "--new 16,1M --cached 1K,1M --machine laptop --model smollm2-135m",
        "--measured table-4 --learn --machine h200",
        "--help"};
    for (size_t n = 0; n < sizeof(calls) / sizeof(calls[0]); n++) {
        prints(calls[n], "");
        for (const char *line = output; *line != '\0';) {
            const int length = (int)strcspn(line, "\n");
            ck_assert_msg(length <= 80, "%s: %.*s", calls[n], length, line);
            ck_assert_msg(length == 0 || line[length - 1] != ' ', "%s: '%.*s'",
                          calls[n], length, line);
            line += length + (line[length] == '\n');
        }
    }
}
END_TEST

START_TEST(the_command_refuses_in_one_line) {
    static const struct {
        const char *arguments, *because;
        int status;
    } bad[] = {
        {"", "--new", 2},
        {"--new 0", "no new tokens", 2},
        {"--new 1000000000000000000", "--new: 1000000000000000000 tokens", 2},
        {"--new 1 --cached 3G", "--cached: 3000000000", 2},
        {"--new 1 --cached 2147483647", "2147483648 tokens in all", 2},
        {"--new 2G,1 --cached 1,1G", "3000000002 tokens in all", 2},
        {"--new 1,2 --cached 3", "--cached is of 1", 2},
        {"--new 1 --learn", "--learn needs", 2},
        {"--new 1 --only x", "--only needs", 2},
        {"--new 1 --ranks 0", "--ranks 0", 2},
        {"--new 1,2 --csv", "--csv is for one", 2},
        {"--new 1 --measured table-4 --csv", "--csv is for one", 2},
        {"--new 1 --tensor 0", "--tensor 0", 2},
        {"--measured table-4 --only t4", "not for table-4", 2},
        {"--new 1 --flops 8x", "--flops 8x: not a number", 2},
        {"--new 1 --bandwidth -3", "bandwidth is -3", 2},
        {"--new 1 --flops 0", "flops is 0", 2},
        {"--new 1 --tensor 7", "--tensor 7", 2},
        {"--new 1 --model nonesuch", "nonesuch", 2},
        {"--new 1 --machine nonesuch", "nonesuch", 2},
        {"--measured /nonexistent", "/nonexistent", 1},
        {"--new 2 --measured table-4 --speeds fast", "peak|reached", 2},
    };
    for (size_t n = 0; n < sizeof(bad) / sizeof(bad[0]); n++)
        refused(bad[n].status, bad[n].because, choose(bad[n].arguments));
}
END_TEST

static Suite *choose_suite(void) {
    Suite *suite = suite_create("choose");
    TCase *tests = harness_case("choose");
    tcase_add_test(tests, test_table_4);
    tcase_add_test(tests, test_thresholds);
    tcase_add_test(tests, test_nothing_hides_between_threads);
    tcase_add_test(tests, test_ends);
    tcase_add_test(tests, test_words);
    tcase_add_test(tests, test_batch);
    tcase_add_test(tests, test_refusals);
    tcase_add_test(tests, both_forms_of_a_file_are_read);
    tcase_add_test(tests, a_mark_and_a_call_that_comes_again);
    tcase_add_test(tests, bad_files_are_refused_by_line);
    tcase_add_test(tests, regret_is_of_the_total);
    tcase_add_test(tests, a_line_is_learned);
    tcase_add_test(tests, table_4_teaches_a_threshold);
    tcase_add_test(tests, nothing_to_learn);
    tcase_add_test(tests, the_command_prints_scores);
    tcase_add_test(tests, lines_fit_eighty_columns);
    tcase_add_test(tests, the_command_refuses_in_one_line);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(choose_suite)
