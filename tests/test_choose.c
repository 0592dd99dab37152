/* The choice of a session, and the command. */
#define _GNU_SOURCE
#include "predict/rules.h"

#include <stdio.h>
#include <string.h>

#include "tests/harness/shell.h"
#include "expect.h"

static const cp_shape llama3_405b = {128, 8, 128};
static const cp_machine peak = {"peak", 800000000000000, 50000000000, 2, false};

static cp_choice ask(const cp_machine *machine, int ranks, int64_t fresh,
                     int64_t cached) {
    cp_choice choice;
    must(cp_choose(machine, &llama3_405b, ranks, 1, &fresh, &cached, &choice));
    return choice;
}

TEST(test_nothing_hides_between_threads) {
    const cp_choice kv = ask(&cp_machine_threads, 4, 4000, 0);
    const cp_choice q = ask(&cp_machine_threads, 4, 4000, 90000);
    ck_assert_int_eq(kv.variant, CP_PASS_KV);
    ck_assert_int_eq(q.variant, CP_PASS_Q);
    ck_assert_str_eq(q.rule,
                     "no transfer hides between threads, miss rate "
                     "4,000/94,000 = 4.26% < 12.5% (eq. 1): queries are "
                     "smaller");
}

TEST(test_thresholds) {
    for (int ranks = 2; ranks <= 128; ranks *= 2) {
        const int64_t least = 1000 * ranks;
        for (int64_t past = 100000000; past < 1000000000000; past *= 100) {
            ck_assert(ask(&peak, ranks, least, past).variant == CP_PASS_KV);
            ck_assert(ask(&peak, ranks, least - 1, past).variant == CP_PASS_Q);
        }
    }
}

LOOP(test_ends_and_words, 0, 7) { /* and ties */
    static const struct {
        int ranks;
        int64_t fresh, cached;
        cp_variant variant;
        const char *words;
    } calls[7] = {
        {4, 1, 0, CP_PASS_KV, ""},
        {4, 1, 128000, CP_PASS_Q, ""},
        {4, 125, 875, CP_PASS_KV, ""},
        {4, 125, 876, CP_PASS_Q, ""},
        {1, 1, 128000, CP_PASS_KV, "one rank: nothing to send"},
        {4, 30, 2970, CP_PASS_Q,
         "T = 30 new tokens < threshold 4,000 (eq. 2), miss rate 30/3,000 = 1% "
         "< 12.5% (eq. 1): queries are smaller"},
        {4, 5000, 2970, CP_PASS_KV,
         "T = 5,000 new tokens >= threshold 4,000 (eq. 2): attention hides the "
         "transfer"},
    };
    const cp_choice choice =
        ask(&peak, calls[_i].ranks, calls[_i].fresh, calls[_i].cached);
    ck_assert_int_eq(choice.variant, calls[_i].variant);
    if (calls[_i].words[0] != '\0')
        ck_assert_str_eq(choice.rule, calls[_i].words);
}

/* By hand, for DeepSeek's latent on four ranks: N C e / BW is 128,000 tokens.
 * In units of 64 numbers a query has 9, a key 9, a pair 17. So eq. 2 turns at
 * 128,000 x 9 / (2 x 128 x 17) = 264.7 new tokens, eq. 1 at one in 128, and a
 * context of 128,000 x 9 / (2 x 17) tokens hides queries. */
static const cp_shape latent = {128, 1, 576, 512, true};
static const cp_shape expanded = {128, 128, 192, 128, false};

static cp_choice ask_about(const cp_shape *shape, int64_t fresh,
                           int64_t cached) {
    cp_choice choice;
    must(cp_choose(&peak, shape, 4, 1, &fresh, &cached, &choice));
    return choice;
}

TEST(test_a_latent_turns_elsewhere) {
    const int64_t far = 100000000;
    const cp_choice q = ask_about(&latent, 264, 99736);
    const cp_setting setting = {.machine = peak, .shape = latent, .ranks = 4};
    ck_assert_int_eq(ask_about(&latent, 265, far).variant, CP_PASS_KV);
    ck_assert_int_eq(ask_about(&latent, 264, far).variant, CP_PASS_Q);
    ck_assert_int_eq(ask_about(&latent, 125, 125 * 127).variant, CP_PASS_KV);
    ck_assert_int_eq(ask_about(&latent, 125, 125 * 127 + 1).variant, CP_PASS_Q);
    ck_assert_str_eq(q.rule, "T = 264 new tokens < threshold 264.706 (eq. 2), "
                             "miss rate 264/100,000 = 0.264% < 0.781% (eq. 1): "
                             "queries are smaller");
    ck_assert_double_eq_tol(cp_new_tokens_least(&setting), 264.7058823, 1e-6);
    ck_assert_double_eq_tol(cp_context_least(&setting), 33882.352941, 1e-5);
}

/* With keys and values for each head, eq. 1 would need 5 new tokens of 3. */
TEST(test_expanded_keys_are_never_smaller) {
    const cp_choice q = ask_about(&expanded, 63999, 0);
    ck_assert_int_eq(q.variant, CP_PASS_Q);
    ck_assert_ptr_nonnull(strstr(q.rule, "100% < 167% (eq. 1)"));
    ck_assert_int_eq(ask_about(&expanded, 64000, 0).variant, CP_PASS_KV);
}

TEST(test_batch) {
    int64_t fresh[17], cached[17];
    for (int s = 0; s < 17; s++) {
        fresh[s] = s < 16 ? 300 : 0;
        cached[s] = s < 16 ? 100000 : 1000000000;
    }
    cp_choice choice;
    must(cp_choose(&peak, &llama3_405b, 4, 17, fresh, cached, &choice));
    ck_assert_int_eq(choice.variant, CP_PASS_Q);
    ck_assert_ptr_nonnull(strstr(choice.rule, "T = 300 new tokens <"));
    fresh[3] = 200000;
    must(cp_choose(&peak, &llama3_405b, 4, 17, fresh, cached, &choice));
    ck_assert_int_eq(choice.variant, CP_PASS_KV);
}

TEST(test_refusals) {
    const int64_t none = 0, less = -1, few = 5, most = INT64_MAX;
    const int64_t many[3] = {most, most, most};
    const cp_machine slow = {"slow", 5, 0, 2, false};
    const cp_shape odd = {128, 7, 128};
    cp_choice c;
    const cp_shape *s = &llama3_405b;
    ck_assert_int_ne(cp_choose(&peak, s, 4, 1, &none, &most, &c), CP_OK);
    ck_assert_int_ne(cp_choose(&peak, s, 4, 1, &less, &most, &c), CP_OK);
    ck_assert_int_ne(cp_choose(&peak, s, 4, 3, many, many, &c), CP_OK);
    ck_assert_int_ne(cp_choose(&peak, s, 4, 1, &most, &none, &c), CP_OK);
    ck_assert_ptr_nonnull(strstr(cp_message(), "do not fit 128 bits"));
    ck_assert_int_ne(cp_choose(&slow, s, 4, 1, &few, &none, &c), CP_OK);
    ck_assert_int_ne(cp_choose(&peak, &odd, 4, 1, &few, &none, &c), CP_OK);
}

static const char *choose(const char *arguments) {
    static char line[512];
    snprintf(line, sizeof(line), "$L choose %s", arguments);
    return line;
}

static void prints(const char *arguments, const char *expected) {
    accepted(choose(arguments), expected);
}

TEST(the_command_prints_verdicts) {
    prints("--new 1 --cached 9 --ranks 1", "1 new token over 9 cached");
    prints(
        "--new 3200 --cached 124800",
        "Algorithm 5         pass-kv         3,200   T 3,200 < 4,000 (eq. 2), "
        "miss\n");
    prints("--new 3200 --cached 124800", "from a miss rate of 1/8 (eq. 1)\n");
    prints("--new 3200 --cached 124800", "speeds reached: pass-kv 0.7656 s,\n");
    prints("--new 3200 --cached 124800 --csv",
           "\nAlgorithm 5,pass-kv,1,3200,128000\n");
    prints("--new 4000 --flops 504e12 --bandwidth 26.1e9",
           "from 4,827.6 new tokens");
    prints("--new 4000 --speeds reached", "new tokens (eq. 2)");
    prints("--new 16,16 --cached 1K,1M", "2 sequences");
    prints("--new 5 --ranks 1", "one rank: nothing to send");
}

TEST(lines_fit_eighty_columns) {
    static const char *const calls[] = {
        "--new 3200 --cached 124800",
        "--new 2M --cached 2000M --speeds reached --flops 12345678901.5",
        "--new 1 --cached 3M --machine laptop",
        "--new 16,1M --cached 1K,1M --machine laptop --model smollm2-135m",
        "--new 5 --cached 1M --machine h200",
        "--help"};
    for (int n = 0; n < COUNT_OF(calls); n++) {
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

TEST(the_command_refuses_in_one_line) {
    static const char *const bad[][2] = {
        {"--new 0", "0 new tokens in all"},
        {"--new 1000000000000000000",
         "--new: with the 1000000000000000000 tokens"},
        {"--new 1 --cached 3G", "--cached: with the 3000000000 tokens"},
        {"--new 1 --cached 2147483647", "--cached: with the 2147483647 tokens"},
        {"--new 2G,1 --cached 1,1G",
         "exceeds the 2147483647 tokens that can be planned"},
        {"--new 1,2 --cached 3", "--cached has 1"},
        {"--new 1 --ranks 0", "--ranks 0"},
        {"--new 1,2 --csv", "--csv: expected one"},
        {"--new 1 --tensor 0", "--tensor 0"},
        {"--new 1 --flops 8x", "--flops 8x: not a number"},
        {"--new 1 --bandwidth -3", "bandwidth is -3"},
        {"--new 1 --flops 0", "flops is 0"},
        {"--new 1 --tensor 7", "--tensor 7"},
        {"--new 2 --speeds fast", "peak|reached"},
        {"--new 1 --flops 2e18", "flops is 2e+18: it must be from 1"},
    };
    for (int n = 0; n < COUNT_OF(bad); n++)
        refused(2, bad[n][1], choose(bad[n][0]));
    refused(1, "nonesuch", choose("--new 1 --model nonesuch"));
    refused(1, "nonesuch", choose("--new 1 --machine nonesuch"));
}
