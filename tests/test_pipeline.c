/* Layers over ranks: pipelines counted by hand, and against a walk that knows
 * every piece. */
#include "expect.h"

#include <math.h>
#include <stdio.h>

#include "predict/pipeline.h"

/* A row takes a second in a layer, whose weights are 3 for q, k and v, one for
 * o and 3 more; the head takes a seventh, a pair nothing. A message takes two
 * seconds plus one for each row. */
static const char rows[] = "machine rows\nmemory 1 GB assumed\n"
                           "memory_rate 1e12 GB/s assumed\n"
                           "peak 14e-12 TFLOP/s assumed\n"
                           "linear_fraction 1 of-peak assumed\n"
                           "attention_rate 1e12 TFLOP/s assumed\n"
                           "link_rate 4e-9 GB/s assumed\n"
                           "link_latency 2e6 us assumed\n";

#define HEAD (1 / 7.0)

static const char one_wide[] =
    "model one\nwidth 1 numbers assumed\ninner 1 numbers assumed\n"
    "query_heads 1 heads assumed\nkv_heads 1 heads assumed\n"
    "head_dim 1 numbers assumed\nvocabulary 1 tokens assumed\n"
    "positions 9 tokens assumed\nparameters 1 numbers assumed\n"
    "tables 1 tables assumed\nattention_bits 32 bits assumed\n"
    "inner_bits 32 bits assumed\nhead_bits 32 bits assumed\n"
    "cache_bytes 4 B assumed\n";

#define PAIRS "attention_rate 4e-12 TFLOP/s assumed\n" /* one a second */
#define LATE "overlap 0 share assumed\n"
#define SLOW "link_rate 2e-9 GB/s assumed\n" /* two seconds a row */

static cp_hardware hardware;
static cp_model_sizes model;

static void describe(int layers, const char *lines) {
    char text[2000];
    must(cp_hardware_read("rows", rows, &hardware));
    const cp_description description = cp_hardware_description(&hardware);
    snprintf(text, sizeof(text), "machine rows\n%s", lines);
    must(cp_description_change(&description, "lines", text));
    hardware.attention_alone = hardware.attention_rate;
    if (strstr(lines, LATE) == NULL)
        hardware.decode_overlap = 1;
    snprintf(text, sizeof(text), "%slayers %d layers assumed\n", one_wide,
             layers);
    must(cp_model_sizes_read("one", text, &model));
}

static cp_scenario call_of(int stages, int64_t count, const int64_t *fresh,
                           const int64_t *past, cp_variant variant) {
    return (cp_scenario){.hardware = &hardware,
                         .model = &model,
                         .ranks = stages,
                         .tensor = 1,
                         .sequences = count,
                         .new_tokens = fresh,
                         .cached_tokens = past,
                         .variant = variant};
}

/* Prompts of one sequence over stages of two layers, in pieces of 8. */
static const struct {
    const char *lines;
    int stages;
    int64_t fresh, past;
    double seconds, busy; /* all stages together, the head apart */
} prompts[] = {
    {"", 1, 24, 0, 48, 48},
    {"", 2, 24, 0, 16 + 10 + 48, 96},
    {"", 3, 8, 0, 16 + 10 + 16 + 10 + 16, 48},
    {"", 2, 20, 0, 16 + 10 + 16 + 16 + 8, 80},
    {"", 2, 4, 5, 8 + 6 + 8, 16},
    {LATE, 2, 24, 0, 3 * (16 + 10) + 16, 96},
    {"overlap 0.5 share assumed\n", 2, 24, 0, 16 + 2 * 21 + 10 + 16, 96},
    {SLOW, 2, 24, 0, 16 + 3 * 18 + 16, 96},
    {"step 1e6 us assumed\n", 2, 24, 0, 17 + 10 + 3 * 17, 96},
    {"step 1e6 us assumed\n", 1, 24, 0, 48, 48},
    {PAIRS, 1, 24, 0, 48 + 2 * 300, 48 + 2 * 300},
    /* Pieces of 16 + 72, 16 + 200 and 16 + 328 seconds: the last waits. */
    {PAIRS, 2, 24, 0, 88 + 216 + 344 + 10 + 344, 96 + 4 * 300},
    {PAIRS, 2, 24, 100, 88 + 216 + 344 + 10 + 344 + 4 * 1600,
     96 + 4 * 300 + 4 * 2400},
    {PAIRS, 2, 8, 16, 344 + 10 + 344, 688},
};

LOOP(prompts_are_as_by_hand, 0, COUNT_OF(prompts)) {
    const int stages = prompts[_i].stages;
    const int64_t fresh = prompts[_i].fresh;
    describe(2 * stages, prompts[_i].lines);
    const cp_scenario call =
        call_of(stages, 1, &fresh, &prompts[_i].past, CP_PASS_KV);
    const double seconds = prompts[_i].seconds + HEAD;
    cp_forecast f;
    must(cp_pipeline(&call, 8, &f));
    ck_assert_double_eq_tol(f.seconds, seconds, 1e-6);
    ck_assert_double_eq_tol(f.busy, prompts[_i].busy / stages / seconds, 1e-9);
    ck_assert_double_eq_tol(f.idle, (seconds - prompts[_i].busy / stages) / 2,
                            1e-6);
    ck_assert_int_eq(f.pieces, (fresh + 7) / 8);
    ck_assert_double_eq(f.sent, stages > 1 ? 4 * (double)fresh : 0);
    /* 28 bytes of weights a layer, and one table of 4; 8 a cached token. */
    ck_assert_double_eq(f.weights, 2 * 28 + 4);
    ck_assert_double_eq(f.cache, 2 * 8 * (double)(fresh + prompts[_i].past));
}

/* Decode steps: two layers a stage. */
static const struct {
    const char *lines;
    int stages;
    int64_t batch;
    double seconds;
} steps[] = {
    {"", 1, 3, 6 + HEAD},
    {"", 2, 1, 2 + 3 + 2 + HEAD + 2},
    {"", 2, 4, 4 + 4 + 4 + HEAD + 2},
    {"", 3, 3, 2 + 3 + 2 + 3 + 2 + HEAD + 2},
    /* Groups of 1 and 2: the larger one decides. */
    {"", 2, 3, 4 + 4 + 4 + HEAD + 2},
    /* With nearly free messages, the last stage is never idle. */
    {"link_latency 0 us assumed\nlink_rate 1 GB/s assumed\n", 2, 2,
     2 * (2 + HEAD)},
    {"link_latency 0 us assumed\nlink_rate 1 GB/s assumed\n", 2, 1,
     2 + 2 + HEAD},
};

LOOP(steps_are_as_by_hand, 0, COUNT_OF(steps)) {
    static const int64_t fresh[] = {1, 1, 1, 1}, past[] = {7, 7, 7, 7};
    describe(2 * steps[_i].stages, steps[_i].lines);
    const cp_scenario call =
        call_of(steps[_i].stages, steps[_i].batch, fresh, past, CP_DECODE);
    cp_forecast f;
    must(cp_pipeline(&call, 0, &f));
    ck_assert_double_eq_tol(f.seconds, steps[_i].seconds, 1e-6);
    ck_assert_double_eq(f.cache, 2 * 8 * 8 * (double)steps[_i].batch);
    ck_assert_int_eq(f.pieces, cp_min(steps[_i].stages, steps[_i].batch));
}

/* The time of each piece simulated alone, and a table of dependencies:
 * end[u][s] is after end[u][s - 1] and its message, and after end[u - 1][s]. */
static double every_piece(const cp_scenario *call, int64_t piece) {
    static double end[64][8], sent[64][8];
    int u = 0;
    for (int64_t i = 0; i < call->sequences; i++)
        for (int64_t done = 0; done < call->new_tokens[i]; done += piece, u++) {
            const int64_t fresh = cp_min(piece, call->new_tokens[i] - done);
            const int64_t past = call->cached_tokens[i] + done;
            cp_scenario one = *call;
            cp_forecast f;
            one.ranks = 1;
            one.sequences = 1;
            one.new_tokens = &fresh;
            one.cached_tokens = &past;
            must(cp_simulate(&one, &f));
            const double takes = 2 + (double)fresh;
            int64_t before = 0;
            for (int s = 0; s < call->ranks; s++) {
                const int64_t until = (int64_t)round((double)model.layers *
                                                     (s + 1) / call->ranks);
                double start = u > 0 ? end[u - 1][s] : 0;
                if (s > 0)
                    start = fmax(start, sent[u][s - 1]);
                end[u][s] = start + (f.seconds - HEAD) *
                                        (double)(until - before) /
                                        (double)model.layers;
                sent[u][s] =
                    takes + fmax(end[u][s], u > 0 ? sent[u - 1][s] : 0);
                before = until;
            }
        }
    return end[u - 1][call->ranks - 1] + HEAD;
}

LOOP(ragged_batches_are_as_piece_by_piece, 0, 40) {
    static const int64_t fresh[][4] = {
        {1, 0, 9, 30}, {5, 5, 5, 5}, {31, 1, 1, 2}, {0, 0, 64, 0}};
    static const int64_t past[] = {0, 11, 3, 100};
    const int stages = 1 + _i % 5;
    const int64_t piece = 1 + 7 * (_i / 10);
    describe(5 + _i % 7, PAIRS);
    const cp_scenario call =
        call_of(stages, 4, fresh[_i % 4], past, CP_PASS_KV);
    cp_forecast f;
    must(cp_pipeline(&call, cp_max(piece, 3), &f));
    const double expected = every_piece(&call, cp_max(piece, 3));
    ck_assert_double_eq_tol(f.seconds, expected, 1e-6 * expected);
}

TEST(the_size_of_pieces_is_the_fastest_tried) {
    const int64_t fresh = 100000, past = 0;
    describe(8, PAIRS);
    hardware.attention_alone = 4e6;
    hardware.peak = hardware.peak_8bit = 14e3;
    const cp_scenario call = call_of(4, 1, &fresh, &past, CP_PASS_KV);
    cp_forecast best, f;
    must(cp_pipeline(&call, 0, &best));
    must(cp_pipeline(&call, 25000, &f));
    ck_assert_double_lt(best.seconds, f.seconds);
    for (int64_t piece = 25000; piece >= CP_PIECE_LEAST;
         piece = cp_ceil_divide(piece, 2)) {
        must(cp_pipeline(&call, piece, &f));
        ck_assert_double_ge(f.seconds * (1 + 1e-9), best.seconds);
    }
}

/* Layers by speed: 1, 1 and 5 of seven; all stages take the same time. */
TEST(unlike_devices_have_unlike_shares) {
    const int64_t fresh = 70, past = 0;
    describe(7, "device_speed 1 1 times assumed\n"
                "device_speed 2 1 times assumed\n"
                "device_speed 3 5 times assumed\n");
    static const int order[] = {2, 0, 1};
    cp_scenario call = call_of(3, 1, &fresh, &past, CP_PASS_KV);
    cp_forecast f;
    must(cp_pipeline(&call, 70, &f));
    ck_assert_double_eq_tol(f.seconds, 3 * 70 + 2 * 72 + HEAD, 1e-6);
    call.devices = order;
    must(cp_pipeline(&call, 70, &f));
    ck_assert_double_eq_tol(f.seconds, 3 * 70 + 2 * 72 + HEAD, 1e-6);
    ck_assert_double_eq(f.weights, 5 * 28 + 4);
}

/* A sequence without new tokens takes no time, and keeps its cache. */
TEST(idle_sequences_have_a_cache) {
    static const int64_t fresh[] = {0, 8, 0}, past[] = {16, 3, 0};
    static const int64_t step[] = {1, 0, 0}, kept[] = {7, 9, 0};
    describe(4, "");
    cp_scenario call = call_of(2, 3, fresh, past, CP_PASS_KV);
    cp_forecast f;
    must(cp_pipeline(&call, 8, &f));
    ck_assert_double_eq_tol(f.seconds, 16 + 10 + 16 + HEAD, 1e-6);
    ck_assert_double_eq(f.cache, 2 * 8 * (16 + 8 + 3));
    call = call_of(3, 3, step, kept, CP_DECODE);
    describe(6, "");
    must(cp_pipeline(&call, 0, &f));
    ck_assert_double_eq_tol(f.seconds, 2 + 3 + 2 + 3 + 2 + HEAD + 2, 1e-6);
    ck_assert_double_eq(f.cache, 2 * 8 * (8 + 9));
    ck_assert_double_eq(f.sent, 4);
}

TEST(one_stage_is_one_rank) {
    const int64_t fresh[] = {40, 3}, past[] = {2, 50};
    describe(3, PAIRS);
    model.tables = 2;
    cp_scenario call = call_of(1, 2, fresh, past, CP_PASS_KV);
    cp_forecast f, expected;
    must(cp_simulate(&call, &expected));
    must(cp_pipeline(&call, 40, &f));
    ck_assert_double_eq_tol(f.seconds, expected.seconds, 1e-6);
    ck_assert_double_eq(f.weights, expected.weights);
    ck_assert_double_eq(f.cache, expected.cache);
    ck_assert_double_eq_tol(f.flops, expected.flops, 1e-6);
    ck_assert_double_eq_tol(f.busy, 1 - HEAD / f.seconds, 1e-9);
    call.kept = true;
    hardware.call = 9;
    must(cp_pipeline(&call, 40, &f));
    ck_assert_double_eq_tol(f.seconds, expected.seconds + 9, 1e-6);
}

TEST(impossible_cuts_are_refused) {
    const int64_t fresh = 4, past = 0;
    describe(2, "");
    cp_scenario call = call_of(3, 1, &fresh, &past, CP_PASS_KV);
    cp_forecast f;
    refuses(cp_pipeline(&call, 0, &f), CP_INVALID, "3 stages for 2 layers");
    call.ranks = 2;
    call.tensor = 2;
    refuses(cp_pipeline(&call, 0, &f), CP_INVALID, "--tensor 2");
}
