/* The rules that choose a ring: counts, ties, thresholds, scores. */
#include "predict/rules.h"

#include <math.h>
#include <string.h>

#include "planned.h"

enum {
    EQUATION_1,
    ALGORITHM_1,
    CAUSAL_1,
    ALGORITHM_5,
    CAUSAL_5,
    SECONDS,
    APPENDIX_D
};

/* Nodes of the paper, by GPU: FLOPs and bytes per second of one. */
static cp_setting paper(int ranks, double flops, double bandwidth) {
    return (cp_setting){
        .machine = {"paper", (int64_t)flops, (int64_t)bandwidth, 2, false},
        .shape = {16, 1, 128},
        .ranks = ranks,
        .latency = 37e-6,
        .all_to_all_bandwidth = 50e9,
        .all_to_all_latency = 224e-6,
    };
}

static cp_setting peak(int ranks) {
    return paper(ranks, 800e12, 50e9);
}

static cp_load load_of(int64_t fresh, int64_t cached) {
    cp_load load;
    must(cp_load_of(1, &fresh, &cached, 0, &load));
    return load;
}

static cp_verdict ask(const cp_rule *rule, const cp_setting *setting,
                      int64_t fresh, int64_t cached) {
    const cp_load load = load_of(fresh, cached);
    cp_verdict verdict;
    must(cp_rule_ask(rule, setting, &load, &verdict));
    return verdict;
}

static cp_variant variant_by(int rule, const cp_setting *setting, int64_t fresh,
                             int64_t cached) {
    return ask(&cp_rules[rule], setting, fresh, cached).variant;
}

/* Pairs, ring bytes and all-to-all bytes of all ranks in a plan. */
typedef struct {
    int64_t pairs, ring, all_to_all;
} counted;

static counted count_plan(cp_variant variant, const cp_setting *setting,
                          int64_t fresh, int64_t cached) {
    const cp_plan_options options = {
        .element_bytes = setting->machine.element_bytes, .spare = 1};
    counted sums = {0, 0, 0};
    plan_one(variant, setting->ranks, cached, fresh, &setting->shape, &options);
    prove();
    for (int k = 0; k < report.ranks; k++) {
        sums.pairs += report.pairs[k];
        sums.all_to_all += report.bytes[k];
    }
    for (int64_t i = 0; i < plan->programs[0].count; i++)
        if (plan->programs[0].ops[i].kind == CP_OP_EXCHANGE)
            sums.ring += setting->ranks *
                         plan->slots[plan->programs[0].ops[i].in.slot].bytes;
    sums.all_to_all -= sums.ring;
    ck_assert_int_eq(report.hops, setting->ranks - 1);
    return sums;
}

/* Token counts are multiples of 2N, since padding is in no table. */
LOOP(table_3_is_what_plans_do, 1, 9) {
    static const cp_shape shapes[] = {{4, 4, 8},
                                      {6, 2, 16},
                                      {16, 1, 128},
                                      {6, 2, 16, 9},
                                      {6, 1, 18, 16, true}};
    const int ranks = _i, hops = ranks - 1;
    for (int n = 0; n < 10; n++) {
        cp_setting setting = peak(ranks);
        setting.shape = shapes[n % 5];
        setting.machine.element_bytes = CP_PARTIAL_BYTES;
        const int64_t fresh = 2 * ranks * (1 + n), cached = 2 * ranks * n * n;
        const cp_load load = load_of(fresh, cached);
        const counted kv = count_plan(CP_PASS_KV, &setting, fresh, cached);
        const counted q = count_plan(CP_PASS_Q, &setting, fresh, cached);
        const int64_t row =
            2 * setting.shape.query_heads *
            (setting.shape.head_dim + cp_value_dim(&setting.shape));
        const cp_volumes volumes = cp_volumes_of(&setting, &load, true);
        ck_assert(volumes.flops == (double)(kv.pairs * row));
        ck_assert(volumes.flops == (double)(q.pairs * row));
        ck_assert(volumes.keys * hops == (double)kv.ring);
        ck_assert(volumes.queries * hops == (double)q.ring);
        ck_assert(volumes.partials * hops == (double)q.all_to_all);
        ck_assert_int_eq(kv.all_to_all, 0);
    }
}

TEST(both_factors_of_two) { /* that the paper omits */
    const cp_setting setting = peak(4);
    const cp_load full = load_of(128000, 0), token = load_of(1, 128000);
    const cp_volumes volumes = cp_volumes_of(&setting, &full, true);
    ck_assert(8 * volumes.keys == volumes.queries);
    ck_assert(full.pairs == 128000LL * 128000);
    ck_assert(full.causal == 128000LL * 128001 / 2);
    ck_assert(token.pairs == 128001 && token.causal == 128001);
}

TEST(thresholds_of_three_machines) {
    static const struct {
        double flops, bandwidth, new_tokens, context;
        int64_t exposed;
    } rows[] = {{800e12, 50e9, 4000, 32000, 3200},
                {504e12, 26.1e9, 4828, 38621, 3709},
                {540e12, 26.1e9, 5173, 41380, 3909},
                {6400e12, 50e9, 32000, 256000, 10667}};
    for (int n = 0; n < 4; n++) {
        const cp_setting setting = paper(4, rows[n].flops, rows[n].bandwidth);
        int64_t least;
        ck_assert(ceil(cp_new_tokens_least(&setting)) == rows[n].new_tokens);
        ck_assert(ceil(cp_context_least(&setting)) == rows[n].context);
        must(cp_rule_least(&cp_rules[ALGORITHM_5], &setting, 128000, &least));
        ck_assert_int_eq(least, rows[n].exposed);
    }
    cp_setting node = paper(4, 6400e12, 400e9); /* the same by node */
    node.shape = (cp_shape){128, 8, 128};
    ck_assert(cp_new_tokens_least(&node) == 4000);
    ck_assert(cp_context_least(&node) == 32000);
}

/* Numbers sent in fewer bits count fewer bytes: in eq. 1 and eq. 2 for queries,
 * keys and values, in eq. 5 for partials. */
TEST(fewer_bits_turn_the_rules) {
    cp_setting setting = paper(4, 800e12, 50e9);
    setting.shape = (cp_shape){16, 1, 128};
    ck_assert_int_eq(variant_by(ALGORITHM_1, &setting, 3000, 125000),
                     CP_PASS_Q);
    setting.machine.wire = CP_WIRE_INT8;
    ck_assert(cp_new_tokens_least(&setting) == 4000.0 * 264 / 512);
    ck_assert_int_eq(variant_by(ALGORITHM_1, &setting, 3000, 125000),
                     CP_PASS_KV);
    /* A miss rate of 264 / (16 x 256), and one token less. */
    ck_assert_int_eq(variant_by(EQUATION_1, &setting, 33, 479), CP_PASS_KV);
    ck_assert_int_eq(variant_by(EQUATION_1, &setting, 32, 480), CP_PASS_Q);
    /* A machine with free attention: 264 / (16 x 264) for partials. */
    setting.machine.flops = 1000000000000000000;
    setting.machine.bytes_per_second = 1;
    ck_assert_int_eq(variant_by(ALGORITHM_5, &setting, 10, 150), CP_PASS_KV);
    ck_assert_int_eq(variant_by(ALGORITHM_5, &setting, 10, 151), CP_PASS_Q);
}

/* -1, 0 or 1, where a difference in the last digits counts as none. */
static int order(double a, double b) {
    return fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b)) ? 0 : a < b ? -1 : 1;
}

TEST(equations_are_the_inequalities_they_came_from) {
    uint64_t random = 10;
    int ties = 0;
    for (int n = 0; n < 4000; n++) {
        cp_setting setting = peak(2 + (int)(harness_random(&random) % 15));
        cp_machine *machine = &setting.machine;
        cp_shape *shape = &setting.shape;
        shape->kv_heads = 1 + (int64_t)(harness_random(&random) % 4);
        shape->query_heads = shape->kv_heads * (1 + n % 9);
        shape->value_dim = n % 3 > 0 ? 1 + (int64_t)(harness_random(&random) %
                                                     (uint64_t)shape->head_dim)
                                     : 0;
        shape->latent = n % 3 == 2;
        const cp_widths widths = cp_widths_of(machine, shape);
        const int64_t fresh = 1 + (int64_t)(harness_random(&random) % 9999);
        const int64_t cached = (int64_t)(harness_random(&random) % 99999);
        const cp_load load = load_of(fresh, cached);
        const double ranks = setting.ranks;
        machine->bytes_per_second = 1 + (int64_t)(harness_random(&random) % 99);
        machine->flops = 1 + (int64_t)(harness_random(&random) % 9999999);
        if (n % 2 == 0) { /* both sides of eq. 2 are equal */
            machine->flops = 2 * widths.pair * fresh * shape->query_heads;
            machine->bytes_per_second =
                setting.ranks * shape->kv_heads * widths.kept;
        }
        const double bandwidth = (double)machine->bytes_per_second;
        const cp_volumes volumes = cp_volumes_of(&setting, &load, false);
        const double keys = volumes.keys / ranks / bandwidth;
        const double queries = volumes.queries / ranks / bandwidth;
        const double attention =
            volumes.flops / ranks / ranks / (double)machine->flops;
        const int hides = order(attention, keys);
        ck_assert_int_eq(order((double)fresh, cp_new_tokens_least(&setting)),
                         hides);
        ck_assert_int_eq(order((double)load.keys, cp_context_least(&setting)),
                         order(attention, queries));
        ck_assert_int_eq(variant_by(EQUATION_1, &setting, fresh, cached) ==
                             CP_PASS_KV,
                         order(queries, keys) >= 0);
        const cp_verdict verdict =
            ask(&cp_rules[ALGORITHM_5], &setting, fresh, cached);
        ck_assert(verdict.hidden == (hides >= 0));
        ck_assert_int_eq(verdict.variant == CP_PASS_KV,
                         hides >= 0 || order(queries + attention, keys) >= 0);
        ties += hides == 0;
    }
    ck_assert_int_gt(ties, 1000);
}

TEST(three_thousand_two_hundred_is_a_tie) {
    const cp_setting setting = peak(4);
    ck_assert_int_eq(variant_by(ALGORITHM_5, &setting, 3199, 124801),
                     CP_PASS_Q);
    ck_assert_int_eq(variant_by(ALGORITHM_5, &setting, 3201, 124799),
                     CP_PASS_KV);
    const cp_verdict tie = ask(&cp_rules[ALGORITHM_5], &setting, 3200, 124800);
    ck_assert(tie.tie && tie.variant == CP_PASS_KV);
    ck_assert_str_eq(tie.because,
                     "T 3,200 < 4,000 (eq. 2), miss rate 1/40 = 1/40 (eq. 5)");
}

/* All ties of eq. 5 on two nodes: T / (T + P) = 1/8 - T / 16000. */
TEST(doubles_lose_ties) {
    const cp_setting setting = peak(2);
    const double C = 800e12, BW = 50e9, N = 2, e = 2;
    int ties = 0, lost = 0, otherwise = 0;
    for (int64_t fresh = 1; fresh < 2000; fresh++) {
        const int64_t context = 16000 * fresh / (2000 - fresh);
        if (16000 * fresh % (2000 - fresh) != 0 || context > 1000000)
            continue;
        const double T = (double)fresh, rate = T / (double)context;
        ties +=
            ask(&cp_rules[ALGORITHM_5], &setting, fresh, context - fresh).tie;
        lost += rate < 1.0 / 8 - 4 * T * BW / (N * C * e);
        otherwise += rate < 1.0 / 8 - BW / C * 4 * T / (N * e);
    }
    ck_assert_int_eq(ties, 24);
    ck_assert_int_eq(lost, 7);
    ck_assert_int_eq(otherwise, 6);
}

TEST(the_causal_half_doubles_the_first_prompt) {
    const cp_setting setting = peak(4);
    static const struct {
        int rule;
        int64_t cached, least; /* new tokens that hide the transfer */
    } rows[] = {{ALGORITHM_1, 0, 4000},
                {CAUSAL_1, 0, 7999},
                {ALGORITHM_1, 2000000000, 4000},
                {CAUSAL_1, 2000000000, 4001}};
    for (int n = 0; n < 4; n++)
        for (int64_t less = 0; less < 2; less++)
            ck_assert(ask(&cp_rules[rows[n].rule], &setting,
                          rows[n].least - less, rows[n].cached)
                          .hidden == (less == 0));
}

TEST(invariants_of_all_rules) {
    static const int64_t steps[12] = {1,    2,    15,   124,   125,   1000,
                                      3199, 3200, 4000, 20000, 99999, 1000000};
    for (int ranks = 1; ranks <= 16; ranks++)
        for (int f = 0; f < 12; f++)
            for (int c = 0; c < 12; c++) {
                const cp_setting setting = peak(ranks);
                const int64_t fresh = steps[f], past = c ? 7 * steps[c] : 0;
                bool kv[CP_RULES];
                cp_choice choice;
                must(cp_choose(&setting.machine, &setting.shape, ranks, 1,
                               &fresh, &past, &choice));
                for (int r = 0; r < CP_RULES; r++) {
                    kv[r] = variant_by(r, &setting, fresh, past) == CP_PASS_KV;
                    ck_assert(ranks > 1 || kv[r]);
                    ck_assert(past > 0 || r >= SECONDS || kv[r]);
                    ck_assert(ranks == 1 || r >= SECONDS || fresh > 1 ||
                              past < 100000 || !kv[r]);
                }
                ck_assert(kv[ALGORITHM_1] == (choice.variant == CP_PASS_KV));
                ck_assert(!kv[ALGORITHM_1] || kv[ALGORITHM_5]);
                ck_assert(!kv[CAUSAL_1] || kv[CAUSAL_5]);
            }
}

LOOP(bisection_finds_what_a_linear_search_finds, 0, 4) {
    cp_setting setting = paper(2 + _i, 800e12, 5000e9);
    setting.latency = 1e-9;
    setting.all_to_all_latency = 1e-8;
    for (int64_t context = 1; context < 300; context += 7)
        for (int r = 0; r < CP_RULES; r++) {
            int64_t least, walked = context + 1;
            must(cp_rule_least(&cp_rules[r], &setting, context, &least));
            while (walked > 1 && variant_by(r, &setting, walked - 1,
                                            context - walked + 1) == CP_PASS_KV)
                walked--;
            ck_assert_msg(least == walked, "%s", cp_rules[r].name);
        }
}

/* The times of the paper's Table 5, from latencies and speeds. */
TEST(table_5_decides_by_seconds) {
    static const struct {
        int64_t fresh;
        double exchange, attention, all_to_all;
        const char *because;
        cp_variant variant;
    } rows[2] = {{3200, 627e-6, 414e-6, 424e-6,
                  "pass-q exposes 424 < 639 us of pass-kv", CP_PASS_Q},
                 {12800, 631e-6, 1608e-6, 1023e-6,
                  "pass-q exposes 1,023 > 0 us of pass-kv", CP_PASS_KV}};
    for (int n = 0; n < 2; n++) {
        const int64_t cached = 128000 - rows[n].fresh;
        const cp_load load = load_of(rows[n].fresh, cached);
        cp_setting setting = peak(4);
        const cp_volumes volumes = cp_volumes_of(&setting, &load, true);
        setting.machine.flops =
            (int64_t)(volumes.flops / 16 / rows[n].attention);
        setting.machine.bytes_per_second =
            (int64_t)(volumes.keys / 4 / rows[n].exchange);
        setting.latency = 0;
        setting.all_to_all_bandwidth = 1e30;
        setting.all_to_all_latency = rows[n].all_to_all;
        const cp_verdict verdict =
            ask(&cp_rules[SECONDS], &setting, rows[n].fresh, cached);
        ck_assert_int_eq(verdict.variant, rows[n].variant);
        ck_assert_str_eq(verdict.because, rows[n].because);
    }
}

TEST(nothing_hides_where_cores_are_shared) {
    cp_setting setting = peak(4);
    for (int r = ALGORITHM_1; r <= SECONDS; r++) {
        setting.machine.shares_cores = false;
        ck_assert_int_eq(variant_by(r, &setting, 10000, 1000000), CP_PASS_KV);
        setting.machine.shares_cores = true;
        ck_assert_int_eq(variant_by(r, &setting, 10000, 1000000), CP_PASS_Q);
    }
}

TEST(a_rule_that_turns_the_wrong_way_has_no_threshold) {
    const cp_rule wrong = {"learned", CP_RULE_EMPIRICAL, false, {-3, 1, 20.28}};
    const cp_setting setting = peak(4);
    int64_t least;
    must(cp_rule_least(&wrong, &setting, 1000, &least));
    ck_assert_int_eq(least, 1001);
}

TEST(appendix_d_turns_where_it_says) {
    const cp_setting setting = peak(4);
    const cp_empirical *fit = &cp_rules[APPENDIX_D].fit;
    for (int64_t fresh = 1; fresh < 30000; fresh = fresh * 3 + 1) {
        const double turn = exp(fit->gamma / fit->beta) *
                            pow((double)fresh, 1.0 + fit->alpha / fit->beta);
        const int64_t below = (int64_t)turn - fresh;
        ck_assert_int_eq(variant_by(APPENDIX_D, &setting, fresh, below),
                         CP_PASS_KV);
        ck_assert_int_eq(variant_by(APPENDIX_D, &setting, fresh, below + 1),
                         CP_PASS_Q);
    }
    const int64_t two[2] = {5, 6};
    const cp_rule near = {"near", CP_RULE_EMPIRICAL, false, {0, 1, 5e-14}};
    cp_load load;
    cp_verdict verdict;
    must(cp_load_of(2, two, two, 0, &load));
    refuses_with(cp_rule_ask(&cp_rules[APPENDIX_D], &setting, &load, &verdict),
                 CP_INVALID, "Appendix D is for one sequence, not 2");
    must(cp_load_of(1, two, NULL, 0, &load)); /* ln 1 = 0 */
    refuses_with(cp_rule_ask(&near, &setting, &load, &verdict), CP_INVALID,
                 "near: h = 5e-14, too near 0 to tell");
}

TEST(bad_settings_name_the_field) {
    cp_setting bad[5] = {peak(4), peak(4), peak(4), peak(0), peak(4)};
    static const char *const because[5] = {"flops is 0", "bandwidth is -5",
                                           "0 bytes a number", "0 ranks",
                                           "3 key heads"};
    const cp_load load = load_of(5, 0);
    cp_verdict verdict;
    bad[0].machine.flops = 0;
    bad[1].machine.bytes_per_second = -5;
    bad[2].machine.element_bytes = 0;
    bad[4].shape.kv_heads = 3;
    for (int n = 0; n < 5; n++)
        refuses(cp_rule_ask(&cp_rules[ALGORITHM_1], &bad[n], &load, &verdict),
                CP_INVALID, because[n]);
}

TEST(a_window_counts_only_its_pairs) {
    for (int64_t window = 1; window < 20; window++)
        for (int64_t n = 0; n < 60; n++) {
            const int64_t fresh = 1 + n / 6, cached = n % 6 * 2;
            int64_t causal = 0;
            cp_load load;
            for (int64_t at = cached; at < cached + fresh; at++)
                causal += cp_min(at + 1, window);
            must(cp_load_of(1, &fresh, &cached, window, &load));
            ck_assert_int_eq((int64_t)load.causal, causal);
            ck_assert_int_eq((int64_t)load.pairs,
                             fresh * cp_min(window, cached + fresh));
        }
}

TEST(sums_that_do_not_fit_are_refused) {
    const int64_t five = 5, negative = -1, most = INT64_MAX;
    const int64_t many[3] = {most, most, most};
    const cp_setting setting = paper(1000, 1e18, 1e18);
    cp_load load;
    cp_verdict verdict;
    ck_assert_int_eq(cp_load_of(3, many, many, 0, &load), CP_INVALID);
    ck_assert_int_eq(cp_load_of(1, &negative, NULL, 0, &load), CP_INVALID);
    ck_assert_int_eq(cp_load_of(1, &five, &negative, 0, &load), CP_INVALID);
    ck_assert_int_eq(cp_load_of(0, NULL, NULL, 0, &load), CP_INVALID);
    must(cp_load_of(1, &most, &most, 0, &load));
    for (int r = ALGORITHM_1; r <= CAUSAL_5; r++)
        ck_assert_int_eq(cp_rule_ask(&cp_rules[r], &setting, &load, &verdict),
                         CP_INVALID);
    load = load_of(INT32_MAX, INT32_MAX); /* all that can have positions */
    const cp_setting fast = paper(1024, 1e18, 1e13);
    for (int r = 0; r < CP_RULES; r++)
        must(cp_rule_ask(&cp_rules[r], &fast, &load, &verdict));
}

/* The last two are the tuned threshold of 8,000 tokens that the paper's
 * footnote hints at. */
TEST(scores_against_table_4) {
    static const int64_t fresh[14] = {1280,  3200,   4160,   6400,  12800,
                                      25600, 38400,  51200,  64000, 76800,
                                      89600, 102400, 115200, 128000};
    static const struct {
        int rule;
        double flops, bandwidth;
        int right;
    } scores[] = {
        {ALGORITHM_1, 800e12, 50e9, 12},   {ALGORITHM_1, 504e12, 26.1e9, 13},
        {ALGORITHM_5, 800e12, 50e9, 11},   {ALGORITHM_5, 504e12, 26.1e9, 12},
        {ALGORITHM_1, 540e12, 26.1e9, 13}, {ALGORITHM_5, 540e12, 26.1e9, 12},
        {APPENDIX_D, 800e12, 50e9, 4},     {EQUATION_1, 800e12, 50e9, 13},
        {ALGORITHM_5, 6400e12, 50e9, 14},  {ALGORITHM_1, 8e12, 25e7, 14},
        {ALGORITHM_5, 8e12, 25e7, 13}};
    for (int n = 0; n < COUNT_OF(scores); n++) {
        const cp_setting setting =
            paper(4, scores[n].flops, scores[n].bandwidth);
        int right = 0;
        for (int row = 0; row < 14; row++)
            right +=
                (variant_by(scores[n].rule, &setting, fresh[row],
                            128000 - fresh[row]) == CP_PASS_Q) == (row < 4);
        ck_assert_msg(right == scores[n].right, "%s: %d",
                      cp_rules[scores[n].rule].name, right);
    }
}
