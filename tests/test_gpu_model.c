/* A model on GPUs, pretended or real, against the same model on threads. */
#include "crowd.h"

#include <math.h>

#include "cuda/model/device_engine.h"
#include "cuda/run/nccl_link.h"
#include "harness/tiny_gguf.h"
#include "model/session.h"
#include "group/agree.h"

enum { SEQUENCES = 3, MOST = 4096 };

typedef struct {
    bool decode;
    int64_t lengths[SEQUENCES];
} model_turn;

/* What a test has open; the session and its model may be absent. */
static struct {
    tiny_bytes bytes;
    cp_gguf *file;
    int64_t words;
    cp_model *model;
    cp_session *session;
} f;

static cp_dealing dealing;         /* of listen's conversations */
static cp_numbers numbers_to_open; /* of run_processes' models */

/* A machine and a small model's file; numbers are fp32, and placement is the
 * default, until a test changes that. Device memory is open unless a test asks
 * otherwise, since closing it takes most of the time. */
static void begin_with(const tiny_gguf_options *model,
                       emulator_options machine) {
    dealing = (cp_dealing){0};
    numbers_to_open = CP_NUMBERS_F32;
    f.words = tiny_gguf_vocabulary_size(model);
    emulator_begin(&machine);
    tiny_gguf_build(model, &f.bytes);
    must(cp_gguf_parse(f.bytes.bytes, f.bytes.length, &f.file));
}

static void begin_file(const tiny_gguf_options *model, int seed) {
    begin_with(model,
               (emulator_options){.seed = (uint64_t)seed, .open = seed > 1});
}

static void open_session(const cp_backend *backend,
                         const cp_session_options *options) {
    must(cp_model_open(backend, f.file, &f.model));
    must(cp_session_open(f.model, options, &f.session));
}

static void close_session(void) {
    cp_session_close(f.session);
    cp_model_close(f.model);
    f.session = NULL;
    f.model = NULL;
}

static void close_file(void) {
    close_session();
    cp_gguf_close(f.file);
    free(f.bytes.bytes);
    f.bytes = (tiny_bytes){0};
}

static void end_file(void) {
    close_file();
    end();
}

static const model_turn talk[] = {
    {false, {23, 1, 0}}, {true, {1, 1, 0}},  {true, {1, 1, 0}},
    {false, {0, 9, 37}}, {true, {1, 1, 1}},  {true, {1, 0, 1}},
    {true, {1, 1, 1}},   {true, {1, 1, 1}},  {false, {1, 0, 0}},
    {true, {1, 1, 1}},   {false, {2, 2, 2}}, {true, {0, 0, 1}},
    {true, {5, 1, 9}},   {true, {1, 1, 1}},  {true, {2, 0, 7}},
    {false, {3, 0, 1}},  {true, {1, 1, 1}},  {true, {4, 4, 0}},
    {true, {1, 1, 1}},
};
enum { TALK = COUNT_OF(talk) };

/* Tokens that are taken back after a turn of it. */
static const int64_t back[TALK][SEQUENCES] = {
    [12] = {4, 0, 2}, [14] = {0, 0, 6}, [15] = {5, 0, 0}};

static cp_status take_back(cp_session *session, const model_turn *call) {
    for (int n = 0; n < TALK; n++)
        for (int i = 0; i < SEQUENCES && call == &talk[n]; i++)
            CP_TRY(cp_session_truncate(
                session, i, cp_session_length(session, i) - back[n][i]));
    return CP_OK;
}

static cp_status make_call(cp_session *session, const model_turn *call,
                           uint64_t seed, int64_t *count) {
    int32_t tokens[MOST];
    uint64_t state = seed;
    *count = 0;
    for (int s = 0; s < SEQUENCES; s++)
        *count += call->lengths[s];
    for (int64_t t = 0; t < *count; t++)
        tokens[t] = (int32_t)(harness_random(&state) % (uint64_t)f.words);
    CP_TRY((call->decode ? cp_session_decode : cp_session_prefill)(
        session, call->lengths, tokens, NULL));
    return take_back(session, call);
}

/* Tokens drawn from the last call agree with its logits. */
static cp_status draw_too(const cp_session *session, int64_t count,
                          const float *logits) {
    static const double temperatures[] = {0.0, 0.9};
    int64_t after[MOST];
    int32_t tokens[MOST];
    cp_sampler samplers[MOST];
    for (int64_t t = 0; t < count; t++)
        after[t] = count - 1 - t;
    for (int n = 0; n < COUNT_OF(temperatures); n++) {
        cp_sampler one, other;
        CP_TRY(cp_sampler_start(temperatures[n], 7, &one));
        other = one;
        for (int64_t t = 0; t < count; t++, cp_sampler_skip(&one))
            samplers[t] = one;
        CP_TRY(cp_session_draw(session, count, after, samplers, tokens));
        for (int64_t t = 0; t < count; t++)
            if (tokens[t] !=
                cp_sampler_draw(&other, logits + after[t] * f.words, f.words))
                return cp_fail(CP_BROKEN, "token %ld is %d", t, tokens[t]);
        if (one.state != other.state)
            return cp_fail(CP_BROKEN, "a sampler stayed behind");
    }
    return CP_OK;
}

/* All logits of a conversation, and their number. */
static float *listen(const cp_backend *backend, int ranks, cp_variant variant,
                     const model_turn *turns, int count, int64_t *numbers) {
    const cp_session_options options = {.ranks = ranks,
                                        .sequences = SEQUENCES,
                                        .variant = variant,
                                        .capacity = 400,
                                        .dealing = dealing,
                                        .cores = 1};
    float *logits = on_host(MOST * f.words * 4);
    open_session(backend, &options);
    *numbers = 0;
    for (int n = 0; n < count; n++) {
        int64_t rows;
        must(make_call(f.session, &turns[n], (uint64_t)n + 1, &rows));
        must(cp_session_logits(f.session, 0, rows, logits + *numbers));
        must(draw_too(f.session, rows, logits + *numbers));
        *numbers += rows * f.words;
    }
    close_session();
    return logits;
}

static double distance(const float *expected, const float *got, int64_t count) {
    double largest = 0.0, worst = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)expected[i]));
        const double apart = fabs((double)expected[i] - (double)got[i]);
        worst = apart <= worst ? worst : isnan(apart) ? INFINITY : apart;
    }
    return worst / largest;
}

static double compare(const cp_backend *backend, int ranks, cp_variant variant,
                      const model_turn *turns, int count) {
    int64_t numbers, others;
    const float *expected =
        listen(&cp_backend_threads, 1, CP_AUTO, turns, count, &numbers);
    const float *got = listen(backend, ranks, variant, turns, count, &others);
    ck_assert_int_eq(numbers, others);
    return distance(expected, got, numbers);
}

static const struct {
    int ranks;
    cp_variant variant;
} setups[] = {
    {1, CP_AUTO},   {2, CP_PASS_KV},    {2, CP_PASS_Q}, {3, CP_AUTO},
    {3, CP_PASS_Q}, {4, CP_ALL_GATHER}, {5, CP_PASS_Q}, {8, CP_PASS_KV},
};

static const char *const families[] = {NULL, "qwen2", "qwen3"};

LOOP(gpus_and_threads_give_the_same_logits, 0, COUNT_OF(setups)) {
    begin_file(&(tiny_gguf_options){.seed = 7,
                                    .family = families[_i % 3],
                                    .query = CP_GGUF_Q8_0,
                                    .down = CP_GGUF_Q4_1,
                                    .output = _i % 2,
                                    .rope_freqs = _i % 3 == 0},
               _i + 1);
    const double apart = compare(&cp_backend_cuda_fp32, setups[_i].ranks,
                                 setups[_i].variant, talk, TALK);
    ck_assert_msg(apart < 2e-5, "%g", apart);
    end_file();
}

/* A hybrid takes no tokens back, and one a step. Prompts are long, or shorter
 * than the ranks are many. */
static const model_turn hybrid_talk[] = {
    {false, {23, 1, 0}}, {true, {1, 1, 0}},  {true, {1, 1, 0}},
    {false, {0, 9, 37}}, {true, {1, 1, 1}},  {true, {1, 0, 1}},
    {true, {0, 1, 1}},   {false, {1, 0, 0}}, {true, {1, 1, 1}},
    {false, {2, 2, 2}},  {true, {0, 0, 1}},  {false, {40, 0, 3}},
    {true, {1, 1, 1}},   {true, {1, 1, 1}},  {false, {3, 5, 1}},
    {false, {1, 1, 19}}, {true, {1, 1, 1}},  {true, {1, 1, 0}},
    {true, {1, 1, 1}},
};
_Static_assert(COUNT_OF(hybrid_talk) == TALK, "as long as talk");

/* Key heads that several heads share, and taps that reach over chunks. */
static const tiny_gguf_options hybrid = {.seed = 7,
                                         .family = "qwen35",
                                         .blocks = 4,
                                         .rope_dim = 8,
                                         .state_heads = 8};

/* Greedy tokens are the same. */
static void hold_tokens(const float *expected, const float *got,
                        int64_t numbers) {
    for (int64_t row = 0; row < numbers; row += f.words) {
        int64_t best[2] = {0, 0};
        for (int64_t i = 0; i < f.words; i++) {
            best[0] = expected[row + i] > expected[row + best[0]] ? i : best[0];
            best[1] = got[row + i] > got[row + best[1]] ? i : best[1];
        }
        ck_assert_int_eq(best[0], best[1]);
    }
}

static const struct {
    int ranks;
    cp_variant variant;
} hybrid_setups[] = {{2, CP_PASS_Q},  {3, CP_PASS_KV}, {1, CP_AUTO},
                     {2, CP_PASS_KV}, {3, CP_PASS_Q},  {5, CP_PASS_KV},
                     {5, CP_PASS_Q}};

LOOP(hybrids_on_gpus_and_threads_give_the_same_tokens, 0,
     HARNESS_SANITIZED ? 3 : COUNT_OF(hybrid_setups)) {
    int64_t numbers, others;
    begin_file(&hybrid, _i + 1);
    const float *expected =
        listen(&cp_backend_threads, 1, CP_AUTO, hybrid_talk, TALK, &numbers);
    const float *got =
        listen(&cp_backend_cuda_fp32, hybrid_setups[_i].ranks,
               hybrid_setups[_i].variant, hybrid_talk, TALK, &others);
    ck_assert_int_eq(numbers, others);
    const double apart = distance(expected, got, numbers);
    ck_assert_msg(apart < 2e-5, "%g", apart);
    hold_tokens(expected, got, numbers);
    end_file();
}

/* Few layers: what rounding does to a state lasts, on cores too. */
TEST(fewer_bits_give_nearly_the_same_logits_of_a_hybrid) {
    tiny_gguf_options model = hybrid;
    model.blocks = 2;
    model.seed = 8;
    begin_file(&model, 2);
    const double bf16 =
        compare(&cp_backend_cuda, 3, CP_PASS_KV, hybrid_talk, TALK);
    const double fp8 =
        compare(&cp_backend_cuda_fp8, 3, CP_PASS_KV, hybrid_talk, TALK);
    ck_assert_msg(bf16 > 1e-4 && bf16 < 0.027, "bf16: %g", bf16);
    ck_assert_msg(fp8 > bf16 && fp8 < 0.3, "FP8: %g", fp8);
    end_file();
}

/* The logits of three conversations with a common prefix that share pages, one
 * of them a part of a page. */
static float *listen_forks(const cp_backend *backend, int ranks,
                           int64_t *numbers) {
    static const model_turn turns[] = {{false, {23, 0, 0}},
                                       {false, {2, 5, 0}},
                                       {true, {1, 1, 1}},
                                       {true, {1, 1, 1}}};
    const cp_session_options options = {.ranks = ranks,
                                        .sequences = SEQUENCES,
                                        .capacity = 400,
                                        .block = 4,
                                        .rows = 100,
                                        .cores = 1};
    float *logits = on_host(MOST * f.words * 4);
    open_session(backend, &options);
    *numbers = 0;
    for (int n = 0; n < COUNT_OF(turns); n++) {
        int64_t rows;
        must(make_call(f.session, &turns[n], (uint64_t)n + 1, &rows));
        must(cp_session_logits(f.session, 0, rows, logits + *numbers));
        *numbers += rows * f.words;
        if (n == 0)
            must(cp_session_fork(f.session, 0, 1, 17));
        if (n == 0)
            must(cp_session_fork(f.session, 0, 2, 23));
    }
    close_session();
    return logits;
}

LOOP(conversations_on_gpus_share_pages, 1, 4) {
    int64_t numbers, others;
    begin_file(&(tiny_gguf_options){.seed = 7}, _i);
    const float *expected = listen_forks(&cp_backend_threads, 1, &numbers);
    const float *got = listen_forks(&cp_backend_cuda_fp32, _i, &others);
    ck_assert_int_eq(numbers, others);
    const double apart = distance(expected, got, numbers);
    ck_assert_msg(apart < 2e-5, "%g", apart);
    end_file();
}

enum { SENDERS = 3 };

static void note_sent(const cp_backend *backend, cp_variant variant,
                      int64_t *bytes) {
    static const int64_t lengths[SEQUENCES] = {23, 9, 1};
    static const int64_t ones[SEQUENCES] = {1, 1, 1};
    static const int32_t tokens[33] = {0};
    const cp_session_options options = {.ranks = SENDERS,
                                        .sequences = SEQUENCES,
                                        .variant = variant,
                                        .dealing = dealing};
    cp_turn_report report;
    open_session(backend, &options);
    must(cp_session_prefill(f.session, lengths, tokens, &report));
    memcpy(bytes, report.bytes, SENDERS * sizeof(bytes[0]));
    must(cp_session_decode(f.session, ones, tokens, &report));
    memcpy(bytes + SENDERS, report.bytes, SENDERS * sizeof(bytes[0]));
    close_session();
}

static void compare_sent(cp_variant variant) {
    int64_t expected[2 * SENDERS], got[2 * SENDERS];
    note_sent(&cp_backend_threads, variant, expected);
    note_sent(&cp_backend_cuda_fp32, variant, got);
    for (int n = 0; n < 2 * SENDERS; n++) {
        ck_assert_int_gt(got[n], 0);
        ck_assert_int_eq(got[n], expected[n]);
    }
}

LOOP(ranks_on_gpus_send_as_many_bytes_as_threads, 0, 3) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER};
    begin_file(&(tiny_gguf_options){.seed = 7}, 2);
    compare_sent(variants[_i]);
    end_file();
}

TEST(fewer_bits_give_nearly_the_same_logits) {
    begin_file(&(tiny_gguf_options){.seed = 7}, 2);
    const double bf16 = compare(&cp_backend_cuda, 3, CP_PASS_KV, talk, TALK);
    const double fp8 = compare(&cp_backend_cuda_fp8, 3, CP_PASS_KV, talk, TALK);
    ck_assert_msg(bf16 > 1e-4 && bf16 < 0.027, "bf16: %g", bf16);
    ck_assert_msg(fp8 > bf16 && fp8 < 0.3, "FP8: %g", fp8);
    end_file();
}

static _Thread_local cp_device_runner my_runner;

static cp_status my_engine(const cp_model *model,
                           const cp_session_options *options, cp_engine **out) {
    return cp_device_engine_new(&my_runner, model, options, out);
}

enum { STEPS = 40 };

static void make_long_talk(model_turn *turns) {
    turns[0] = (model_turn){false, {30, 7, 2}};
    for (int n = 1; n <= STEPS; n++)
        turns[n] = (model_turn){true, {1, 1, n > 9}};
}

LOOP(graphs_change_nothing, 0, 2) {
    begin_file(&(tiny_gguf_options){.seed = 5, .blocks = 1}, 2);
    cp_backend backend = cp_backend_cuda_fp32;
    model_turn turns[STEPS + 1];
    float *logits[2];
    int64_t numbers;
    backend.engine_new = my_engine;
    make_long_talk(turns);
    /* Blocks with the same rows: other products may have other bits. */
    for (int m = 0; m < 2; m++) {
        my_runner =
            (cp_device_runner){.only = CP_NO_RANK, .graphs = m == 1, .rows = 7};
        logits[m] =
            listen(&backend, 1 + 3 * _i, CP_AUTO, turns, STEPS + 1, &numbers);
    }
    if (emulator_pretends())
        ck_assert_int_ge(emulator_count().graph_launches, STEPS - 4);
    ck_assert_mem_eq(logits[0], logits[1], (size_t)numbers * sizeof(float));
    end_file();
}

/* In exact order, logits have the same bits on any number of ranks, and for any
 * number of rows in a product. */
LOOP(exact_order_leaves_logits_alone, 0, 3) {
    static const model_turn turns[] = {
        {false, {150, 70, 1}}, {true, {1, 1, 0}}, {true, {1, 1, 0}},
        {true, {1, 1, 0}},     {true, {1, 1, 0}}, {true, {5, 1, 9}},
        {false, {3, 0, 130}},  {true, {1, 1, 1}}};
    static const struct {
        int ranks;
        cp_variant variant;
    } others[] = {{3, CP_PASS_KV}, {4, CP_ALL_GATHER}, {5, CP_PASS_Q}};
    const cp_backend *const backends[] = {
        &cp_backend_cuda, &cp_backend_cuda_fp32, &cp_backend_cuda_fp8};
    begin_file(
        &(tiny_gguf_options){.seed = 5, .family = families[_i], .blocks = 1},
        2);
    cp_backend backend = *backends[_i];
    int64_t numbers;
    backend.engine_new = my_engine;
    dealing = (cp_dealing){
        .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};
    my_runner = (cp_device_runner){.only = CP_NO_RANK};
    const float *one =
        listen(&backend, 1, CP_AUTO, turns, COUNT_OF(turns), &numbers);
    my_runner.rows = 7;
    my_runner.graphs = true;
    const float *got = listen(&backend, others[_i].ranks, others[_i].variant,
                              turns, COUNT_OF(turns), &numbers);
    ck_assert_mem_eq(one, got, (size_t)numbers * sizeof(float));
    end_file();
}

/* The same of a hybrid, whose prompts are followed by heads, of which some ranks
 * have none; and its scores are those of cores. */
static const model_turn leafwise_talk[] = {
    {false, {150, 70, 1}}, {true, {1, 1, 0}},  {true, {1, 1, 0}},
    {false, {0, 9, 37}},   {true, {1, 1, 1}},  {true, {1, 0, 1}},
    {true, {0, 1, 1}},     {false, {1, 0, 0}}, {true, {1, 1, 1}},
    {false, {2, 2, 2}},    {true, {0, 0, 1}},  {false, {40, 0, 130}},
    {true, {1, 1, 1}},     {true, {1, 1, 1}},  {false, {3, 5, 1}},
    {false, {1, 65, 19}},  {true, {1, 1, 1}},  {true, {1, 1, 0}},
    {true, {1, 1, 1}}};
_Static_assert(COUNT_OF(leafwise_talk) == TALK, "as long as talk");
static const cp_dealing leafwise = {
    .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};

LOOP(exact_order_leaves_logits_of_a_hybrid_alone, 0,
     HARNESS_SANITIZED ? 1 : 3) {
    static const struct {
        int ranks, key_heads;
        cp_variant variant;
    } others[] = {{3, 4, CP_PASS_KV}, {2, 8, CP_ALL_GATHER}, {5, 2, CP_PASS_Q}};
    const cp_backend *const backends[] = {
        &cp_backend_cuda_fp32, &cp_backend_cuda, &cp_backend_cuda_fp8};
    tiny_gguf_options model = hybrid;
    model.blocks = 2;
    model.state_key_heads = others[_i].key_heads;
    begin_file(&model, 2);
    cp_backend backend = *backends[_i];
    int64_t numbers;
    backend.engine_new = my_engine;
    dealing = leafwise;
    my_runner = (cp_device_runner){.only = CP_NO_RANK};
    const float *one =
        listen(&backend, 1, CP_AUTO, leafwise_talk, TALK, &numbers);
    my_runner.rows = 7;
    const float *got = listen(&backend, others[_i].ranks, others[_i].variant,
                              leafwise_talk, TALK, &numbers);
    ck_assert_mem_eq(one, got, (size_t)numbers * sizeof(float));
    if (_i == 0) {
        const float *expected = listen(&cp_backend_threads, 1, CP_AUTO,
                                       leafwise_talk, TALK, &numbers);
        const double apart = distance(expected, got, numbers);
        ck_assert_msg(apart < 2e-5, "%g", apart);
    }
    end_file();
}

TEST(hybrids_in_exact_order_send_as_many_bytes_as_threads) {
    begin_file(&hybrid, 2);
    dealing = leafwise;
    compare_sent(CP_PASS_KV);
    end_file();
}

LOOP(a_stale_length_is_found, 0, emulator_pretends()) {
    begin_file(&(tiny_gguf_options){.seed = 5, .blocks = 1}, 2);
    model_turn turns[STEPS + 1];
    make_long_talk(turns);
    emulator_freeze_uploads(true);
    const double apart =
        compare(&cp_backend_cuda_fp32, 4, CP_AUTO, turns, STEPS + 1);
    ck_assert_msg(apart > 1e-3, "nothing was found: %g", apart);
    end_file();
}

static void make_calls(const model_turn *turns, int count) {
    int64_t rows;
    for (int n = 0; n < count; n++)
        must(make_call(f.session, &turns[n], (uint64_t)n + 1, &rows));
}

LOOP(a_second_turn_allocates_nothing, 0, 4 * emulator_pretends()) {
    static const model_turn turns[] = {
        {false, {40, 7, 2}}, {true, {1, 1, 1}}, {true, {1, 0, 1}},
        {true, {1, 1, 1}},   {true, {0, 1, 1}}, {false, {30, 9, 2}},
        {true, {1, 1, 1}},   {true, {1, 1, 1}}, {false, {2, 2, 2}}};
    const cp_session_options options = {.ranks = 1 + _i,
                                        .sequences = SEQUENCES,
                                        .variant = CP_PASS_Q,
                                        .capacity = 400};
    begin_file(&(tiny_gguf_options){.seed = 5}, 2);
    open_session(&cp_backend_cuda_fp32, &options);
    make_calls(turns, 2 + _i);
    const int64_t before = emulator_count().allocations;
    make_calls(turns + 2 + _i, COUNT_OF(turns) - 2 - _i);
    ck_assert_int_gt(before, 0);
    ck_assert_int_eq(emulator_count().allocations, before);
    end_file();
}

LOOP(a_prefill_makes_room_for_decode, 0, 4 * emulator_pretends()) {
    static const model_turn turns[] = {{false, {40, 7, 2}}, {true, {1, 1, 1}}};
    const cp_session_options options = {
        .ranks = 2, .sequences = SEQUENCES, .capacity = 400};
    int64_t rows;
    begin_file(&(tiny_gguf_options){.seed = 5}, 2);
    open_session(&cp_backend_cuda_fp32, &options);
    make_calls(turns, 1);
    emulator_fail_allocation(1 + _i);
    must(make_call(f.session, &turns[1], 2, &rows));
    end_file();
}

static const model_turn first = {false, {20, 3, 0}};
static const model_turn later[] = {{false, {4, 0, 2}}, {true, {1, 1, 1}}};

/* Make a turn with the n-th fault (0: none), and repeat it if it failed by
 * that. */
static void answer(const model_turn *call, uint64_t seed,
                   void (*fault)(int64_t), int64_t n, float *out) {
    int64_t rows;
    fault(n);
    cp_status status = make_call(f.session, call, seed, &rows);
    fault(0);
    if (n > 0 && status != CP_OK)
        status = make_call(f.session, call, seed, &rows);
    must(status);
    must(cp_session_logits(f.session, rows - 1, 1, out));
}

LOOP(after_a_failure_the_conversation_continues, 0, 3 * emulator_pretends()) {
    void (*const faults[])(int64_t) = {
        emulator_fail_allocation, emulator_fail_launch, emulator_fail_copy};
    begin_file(&(tiny_gguf_options){.seed = 9, .blocks = 1}, 2);
    const cp_session_options options = {
        .ranks = 2, .sequences = SEQUENCES, .variant = CP_PASS_Q};
    float *undisturbed[2] = {on_host(4 * f.words), on_host(4 * f.words)};
    float *got = on_host(4 * f.words);
    must(cp_model_open(&cp_backend_cuda_fp32, f.file, &f.model));
    for (int64_t n = 0; n < 120; n += 1 + n / 4) {
        must(cp_session_open(f.model, &options, &f.session));
        answer(&first, 1, faults[_i], 0, got);
        for (int t = 0; t < 2; t++) {
            float *out = n == 0 ? undisturbed[t] : got;
            answer(&later[t], (uint64_t)t + 2, faults[_i], n, out);
            ck_assert_msg(distance(undisturbed[t], out, f.words) < 1e-6,
                          "failure %ld left something", n);
        }
        cp_session_close(f.session);
        f.session = NULL;
    }
    end_file();
}

typedef struct {
    crowd_member member;
    int parts;               /* that share a rank's heads */
    const model_turn *turns; /* [TALK]; NULL: talk */
    const cp_model *model;
    bool odd;    /* gets different tokens in the second call */
    bool shaken; /* before the fourth call succeeds, one rank runs out of
                    memory, and then one is interrupted */
    int without; /* REFUSED: NCCL refuses the trial capture; NOT_MADE: a graph
                    cannot be made in the second step */
    volatile sig_atomic_t stop;
    double timeout;
    float *logits; /* of all calls */
    int64_t rows;
    int64_t call_collectives,
        draw_collectives; /* collectives of the group for the last call, and for
                            the draw */
} model_process;
enum { REFUSED = 1, NOT_MADE };

static bool fails_everywhere(cp_session *session, model_process *self,
                             uint64_t seed) {
    int64_t count;
    if (self->member.group.rank == 0)
        emulator_fail_allocation(1);
    pthread_barrier_wait(&meeting);
    const cp_status status = make_call(session, &talk[3], seed, &count);
    pthread_barrier_wait(&meeting);
    if (self->member.group.rank == 0)
        emulator_fail_allocation(0);
    pthread_barrier_wait(&meeting);
    if (status != CP_MEMORY && status != CP_ABORTED)
        return false;
    self->stop = self->member.group.rank == 1;
    if (make_call(session, &talk[3], seed, &count) != CP_INTERRUPTED)
        return false;
    self->stop = 0;
    return true;
}

static void fail_one_allocation(void) {
    pthread_barrier_wait(&meeting);
    if (myself->group.rank == 0)
        emulator_fail_allocation(1);
    pthread_barrier_wait(&meeting);
}

static cp_status talk_as(model_process *self, cp_session *session) {
    for (int n = 0; n < TALK; n++) {
        int64_t count;
        const uint64_t seed = (uint64_t)n + (self->odd && n == 1 ? 99 : 1);
        if (self->shaken && n == 3 && !fails_everywhere(session, self, seed))
            return cp_fail(CP_BROKEN, "a call without memory went well");
        if (self->without == NOT_MADE && n == 2)
            fail_one_allocation();
        self->call_collectives = -collectives;
        CP_TRY(make_call(session, self->turns + n, seed, &count));
        self->call_collectives += collectives;
        float *logits = self->logits + self->rows * f.words;
        CP_TRY(cp_session_logits(session, 0, count, logits));
        self->draw_collectives = -collectives;
        CP_TRY(draw_too(session, count, logits));
        self->draw_collectives += collectives;
        self->rows += count;
    }
    return CP_OK;
}

static cp_status live_with(model_process *self, bool graphs, cp_nccl *heads,
                           cp_nccl *ring) {
    const cp_process_group *group = &self->member.group;
    const cp_session_options options = {.ranks = group->ranks / self->parts,
                                        .sequences = SEQUENCES,
                                        .variant = CP_PASS_Q,
                                        .capacity = 400,
                                        .dealing = dealing,
                                        .stop = &self->stop};
    cp_session *session;
    my_runner = (cp_device_runner){.only = group->rank / self->parts,
                                   .link = &ring->link,
                                   .group = group,
                                   .tensor = heads,
                                   .timeout = self->timeout,
                                   .graphs = graphs};
    CP_TRY(cp_session_open(self->model, &options, &session));
    const cp_status status = talk_as(self, session);
    cp_session_close(session);
    return status;
}

static cp_status live_as_process(crowd_member *member) {
    model_process *self = (model_process *)(void *)member;
    cp_nccl *world, *heads = NULL, *ring = NULL;
    cp_status status = CP_OK;
    CP_TRY(cp_nccl_new(&member->id, member->group.rank, member->group.ranks,
                       10.0, &world));
    const bool graphs =
        self->without != REFUSED ||
        cp_agree_to_start(&member->group, cp_nccl_try_capture(world)) == CP_OK;
    if (self->parts > 1)
        status = cp_nccl_split(world, self->parts, &heads, &ring);
    if (status == CP_OK)
        status = live_with(self, graphs, heads, ring != NULL ? ring : world);
    cp_nccl_free(heads);
    cp_nccl_free(ring);
    cp_nccl_free(world);
    return status;
}

static cp_device_slice slice_to_open;

static cp_status open_slice(const cp_gguf *file, cp_model **model) {
    return cp_device_model_open(file, numbers_to_open, slice_to_open, model);
}

/* Run processes, each with its part of the model; the timeout is 10 seconds
 * unless they have their own. */
static void run_processes(model_process *all, int count, int parts) {
    static cp_backend apart[CROWD];
    cp_model *models[CROWD];
    for (int p = 0; p < parts; p++) {
        apart[p] = numbers_to_open == CP_NUMBERS_F32    ? cp_backend_cuda_fp32
                   : numbers_to_open == CP_NUMBERS_BF16 ? cp_backend_cuda
                                                        : cp_backend_cuda_fp8;
        apart[p].engine_new = my_engine;
        apart[p].model_open = open_slice;
        slice_to_open = (cp_device_slice){p, parts};
        must(cp_model_open(&apart[p], f.file, &models[p]));
    }
    for (int r = 0; r < count; r++) {
        all[r].parts = parts;
        all[r].turns = all[r].turns != NULL ? all[r].turns : talk;
        all[r].model = models[r % parts];
        all[r].timeout = all[r].timeout > 0 ? all[r].timeout : 10;
        all[r].logits = on_host(MOST * f.words * 4);
    }
    run_crowd(all, sizeof(*all), count, live_as_process);
    for (int p = 0; p < parts; p++)
        cp_model_close(models[p]);
}

/* If one rank has no graph, no rank launches any. */
static const struct {
    int processes, parts;
    bool shaken;
    int without;
} crowds[] = {{2, 1, 0, 0},       {3, 1, 0, 0},       {4, 1, 0, 0},
              {2, 2, 0, 0},       {4, 2, 0, 0},       {3, 1, 1, 0},
              {3, 1, 0, REFUSED}, {3, 1, 0, NOT_MADE}};

LOOP(ranks_in_processes_give_the_same_logits, 0,
     COUNT_OF(crowds) * emulator_pretends()) {
    const int count = crowds[_i].processes;
    begin_file(&(tiny_gguf_options){.seed = 7, .up = CP_GGUF_Q8_0}, _i);
    model_process all[CROWD] = {0};
    int64_t numbers;
    for (int r = 0; r < count; r++) {
        all[r].shaken = crowds[_i].shaken;
        all[r].without = crowds[_i].without;
    }
    const float *expected =
        listen(&cp_backend_threads, 1, CP_AUTO, talk, TALK, &numbers);
    if (crowds[_i].without == REFUSED)
        emulator_refuse_captures(1);
    run_processes(all, count, crowds[_i].parts);
    const int64_t launches = emulator_count().graph_launches;
    if (crowds[_i].without > 0) /* except two successful trials */
        ck_assert_int_eq(launches, crowds[_i].without == REFUSED ? 2 : 0);
    else
        ck_assert_int_gt(launches, 0);
    for (int r = 0; r < count; r++) {
        ck_assert_msg(all[r].member.status == CP_OK, "rank %d: %s", r,
                      all[r].member.message);
        const double off = distance(expected, all[r].logits, numbers);
        ck_assert_msg(off < 2e-5, "rank %d: %g", r, off);
        ck_assert_int_eq(all[r].call_collectives, 2);
        ck_assert_int_eq(all[r].draw_collectives, 2 * 1); /* drawn twice */
        ck_assert_mem_eq(all[r].logits, all[0].logits,
                         (size_t)numbers * sizeof(float));
    }
    end_file();
}

/* With 2 GPUs for each of 2 ranks, and 8 for one. */
LOOP(sums_of_fewer_bits_give_nearly_the_same_logits, 0,
     4 * emulator_pretends()) {
    static const double most[] = {0.027, 0.3};
    const int count = 4 << _i / 2;
    model_process all[CROWD] = {0};
    int64_t numbers;
    if (harness_spared(_i))
        return;
    begin_file(&(tiny_gguf_options){.seed = 7,
                                    .family = families[_i % 2],
                                    .width = 128,
                                    .heads = count,
                                    .kv_heads = count / 2 * (_i / 2 + 1),
                                    .feed_forward = 256},
               2);
    numbers_to_open = _i % 2 == 0 ? CP_NUMBERS_BF16 : CP_NUMBERS_F8;
    const float *expected =
        listen(&cp_backend_threads, 1, CP_AUTO, talk, TALK, &numbers);
    run_processes(all, count, count == 4 ? 2 : 8);
    for (int r = 0; r < count; r++) {
        ck_assert_msg(all[r].member.status == CP_OK, "%s",
                      all[r].member.message);
        const double off = distance(expected, all[r].logits, numbers);
        ck_assert_msg(off < most[_i % 2], "rank %d: %g", r, off);
    }
    end_file();
}

/* Nodes of the graphs of some ranks over NCCL for one batch, with this many
 * layers. */
static int64_t count_nodes(int ranks, int layers) {
    static model_turn batch[TALK] = {{false, {40, 7, 2}}};
    model_process all[CROWD] = {0};
    for (int n = 1; n < TALK; n++)
        batch[n] = (model_turn){true, {1, 1, 1}};
    for (int r = 0; r < ranks; r++)
        all[r].turns = batch;
    begin_file(&(tiny_gguf_options){.seed = 7, .blocks = layers}, 2);
    run_processes(all, ranks, 1);
    for (int r = 0; r < ranks; r++)
        ck_assert_msg(all[r].member.status == CP_OK, "%s",
                      all[r].member.message);
    const int64_t nodes = emulator_count().graph_nodes;
    end_file();
    return nodes;
}

LOOP(a_decode_layer_has_a_known_number_of_nodes, 0,
     harness_seeds(3) * emulator_pretends()) {
    static const struct {
        int ranks, nodes;
    } most[] = {{1, 11}, {4, 19}, {8, 27}};
    const int ranks = most[_i].ranks;
    ck_assert_int_eq(count_nodes(ranks, 3) - count_nodes(ranks, 1),
                     2 * ranks * most[_i].nodes);
}

LOOP(hybrids_in_processes_give_the_same_tokens, 0,
     (HARNESS_SANITIZED ? 2 : 3) * emulator_pretends()) {
    static const int counts[] = {2, 3, 5};
    const int count = counts[_i];
    begin_file(&hybrid, 2);
    model_process all[CROWD] = {0};
    int64_t numbers;
    const float *expected =
        listen(&cp_backend_threads, 1, CP_AUTO, hybrid_talk, TALK, &numbers);
    for (int r = 0; r < count; r++)
        all[r].turns = hybrid_talk;
    run_processes(all, count, 1);
    for (int r = 0; r < count; r++) {
        ck_assert_msg(all[r].member.status == CP_OK, "rank %d: %s", r,
                      all[r].member.message);
        const double off = distance(expected, all[r].logits, numbers);
        ck_assert_msg(off < 2e-5, "rank %d: %g", r, off);
        hold_tokens(expected, all[r].logits, numbers);
    }
    end_file();
}

LOOP(in_exact_order_hybrids_in_processes_have_the_same_bits, 0,
     (HARNESS_SANITIZED ? 1 : 2) * emulator_pretends()) {
    static const int counts[] = {3, 5};
    const int count = counts[_i];
    tiny_gguf_options model = hybrid;
    model.blocks = 2;
    begin_file(&model, 2);
    model_process all[CROWD] = {0};
    int64_t numbers;
    dealing = leafwise;
    const float *expected = listen(&cp_backend_cuda_fp32, 1, CP_AUTO,
                                   leafwise_talk, TALK, &numbers);
    for (int r = 0; r < count; r++)
        all[r].turns = leafwise_talk;
    run_processes(all, count, 1);
    for (int r = 0; r < count; r++) {
        ck_assert_msg(all[r].member.status == CP_OK, "rank %d: %s", r,
                      all[r].member.message);
        ck_assert_mem_eq(expected, all[r].logits,
                         (size_t)numbers * sizeof(float));
    }
    end_file();
}

LOOP(after_a_failure_a_hybrid_continues, 0, 4 * emulator_pretends()) {
    static const model_turn turns[] = {
        {false, {20, 3, 0}}, {false, {4, 0, 2}}, {true, {1, 1, 1}}};
    void (*const faults[])(int64_t) = {emulator_fail_launch,
                                       emulator_fail_copy};
    tiny_gguf_options model = hybrid;
    if (harness_spared(_i))
        return;
    model.blocks = 2;
    begin_file(&model, 2);
    const cp_session_options options = {.ranks = 2,
                                        .sequences = SEQUENCES,
                                        .dealing = _i < 2 ? (cp_dealing){0}
                                                          : leafwise};
    float *undisturbed[2] = {on_host(4 * f.words), on_host(4 * f.words)};
    float *got = on_host(4 * f.words);
    must(cp_model_open(&cp_backend_cuda_fp32, f.file, &f.model));
    for (int64_t n = 0; n < 60; n += 1 + n / 4) {
        must(cp_session_open(f.model, &options, &f.session));
        answer(&turns[0], 1, faults[_i % 2], 0, got);
        for (int t = 0; t < 2; t++) {
            float *out = n == 0 ? undisturbed[t] : got;
            answer(&turns[t + 1], (uint64_t)t + 2, faults[_i % 2], n, out);
            ck_assert_msg(distance(undisturbed[t], out, f.words) < 1e-6,
                          "failure %ld left something", n);
        }
        cp_session_close(f.session);
        f.session = NULL;
    }
    end_file();
}

TEST(a_hybrid_that_a_gpu_cannot_run_is_refused) {
    const cp_device_slice half = {1, 2};
    begin_file(&hybrid, 2);
    refuses(cp_device_model_open(f.file, CP_NUMBERS_F32, half, &f.model),
            CP_INVALID, "--tensor 1");
    end_file();
}

TEST(a_model_that_cannot_be_shared_is_refused) {
    const cp_device_slice third = {0, 3}, half = {1, 2};
    begin_file(&(tiny_gguf_options){.down = CP_GGUF_Q4_1}, 2);
    refuses(cp_device_model_open(f.file, CP_NUMBERS_F32, third, &f.model),
            CP_INVALID, "2 key and value heads and 96");
    refuses(cp_device_model_open(f.file, CP_NUMBERS_F32, half, &f.model),
            CP_INVALID, "not whole blocks of 32");
    end_file();
}

LOOP(ranks_that_disagree_fail, 0, emulator_pretends()) {
    begin_file(&(tiny_gguf_options){.seed = 7}, 2);
    model_process all[CROWD] = {[2] = {.odd = true}};
    run_processes(all, 3, 1);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(all[r].member.status, CP_BROKEN);
        ck_assert_msg(strstr(all[r].member.message, "disagree") != NULL, "%s",
                      all[r].member.message);
    }
    end_file();
}

/* Three in the first prefill; then one in a step that a graph runs, and one in
 * a prefill while that graph exists. */
static const int last_words[] = {1, 5, 9, 35, 50};

LOOP(a_silent_rank_ends_a_call, 0, COUNT_OF(last_words) * emulator_pretends()) {
    bool reported = false;
    begin_file(&(tiny_gguf_options){.seed = 7, .blocks = 5}, 2);
    model_process all[CROWD] = {
        {.timeout = 0.6}, {.timeout = 0.6}, {.timeout = 0.6}};
    emulator_dead_rank(1, last_words[_i]);
    run_processes(all, 3, 1);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(all[r].member.status, CP_BROKEN);
        reported = reported || strstr(all[r].member.message, " 0.6 s") != NULL;
    }
    ck_assert(reported);
    ck_assert_int_eq(emulator_count().graph_launches > 0, _i >= 3);
    close_file();
    end();
}

LOOP(missing_resources_are_named, 0, emulator_pretends()) {
    begin_with(&(tiny_gguf_options){.seed = 9},
               (emulator_options){.bare = true});
    refuses(cp_model_open(&cp_backend_cuda, f.file, &f.model), CP_BROKEN,
            "no GPU");
    emulator_begin(&(emulator_options){.bytes = 100000});
    refuses(cp_model_open(&cp_backend_cuda, f.file, &f.model), CP_MEMORY,
            "of 100000 left");
    end_file();
}

TEST(a_request_to_stop_is_obeyed) {
    volatile sig_atomic_t stop = 1;
    const cp_session_options options = {
        .ranks = 2, .sequences = SEQUENCES, .stop = &stop};
    int64_t rows;
    begin_file(&(tiny_gguf_options){.seed = 9, .blocks = 5}, 2);
    open_session(&cp_backend_cuda_fp32, &options);
    refuses(make_call(f.session, &first, 1, &rows), CP_INTERRUPTED,
            "of 5 layers");
    ck_assert_int_eq(cp_session_length(f.session, 0), 0);
    stop = 0;
    must(make_call(f.session, &first, 1, &rows));
    end_file();
}

TEST(all_promised_positions_can_be_used) {
    const model_turn word = {false, {1, 0, 0}};
    const cp_session_options options = {
        .ranks = 4, .sequences = SEQUENCES, .capacity = 72};
    int64_t rows;
    begin_file(&(tiny_gguf_options){.seed = 9}, 2);
    open_session(&cp_backend_cuda_fp32, &options);
    for (uint64_t n = 0; n < 72; n++)
        must(make_call(f.session, &word, n + 1, &rows));
    refuses(make_call(f.session, &word, 1, &rows), CP_CAPACITY,
            "would pass its 72 positions");
    end_file();
}
