/* Experts beside context parallelism: what a layer sends to them, counted by
 * hand and by enumerating every choice; and invalid descriptions. */
#include "expect.h"

#include <math.h>

#include "predict/experts.h"
#include "predict/simulate.h"

/* The mean number of rows that leave their GPU, over all GPUs and all choices
 * of experts, if expert x is on GPU x mod gpus. */
static double copies_by_looking(int experts, int used, int gpus) {
    int64_t copies = 0, choices = 0;
    for (int chosen = 0; chosen < 1 << experts; chosen++) {
        if (__builtin_popcount((unsigned)chosen) != used)
            continue;
        choices++;
        for (int home = 0; home < gpus; home++) {
            int receivers = 0;
            for (int x = 0; x < experts; x++)
                receivers |= chosen >> x & 1 ? 1 << x % gpus : 0;
            copies += __builtin_popcount((unsigned)(receivers & ~(1 << home)));
        }
    }
    return (double)copies / (double)(choices * gpus);
}

static const struct {
    int experts, used, gpus;
    double held;
} counted[] = {{1, 1, 1, 1},  {4, 1, 4, 1}, {4, 2, 2, 2}, {8, 3, 1, 8},
               {8, 8, 4, 2},  {8, 3, 2, 4}, {8, 1, 8, 1}, {8, 2, 8, 1},
               {12, 4, 3, 4}, {4, 2, 7, 1}, {6, 5, 3, 2}, {5, 2, 16, 1}};

LOOP(copies_are_the_mean_over_all_choices, 0, COUNT_OF(counted)) {
    const cp_model_sizes model = {.experts = counted[_i].experts,
                                  .experts_used = counted[_i].used};
    const cp_experts experts = cp_experts_of(&model, counted[_i].gpus, 5);
    ck_assert_double_eq_tol(experts.copies,
                            copies_by_looking(counted[_i].experts,
                                              counted[_i].used,
                                              counted[_i].gpus),
                            1e-12);
    ck_assert_double_eq(experts.held, counted[_i].held);
    ck_assert_double_eq_tol(
        experts.pairs,
        5.0 * counted[_i].used * experts.held / counted[_i].experts, 1e-12);
}

TEST(few_tokens_use_few_experts) {
    const cp_model_sizes model = {.experts = 4, .experts_used = 2};
    static const double touched[] = {0, 1, 1.5, 1.75};
    for (int tokens = 0; tokens < 4; tokens++)
        ck_assert_double_eq_tol(cp_experts_of(&model, 2, tokens).touched,
                                touched[tokens], 1e-12);
    const cp_model_sizes dense = {.inner = 7, .layers = 2};
    ck_assert_double_eq(cp_experts_of(&dense, 2, 9).copies, 0);
    ck_assert_double_eq(cp_mean_inner(&dense), 7);
}

/* Four experts of 8 numbers, two of them used, and a shared one; of three
 * layers the first is dense. */
static const char few[] =
    "model few\nlayers 3 layers assumed\nwidth 16 numbers assumed\n"
    "inner 32 numbers assumed\nquery_heads 4 heads assumed\n"
    "kv_heads 2 heads assumed\nhead_dim 4 numbers assumed\n"
    "vocabulary 10 tokens assumed\npositions 9 tokens assumed\n"
    "parameters 10000 numbers assumed\ntables 2 tables assumed\n"
    "attention_bits 16 bits assumed\ninner_bits 8 bits assumed\n"
    "head_bits 32 bits assumed\ncache_bytes 2 B assumed\n"
    "experts 4 experts assumed\nexperts_used 2 experts assumed\n"
    "experts_shared 1 experts assumed\nexpert_inner 8 numbers assumed\n"
    "dense_layers 1 layers assumed\n";

/* 5/6 of a GPU's 12 rows, of 16 numbers of 2 bytes, leave. */
static const char slow[] =
    "machine slow\nmemory 1 GB assumed\nmemory_rate 1e12 GB/s assumed\n"
    "peak 1e12 TFLOP/s assumed\nlinear_fraction 1 of-peak assumed\n"
    "attention_rate 1e12 TFLOP/s assumed\nlink_rate 1e12 GB/s assumed\n"
    "link_latency 0 us assumed\nnode_rate 1e12 GB/s assumed\n"
    "all_to_all_rate 160e-9 GB/s assumed\n"
    "all_to_all_latency 3e6 us assumed\n"
    "decode_all_to_all 5e6 us assumed\n";

static cp_hardware hardware;
static cp_model_sizes model;

static cp_forecast forecast_of(cp_variant variant, int ranks, int64_t tensor,
                               int64_t fresh) {
    const int64_t none = 0, kept = 7;
    const cp_scenario call = {.hardware = &hardware,
                              .model = &model,
                              .ranks = ranks,
                              .tensor = tensor,
                              .sequences = 1,
                              .new_tokens = &fresh,
                              .cached_tokens = fresh > 1 ? &none : &kept,
                              .variant = variant};
    cp_forecast forecast;
    must(cp_hardware_read("slow", slow, &hardware));
    must(cp_model_sizes_read("few", few, &model));
    must(cp_simulate(&call, &forecast));
    return forecast;
}

TEST(bytes_and_seconds_are_as_by_hand) {
    /* Rows of 32 bytes; both ways in two of three layers. */
    cp_forecast f = forecast_of(CP_PASS_KV, 2, 1, 24);
    ck_assert_double_eq_tol(f.routed, 12 * 5 / 6.0 * 32, 1e-9);
    ck_assert_double_eq_tol(f.routing, (3 + 320 / 160.0) * 2 * 2 / 3, 1e-9);
    ck_assert_double_eq_tol(f.seconds, 3 * f.routing, 1e-3);
    ck_assert_double_eq_tol(f.reducing, f.routing, 1e-9);
    /* The GPUs of a rank share its rows. */
    f = forecast_of(CP_PASS_KV, 1, 2, 24);
    ck_assert_double_eq_tol(f.routed, 320, 1e-9);
    ck_assert_double_lt(f.routing, f.reducing);
    /* Everything stays local. */
    f = forecast_of(CP_PASS_KV, 1, 1, 24);
    ck_assert_double_eq(f.routed, 0);
    ck_assert_double_eq(f.routing, 0);
    /* A step of one token: a padded row on each rank, or half of it. */
    f = forecast_of(CP_DECODE, 2, 1, 1);
    ck_assert_double_eq_tol(f.routed, 5 / 6.0 * 32, 1e-9);
    ck_assert_double_eq_tol(f.routing, (5 + 32 / 192.0) * 4 / 3, 1e-9);
    f = forecast_of(CP_HELIX, 2, 1, 1);
    ck_assert_double_eq_tol(f.routed, 5 / 12.0 * 32, 1e-9);
}

TEST(a_node_keeps_its_messages) {
    cp_forecast f = forecast_of(CP_PASS_KV, 2, 1, 24);
    hardware.gpus_per_node = 2;
    hardware.node_rate = 320;
    hardware.node_latency = 1;
    const int64_t fresh = 24, none = 0;
    const cp_scenario call = {.hardware = &hardware,
                              .model = &model,
                              .ranks = 2,
                              .tensor = 1,
                              .sequences = 1,
                              .new_tokens = &fresh,
                              .cached_tokens = &none,
                              .variant = CP_PASS_KV};
    must(cp_simulate(&call, &f));
    ck_assert_double_eq_tol(f.routing, (1 + 1) * 2 * 2 / 3.0, 1e-9);
}

TEST(weights_are_as_by_hand) {
    const double attention = 3 * 16 * (16 + 2 * 8 + 16) * 2, tables = 320 * 4;
    const double dense = 3 * 16 * 32, expert = 3 * 16 * 8;
    cp_forecast f = forecast_of(CP_PASS_KV, 1, 1, 24);
    ck_assert_double_eq(f.weights, attention + tables + dense + 2 * 5 * expert);
    f = forecast_of(CP_PASS_KV, 2, 1, 24);
    ck_assert_double_eq(f.weights, attention + tables + dense + 2 * 3 * expert);
    f = forecast_of(CP_PASS_KV, 1, 2, 24);
    ck_assert_double_eq(f.weights, (attention + tables + dense) / 2 +
                                       2 * (2 + 0.5) * expert);
    /* A step that begins with heads divides all weights by ranks, experts
     * once. */
    f = forecast_of(CP_HELIX, 2, 1, 1);
    ck_assert_double_eq(f.weights, (attention + tables + dense) / 2 +
                                       2 * (2 + 0.5) * expert);
    ck_assert_double_eq(cp_active_parameters(&model), 10000 - 2 * 2 * expert);
    ck_assert_double_eq_tol(cp_mean_inner(&model), (32 + 2 * 24) / 3.0, 1e-12);
}

/* A step of one token reads the experts that it uses; a prompt reads all. */
TEST(a_step_reads_what_it_uses) {
    forecast_of(CP_DECODE, 1, 1, 1);
    hardware.memory_rate = 16;
    hardware.decode_weight_fraction = 1;
    const int64_t one = 1, none = 0;
    cp_scenario call = {.hardware = &hardware,
                        .model = &model,
                        .ranks = 1,
                        .tensor = 1,
                        .sequences = 1,
                        .new_tokens = &one,
                        .cached_tokens = &none,
                        .variant = CP_DECODE};
    cp_forecast f;
    must(cp_simulate(&call, &f));
    const double attention = 16 * (16 + 2 * 8 + 16) * 2;
    const double dense = 3 * 16 * 32, expert = 3 * 16 * 8;
    ck_assert_double_eq_tol(
        f.linear, (attention + (dense + 2 * (1 + 2) * expert) / 3) / 16, 1e-6);
}

static const struct {
    const char *line, *why;
} absurd[] = {
    {"experts 4 experts", "experts_used: 0 of 4 experts"},
    {"experts_used 4 experts", "experts_used: 4 of 0 experts"},
    {"expert_inner 4 numbers", "expert_inner: 4 numbers of 0 experts"},
    {"experts 4 experts assumed\nexperts_used 5 experts", "5 of 4"},
    {"experts 4 experts assumed\nexperts_used 2 experts", "expert_inner: 0"},
    {"dense_layers 33 layers", "33 of 32"},
};

LOOP(absurd_experts_are_refused, 0, COUNT_OF(absurd)) {
    char text[300];
    snprintf(text, sizeof(text), "model m\nlike llama3-8b\n%s assumed\n",
             absurd[_i].line);
    refuses(cp_model_sizes_read("m", text, &model), CP_INVALID, absurd[_i].why);
}
