/* The simulator against hand-made cases, bounds, and laws of the model. */
#define _GNU_SOURCE
#include "expect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "predict/simulate.h"

static const char toy_machine[] = "machine toy\n"
                                  "memory 1 GB assumed\n"
                                  "memory_rate 1e12 GB/s assumed\n"
                                  "peak 1e12 TFLOP/s assumed\n"
                                  "linear_fraction 1 of-peak assumed\n"
                                  "attention_rate 4e-12 TFLOP/s assumed\n"
                                  "link_rate 32e-9 GB/s assumed\n"
                                  "link_latency 2e6 us assumed\n";

static const char toy_model[] =
    "model toy\nlayers 3 layers assumed\nwidth 1 numbers assumed\n"
    "inner 1 numbers assumed\nquery_heads 1 heads assumed\n"
    "kv_heads 1 heads assumed\nhead_dim 1 numbers assumed\n"
    "vocabulary 1 tokens assumed\npositions 9 tokens assumed\n"
    "parameters 1 numbers assumed\ntables 1 tables assumed\n"
    "attention_bits 32 bits assumed\ninner_bits 32 bits assumed\n"
    "head_bits 32 bits assumed\ncache_bytes 4 B assumed\n";

/* A call of one sequence; the rest is in the scenario. */
static cp_forecast forecast_of(cp_scenario call, int64_t fresh, int64_t past) {
    cp_forecast forecast;
    call.sequences = 1;
    call.new_tokens = &fresh;
    call.cached_tokens = &past;
    must(cp_simulate(&call, &forecast));
    return forecast;
}

/* Eight new tokens, or one to decode after seven, on the machine with lines
 * more. */
static cp_forecast toy(const char *lines, cp_variant variant, int ranks) {
    const int64_t fresh = variant == CP_DECODE ? 1 : 8;
    cp_hardware hardware;
    cp_model_sizes model;
    char text[2000];
    snprintf(text, sizeof(text), "%s%s", toy_machine, lines);
    must(cp_hardware_read("toy", text, &hardware));
    must(cp_model_sizes_read("toy", toy_model, &model));
    return forecast_of((cp_scenario){.hardware = &hardware,
                                     .model = &model,
                                     .ranks = ranks,
                                     .tensor = 1,
                                     .variant = variant},
                       fresh, 8 - fresh);
}

#define NO_OVERLAP "overlap 0 share assumed\n"
#define HALF_OVERLAP "overlap 0.5 share assumed\n"
#define STEP "step 1e6 us assumed\n"
#define ONE_CORE "cores 1 cores assumed\n"
#define SLOW_MEMORY "memory_fraction 3.2e-20 of-peak assumed\n"
#define SLOW_EXCHANGE                                                          \
    "exchange_at 1 15e6 us assumed\nexchange_at 64 15e6 us assumed\n"
#define TWO_RATES                                                              \
    "attention_by 2 1 4e-12 TFLOP/s assumed\n"                                 \
    "attention_by 4 1 8e-12 TFLOP/s assumed\n"
#define SHARED TWO_RATES ONE_CORE
#define DECODE "decode_attend 1e6 us assumed\n"
#define NO_DECODE_OVERLAP "decode_overlap 0 share assumed\n"

static const struct {
    const char *lines;
    cp_variant variant;
    double layer;   /* seconds of one */
    double exposed; /* or -1 if ranks end their rings at different times */
} by_hand[] = {
    {"", CP_PASS_KV, 18, 0},
    {NO_OVERLAP, CP_PASS_KV, 21, 3},
    {HALF_OVERLAP, CP_PASS_KV, 19.5, 1.5},
    {STEP, CP_PASS_KV, 20, 0},
    {SLOW_EXCHANGE, CP_PASS_KV, 23, 5},
    {SLOW_EXCHANGE STEP, CP_PASS_KV, 25, 5},
    {ONE_CORE, CP_PASS_KV, 36, 0},
    {ONE_CORE NO_OVERLAP, CP_PASS_KV, 42, 6},
    {"cores 4 cores assumed\n", CP_PASS_KV, 9, 0},
    {"attention_at 1 8e-12 TFLOP/s assumed\n", CP_PASS_KV, 9, 0},
    {"launch 1e6 us assumed\n", CP_PASS_KV, 23, 0},
    {SLOW_MEMORY, CP_PASS_KV, 25, 0},
    {SLOW_MEMORY "cores 2 cores assumed\n", CP_PASS_KV, 32, 0},
    {"", CP_PASS_Q, 21, 3},
    {"all_to_all_latency 5e6 us assumed\n", CP_PASS_Q, 24, 6},
    {"all_to_all_rate 64e-9 GB/s assumed\n", CP_PASS_Q, 20.5, 2.5},
    {"", CP_ALL_GATHER, 21, 3},
    /* One core is never idle. */
    {SHARED, CP_PASS_KV, 27, -1},
    {SHARED NO_OVERLAP, CP_PASS_KV, 27 + 6, -1},
    {SHARED HALF_OVERLAP, CP_PASS_KV, 27 + 3, -1},
    {SHARED STEP, CP_PASS_KV, 27 + 2, -1},
    {SHARED, CP_PASS_Q, 27 + 6, (6 + 7) / 2.0},
    {SHARED NO_OVERLAP, CP_PASS_Q, 27 + 6 + 5, -1},
    {SHARED, CP_ALL_GATHER, 27 + 6, -1},
    {DECODE, CP_DECODE, 2.125 + 1 + 2.25, 3.375},
    {DECODE NO_DECODE_OVERLAP, CP_DECODE, 1 + 2.125 + 1 + 2.25, 4.375},
    {DECODE ONE_CORE, CP_DECODE, 9.75, 7.75},
    {DECODE ONE_CORE NO_DECODE_OVERLAP, CP_DECODE, 10.75, 8.75},
};

LOOP(rings_are_as_by_hand, 0, COUNT_OF(by_hand)) {
    const cp_forecast f = toy(by_hand[_i].lines, by_hand[_i].variant, 2);
    ck_assert_double_eq_tol(f.seconds, 3 * by_hand[_i].layer, 1e-6);
    if (by_hand[_i].exposed < 0)
        return;
    ck_assert_double_eq_tol(f.ring, by_hand[_i].layer, 1e-6);
    ck_assert_double_eq_tol(f.exposed, by_hand[_i].exposed, 1e-6);
}

TEST(pieces_are_as_by_hand) {
    cp_forecast f = toy(TWO_RATES, CP_PASS_KV, 2);
    ck_assert_double_eq_tol(f.seconds, 3 * 18, 1e-5);
    ck_assert_double_eq_tol(f.attending, (18 + 9) / 2.0, 1e-6);
    f = toy("attention_by 2 4 4e-12 TFLOP/s assumed\n"
            "attention_by 2 8 8e-12 TFLOP/s assumed\nlaunch 1e6 us assumed\n",
            CP_PASS_KV, 1);
    const double rate = 4 * pow(2, log2(4.5 / 4));
    ck_assert_double_eq_tol(f.attend, 1 + 4 * 36 / rate, 1e-6);
    f = toy(DECODE, CP_DECODE, 2);
    ck_assert_double_eq_tol(f.exchange, 2.125, 1e-9);
    ck_assert_double_eq_tol(f.all_to_all, 2.25, 1e-9);
    ck_assert_double_eq_tol(f.attend, 1, 1e-9);
    f = toy(SHARED, CP_PASS_Q, 2);
    ck_assert_double_eq_tol(f.attending, (26 + 27) / 2.0, 1e-6);
    ck_assert_double_eq_tol(f.exchanging, 5, 1e-6);
    ck_assert_double_eq_tol(f.busy, 26.5 / 33, 1e-6);
}

TEST(attention_on_one_core_is_late_at_random) {
    const cp_forecast f = toy(SHARED "jitter 1e4 us assumed\n", CP_PASS_KV, 2);
    ck_assert_double_gt(fabs(f.seconds - 3 * 27), 1e-4);
    ck_assert_double_lt(fabs(f.seconds - 3 * 27), 0.1);
}

static double uniform(uint64_t *seed, double low, double high) {
    return low + (high - low) * (0.5 + 0.5 * (double)harness_uniform(seed));
}

static cp_hardware random_machine(uint64_t *seed) {
    cp_hardware h;
    must(cp_hardware_read("toy", toy_machine, &h));
    h.memory_rate = pow(10, uniform(seed, 10, 13));
    h.peak = h.peak_8bit = pow(10, uniform(seed, 11, 15));
    h.attention_rate = h.attention_alone = pow(10, uniform(seed, 11, 15));
    h.link_rate = pow(10, uniform(seed, 8, 11));
    h.link_latency = pow(10, uniform(seed, -6, -3));
    h.all_to_all_rate = pow(10, uniform(seed, 8, 11));
    h.step = uniform(seed, 0, 1e-3);
    h.overlap = uniform(seed, 0, 1);
    return h;
}

typedef struct {
    cp_hardware hardware;
    cp_model_sizes model;
    int64_t fresh[3], past[3];
    cp_scenario scenario;
} chance;

static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                      CP_DECODE};

static void chance_new(chance *c, uint64_t *seed) {
    c->hardware = random_machine(seed);
    must(cp_model_sizes_read("smollm2-135m", NULL, &c->model));
    c->model.layers = 5;
    const cp_variant variant = variants[harness_random(seed) % 4];
    for (int i = 0; i < 3; i++) {
        c->past[i] = (int64_t)(harness_random(seed) % 3000);
        c->fresh[i] = variant == CP_DECODE
                          ? i == 0
                          : (int64_t)(harness_random(seed) % 300);
    }
    c->fresh[0] += variant != CP_DECODE;
    c->scenario = (cp_scenario){.hardware = &c->hardware,
                                .model = &c->model,
                                .ranks = 1 + (int)(harness_random(seed) % 9),
                                .tensor = 1,
                                .sequences = 3,
                                .new_tokens = c->fresh,
                                .cached_tokens = c->past,
                                .variant = variant};
}

TEST(predictions_lie_between_the_bounds) {
    uint64_t seed = 11;
    for (int n = 0; n < 400; n++) {
        chance c;
        cp_forecast f;
        chance_new(&c, &seed);
        must(cp_simulate(&c.scenario, &f));
        const double layers = (double)c.model.layers;
        const double around = layers * (f.linear + f.reducing);
        ck_assert_double_ge(f.seconds * (1 + 1e-9),
                            around + layers * f.attending);
        ck_assert_double_ge(f.seconds * (1 + 1e-9), layers * f.exchanging);
        /* Compare the prediction with the sum of everything. */
        const double ranks = c.scenario.ranks;
        const double shared = (ranks - 1) * f.exchange;
        const double most = ranks * f.attend + 2 * shared + f.all_to_all +
                            ranks * c.hardware.step;
        ck_assert_double_le(f.seconds,
                            around + layers * (ranks * most + 0.01) + 0.01);
        ck_assert(f.busy > 0 && f.busy <= 1 + 1e-9);
        ck_assert(f.exposed >= -1e-12);
    }
}

static void rates_by_pieces(cp_hardware *h) {
    h->attention_by.count = 2;
    for (int r = 0; r < 2; r++) {
        h->attention_by.row[r] = r == 0 ? 4 : 100;
        h->attention_by.along[r].count = 1;
        h->attention_by.along[r].size[0] = 1000;
        h->attention_by.along[r].value[0] =
            h->attention_rate * (r == 0 ? 0.1 : 1);
    }
}

static cp_hardware fixed_shares(const cp_hardware *shared, int ranks) {
    cp_hardware h = *shared;
    const double speed = (double)h.cores / ranks, less = fmin(1, speed);
    h.cores = 0;
    h.memory_rate /= ranks;
    h.peak *= speed;
    h.peak_8bit *= speed;
    h.attention_rate *= speed;
    h.attention_alone *= speed;
    for (int r = 0; r < h.attention_by.count; r++)
        h.attention_by.along[r].value[0] *= speed;
    h.link_latency /= less;
    h.link_rate *= less;
    h.all_to_all_latency /= less;
    h.all_to_all_rate *= less;
    h.decode_all_to_all /= less;
    return h;
}

TEST(sharing_lies_between_bounds) {
    uint64_t seed = 17;
    int faster = 0;
    for (int n = 0; n < 400; n++) {
        chance c;
        chance_new(&c, &seed);
        c.hardware.cores = 1 + (int64_t)(harness_random(&seed) % 9);
        c.hardware.overlap = n % 2 == 0 ? 0 : c.hardware.overlap;
        if (n % 4 < 2)
            rates_by_pieces(&c.hardware);
        const double speed = (double)c.hardware.cores / c.scenario.ranks;
        const cp_hardware fixed = fixed_shares(&c.hardware, c.scenario.ranks);
        cp_forecast now, before;
        must(cp_simulate(&c.scenario, &now));
        c.scenario.hardware = &fixed;
        must(cp_simulate(&c.scenario, &before));
        /* Compare shared cores with fixed shares. */
        const double slack = 1 + 1e-9, layers = (double)c.model.layers;
        const double working =
            before.linear + before.reducing + before.attending;
        if (speed >= 1)
            ck_assert_double_eq_tol(now.seconds / before.seconds, 1, 1e-12);
        ck_assert_double_le(now.seconds, before.seconds * slack);
        ck_assert_double_ge(now.seconds * slack,
                            before.seconds * fmin(1, speed));
        ck_assert_double_ge(now.seconds * slack, layers * working);
        if (n % 2 == 0 && c.scenario.variant == CP_PASS_KV)
            ck_assert_double_ge(now.seconds * slack,
                                layers * (working + before.exchanging));
        ck_assert_double_ge(now.seconds * slack,
                            layers * (now.linear + now.reducing + now.ring));
        ck_assert(now.busy > 0 && now.busy <= slack && now.exposed >= -1e-12);
        faster += now.seconds < 0.999 * before.seconds;
    }
    ck_assert_int_ge(faster, 30);
}

static const char *const names[] = {"compute", "messages"};

static void look_at(const cp_history *trace, double seconds) {
    char *text;
    size_t bytes;
    double last = 0, start, length;
    int depth = 0;
    FILE *out = open_memstream(&text, &bytes);
    cp_history_print(trace, out);
    fclose(out);
    for (const char *at = text; *at != '\0'; at++)
        depth += (*at == '{') - (*at == '}');
    ck_assert_int_eq(depth, 0);
    for (const char *at = text; (at = strstr(at, "\"ts\":")) != NULL; at++)
        if (sscanf(at, "\"ts\":%lf,\"dur\":%lf", &start, &length) == 2)
            last = fmax(last, start + length);
    ck_assert_double_eq_tol(last / 1e6 / seconds, 1, 1e-3);
    free(text);
}

TEST(walked_and_multiplied_layers_agree) {
    uint64_t seed = 12;
    for (int n = 0; n < 100; n++) {
        chance c;
        cp_forecast quick, walked;
        chance_new(&c, &seed);
        c.hardware.cores = n % 3;
        c.model.layers = 9;
        must(cp_simulate(&c.scenario, &quick));
        must(cp_history_new(c.scenario.ranks, 2, names, &c.scenario.trace));
        must(cp_simulate(&c.scenario, &walked));
        ck_assert_double_eq_tol(quick.seconds / walked.seconds, 1, 1e-9);
        ck_assert_double_eq_tol(quick.ring / walked.ring, 1, 1e-6);
        ck_assert_double_eq_tol(quick.busy / walked.busy, 1, 1e-6);
        ck_assert_double_eq_tol(quick.attending, walked.attending, 1e-12);
        ck_assert_double_eq_tol(quick.exchanging, walked.exchanging, 1e-12);
        ck_assert_double_eq_tol(quick.exposed, walked.exposed, 1e-9);
        if (n % 10 == 0)
            look_at(c.scenario.trace, walked.seconds);
        cp_history_free(c.scenario.trace);
    }
}

static double seconds_of(const cp_scenario *scenario) {
    cp_forecast forecast;
    must(cp_simulate(scenario, &forecast));
    return forecast.seconds * (1 + 1e-12);
}

TEST(worse_hardware_is_not_faster) {
    uint64_t seed = 13;
    for (int n = 0; n < 150; n++) {
        chance c;
        chance_new(&c, &seed);
        c.hardware.cores = n % 4;
        const double before = seconds_of(&c.scenario);
        double *const rates[] = {
            &c.hardware.link_rate, &c.hardware.all_to_all_rate,
            &c.hardware.attention_rate, &c.hardware.memory_rate,
            &c.hardware.peak_8bit};
        for (int i = 0; i < 5; i++) {
            const double kept = *rates[i];
            *rates[i] = kept / 3;
            ck_assert_double_ge(seconds_of(&c.scenario), before * (1 - 1e-9));
            *rates[i] = kept;
        }
        c.hardware.link_latency *= 2;
        ck_assert_double_ge(seconds_of(&c.scenario), before * (1 - 1e-9));
        c.past[0] += 2 * c.scenario.ranks;
        c.fresh[0] +=
            c.scenario.variant == CP_DECODE ? 0 : 2 * c.scenario.ranks;
        ck_assert_double_ge(seconds_of(&c.scenario), before * (1 - 1e-9));
    }
}

TEST(long_calls_are_cut_short) {
    chance c;
    uint64_t seed = 20;
    chance_new(&c, &seed);
    c.scenario.variant = CP_PASS_KV;
    c.scenario.ranks = 2;
    c.scenario.sequences = 1;
    c.fresh[0] = 8;
    c.past[0] = 0;
    c.hardware.cores = 1;
    c.hardware.step = 1e-3;
    c.model.layers = 1000;
    c.model.vocabulary = (int64_t)1e15;
    const double thousand = seconds_of(&c.scenario);
    c.model.layers = 2000;
    const double layers = seconds_of(&c.scenario) - thousand;
    c.model.layers = 2000000;
    ck_assert_double_eq_tol(
        seconds_of(&c.scenario) / (thousand + 1999 * layers), 1, 1e-6);
    ck_assert_double_gt(thousand, 2000 * layers);
}

TEST(equal_work_is_shared_evenly) {
    uint64_t seed = 18;
    for (int n = 0; n < 100; n++) {
        chance c;
        chance_new(&c, &seed);
        c.hardware.cores = 1 + (int64_t)(harness_random(&seed) % 3);
        c.hardware.step = 0;
        c.scenario.variant = variants[n % 3];
        c.scenario.ranks = 2 + (int)(harness_random(&seed) % 7);
        c.scenario.sequences = 1;
        c.fresh[0] =
            2 * c.scenario.ranks * (1 + (int64_t)(harness_random(&seed) % 40));
        c.past[0] = 0;
        const cp_hardware fixed = fixed_shares(&c.hardware, c.scenario.ranks);
        const double shared = seconds_of(&c.scenario);
        c.scenario.hardware = &fixed;
        ck_assert_double_eq_tol(shared / seconds_of(&c.scenario), 1, 1e-12);
    }
}

static cp_forecast gtt(const char *machine, int ranks, int64_t fresh,
                       int64_t past, cp_variant variant) {
    cp_hardware hardware;
    cp_model_sizes model;
    must(cp_hardware_read(machine, NULL, &hardware));
    must(cp_model_sizes_read("llama3-405b", NULL, &model));
    hardware.jitter = 0;
    return forecast_of((cp_scenario){.hardware = &hardware,
                                     .model = &model,
                                     .ranks = ranks,
                                     .tensor = 8,
                                     .variant = variant,
                                     .partial_bytes = 2},
                       fresh, past);
}

TEST(work_and_memory_of_a_million_tokens) {
    const cp_forecast f = gtt("gtt", 16, 1000000, 0, CP_PASS_KV);
    ck_assert_double_eq_tol(f.flops, 4.9388e18, 1e14);
    ck_assert_double_eq_tol(f.flops / 77 / 128, 501.1e12, 0.05e12);
    ck_assert_double_eq_tol(f.cache, 62500 * 64512.0, 1);
    ck_assert_double_eq_tol(f.flops_per_second * f.seconds * 128, f.flops, 1e8);
    /* A hop of attention is longer than its exchange: all is hidden. */
    ck_assert(f.exchange < f.attend);
    ck_assert_double_eq_tol(f.exposed, 0, 1e-9);
}

TEST(decode_steps_long_prompts_and_the_slow_network) {
    const cp_forecast tp8 = gtt("gtt", 1, 1, 128000, CP_DECODE);
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        const cp_forecast cp = gtt("gtt", ranks, 1, 128000, CP_DECODE);
        ck_assert_double_eq_tol(cp.seconds - tp8.seconds,
                                126 * (cp.ring - tp8.ring), 1e-9);
        const double fast = gtt("gtt", ranks, 128000, 0, CP_PASS_KV).seconds;
        const double slow = gtt("gti", ranks, 128000, 0, CP_PASS_KV).seconds;
        ck_assert_double_le(slow / fast, 1.02);
        ck_assert_double_ge(slow / fast, 1);
    }
    for (int ranks = 8; ranks <= 16; ranks *= 2) {
        const double half = gtt("gtt", ranks, 512000, 0, CP_PASS_KV).seconds;
        const double full = gtt("gtt", ranks, 1024000, 0, CP_PASS_KV).seconds;
        ck_assert(full / half > 2 && full / half < 4);
    }
}

/* A prefill of the paper's model on its machine. */
static void chance_of_paper(chance *c, int ranks, int64_t fresh) {
    uint64_t seed = 14;
    chance_new(c, &seed);
    must(cp_hardware_read("gtt", NULL, &c->hardware));
    must(cp_model_sizes_read("llama3-405b", NULL, &c->model));
    c->scenario.ranks = ranks;
    c->scenario.tensor = 8;
    c->scenario.variant = CP_PASS_KV;
    c->fresh[0] = fresh;
}

LOOP(jitter_repeats_and_costs, 0, 2) {
    chance c;
    chance_of_paper(&c, 8, 32000);
    c.hardware.cores = _i;
    c.hardware.jitter = 200e-6;
    const double one = seconds_of(&c.scenario), again = seconds_of(&c.scenario);
    c.scenario.seed = 1;
    const double other = seconds_of(&c.scenario);
    c.hardware.jitter = 0;
    const double none = seconds_of(&c.scenario);
    ck_assert_double_eq(one, again);
    ck_assert_double_gt(fabs(one - other), 1e-6 * one);
    ck_assert_double_eq_tol(one / other, 1, 0.01);
    if (_i == 1)
        ck_assert_double_eq_tol(one / none, 1, 0.002);
    else
        ck_assert(one > none && other > none);
}

/* A message group is one hop: an all-to-all of N - 1 exchanges costs one step,
 * and where nothing hides, all its bytes once. */
static const struct {
    cp_variant variant;
    int ranks, steps;
} trades[] = {{CP_PASS_KV, 4, 4},
              {CP_ULYSSES, 2, 3},
              {CP_ULYSSES, 8, 3},
              {CP_MESH, 4, 4}};
LOOP(a_message_group_is_one_hop, 0, COUNT_OF(trades)) {
    chance c;
    chance_of_paper(&c, trades[_i].ranks, 4096);
    c.scenario.tensor = 1;
    c.scenario.variant = trades[_i].variant;
    c.hardware.jitter = c.hardware.step = 0;
    const double without = seconds_of(&c.scenario);
    c.hardware.step = 1;
    const double layers = (double)c.model.layers;
    ck_assert_double_eq_tol((seconds_of(&c.scenario) - without) / layers,
                            trades[_i].steps, 0.02);
}

/* However many tokens are verified together, a sequence's keys are read once
 * for them; padding rows, where they are computed, read as much again. */
LOOP(a_step_of_several_tokens_reads_keys_once, 0, 2) {
    const int64_t tokens[] = {1, 4, 5};
    double attend[3];
    chance c;
    chance_of_paper(&c, 4, 1);
    c.scenario.variant = CP_DECODE;
    c.past[0] = 128000;
    c.hardware.decode_attend = 0;
    c.hardware.decode_padding = _i;
    for (int n = 0; n < 3; n++) {
        cp_forecast forecast;
        c.fresh[0] = tokens[n];
        must(cp_simulate(&c.scenario, &forecast));
        attend[n] = forecast.attend;
    }
    ck_assert_double_eq_tol(attend[1] / attend[0], 1, 1e-3);
    ck_assert_double_eq_tol(attend[2] / attend[0], 1 + _i, 1e-3);
}

/* Nothing could hide under an all-to-all, so it costs no more where nothing
 * hides. */
TEST(an_all_to_all_is_copied_once) {
    chance c;
    double seconds[2];
    chance_of_paper(&c, 8, 4096);
    c.scenario.tensor = 1;
    c.scenario.variant = CP_ULYSSES;
    c.hardware.jitter = c.hardware.link_latency = c.hardware.node_latency = 0;
    for (int n = 0; n < 2; n++) {
        c.hardware.overlap = n;
        seconds[n] = seconds_of(&c.scenario);
    }
    ck_assert_double_eq_tol(seconds[0], seconds[1], 1e-3 * seconds[1]);
}

TEST(a_large_ring_is_quick) {
    chance c;
    chance_of_paper(&c, 128, 1000000);
    const clock_t start = clock();
    seconds_of(&c.scenario);
    ck_assert_double_lt((double)(clock() - start) / CLOCKS_PER_SEC, 2);
}

static const struct {
    const char *because;
    int64_t fresh[3], past[3], tensor;
    cp_variant variant;
} absurd[] = {
    {"--new, --cached: 1000000000000000000",
     {1000000000000000000},
     {0},
     1,
     CP_PASS_KV},
    {"--new, --cached: 9223372036854775807",
     {INT64_MAX},
     {INT64_MAX},
     1,
     CP_PASS_KV},
    {"2147483647 tokens of sequence 1", {2}, {2, INT32_MAX}, 1, CP_PASS_KV},
    {"and -1 tokens of sequence 1", {2}, {2, -1}, 1, CP_PASS_KV},
    {"--tensor 2: cannot share 9 query heads", {2}, {2}, 2, CP_PASS_KV},
    {"--tensor 0: cannot share", {2}, {2}, 0, CP_PASS_KV},
    {"no node_rate; 3 GPUs per rank need one", {2}, {2}, 3, CP_PASS_KV},
    {"new", {0}, {2}, 1, CP_PASS_KV},
    {"variant", {2}, {2}, 1, CP_AUTO},
};
LOOP(impossible_calls_are_refused, 0, 2 * COUNT_OF(absurd)) {
    chance c;
    cp_forecast forecast;
    uint64_t seed = 16;
    chance_new(&c, &seed);
    c.hardware.cores = _i % 2;
    memcpy(c.fresh, absurd[_i / 2].fresh, sizeof(c.fresh));
    memcpy(c.past, absurd[_i / 2].past, sizeof(c.past));
    c.scenario.tensor = absurd[_i / 2].tensor;
    c.scenario.variant = absurd[_i / 2].variant;
    ck_assert_int_ne(cp_simulate(&c.scenario, &forecast), CP_OK);
    ck_assert_ptr_nonnull(strstr(cp_message(), absurd[_i / 2].because));
}
