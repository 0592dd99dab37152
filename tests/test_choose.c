/* Tangled from book/10-choose.nw; edit the chapter. */
/* Algorithm 1: the paper's table, its thresholds, ties, batches. */
#include "choose.h"
#include "tests/harness/suite.h"

#include <string.h>

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
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(choose_suite)
