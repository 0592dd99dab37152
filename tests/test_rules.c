/* Fractions, and the rules that choose a ring: counts, ties, scores. */
#include "ring/rules.h"

#include <math.h>
#include <string.h>

#include "ring/cache.h"
#include "ring/check.h"
#include "tests/harness/suite.h"
#include "ring/variants.h"

static bool equals(cp_rational a, int64_t over, int64_t under) {
    const cp_rational b = cp_rational_of(over, under);
    return a.over == b.over && a.under == b.under && a.under > 0;
}

static cp_rational power(int64_t base, int exponent) {
    cp_rational result = cp_rational_of(1, 1);
    for (; exponent > 0; exponent--)
        result = cp_rational_scale(result, base, 1);
    return result;
}

static int64_t ceiling(cp_rational a) {
    return (int64_t)((a.over + a.under - 1) / a.under);
}

START_TEST(small_fractions_are_exact) {
    for (int a = -6; a <= 6; a++)
        for (int b = 1; b <= 6; b++)
            for (int c = -6; c <= 6; c++)
                for (int d = -6; d <= 6; d++) {
                    const cp_rational x = cp_rational_of(a, b);
                    const cp_rational y = cp_rational_of(c, d);
                    ck_assert(cp_rational_fits(y) == (d != 0));
                    if (d == 0)
                        continue;
                    /* Compare four operations with whole numbers. */
                    const cp_rational sum = cp_rational_add(x, y);
                    const cp_rational difference = cp_rational_subtract(x, y);
                    const cp_rational product = cp_rational_multiply(x, y);
                    const cp_rational ratio = cp_rational_divide(x, y);
                    ck_assert(equals(sum, a * d + c * b, b * d));
                    ck_assert(equals(difference, a * d - c * b, b * d));
                    ck_assert(equals(product, a * c, b * d));
                    ck_assert(cp_rational_fits(ratio) == (c != 0));
                    ck_assert(c == 0 || equals(ratio, a * d, b * c));
                    const int order = (a * d > c * b) - (a * d < c * b);
                    ck_assert_int_eq(cp_rational_compare(x, y),
                                     d > 0 ? order : -order);
                    ck_assert(sum.under > 0 && product.under > 0);
                }
}
END_TEST

START_TEST(what_does_not_fit_is_none) {
    const cp_rational one = cp_rational_of(1, 1);
    const cp_rational half = power(2, 126);
    const cp_rational largest =
        cp_rational_add(half, cp_rational_subtract(half, one));
    const cp_rational less = cp_rational_subtract(largest, one);
    ck_assert(cp_rational_fits(largest));
    ck_assert_int_eq(cp_rational_compare(largest, less), 1);
    /* Compare fractions that cross-multiplication cannot. */
    const cp_rational above = cp_rational_divide(less, largest);
    const cp_rational below =
        cp_rational_divide(cp_rational_subtract(less, one), less);
    ck_assert_int_eq(cp_rational_compare(above, below), 1);
    ck_assert_int_eq(cp_rational_compare(below, above), -1);
    ck_assert_int_eq(cp_rational_compare(above, above), 0);
    const cp_rational minus = cp_rational_subtract(cp_rational_of(0, 1), above);
    ck_assert_int_eq(cp_rational_compare(minus, below), -1);
    ck_assert_int_eq(cp_rational_compare(below, minus), 1);
    const cp_rational none = cp_rational_add(largest, one);
    ck_assert(!cp_rational_fits(none));
    ck_assert(!cp_rational_fits(cp_rational_multiply(largest, less)));
    ck_assert(!cp_rational_fits(cp_rational_multiply(half, power(2, 1))));
    ck_assert(!cp_rational_fits(cp_rational_scale(half, -2, 1)));
    ck_assert(!cp_rational_fits(cp_rational_add(none, none)));
    ck_assert(!cp_rational_fits(cp_rational_scale(none, 0, 1)));
    ck_assert(!cp_rational_fits(cp_rational_subtract(one, none)));
    ck_assert(!cp_rational_fits(cp_rational_divide(one, none)));
    ck_assert(!cp_rational_fits(cp_rational_of(1, 0)));
    ck_assert(isnan(cp_rational_value(none)));
    ck_assert_str_eq(cp_rational_text(none).text, "none");
}
END_TEST

START_TEST(numbers_are_read_exactly) {
    const struct {
        const char *text;
        int64_t over, under;
    } good[] = {{"26.1e9", 26100000000, 1},
                {"0.925", 37, 40},
                {"-3/8", -3, 8},
                {"37e-6", 37, 1000000},
                {".5", 1, 2},
                {"5.", 5, 1},
                {"0e9", 0, 1},
                {"0.0", 0, 1},
                {"1E+2", 100, 1},
                {"1/0.5", 2, 1},
                {"-0", 0, 1}};
    const char *bad[] = {"",       "-",     "1e",          "e9",    ".",
                         "1 ",     "1/",    "1//2",        "1/0",   "0x1",
                         "1e1000", "1e39",  "nan",         "1.2.3", "--1",
                         "inf",    "1e-39", "1e4294967296"};
    cp_rational number;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ck_assert_msg(cp_rational_parse("n", good[i].text, &number) == CP_OK,
                      "%s", good[i].text);
        ck_assert_msg(equals(number, good[i].over, good[i].under), "%s",
                      good[i].text);
    }
    number = cp_rational_of(7, 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(cp_rational_parse("n", bad[i], &number) == CP_INVALID,
                      "%s", bad[i]);
    ck_assert(equals(number, 7, 1));
}
END_TEST

static cp_rational number(const char *text) {
    cp_rational value;
    ck_assert_msg(cp_rational_parse("test", text, &value) == CP_OK, "%s",
                  cp_message());
    return value;
}

/* Four nodes of the paper, by GPU: FLOPs and bytes per second of ours. */
static cp_setting paper(int ranks, const char *flops, const char *bandwidth) {
    return (cp_setting){
        .shape = {16, 1, 128},
        .ranks = ranks,
        .element_bytes = 2,
        .output_bytes = 2,
        .speeds = {number(flops), number(bandwidth), number("37e-6"),
                   number("50e9"), number("224e-6")},
    };
}

static cp_setting peak(int ranks) {
    return paper(ranks, "800e12", "50e9");
}

/* Pairs, ring bytes and all-to-all bytes of all ranks of a plan. */
typedef struct {
    int64_t pairs, ring, all_to_all;
} counted;

static counted count_plan(cp_variant variant, const cp_setting *setting,
                          int64_t fresh, int64_t cached) {
    const cp_plan_options options = {setting->element_bytes, 1};
    counted sums = {0, 0, 0};
    cp_cache *cache;
    cp_layout *layout;
    cp_plan *plan;
    cp_plan_report report;
    /* Lay out the call over its past. */
    ck_assert_int_eq(cp_cache_new(setting->ranks, 1, fresh + cached, &cache),
                     CP_OK);
    if (cached > 0) {
        ck_assert_int_eq(cp_cache_prefill(cache, &cached, &layout), CP_OK);
        ck_assert_int_eq(cp_cache_commit(cache, layout), CP_OK);
        cp_layout_free(layout);
    }
    ck_assert_int_eq(cp_cache_prefill(cache, &fresh, &layout), CP_OK);
    ck_assert_int_eq(
        cp_plan_build(variant, layout, &setting->shape, &options, &plan),
        CP_OK);
    ck_assert_msg(cp_plan_check(plan, &report) == CP_OK, "%s", cp_message());
    /* Add up what the ranks do. */
    const int hops = setting->ranks - 1;
    for (int k = 0; k < report.ranks; k++) {
        sums.pairs += report.pairs[k];
        sums.all_to_all += report.bytes[k];
    }
    for (int64_t i = 0; i < plan->programs[0].count; i++)
        if (plan->programs[0].ops[i].kind == CP_OP_EXCHANGE)
            sums.ring += setting->ranks *
                         plan->slots[plan->programs[0].ops[i].in.slot].bytes;
    sums.all_to_all -= sums.ring;
    ck_assert_int_eq(report.hops, hops);
    cp_plan_report_free(&report);
    cp_plan_free(plan);
    cp_layout_free(layout);
    cp_cache_free(cache);
    return sums;
}

START_TEST(table_3_is_what_plans_do) {
    const int ranks = _i;
    const cp_shape shapes[3] = {{4, 4, 8}, {6, 2, 16}, {16, 1, 128}};
    for (int n = 0; n < 9; n++) {
        cp_setting setting = peak(ranks);
        setting.shape = shapes[n % 3];
        setting.output_bytes = CP_PARTIAL_BYTES;
        const int64_t fresh = 2 * ranks * (1 + n), cached = 2 * ranks * n * n;
        cp_load load;
        ck_assert_int_eq(cp_load_of(1, &fresh, &cached, &load), CP_OK);
        const counted kv = count_plan(CP_PASS_KV, &setting, fresh, cached);
        const counted q = count_plan(CP_PASS_Q, &setting, fresh, cached);
        /* Compare the table with the plans. */
        const int hops = ranks - 1;
        const cp_shape *shape = &setting.shape;
        const int64_t row = 4 * shape->query_heads * shape->head_dim;
        ck_assert(equals(cp_attention_flops(&setting, &load, true),
                         kv.pairs * row, 1));
        ck_assert(equals(cp_attention_flops(&setting, &load, true),
                         q.pairs * row, 1));
        ck_assert(
            equals(cp_rational_scale(cp_key_bytes(&setting, &load), hops, 1),
                   kv.ring, 1));
        ck_assert(
            equals(cp_rational_scale(cp_query_bytes(&setting, &load), hops, 1),
                   q.ring, 1));
        ck_assert(equals(
            cp_rational_scale(cp_partial_bytes(&setting, &load), hops, 1),
            q.all_to_all, 1));
        ck_assert_int_eq(kv.all_to_all, 0);
    }
}
END_TEST

START_TEST(both_factors_of_two) { /* invariants 6 and 21 of the paper */
    const cp_setting setting = peak(4);
    const int64_t fresh = 128000, single = 1, none = 0;
    cp_load full, token;
    ck_assert_int_eq(cp_load_of(1, &fresh, &none, &full), CP_OK);
    ck_assert_int_eq(cp_load_of(1, &single, &fresh, &token), CP_OK);
    ck_assert(equals(cp_rational_divide(cp_key_bytes(&setting, &full),
                                        cp_query_bytes(&setting, &full)),
                     1, 8));
    ck_assert(equals(full.pairs, fresh * fresh, 1));
    ck_assert(equals(full.causal, fresh * (fresh + 1) / 2, 1));
    ck_assert(equals(token.pairs, 128001, 1));
    ck_assert(equals(token.causal, 128001, 1));
}
END_TEST

START_TEST(thresholds_of_three_machines) {
    const struct {
        const char *flops, *bandwidth;
        int64_t new_tokens, context, exposed;
    } rows[] = {{"800e12", "50e9", 4000, 32000, 3200},
                {"504e12", "26.1e9", 4828, 38621, 3709},
                {"540e12", "26.1e9", 5173, 41380, 3909},
                {"6400e12", "50e9", 32000, 256000, 10667}};
    for (int n = 0; n < 4; n++) {
        cp_setting setting = paper(4, rows[n].flops, rows[n].bandwidth);
        int64_t least;
        ck_assert_int_eq(ceiling(cp_new_tokens_least(&setting)),
                         rows[n].new_tokens);
        ck_assert_int_eq(ceiling(cp_context_least(&setting)), rows[n].context);
        ck_assert_int_eq(cp_rule_least(&cp_rules[3], &setting, 128000, &least),
                         CP_OK);
        ck_assert_int_eq(least, rows[n].exposed);
    }
    /* The same by node. */
    cp_setting node = paper(4, "6400e12", "400e9");
    node.shape = (cp_shape){128, 8, 128};
    ck_assert(equals(cp_new_tokens_least(&node), 4000, 1));
    ck_assert(equals(cp_context_least(&node), 32000, 1));
    ck_assert(equals(cp_miss_rate_least(&node.shape), 1, 8));
}
END_TEST

START_TEST(equations_are_the_inequalities_they_came_from) {
    uint64_t random = 10;
    int ties = 0;
    for (int n = 0; n < 4000; n++) {
        /* Draw a call and a machine. */
        cp_setting setting = peak(2 + (int)(harness_random(&random) % 15));
        setting.shape.kv_heads = 1 + (int64_t)(harness_random(&random) % 4);
        setting.shape.query_heads = setting.shape.kv_heads * (1 + n % 9);
        const int64_t fresh = 1 + (int64_t)(harness_random(&random) % 9999);
        const int64_t cached = (int64_t)(harness_random(&random) % 99999);
        setting.speeds.bandwidth =
            cp_rational_of(1 + (int64_t)(harness_random(&random) % 99), 7);
        setting.speeds.flops = cp_rational_of(
            1 + (int64_t)(harness_random(&random) % 9999999), 11);
        cp_load load;
        ck_assert_int_eq(cp_load_of(1, &fresh, &cached, &load), CP_OK);
        const int ranks = setting.ranks;
        const cp_rational keys = cp_key_bytes(&setting, &load);
        const cp_rational queries = cp_query_bytes(&setting, &load);
        const cp_rational flops = cp_attention_flops(&setting, &load, false);
        const cp_rational travel_kv = cp_rational_divide(
            cp_rational_scale(keys, 1, ranks), setting.speeds.bandwidth);
        const cp_rational travel_q = cp_rational_divide(
            cp_rational_scale(queries, 1, ranks), setting.speeds.bandwidth);
        const cp_rational share = cp_rational_scale(flops, 1, ranks * ranks);
        if (n % 2 == 0)
            setting.speeds.flops = cp_rational_divide(share, travel_kv);
        const cp_rational attention =
            cp_rational_divide(share, setting.speeds.flops);
        const int sides[2] = {cp_rational_compare(attention, travel_kv),
                              cp_rational_compare(attention, travel_q)};
        const cp_rational turn = cp_rational_divide(load.pairs, load.keys);
        ck_assert_int_eq(
            cp_rational_compare(turn, cp_new_tokens_least(&setting)), sides[0]);
        ck_assert_int_eq(
            cp_rational_compare(load.keys, cp_context_least(&setting)),
            sides[1]);
        ck_assert_int_eq(
            cp_rational_compare(cp_rational_divide(load.fresh, load.keys),
                                cp_miss_rate_least(&setting.shape)),
            cp_rational_compare(queries, keys));
        /* Compare eq. 5 with what it came from. */
        cp_verdict verdict;
        ck_assert_int_eq(cp_rule_ask(&cp_rules[3], &setting, &load, &verdict),
                         CP_OK);
        const int exposed = cp_rational_compare(
            travel_q, cp_rational_subtract(travel_kv, attention));
        ck_assert_int_eq(verdict.variant == CP_PASS_KV,
                         sides[0] >= 0 || exposed >= 0);
        ck_assert(verdict.hidden == (sides[0] >= 0));
        ties += sides[0] == 0;
    }
    ck_assert_int_gt(ties, 1000);
}
END_TEST

START_TEST(three_thousand_two_hundred_is_a_tie) { /* invariant 23 */
    const cp_setting setting = peak(4);
    for (int64_t fresh = 3199; fresh <= 3201; fresh++) {
        const int64_t cached = 128000 - fresh;
        cp_load load;
        cp_verdict verdict;
        ck_assert_int_eq(cp_load_of(1, &fresh, &cached, &load), CP_OK);
        ck_assert_int_eq(cp_rule_ask(&cp_rules[3], &setting, &load, &verdict),
                         CP_OK);
        ck_assert(verdict.variant == (fresh < 3200 ? CP_PASS_Q : CP_PASS_KV));
        ck_assert(verdict.tie == (fresh == 3200));
        if (verdict.tie)
            ck_assert_str_eq(verdict.because, "T 3200 < 4000 (eq. 2), miss "
                                              "rate 1/40 = 1/40 (eq. 5)");
    }
}
END_TEST

START_TEST(the_causal_half_doubles_the_first_prompt) {
    const cp_setting setting = peak(4);
    const struct {
        int64_t fresh, cached;
        bool hidden[2]; /* paper's count, causal count */
    } calls[] = {
        {3999, 0, {false, false}},          {4000, 0, {true, false}},
        {7998, 0, {true, false}},           {7999, 0, {true, true}},
        {3999, 2000000000, {false, false}}, {4000, 2000000000, {true, false}},
        {4001, 2000000000, {true, true}}};
    for (int n = 0; n < 14; n++) {
        cp_load load;
        cp_verdict verdict;
        const int call = n / 2;
        ck_assert_int_eq(
            cp_load_of(1, &calls[call].fresh, &calls[call].cached, &load),
            CP_OK);
        ck_assert_int_eq(
            cp_rule_ask(&cp_rules[1 + n % 2], &setting, &load, &verdict),
            CP_OK);
        ck_assert_msg(verdict.hidden == calls[call].hidden[n % 2], "%lld: %s",
                      (long long)calls[call].fresh, verdict.because);
    }
}
END_TEST

START_TEST(what_holds_of_all_rules) { /* invariants 23 and 24 */
    const int64_t steps[12] = {1,    2,    15,   124,   125,   1000,
                               3199, 3200, 4000, 20000, 99999, 1000000};
    for (int ranks = 1; ranks <= 16; ranks++)
        for (int n = 0; n < 144; n++) {
            const cp_setting setting = peak(ranks);
            const int64_t fresh = steps[n / 12];
            const int64_t cached = n % 12 == 0 ? 0 : 7 * steps[n % 12];
            cp_load load;
            cp_verdict verdicts[CP_RULES];
            ck_assert_int_eq(cp_load_of(1, &fresh, &cached, &load), CP_OK);
            for (int r = 0; r < CP_RULES; r++)
                ck_assert_int_eq(
                    cp_rule_ask(&cp_rules[r], &setting, &load, &verdicts[r]),
                    CP_OK);
            /* Compare the verdicts. */
            for (int r = 0; r < CP_RULES; r++)
                ck_assert(ranks > 1 || verdicts[r].variant == CP_PASS_KV);
            for (int causal = 0; causal < 2; causal++)
                ck_assert(verdicts[1 + causal].variant == CP_PASS_Q ||
                          verdicts[3 + causal].variant == CP_PASS_KV);
            for (int r = 0; r < 5 && cached == 0; r++)
                ck_assert(verdicts[r].variant == CP_PASS_KV);
            for (int r = 0; r < 5 && ranks > 1; r++)
                ck_assert(fresh > 1 || cached < 100000 ||
                          verdicts[r].variant == CP_PASS_Q);
        }
}
END_TEST

START_TEST(bisection_finds_what_a_walk_finds) {
    cp_setting setting = paper(2 + _i, "800e12", "5000e9");
    setting.speeds.latency = number("1e-9");
    setting.speeds.all_to_all_latency = number("1e-8");
    for (int64_t context = 1; context < 300; context += 7)
        for (int r = 0; r < CP_RULES; r++) {
            int64_t least, walked = context + 1;
            ck_assert_int_eq(
                cp_rule_least(&cp_rules[r], &setting, context, &least), CP_OK);
            for (int64_t fresh = context; fresh > 0; fresh--) {
                const int64_t cached = context - fresh;
                cp_load load;
                cp_verdict verdict;
                ck_assert_int_eq(cp_load_of(1, &fresh, &cached, &load), CP_OK);
                ck_assert_int_eq(
                    cp_rule_ask(&cp_rules[r], &setting, &load, &verdict),
                    CP_OK);
                if (verdict.variant == CP_PASS_Q)
                    break;
                walked = fresh;
            }
            ck_assert_msg(least == walked, "%s", cp_rules[r].name);
        }
}
END_TEST

START_TEST(table_5_decides_by_seconds) { /* invariant 28 */
    const struct {
        int64_t fresh;
        const char *exchange, *attention, *all_to_all, *because;
        cp_variant variant;
    } rows[2] = {{3200, "627e-6", "414e-6", "424e-6",
                  "pass-q exposes 424 < 639 us of pass-kv", CP_PASS_Q},
                 {12800, "631e-6", "1608e-6", "1023e-6",
                  "pass-q exposes 1023 > 0 us of pass-kv", CP_PASS_KV}};
    for (int n = 0; n < 2; n++) {
        const int64_t cached = 128000 - rows[n].fresh;
        cp_setting setting = peak(4);
        cp_load load;
        cp_verdict verdict;
        ck_assert_int_eq(cp_load_of(1, &rows[n].fresh, &cached, &load), CP_OK);
        /* Put the times of the row in. */
        setting.speeds = (cp_speeds){
            .flops = cp_rational_divide(
                cp_rational_scale(cp_attention_flops(&setting, &load, true), 1,
                                  16),
                number(rows[n].attention)),
            .bandwidth = cp_rational_divide(
                cp_rational_scale(cp_key_bytes(&setting, &load), 1, 4),
                number(rows[n].exchange)),
            .latency = cp_rational_of(0, 1),
            .all_to_all_bandwidth = number("1e30"),
            .all_to_all_latency = number(rows[n].all_to_all),
        };
        ck_assert_int_eq(cp_rule_ask(&cp_rules[5], &setting, &load, &verdict),
                         CP_OK);
        ck_assert_int_eq(verdict.variant, rows[n].variant);
        ck_assert_str_eq(verdict.because, rows[n].because);
    }
}
END_TEST

START_TEST(nothing_hides_where_cores_are_shared) {
    cp_setting setting = peak(4);
    const int64_t fresh = 10000, cached = 1000000;
    cp_load load;
    ck_assert_int_eq(cp_load_of(1, &fresh, &cached, &load), CP_OK);
    for (int shared = 0; shared < 2; shared++)
        for (int r = 1; r < 6; r++) {
            cp_verdict verdict;
            setting.shares_cores = shared;
            ck_assert_int_eq(
                cp_rule_ask(&cp_rules[r], &setting, &load, &verdict), CP_OK);
            ck_assert_msg(verdict.variant == (shared ? CP_PASS_Q : CP_PASS_KV),
                          "%s: %s", cp_rules[r].name, verdict.because);
        }
}
END_TEST

START_TEST(a_rule_that_turns_the_wrong_way_has_no_threshold) {
    const cp_rule wrong = {"learned", CP_RULE_EMPIRICAL, false, {-3, 1, 20.28}};
    const cp_setting setting = peak(4);
    int64_t least;
    ck_assert_int_eq(cp_rule_least(&wrong, &setting, 1000, &least), CP_OK);
    ck_assert_int_eq(least, 1001);
}
END_TEST

START_TEST(appendix_d_turns_where_it_says) {
    const cp_setting setting = peak(4);
    const cp_empirical *fit = &cp_rules[6].fit;
    for (int64_t fresh = 1; fresh < 30000; fresh = fresh * 3 + 1) {
        const double turn = exp(fit->gamma / fit->beta) *
                            pow((double)fresh, 1.0 + fit->alpha / fit->beta);
        for (int side = 0; side < 2; side++) {
            const int64_t cached = (int64_t)turn + side - fresh;
            cp_load load;
            cp_verdict verdict;
            ck_assert_int_eq(cp_load_of(1, &fresh, &cached, &load), CP_OK);
            ck_assert_int_eq(
                cp_rule_ask(&cp_rules[6], &setting, &load, &verdict), CP_OK);
            ck_assert_int_eq(verdict.variant, side ? CP_PASS_Q : CP_PASS_KV);
        }
    }
    const int64_t two[2] = {5, 6};
    cp_load load;
    cp_verdict verdict;
    ck_assert_int_eq(cp_load_of(2, two, two, &load), CP_OK);
    ck_assert_int_eq(cp_rule_ask(&cp_rules[6], &setting, &load, &verdict),
                     CP_INVALID);
    ck_assert_str_eq(cp_message(), "Appendix D is about one sequence, not 2");
    const cp_rule near = {"near", CP_RULE_EMPIRICAL, false, {0, 1, 5e-14}};
    ck_assert_int_eq(cp_load_of(1, two, NULL, &load), CP_OK); /* ln 1 = 0 */
    ck_assert_int_eq(cp_rule_ask(&near, &setting, &load, &verdict), CP_INVALID);
    ck_assert_str_eq(cp_message(), "near: h = 5e-14, too near 0 to tell");
}
END_TEST

START_TEST(bad_settings_name_the_field) {
    const int64_t fresh = 5, negative = -1, most = INT64_MAX;
    const int64_t many[3] = {most, most, most};
    cp_load load;
    cp_verdict verdict;
    ck_assert_int_eq(cp_load_of(1, &fresh, NULL, &load), CP_OK);
    for (int n = 0; n < 7; n++) {
        cp_setting setting = peak(4);
        const char *field = NULL;
        /* Spoil one field. */
        const cp_rational zero = cp_rational_of(0, 1);
        switch (n) {
        case 0:
            setting.speeds.flops = zero, field = "flops is 0";
            break;
        case 1:
            setting.speeds.bandwidth = number("-5"), field = "bandwidth is -5";
            break;
        case 2:
            setting.speeds.latency = number("-1e-6"),
            field = "latency is -1e-06";
            break;
        case 3:
            setting.speeds.all_to_all_bandwidth = cp_rational_of(1, 0);
            field = "all-to-all bandwidth is none";
            break;
        case 4:
            setting.speeds.all_to_all_latency = number("-1/2");
            field = "all-to-all latency is -1/2";
            break;
        case 5:
            setting.element_bytes = 0, field = "0 bytes a number";
            break;
        default:
            setting.shape.kv_heads = 3, field = "3 key heads";
        }
        ck_assert_int_eq(cp_rule_ask(&cp_rules[1], &setting, &load, &verdict),
                         CP_INVALID);
        ck_assert_msg(strstr(cp_message(), field) != NULL, "%s", cp_message());
    }
    ck_assert_int_eq(cp_load_of(1, &most, &most, &load), CP_OK);
    ck_assert_int_eq(cp_load_of(3, many, many, &load), CP_INVALID);
    ck_assert_int_eq(cp_load_of(1, &negative, NULL, &load), CP_INVALID);
    ck_assert_int_eq(cp_load_of(1, &fresh, &negative, &load), CP_INVALID);
    ck_assert_int_eq(cp_load_of(0, NULL, NULL, &load), CP_INVALID);
}
END_TEST

START_TEST(scores_against_table_4) {
    const int64_t fresh[14] = {1280,  3200,   4160,   6400,  12800,
                               25600, 38400,  51200,  64000, 76800,
                               89600, 102400, 115200, 128000};
    const struct {
        int rule;
        const char *flops, *bandwidth;
        int right;
    } scores[] = {{1, "800e12", "50e9", 12},   {1, "504e12", "26.1e9", 13},
                  {3, "800e12", "50e9", 11},   {3, "504e12", "26.1e9", 12},
                  {1, "540e12", "26.1e9", 13}, {3, "540e12", "26.1e9", 12},
                  {6, "800e12", "50e9", 4},    {0, "800e12", "50e9", 13},
                  {3, "6400e12", "50e9", 14},  {1, "8", "25e-5", 14},
                  {3, "8", "25e-5", 13}};
    for (size_t n = 0; n < sizeof(scores) / sizeof(scores[0]); n++) {
        const cp_setting setting =
            paper(4, scores[n].flops, scores[n].bandwidth);
        int right = 0;
        for (int row = 0; row < 14; row++) {
            const int64_t cached = 128000 - fresh[row];
            cp_load load;
            cp_verdict verdict;
            ck_assert_int_eq(cp_load_of(1, &fresh[row], &cached, &load), CP_OK);
            ck_assert_int_eq(cp_rule_ask(&cp_rules[scores[n].rule], &setting,
                                         &load, &verdict),
                             CP_OK);
            right += (verdict.variant == CP_PASS_Q) == (row < 4);
        }
        ck_assert_msg(right == scores[n].right, "%s: %d",
                      cp_rules[scores[n].rule].name, right);
    }
}
END_TEST

static Suite *rules_suite(void) {
    Suite *suite = suite_create("rules");
    TCase *tests = harness_case("rules");
    tcase_add_test(tests, small_fractions_are_exact);
    tcase_add_test(tests, what_does_not_fit_is_none);
    tcase_add_test(tests, numbers_are_read_exactly);
    tcase_add_loop_test(tests, table_3_is_what_plans_do, 1, 9);
    tcase_add_test(tests, both_factors_of_two);
    tcase_add_test(tests, thresholds_of_three_machines);
    tcase_add_test(tests, equations_are_the_inequalities_they_came_from);
    tcase_add_test(tests, three_thousand_two_hundred_is_a_tie);
    tcase_add_test(tests, the_causal_half_doubles_the_first_prompt);
    tcase_add_test(tests, what_holds_of_all_rules);
    tcase_add_loop_test(tests, bisection_finds_what_a_walk_finds, 0, 4);
    tcase_add_test(tests, table_5_decides_by_seconds);
    tcase_add_test(tests, nothing_hides_where_cores_are_shared);
    tcase_add_test(tests, a_rule_that_turns_the_wrong_way_has_no_threshold);
    tcase_add_test(tests, appendix_d_turns_where_it_says);
    tcase_add_test(tests, bad_settings_name_the_field);
    tcase_add_test(tests, scores_against_table_4);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(rules_suite)
