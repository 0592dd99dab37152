/* The whole model against float64, against one rank, and against the reference
 * values of a real file; and what happens when a call fails. */
#define _GNU_SOURCE
#include "model/session.h"
#include "group/agree.h"
#include "plan/check.h"
#include "reference/model/model.h"
#include "variants/choose.h"
#include "model/arena.h"
#include "model/sample.h"
#include "tests/harness/gguf_blocks.h"
#include "tests/harness/golden.h"
#include "tests/harness/naive_llama.h"
#include "tests/harness/shell.h"
#include "expect.h"
#include "tests/harness/tiny_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    tiny_bytes bytes;
    cp_gguf *file;
    cp_model *model;
    int64_t words;
} fixture;

/* What a test has opened; closed after it. */
static fixture f;
static cp_session *sessions[12];
static int session_count;

static void begin_test(void) {
    f = (fixture){.words = 0};
    session_count = 0;
}

static void close_all(void) {
    while (session_count > 0)
        cp_session_close(sessions[--session_count]);
    cp_model_close(f.model);
    cp_gguf_close(f.file);
    free(f.bytes.bytes);
}

AROUND_EACH(begin_test, close_all);

static void parse_file(void) {
    must(cp_gguf_parse(f.bytes.bytes, f.bytes.length, &f.file));
}

static void open_tiny(const tiny_gguf_options *options) {
    f.words = tiny_gguf_vocabulary_size(options);
    tiny_gguf_build(options, &f.bytes);
    parse_file();
    must(cp_model_open(&cp_backend_threads, f.file, &f.model));
    ck_assert_int_eq(f.model->facts.vocabulary, f.words);
}

static cp_session *open_with(const cp_session_options *options) {
    must(cp_session_open(f.model, options, &sessions[session_count]));
    return sessions[session_count++];
}

static cp_session *open_session(int ranks, int64_t sequences,
                                cp_variant variant) {
    return open_with(&(cp_session_options){.ranks = ranks,
                                           .sequences = sequences,
                                           .variant = variant,
                                           .cores = 2});
}

static float *logits_of(int64_t tokens) {
    return room_for(tokens * f.words, sizeof(float));
}

static void feed(cp_session *session, const int32_t *tokens, const int *cuts,
                 float *logits) {
    const int64_t before = cp_session_length(session, 0);
    int64_t position = 0;
    for (; *cuts != 0; cuts++) {
        const int64_t count = *cuts > 0 ? *cuts : 1;
        for (int n = 0; n < (*cuts > 0 ? 1 : -*cuts); n++) {
            if (*cuts > 0)
                must(cp_session_prefill(session, &count, tokens + position,
                                        NULL));
            else
                must(cp_session_decode(session, &count, tokens + position,
                                       NULL));
            must(cp_session_logits(session, 0, count,
                                   logits + position * f.words));
            position += count;
        }
    }
    ck_assert_int_eq(cp_session_length(session, 0), before + position);
}

static int32_t *make_up(int64_t count, uint64_t seed) {
    int32_t *tokens = room_for(count, sizeof(int32_t));
    uint64_t state = seed;
    for (int64_t t = 0; t < count; t++)
        tokens[t] = t >= 17
                        ? tokens[t - 17]
                        : (int32_t)(harness_random(&state) % (uint64_t)f.words);
    return tokens;
}

static void same_words(const float *expected, const float *got, int64_t count) {
    const int64_t words = f.words;
    float largest = 0.0f, worst = 0.0f;
    for (int64_t i = 0; i < count * words; i++) {
        hold(isfinite(expected[i]) && isfinite(got[i]));
        largest = fmaxf(largest, fabsf(expected[i]));
        worst = fmaxf(worst, fabsf(expected[i] - got[i]));
    }
    ck_assert_msg(worst <= 1e-5f * largest, "off by %g of %g", (double)worst,
                  (double)largest);
    for (int64_t t = 0; t < count; t++)
        hold(cp_sample_greedy(expected + t * words, words) ==
             cp_sample_greedy(got + t * words, words));
}

static void agrees_with_naive(const tiny_gguf_options *options) {
    enum { COUNT = 23 };
    open_tiny(options);
    int32_t *tokens = make_up(COUNT, 11);
    float *expected = logits_of(COUNT), *got = logits_of(COUNT);
    naive_llama(f.file, COUNT, tokens, expected);
    feed(open_session(1, 1, CP_AUTO), tokens, (int[]){COUNT, 0}, got);
    same_words(expected, got, COUNT);
}

LOOP(test_every_weight_type, 0, COUNT_OF(block_types)) {
    const int t = block_types[_i];
    const bool blocks_of_256 =
        (t >= CP_GGUF_Q2_K && t <= CP_GGUF_Q6_K) || t == CP_GGUF_IQ4_XS;
    const tiny_gguf_options options = {.width = blocks_of_256 ? 256 : 64,
                                       .feed_forward = blocks_of_256 ? 256 : 96,
                                       .embedding = t,
                                       .query = t,
                                       .key = t,
                                       .value = t,
                                       .attention_output = t,
                                       .gate = t,
                                       .up = t,
                                       .down = t,
                                       .seed = (uint64_t)t + 3};
    agrees_with_naive(&options);
}

static const tiny_gguf_options tiny_shapes[] = {
    {.seed = 1, .heads = 4, .kv_heads = 4},
    {.seed = 2, .heads = 3, .kv_heads = 1, .width = 96},
    {.seed = 3, .heads = 7, .kv_heads = 1, .head_dim = 32},
    {.seed = 4, .heads = 6, .kv_heads = 2, .head_dim = 80, .rope_dim = 32},
    {.seed = 5, .rope_freqs = true, .rope_base = 500000},
    {.seed = 6, .output = true, .output_type = CP_GGUF_Q8_0, .blocks = 3},
    {.seed = 7, .vocabulary = TINY_LLAMA3, .feed_forward = 32},
    {.seed = 8, .family = "qwen2"},
    {.seed = 9, .family = "qwen2", .heads = 8, .kv_heads = 1, .width = 128},
    {.seed = 10, .family = "qwen3", .head_dim = 32, .rope_base = 1e6},
    {.seed = 11,
     .family = "qwen3",
     .heads = 6,
     .kv_heads = 6,
     .head_dim = 24,
     .rope_dim = 16,
     .output = true},
    {.seed = 12, .family = "qwen35", .rope_dim = 4},
    {.seed = 13,
     .family = "qwen35",
     .blocks = 6,
     .period = 3,
     .state_heads = 6,
     .taps = 3,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 32,
     .rope_dim = 8},
    {.seed = 14, .family = "qwen35", .state_heads = 2, .taps = 1, .period = 4},
};

LOOP(test_every_shape, 0, COUNT_OF(tiny_shapes)) {
    agrees_with_naive(&tiny_shapes[_i]);
}

enum { TEXT = 53 };

static const int uncut[] = {TEXT, 0};
static const int *const ways[] = {
    uncut,
    (int[]){20, -9, 24, 0},
    (int[]){1, -1, 1, 30, -20, 0},
    (int[]){-5, 40, 3, -5, 0},
};

static const cp_variant variants[] = {CP_AUTO, CP_PASS_KV, CP_PASS_Q,
                                      CP_ALL_GATHER};

static const int rank_counts[] = {1, 2, 3, 4, 5, 8, 16};

static const tiny_gguf_options families[] = {
    {.seed = 21, .rope_freqs = true},
    {.seed = 22, .family = "qwen2"},
    {.seed = 24, .family = "qwen3"},
    {.seed = 25, .family = "qwen35", .rope_dim = 8},
};

LOOP(test_ranks_agree, 0, 7 * COUNT_OF(families)) {
    open_tiny(&families[_i / 7]);
    int32_t *tokens = make_up(TEXT, 5);
    float *expected = logits_of(TEXT);
    float *got = logits_of(TEXT);
    cp_session *one = open_session(1, 1, CP_AUTO);
    feed(one, tokens, uncut, expected);
    for (int n = 0; n < 7; n++) { /* whole by each variant, then by three
                                     variants */
        const cp_variant variant = variants[n < 4 ? n : (n + _i) % 4];
        cp_session *many = open_session(rank_counts[_i % 7], 1, variant);
        feed(many, tokens, ways[n < 4 ? 0 : n - 3], got);
        same_words(expected, got, TEXT);
    }
}

enum { MOST = 5, STEPS = 6 };

static void decode_together(cp_session *batch, cp_session **alone,
                            int64_t count, int32_t *tokens, float *rows) {
    static const int64_t ones[MOST] = {1, 1, 1, 1, 1};
    const int64_t words = f.words;
    float *expected = logits_of(1);
    must(cp_session_decode(batch, ones, tokens, NULL));
    must(cp_session_logits(batch, 0, count, rows));
    for (int64_t i = 0; i < count; i++) {
        must(cp_session_decode(alone[i], ones, &tokens[i], NULL));
        must(cp_session_logits(alone[i], 0, 1, expected));
        same_words(expected, rows + i * words, 1);
        tokens[i] = cp_sample_greedy(rows + i * words, words);
    }
}

LOOP(test_batches_agree, 0, 4 * MOST) {
    static const int64_t lengths[MOST] = {9, 1, 30, 2, 13};
    const int64_t count = 1 + _i % MOST;
    const int ranks = _i / MOST % 2 == 0 ? 3 : 4;
    open_tiny(&(tiny_gguf_options){.seed = 8,
                                   .family = _i < 2 * MOST ? NULL : "qwen35"});
    int32_t *text = make_up(64, 3), next[MOST] = {1, 2, 3, 4, 5};
    float *rows = logits_of(MOST);
    cp_session *alone[MOST], *batch = open_session(ranks, count, CP_AUTO);
    must(cp_session_prefill(batch, lengths, text, NULL));
    for (int64_t s = 0, at = 0; s < count; at += lengths[s++]) {
        alone[s] = open_session(1, 1, CP_AUTO);
        must(cp_session_prefill(alone[s], &lengths[s], text + at, NULL));
    }
    for (int step = 0; step < STEPS; step++)
        decode_together(batch, alone, count, next, rows);
    /* Continue a part of the batch with a prefill. */
    int64_t new_tokens[MOST] = {0};
    new_tokens[count - 1] = 7;
    must(cp_session_prefill(batch, new_tokens, text, NULL));
    must(cp_session_prefill(alone[count - 1], &new_tokens[count - 1], text,
                            NULL));
    decode_together(batch, alone, count, next, rows);
    ck_assert_int_eq(cp_session_length(batch, 0),
                     lengths[0] + STEPS + 1 + new_tokens[0]);
}

static const int64_t unlike[] = {3, 1, 2, 5, 1, 1, 4};
static const cp_dealing dealings[] = {
    {.placement = CP_ZIGZAG},
    {.placement = CP_INTERLEAVE, .block = 4},
    {.placement = CP_NAIVE},
    {.placement = CP_ZIGZAG, .weights = unlike},
};
static const int odd_ranks[] = {1, 2, 3, 5, 7};

/* Tokens of two conversations verified in one call: those of the text, followed
 * by wrong ones, which are taken back. */
static void verify(cp_session *session, const int32_t *text,
                   const int64_t right[2], const int64_t wrong[2],
                   float *rows) {
    int64_t lengths[2], before[2], count = 0;
    int32_t tokens[32];
    cp_turn_report report;
    for (int s = 0; s < 2; s++) {
        before[s] = cp_session_length(session, s);
        lengths[s] = right[s] + wrong[s];
        for (int64_t t = 0; t < lengths[s]; t++, count++)
            tokens[count] = t < right[s] ? text[before[s] + t] : (int32_t)t;
    }
    must(cp_session_decode(session, lengths, tokens, &report));
    ck_assert_int_eq(report.variant, CP_DECODE);
    for (int s = 0; s < 2; s++)
        must(cp_session_truncate(session, s, before[s] + right[s]));
    for (int64_t s = 0, row = 0; s < 2; row += lengths[s++])
        if (right[s] > 0)
            must(cp_session_logits(session, row, right[s],
                                   rows + (s * TEXT + before[s]) * f.words));
}

LOOP(truncated_tokens_leave_no_trace, 0,
     COUNT_OF(dealings) * COUNT_OF(odd_ranks)) {
    open_tiny(&(tiny_gguf_options){.seed = 23});
    const cp_session_options options = {
        .ranks = odd_ranks[_i % COUNT_OF(odd_ranks)],
        .sequences = 2,
        .capacity = 80,
        .dealing = dealings[_i / COUNT_OF(odd_ranks)],
        .cores = 2};
    int32_t *text = make_up(TEXT, 6);
    float *expected = logits_of(TEXT), *rows = logits_of(2 * TEXT);
    uint64_t random = (uint64_t)_i + 1;
    feed(open_session(1, 1, CP_AUTO), text, uncut, expected);
    cp_session *session = open_with(&options);
    while (cp_session_length(session, 0) < TEXT ||
           cp_session_length(session, 1) < TEXT) {
        int64_t right[2], wrong[2];
        for (int s = 0; s < 2; s++) {
            const int64_t left = TEXT - cp_session_length(session, s);
            right[s] = cp_min(left, (int64_t)(harness_random(&random) % 6));
            wrong[s] =
                right[s] == 0 ? 0 : (int64_t)(harness_random(&random) % 6);
        }
        if (right[0] + right[1] > 0)
            verify(session, text, right, wrong, rows);
    }
    for (int s = 0; s < 2; s++)
        same_words(expected, rows + s * TEXT * f.words, TEXT);
    refuses(cp_session_truncate(session, 2, 0), CP_INVALID, "sequence 2 of 2");
    refuses(cp_session_truncate(session, 0, TEXT + 1), CP_INVALID,
            "cannot be cut to 54");
    must(cp_session_truncate(session, 0, 0));
    must(cp_session_prefill(session, (int64_t[]){TEXT, 0}, text, NULL));
    must(cp_session_logits(session, 0, TEXT, rows));
    same_words(expected, rows, TEXT);
}

static volatile sig_atomic_t stop;

static void stop_at_once(void *context, int64_t done, int64_t total) {
    const bool *armed = context;
    ck_assert(done >= 1 && done <= total);
    if (*armed)
        stop = 1;
}

/* Three conversations begin with the same text, in pages that would not hold it
 * three times. Each answers as it does alone, and a call that is stopped after
 * one layer, with two of them appending to one page, leaves nothing behind. */
/* What one rank tells the others, kept for the next. */
static char record[256];

static cp_status keep_record(void *items, int64_t bytes) {
    memcpy(record, (char *)items + bytes, (size_t)bytes);
    memcpy(items, record, (size_t)bytes);
    return CP_OK;
}

static cp_status hand_record(void *items, int64_t bytes) {
    memcpy((char *)items + bytes, record, (size_t)bytes);
    return CP_OK;
}

TEST(ranks_agree_on_the_batch_that_they_decode) {
    const cp_process_group first = {0, 2, .all_gather = hand_record};
    const cp_process_group second = {1, 2, .all_gather = keep_record};
    const int64_t batches[2][3] = {{1, 1, 0}, {1, 0, 1}};
    cp_layout *layouts[2];
    cp_plan *plans[2];
    for (int n = 0; n < 2; n++) {
        const cp_call call = {.ranks = 2,
                              .sequences = 3,
                              .new_tokens = batches[n],
                              .room = 9,
                              .dealing.placement = CP_ROUND_ROBIN};
        must(cp_layout_new(&call, &layouts[n]));
        must(cp_plan_build(CP_DECODE, layouts[n], &(cp_shape){1, 1, 2}, NULL,
                           &plans[n]));
    }
    must(cp_agree_on_plan(&second, plans[1], 7, CP_OK));
    must(cp_agree_on_plan(&first, plans[1], 7, CP_OK));
    ck_assert_int_eq(cp_agree_on_plan(&first, plans[1], 8, CP_OK), CP_BROKEN);
    ck_assert_int_eq(cp_agree_on_plan(&first, plans[0], 7, CP_OK), CP_BROKEN);
    ck_assert_ptr_nonnull(strstr(
        cp_message(), "the ranks disagree: rank 0 has 2 new tokens over 0"));
    for (int n = 0; n < 2; n++) {
        cp_plan_free(plans[n]);
        cp_layout_free(layouts[n]);
    }
}

LOOP(test_forks_agree, 0, 4) {
    enum { FORKS = 3, READ = 31 };
    static const int64_t begins[FORKS] = {READ, 29, 22}, goes_on[] = {5, 9, 0};
    bool armed = false;
    const int ranks = (int[]){1, 2, 3, 5}[_i];
    const int64_t pages = cp_ceil_divide(READ + 34, 4 * ranks) + 3;
    open_tiny(&(tiny_gguf_options){.seed = 8});
    int32_t *text = make_up(64, 3), next[MOST] = {1, 2, 3};
    float *rows = logits_of(MOST);
    cp_session *alone[FORKS], *batch;
    batch = open_with(&(cp_session_options){.ranks = ranks,
                                            .sequences = FORKS,
                                            .cores = 2,
                                            .block = 4,
                                            .rows = 4 * pages + 3,
                                            .stop = &stop,
                                            .progress = stop_at_once,
                                            .progress_context = &armed});
    must(cp_session_prefill(batch, (int64_t[]){READ, 0, 0}, text, NULL));
    must(cp_session_fork(batch, 0, 1, begins[1]));
    must(cp_session_fork(batch, 0, 2, begins[2]));
    refuses(cp_session_fork(batch, 0, 1, 1), CP_INVALID, "29 tokens already");
    refuses(cp_session_prefill(batch, (int64_t[]){0, 64, 64}, make_up(128, 1),
                               NULL),
            CP_CAPACITY, "more blocks of 4 tokens are needed, and");
    armed = true;
    refuses(cp_session_prefill(batch, goes_on, text + READ, NULL),
            CP_INTERRUPTED, "stopped after 1 of 2 layers");
    armed = false;
    stop = 0;
    must(cp_session_prefill(batch, goes_on, text + READ, NULL));
    for (int64_t s = 0, at = READ; s < FORKS; at += goes_on[s++]) {
        alone[s] = open_session(1, 1, CP_AUTO);
        must(cp_session_prefill(alone[s], &begins[s], text, NULL));
        if (goes_on[s] > 0)
            must(cp_session_prefill(alone[s], &goes_on[s], text + at, NULL));
    }
    for (int step = 0; step < STEPS; step++)
        decode_together(batch, alone, FORKS, next, rows);
    ck_assert_int_eq(cp_session_length(batch, 1), 29 + 9 + STEPS);
}

static void disturb(cp_session *session, const int32_t *tokens, bool *armed) {
    const int64_t one = 1, many = 10;
    const int32_t wrong = 1 << 30;
    /* Invalid requests. */
    const int64_t long_one = 1000, none = 0, less = -1;
    refuses(cp_session_prefill(session, &long_one, tokens, NULL), CP_CAPACITY,
            "and 1000 more would pass its 80 positions");
    refuses(cp_session_prefill(session, &none, tokens, NULL), CP_INVALID,
            "a call without tokens");
    refuses(cp_session_prefill(session, &less, tokens, NULL), CP_INVALID,
            "-1 new tokens");
    refuses(cp_session_decode(session, &one, &wrong, NULL), CP_INVALID,
            "is id 1073741824");
    refuses(cp_session_decode(session, &none, tokens, NULL), CP_INVALID,
            "a call without tokens");
    *armed = true;
    refuses(cp_session_prefill(session, &many, tokens, NULL), CP_INTERRUPTED,
            "stopped after 1 of 2 layers");
    stop = 0;
    refuses(cp_session_decode(session, &one, tokens, NULL), CP_INTERRUPTED,
            "stopped after 1 of 2 layers");
    stop = 0;
    *armed = false;
}

LOOP(test_failures_leave_no_trace, 0, 8) {
    open_tiny(&(tiny_gguf_options){
        .seed = 4, .family = _i < 4 ? NULL : "qwen35", .blocks = 2});
    int32_t *text = make_up(64, 9);
    bool armed = false;
    const cp_session_options options = {.ranks = 3,
                                        .sequences = 1,
                                        .capacity = 80,
                                        .variant = variants[_i % 4],
                                        .cores = 2,
                                        .stop = &stop,
                                        .progress = stop_at_once,
                                        .progress_context = &armed};
    cp_session *calm = open_with(&options), *disturbed = open_with(&options);
    /* Make the same calls on both, disturbing one. */
    float *rows[2] = {logits_of(60), logits_of(60)};
    const int cuts[] = {20, -3, 30, -7, 0};
    for (int n = 0, at = 0; cuts[n] != 0; at += abs(cuts[n++])) {
        const int one[2] = {cuts[n], 0};
        disturb(disturbed, text, &armed);
        feed(calm, text + at, one, rows[0]);
        feed(disturbed, text + at, one, rows[1]);
        const size_t bytes = (size_t)f.words * sizeof(float);
        ck_assert_mem_eq(rows[0], rows[1], bytes * (size_t)abs(cuts[n]));
        disturb(disturbed, text, &armed);
        must(cp_session_logits(calm, 0, 1, rows[0]));
        must(cp_session_logits(disturbed, 0, 1, rows[1]));
        ck_assert_mem_eq(rows[0], rows[1], bytes);
    }
}

/* So that no vector of a tile lies on two lines. */
TEST(weights_begin_on_cache_lines) {
    open_tiny(&(tiny_gguf_options){.query = CP_GGUF_Q4_1});
    const cp_llama *model = cp_llama_of(f.model);
    for (int64_t layer = 0; layer < f.model->facts.layers; layer++) {
        const cp_llama_tensor *query =
            &model->tensors[cp_weight_index(CP_WEIGHT_QUERY, layer)];
        ck_assert_uint_eq((uintptr_t)query->matrix.tiles % 64, 0);
    }
}

TEST(test_logits_and_capacity) {
    open_tiny(&(tiny_gguf_options){.seed = 4, .context = 24});
    int32_t *text = make_up(64, 9);
    float *before = logits_of(1);
    float *after = logits_of(1);
    cp_sampler sampler = {0};
    int32_t token;
    cp_session *session = open_session(2, 1, CP_AUTO);
    ck_assert_int_eq(cp_session_capacity(session), 24);
    refuses(cp_session_logits(session, 0, 1, before), CP_INVALID,
            "a call of 0 tokens");
    must(cp_session_prefill(session, &(int64_t){24}, text, NULL));
    must(cp_session_logits(session, 23, 1, before));
    refuses(cp_session_decode(session, &(int64_t){1}, text, NULL), CP_CAPACITY,
            "has 24 tokens, and 1 more would pass its 24");
    must(cp_session_logits(session, 23, 1, after));
    ck_assert_mem_eq(before, after, (size_t)f.words * sizeof(float));
    /* Ask for logits that do not exist. */
    refuses(cp_session_logits(session, 24, 1, after), CP_INVALID, "24..24");
    refuses(cp_session_logits(session, -1, 1, after), CP_INVALID, "-1");
    refuses(cp_session_draw(session, 1, &(int64_t){24}, &sampler, &token),
            CP_INVALID, "after 24 of a call of 24");
    refuses(cp_session_logits(session, 0, 0, after), CP_INVALID,
            "of 24 tokens");
    refuses(cp_session_choose(session, CP_DECODE), CP_INVALID, "not a variant");
    refuses(cp_session_trace(session, "/dev/null", NULL), CP_INVALID,
            "no trace");
}

TEST(test_bad_options) {
    open_tiny(&(tiny_gguf_options){.seed = 1});
    const cp_session_options bad[] = {
        {.ranks = 0, .sequences = 1},
        {.ranks = 1, .sequences = 0},
        {.ranks = 1, .sequences = 1, .cores = -1},
        {.ranks = 1, .sequences = 1, .capacity = 513},
        {.ranks = 1, .sequences = 1, .capacity = -1},
        {.ranks = 1, .sequences = 1, .block = -1},
        {.ranks = 1, .sequences = 1, .block = 8, .rows = 7},
        {.ranks = 1, .sequences = 1, .variant = CP_DECODE},
    };
    for (int n = 0; n < COUNT_OF(bad); n++) {
        cp_session **session = &sessions[session_count++];
        ck_assert_int_eq(cp_session_open(f.model, &bad[n], session),
                         CP_INVALID);
    }
}

static void check_report(const cp_session *session,
                         const cp_turn_report *report, int64_t fresh,
                         int64_t cached) {
    cp_plan_report counted;
    must(cp_plan_check(cp_session_plan(session), &counted));
    int64_t queries = 0, keys = 0, pairs = 0;
    for (int r = 0; r < report->ranks; r++) {
        queries += report->queries[r];
        keys += report->keys[r];
        pairs += report->pairs[r];
        ck_assert_int_eq(report->bytes[r],
                         counted.bytes[r] * f.model->facts.layers);
    }
    ck_assert_int_eq(queries, fresh);
    ck_assert_int_eq(keys, fresh + cached);
    ck_assert_int_eq(pairs, fresh * cached + fresh * (fresh + 1) / 2);
    ck_assert_int_eq(report->new_tokens, fresh);
    ck_assert_int_eq(report->cached_tokens, cached);
    ck_assert_int_eq(report->sequences, 1);
    ck_assert(report->balance >= 1.0 && report->seconds > 0.0);
    cp_plan_report_free(&counted);
}

static int64_t sum_bytes(const char *json) {
    int64_t sum = 0;
    for (const char *at = json; (at = strstr(at, "\"bytes\":")) != NULL;)
        sum += strtoll(at += strlen("\"bytes\":"), NULL, 10);
    return sum;
}

LOOP(test_report, 0, 3) {
    open_tiny(&(tiny_gguf_options){.seed = 1});
    int32_t *text = make_up(64, 2);
    cp_session *session = open_session(4, 1, variants[1 + _i % 3]);
    cp_turn_report report;
    must(cp_session_prefill(session, &(int64_t){33}, text, &report));
    check_report(session, &report, 33, 0);
    ck_assert_int_eq(report.variant, variants[1 + _i % 3]);
    must(cp_session_decode(session, &(int64_t){1}, text, &report));
    check_report(session, &report, 1, 33);
    ck_assert_int_eq(report.variant, CP_DECODE);
    must(cp_session_choose(session, CP_AUTO));
    must(cp_session_prefill(session, &(int64_t){5}, text, &report));
    check_report(session, &report, 5, 34);
    ck_assert_ptr_nonnull(strstr(report.rule, "miss rate"));
}

LOOP(test_trace, 0, 3) {
    open_tiny(&(tiny_gguf_options){.seed = 1});
    int32_t *text = make_up(64, 2);
    const cp_session_options options = {.ranks = 3,
                                        .sequences = 1,
                                        .variant = variants[1 + _i % 3],
                                        .trace = true};
    cp_session *session = open_with(&options);
    int64_t sent = 0, lost = 1;
    cp_turn_report report; /* the next call frees what it points to */
    must(cp_session_prefill(session, &(int64_t){40}, text, &report));
    for (int rank = 0; rank < 3; rank++)
        sent += report.bytes[rank];
    must(cp_session_decode(session, &(int64_t){1}, text, &report));
    for (int rank = 0; rank < 3; rank++)
        sent += report.bytes[rank];
    /* Read the trace and compare. */
    char path[] = "/tmp/long-ring-trace-XXXXXX";
    close(mkstemp(path));
    must(cp_session_trace(session, path, &lost));
    ck_assert_int_eq(lost, 0);
    refuses(cp_session_trace(session, "/nowhere/trace.json", &lost), CP_FILE,
            "/nowhere/trace.json");
    ck_assert_int_eq(shell("cat %s", path), 0);
    const char *json = output;
    ck_assert_int_eq(sum_bytes(json), sent);
    static const char *const expected[] = {"\"rank 2 (0 operations left out)\"",
                                           "\"name\":\"attend\"",
                                           "\"name\":\"exchange\"",
                                           "\"name\":\"all-to-all\"",
                                           "\"name\":\"project\"",
                                           "\"name\":\"feed forward\"",
                                           "\"layer\":1,\"hop\":1,\"bytes\":"};
    for (int n = 0; n < COUNT_OF(expected); n++)
        ck_assert_msg(strstr(json, expected[n]) != NULL, "no %s", expected[n]);
    ck_assert_ptr_null(strstr(json, "\"dur\":-"));
    ck_assert_str_eq(json + strlen(json) - 4, "\n]}\n");
    remove(path);
}

#define FORGERY(from, to, because)                                             \
    { from, to, because, sizeof(from) - 1 }
static const struct {
    const char *from, *to, *because;
    size_t length;
} forgeries[] = {
    FORGERY("\5\0\0\0\0\0\0\0llama", "\5\0\0\0\0\0\0\0lamas",
            "\"lamas\"; llama, qwen2, qwen3 and qwen35 are"),
    FORGERY("\5\0\0\0\0\0\0\0llama", "\5\0\0\0\0\0\0\0qwen2",
            "'qwen2.block_count'"),
    FORGERY("blk.1.ffn_up.weight", "blk.1.ffn_uq.weight", "blk.1.ffn_uq.w"),
    FORGERY("blk.0.attn_q.weight", "blk.0.attn_qqq.bias", "attn_qqq.bias, and"),
    FORGERY("blk.1.attn_output.weight", "blk.1.attn_q_norm.weight",
            "tensor blk.1.attn_q_norm.weight, and"),
    FORGERY("blk.1.ffn_up.weight", "blk.2.ffn_up.weight", "blk.2.ffn_up.w"),
    FORGERY("llama.block_count", "llama.blocks_here", "llama.block_count"),
    FORGERY("count_kv\4\0\0\0\2", "count_kv\4\0\0\0\3", "3"),
    FORGERY("count_kv\4\0\0\0\2", "count_kv\4\0\0\0\0", "must be > 0"),
    FORGERY("ng_length\4\0\0\0\100", "ng_length\4\0\0\0\101", "65"),
    FORGERY("on_count\4\0\0\0\20", "on_count\4\0\0\0\17", "be rotated"),
    FORGERY("freq_base\6\0\0\0\0\100\34\106", "freq_base\6\0\0\0\0\100\34\306",
            "rope base -10000"),
};

LOOP(test_forgeries, 0, COUNT_OF(forgeries)) {
    tiny_gguf_build(NULL, &f.bytes);
    const size_t length = forgeries[_i].length;
    unsigned char *at = memmem(f.bytes.bytes, (size_t)f.bytes.length,
                               forgeries[_i].from, length);
    ck_assert_ptr_nonnull(at);
    memcpy(at, forgeries[_i].to, length);
    parse_file();
    refuses(cp_model_open(&cp_backend_threads, f.file, &f.model), CP_INVALID,
            forgeries[_i].because);
}

static const struct {
    const char *key;
    float value; /* or, if it is 0, */
    uint32_t count;
    bool accepted;
} additions[] = {{"llama.rope.scaling.factor", 4, 0, false},
                 {"llama.rope.scale_linear", 2, 0, false},
                 {"llama.rope.scaling.attn_factor", 0.5f, 0, false},
                 {"llama.rope.scaling.factor", 1, 0, true},
                 {"llama.expert_count", 0, 8, false},
                 {"llama.expert_count", 0, 0, true},
                 {"llama.attention.sliding_window", 0, 511, false},
                 {"llama.attention.sliding_window", 0, 512, true}};

/* A key with a number, and one with text that pads to the data's alignment, come
 * before all others of a valid file. */
LOOP(test_additions, 0, COUNT_OF(additions)) {
    tiny_bytes sound = {0};
    const char *key = additions[_i].key;
    const float value = additions[_i].value;
    char fill[32] = {0};
    cp_model_facts facts;
    tiny_gguf_build(NULL, &sound);
    sound.bytes[16] = (unsigned char)(sound.bytes[16] + 2); /* keys */
    memset(fill, 'x', (size_t)(-(int)(strlen(key) + 37) & 31));
    tiny_put(&f.bytes, sound.bytes, 24);
    tiny_put_key(&f.bytes, key, value != 0 ? 6 : 4); /* float32, or uint32 */
    tiny_put(&f.bytes, value != 0 ? (const void *)&value : &additions[_i].count,
             4);
    tiny_put_key(&f.bytes, "x", 8); /* string */
    tiny_put_string(&f.bytes, fill);
    tiny_put(&f.bytes, sound.bytes + 24, sound.length - 24);
    free(sound.bytes);
    parse_file();
    if (additions[_i].accepted)
        must(cp_facts_read(f.file, &facts));
    else
        refuses(cp_facts_read(f.file, &facts), CP_INVALID, key);
}

typedef struct {
    int64_t taken[4], tied; /* groups by number of tensors */
    int64_t left;           /* groups until scoring fails */
} scoring;

static cp_status take(void *context, cp_weight first, int64_t layer, int count,
                      const cp_gguf_tensor *const *tensors) {
    scoring *scores = context;
    ck_assert_int_eq(layer > 0 && first < CP_WEIGHT_ATTENTION_NORM, 0);
    scores->tied += tensors[0] == NULL;
    scores->taken[count]++;
    return scores->left-- > 0 ? CP_OK : cp_fail(CP_MEMORY, "no more");
}

LOOP(test_loading, 0, 2) {
    const int64_t align = _i == 0 ? 64 : 256;
    char memory[1024];
    cp_model_facts facts;
    for (int pass = 0; pass < 2; pass++) {
        cp_arena arena = {.align = align, .memory = pass > 0 ? memory : NULL};
        char *first = cp_arena_claim(&arena, 1, 5);
        char *none = cp_arena_claim(&arena, 0, 4);
        char *last = cp_arena_claim(&arena, align / 2, 2);
        ck_assert(first == arena.memory);
        ck_assert(none == (pass > 0 ? memory + align : NULL));
        ck_assert(last == none);
        ck_assert_int_eq(arena.used, 2 * align);
        ck_assert_ptr_null(cp_arena_claim(&arena, INT64_MAX / 4, 4));
        ck_assert(arena.overflows);
    }
    tiny_gguf_build(NULL, &f.bytes);
    parse_file();
    must(cp_facts_read(f.file, &facts));
    scoring scores = {.left = 100};
    must(cp_facts_tensors(f.file, &facts, take, &scores));
    ck_assert_int_eq(scores.tied, 1);
    ck_assert_int_eq(scores.taken[1], 3 + 4 * facts.layers);
    ck_assert_int_eq(scores.taken[2], facts.layers);
    ck_assert_int_eq(scores.taken[3], facts.layers);
    scores = (scoring){.left = 4};
    refuses(cp_facts_tensors(f.file, &facts, take, &scores), CP_MEMORY,
            "no more");
    ck_assert_int_eq(scores.taken[1] + scores.taken[3], 5);
    scores.left = 100;
    facts.feed_forward++;
    refuses(cp_facts_tensors(f.file, &facts, take, &scores), CP_INVALID,
            "blk.0.ffn_gate.weight is");
}

static double nats(const float *logits, int64_t words, int32_t next) {
    const double largest = (double)logits[cp_sample_greedy(logits, words)];
    double sum = 0.0;
    for (int64_t i = 0; i < words; i++)
        sum += exp((double)logits[i] - largest);
    return largest + log(sum) - (double)logits[next];
}

static void check_golden(cp_session *session, const golden_prompt *prompt,
                         const int *cuts) {
    const int64_t words = f.words;
    float *rows = logits_of(prompt->count);
    feed(session, prompt->ids, cuts, rows);
    double sum = 0.0;
    for (int64_t t = 0; t + 1 < prompt->count; t++)
        sum += nats(rows + t * words, words, prompt->ids[t + 1]);
    const double mean = sum / (double)(prompt->count - 1);
    ck_assert_double_eq_tol(mean, prompt->nll_mean, 1e-5);
    float *last = rows + (prompt->count - 1) * words;
    for (int n = 0; n < 10; n++)
        ck_assert_double_eq_tol((double)last[prompt->top_ids[n]],
                                prompt->top_logits[n], 2e-4);
    for (int n = 0; n < 48; n++) {
        const int32_t id = cp_sample_greedy(last, words);
        ck_assert_int_eq(id, prompt->greedy[n]);
        must(cp_session_decode(session, &(int64_t){1}, &id, NULL));
        must(cp_session_logits(session, 0, 1, last));
    }
}

/* The real model, if there is one. */
LOOP_FOR(120, test_golden, 0, getenv("LONG_RING_MODEL") != NULL ? 12 : 0) {
    static const int ranks[] = {1, 3, 4};
    must(cp_gguf_open(getenv("LONG_RING_MODEL"), &f.file));
    must(cp_model_open(&cp_backend_threads, f.file, &f.model));
    f.words = f.model->facts.vocabulary;
    for (int p = 0; p < COUNT_OF(golden_prompts); p++) {
        const golden_prompt *prompt = &golden_prompts[p];
        const int count = (int)prompt->count;
        const int cuts[3][6] = {
            {count}, {count - 4, -3, 1}, {2, -1, count - 4, -1}};
        cp_session *session = open_session(ranks[_i / 4], 1, variants[_i % 4]);
        check_golden(session, prompt, cuts[_i % 3]);
    }
}

TEST(test_draws) {
    const float logits[5] = {0.0f, 1.0f, -INFINITY, 2.0f, 1.0f};
    for (int t = 0; t < 3; t++) {
        const double temperature = 0.5 + 0.75 * t;
        double weights[5], total = 0.0;
        int counts[5] = {0};
        cp_sampler a, b;
        must(cp_sampler_start(temperature, 7, &a));
        must(cp_sampler_start(temperature, 7, &b));
        for (int n = 0; n < 10000; n++) {
            const int32_t id = cp_sampler_draw(&a, logits, 5);
            ck_assert_int_eq(id, cp_sampler_draw(&b, logits, 5));
            counts[id]++;
        }
        /* Compare the counts with the weights. */
        for (int i = 0; i < 5; i++)
            total += weights[i] = exp((double)logits[i] / temperature);
        for (int i = 0; i < 5; i++) {
            const double p = weights[i] / total;
            ck_assert_double_eq_tol((double)counts[i], 10000.0 * p,
                                    5.0 * sqrt(10000.0 * p * (1.0 - p)) + 1e-9);
        }
    }
}

TEST(test_greedy) {
    const float logits[4] = {-3.0f, 5.0f, 5.0f, -INFINITY};
    cp_sampler cold;
    must(cp_sampler_start(0.0, 1, &cold));
    ck_assert_int_eq(cp_sample_greedy(logits, 4), 1);
    ck_assert_int_eq(cp_sampler_draw(&cold, logits, 4), 1);
    ck_assert_int_eq(cp_sample_greedy(logits + 3, 1), 0);
    refuses(cp_sampler_start(-0.1, 1, &cold), CP_INVALID, "-0.1");
    refuses(cp_sampler_start(NAN, 1, &cold), CP_INVALID, "nan");
    refuses(cp_sampler_start(INFINITY, 1, &cold), CP_INVALID, "inf");
}
