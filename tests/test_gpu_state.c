/* Kernels of layers with a state against the same on cores, which test_state
 * holds to double precision; and ranks that come and go. */
#include "on_device.h"

#include <math.h>

#include "cuda/kernels/state_kernels.h"
#include "harness/tiny_gguf.h"
#include "model/session_repair.h"
#include "reference/attend/state.h"

/* Heads, key heads, dimensions of keys and of values, taps; tokens. */
static const struct {
    cp_state_facts facts;
    int64_t tokens;
} cases[] = {
    {{4, 4, 2, 16, 24, 4}, 37}, {{4, 3, 1, 20, 40, 3}, 9},
    {{4, 2, 2, 64, 33, 4}, 70}, {{4, 1, 1, 130, 8, 2}, 5},
    {{4, 2, 1, 5, 3, 5}, 1},    {{4, 2, 1, 16, 16, 4}, 0},
};

static const cp_state_facts *f;
static int64_t tokens, channels, stride, answers, floats, pair_floats;
static cp_state_shape shape;
static float *rows;
static uint64_t randoms;

static float *random_floats(int64_t count) {
    float *numbers = on_host(count * 4);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = harness_uniform(&randoms);
    return numbers;
}

/* Rows as a layer has them: some tokens forget nothing, some everything. */
static void begin_case(int n, int seed) {
    static const float decays[] = {0.0f, -0.1f, -3.0f, -INFINITY};
    begin_open(seed);
    f = &cases[n].facts;
    tokens = cases[n].tokens;
    randoms = (uint64_t)(seed + n);
    channels = cp_state_channels(f);
    stride = channels + 2 * f->heads;
    answers = f->heads * f->value_dim;
    shape = (cp_state_shape){f->heads, f->key_dim, f->value_dim, f->key_heads};
    floats = cp_state_floats(&shape);
    pair_floats = cp_pair_floats(&shape);
    rows = random_floats(tokens * stride);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < 2 * f->key_heads * f->key_dim; i++)
            rows[t * stride + i] /= sqrtf((float)f->key_dim);
        for (int64_t h = 0; h < f->heads; h++) {
            rows[t * stride + channels + h] =
                decays[harness_random(&randoms) % (t % 9 == 8 ? 4 : 3)];
            rows[t * stride + channels + f->heads + h] =
                0.5f + 0.5f * harness_uniform(&randoms);
        }
    }
}

static void near(const float *expected, const float *got, int64_t count,
                 double most) {
    double largest = 1e-9, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double apart = fabs((double)expected[i] - (double)got[i]);
        largest = fmax(largest, fabs((double)expected[i]));
        worst = apart <= worst ? worst : isnan(apart) ? INFINITY : apart;
    }
    ck_assert_msg(worst <= most * largest, "off by %g of %g", worst, largest);
}

static cp_state_run run_of(void) {
    const int64_t keys = f->key_heads * f->key_dim;
    const float *decay = rows + channels;
    return (cp_state_run){
        shape, tokens,           rows,  rows + keys, rows + 2 * keys,
        decay, decay + f->heads, stride};
}

static cp_device_follow_args follow_args(void) {
    return (cp_device_follow_args){.facts = *f,
                                   .tokens = tokens,
                                   .stride = stride,
                                   .rows = upload(rows, tokens * stride * 4)};
}

LOOP(a_state_follows_tokens, 0, COUNT_OF(cases)) {
    begin_case(_i, 2);
    const cp_state_run run = run_of();
    float *state = random_floats(floats), *zero = on_host(floats * 4);
    float *expected = on_host(floats * 4),
          *answered = on_host(tokens * answers * 4);
    memset(zero, 0, (size_t)floats * 4);
    for (int known = 0; known < 2; known++) {
        cp_device_follow_args call = follow_args();
        memcpy(expected, known ? state : zero, (size_t)floats * 4);
        must(cp_state_follow(&run, 1, expected, expected, answered));
        if (known)
            call.before =
                (cp_device_state_rows){upload(state, floats * 4), f->value_dim};
        call.after =
            (cp_device_state_rows){on_device(floats * 4), f->value_dim};
        call.answers = on_device(tokens * answers * 4);
        must(cp_device_follow(&call, NULL));
        must(cudaStreamSynchronize(NULL));
        near(expected, fetch(call.after.at, floats * 4), floats, 2e-6);
        near(answered, fetch(call.answers, tokens * answers * 4),
             tokens * answers, 2e-6);
    }
    end();
}

LOOP(a_run_is_a_pair_and_pairs_combine, 0, COUNT_OF(cases)) {
    begin_case(_i, 3);
    const cp_state_run run = run_of();
    const int64_t width = f->key_dim + f->value_dim;
    float *pair = on_host(pair_floats * 4), *earlier;
    cp_device_follow_args call = follow_args();
    cp_pair_identity(&shape, pair);
    must(cp_state_pair(&run, 1, pair));
    call.pairs = true;
    call.after = (cp_device_state_rows){on_device(pair_floats * 4), width};
    must(cp_device_follow(&call, NULL));
    must(cudaStreamSynchronize(NULL));
    near(pair, fetch(call.after.at, pair_floats * 4), pair_floats, 2e-6);
    earlier = random_floats(pair_floats);
    const cp_device_pairs_args both = {*f, upload(earlier, pair_floats * 4),
                                       upload(pair, pair_floats * 4)};
    must(cp_device_pairs(&both, NULL));
    must(cudaStreamSynchronize(NULL));
    cp_pair_combine(&shape, earlier, pair);
    near(pair, fetch(both.pair, pair_floats * 4), pair_floats, 2e-6);
    end();
}

/* The tail of `count` tokens behind that of `before`: the same bits as on cores;
 * and the convolution of those tokens. */
static void compare_tails(int64_t before, int64_t count, const float *taps) {
    const int64_t room = f->taps - 1, size = cp_tail_floats(f->taps, channels);
    float *earlier = room_for(size, 4), *tail = room_for(size, 4);
    float *expected = room_for(tokens * stride, 4);
    cp_convolution call = {f->taps, channels, before, rows, taps, stride};
    cp_tail_take(&call, earlier);
    call.tokens = count;
    const cp_device_channels of = {count, stride, channels, room,
                                   upload(rows, tokens * stride * 4)};
    const cp_device_take_args take = {of, upload(tail, size * 4)};
    const cp_device_tails_args put = {channels, room, upload(earlier, size * 4),
                                      take.tail};
    const cp_device_convolve_args convolve = {
        of, upload(taps, channels * f->taps * 4),
        before > 0 ? put.earlier : NULL};
    must(cp_device_take(&take, NULL));
    must(cp_device_tails(&put, NULL));
    must(cp_device_convolve(&convolve, NULL));
    must(cudaStreamSynchronize(NULL));
    cp_tail_take(&call, tail);
    cp_tail_combine(room, channels, earlier, tail);
    ck_assert_mem_eq(tail, fetch(take.tail, size * 4), (size_t)size * 4);
    memcpy(expected, rows, (size_t)(tokens * stride) * 4);
    cp_convolve(&call, earlier, expected);
    near(expected, fetch(of.rows, tokens * stride * 4), tokens * stride, 2e-6);
}

LOOP(tails_and_the_convolution_are_those_of_cores, 0, COUNT_OF(cases)) {
    const int64_t most = cp_min(cases[_i].tokens, cases[_i].facts.taps);
    for (int64_t before = 0; before <= most; before++) {
        begin_case(_i, 4);
        const float *taps = random_floats(channels * f->taps);
        for (int64_t count = 0; count <= most; count++)
            compare_tails(before, count, taps);
        end();
    }
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

LOOP(rows_are_split, 0, COUNT_OF(cases)) {
    begin_case(_i, 5);
    const int64_t width = channels + answers + 2 * f->heads;
    const float *from = random_floats(tokens * width);
    const float *factor = random_floats(f->heads);
    const float *bias = random_floats(f->heads);
    float *to = on_host(tokens * stride * 4);
    const cp_device_split_args call = {tokens,
                                       width,
                                       channels,
                                       answers,
                                       f->heads,
                                       upload(from, tokens * width * 4),
                                       upload(factor, f->heads * 4),
                                       upload(bias, f->heads * 4),
                                       on_device(tokens * stride * 4),
                                       on_device(tokens * answers * 4)};
    must(cp_device_split(&call, NULL));
    must(cudaStreamSynchronize(NULL));
    const float *kept = fetch(call.kept, tokens * answers * 4);
    for (int64_t t = 0; t < tokens; t++) {
        const float *row = from + t * width, *ends = row + channels + answers;
        float *made = to + t * stride;
        memcpy(made, row, (size_t)channels * 4);
        for (int64_t h = 0; h < f->heads; h++) {
            made[channels + h] = factor[h] * log1pf(expf(ends[h] + bias[h]));
            made[channels + f->heads + h] = sigmoid(ends[f->heads + h]);
        }
        ck_assert_mem_eq(kept + t * answers, row + channels,
                         (size_t)answers * 4);
    }
    near(to, fetch(call.to, tokens * stride * 4), tokens * stride, 1e-6);
    end();
}

LOOP(queries_and_keys_get_their_lengths, 0, COUNT_OF(cases)) {
    begin_case(_i, 6);
    const int64_t dim = f->key_dim, heads = f->key_heads;
    const cp_device_normalise_args call = {tokens, stride, heads, dim,
                                           upload(rows, tokens * stride * 4)};
    must(cp_device_normalise(&call, NULL));
    must(cudaStreamSynchronize(NULL));
    for (int64_t n = 0; n < 2 * tokens * heads; n++) {
        const int64_t head = n % (2 * heads);
        float *x = rows + n / (2 * heads) * stride + head * dim;
        double squares = 1e-6;
        for (int64_t d = 0; d < dim; d++)
            squares += (double)x[d] * x[d];
        for (int64_t d = 0; d < dim; d++)
            x[d] *=
                (float)(1 / sqrt(squares * (head < heads ? (double)dim : 1)));
    }
    float *got = fetch(call.rows, tokens * stride * 4);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = channels; i < stride; i++)
            rows[t * stride + i] = got[t * stride + i] = 0;
    near(rows, got, tokens * stride, 2e-6);
    end();
}

/* Gates of attention, whose answers lie anywhere, and of states. */
LOOP(gates_are_opened, 0, 2 * COUNT_OF(cases)) {
    begin_case(_i / 2, 7);
    const int64_t dim = f->value_dim;
    const bool state = _i % 2;
    const float *from = random_floats((tokens + 3) * answers);
    const float *weight = random_floats(dim);
    float *gates = random_floats(tokens * answers);
    int64_t *indices = on_host(tokens * 8);
    for (int64_t t = 0; t < tokens; t++)
        indices[t] = t % 4 == 2 ? -1 : tokens + 2 - t;
    const cp_device_open_args call = {
        .rows = tokens,
        .heads = f->heads,
        .dim = dim,
        .indices = upload(indices, tokens * 8),
        .placed = !state,
        .answers = upload(from, (tokens + 3) * answers * 4),
        .weight = state ? upload(weight, dim * 4) : NULL,
        .epsilon = 1e-5f,
        .gates = upload(gates, tokens * answers * 4)};
    must(cp_device_open(&call, NULL));
    must(cudaStreamSynchronize(NULL));
    for (int64_t n = 0; n < tokens * f->heads; n++) {
        const int64_t t = n / f->heads, index = state ? t : indices[t];
        const float *x =
            from + (cp_max(0, index) * f->heads + n % f->heads) * dim;
        double squares = 0;
        for (int64_t d = 0; d < dim; d++)
            squares += (double)x[d] * x[d] / (double)dim;
        for (int64_t d = 0; d < dim; d++) {
            float *gate = &gates[n * dim + d];
            const float normed =
                x[d] * (float)(1 / sqrt(squares + 1e-5)) * weight[d];
            *gate = indices[t] < 0
                        ? 0
                        : sigmoid(*gate) * (state ? normed * *gate : x[d]);
        }
    }
    near(gates, fetch(call.gates, tokens * answers * 4), tokens * answers,
         2e-6);
    end();
}

TEST(a_key_too_wide_for_the_registers_is_refused) {
    begin_open(2);
    const cp_state_facts wide = {4, 1, 1, 257, 8, 4};
    const cp_device_follow_args follow = {.facts = wide};
    const cp_device_pairs_args pairs = {.facts = wide};
    ck_assert_int_eq(cp_device_follow(&follow, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cp_device_pairs(&pairs, NULL), cudaErrorInvalidValue);
    end();
}

enum { TALKS = 2, MOST = 80 };

/* A conversation on pretended GPUs and on one core. */
static struct {
    cp_session *one, *many;
    int32_t text[TALKS][MOST];
    int64_t words;
} talk;

/* The same call on both: all scores agree. */
static void feed(bool decode, int64_t first, int64_t second) {
    const int64_t lengths[TALKS] = {first, second};
    const int64_t numbers = (first + second) * talk.words;
    cp_session *const sessions[2] = {talk.one, talk.many};
    int32_t tokens[2 * MOST];
    int64_t count = 0;
    float *scores[2];
    for (int s = 0; s < TALKS; s++)
        for (int64_t t = 0; t < lengths[s]; t++) {
            tokens[count] =
                (int32_t)(harness_random(&randoms) % (uint64_t)talk.words);
            talk.text[s][cp_session_length(talk.one, s) + t] = tokens[count++];
        }
    for (int n = 0; n < 2; n++) {
        scores[n] = room_for(numbers, 4);
        must((decode ? cp_session_decode
                     : cp_session_prefill)(sessions[n], lengths, tokens, NULL));
        must(cp_session_logits(sessions[n], 0, count, scores[n]));
    }
    near(scores[0], scores[1], numbers, 2e-5);
}

static const cp_dealing leafwise = {
    .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};

/* States move to other numbers of ranks; after a loss they are made again. */
LOOP(ranks_of_a_hybrid_come_and_go, 0, 2) {
    static const int ranks[] = {2, 5, 1, 3}, lost[] = {2, 0};
    const cp_session_options options = {.ranks = 3,
                                        .sequences = TALKS,
                                        .dealing = _i == 0 ? (cp_dealing){0}
                                                           : leafwise,
                                        .capacity = MOST,
                                        .block = _i == 0 ? 8 : 0,
                                        .least = 1};
    const tiny_gguf_options hybrid = {.seed = 7, .family = "qwen35"};
    const int32_t *texts[TALKS] = {talk.text[0], talk.text[1]};
    tiny_bytes bytes = {0};
    cp_gguf *file;
    cp_model *models[2];
    cp_ranks_report moved;
    cp_repair_report repaired;
    begin_open(8);
    randoms = 8;
    talk.words = tiny_gguf_vocabulary_size(&hybrid);
    tiny_gguf_build(&hybrid, &bytes);
    must(cp_gguf_parse(bytes.bytes, bytes.length, &file));
    must(cp_model_open(&cp_backend_threads, file, &models[0]));
    must(cp_model_open(&cp_backend_cuda_fp32, file, &models[1]));
    must(cp_session_open(
        models[0],
        &(cp_session_options){.ranks = 1, .sequences = TALKS, .capacity = MOST},
        &talk.one));
    must(cp_session_open(models[1], &options, &talk.many));
    feed(false, 20, 3);
    for (int n = 0; n < COUNT_OF(ranks); n++) {
        must(cp_session_ranks(talk.many, ranks[n], &moved));
        feed(true, 1, 1);
    }
    for (int n = 0; n < COUNT_OF(lost); n++) {
        must(cp_session_repair(talk.many, lost[n], texts, &repaired));
        feed(true, 1, 1);
        feed(false, 2, 9);
    }
    for (int n = 0; n < 2; n++) {
        cp_session_close(n == 0 ? talk.one : talk.many);
        cp_model_close(models[n]);
    }
    cp_gguf_close(file);
    free(bytes.bytes);
    end();
}
