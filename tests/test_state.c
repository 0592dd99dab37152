/* Layers with a state: blocks against the recurrence in double precision, and
 * runs that are cut anywhere and put together again. */
#include "expect.h"

#include <math.h>

#include "reference/attend/state.h"

typedef struct {
    cp_state_shape shape;
    int64_t tokens;
    float forget; /* decays are so many times a number from -1 to 0 */
} layer;

static const layer layers[] = {
    {{1, 1, 1}, 1, 1},     {{1, 1, 1}, 70, 0},     {{2, 8, 5}, 64, 0.1f},
    {{3, 5, 8}, 65, 1},    {{1, 16, 3}, 63, 30},   {{2, 32, 16}, 300, 0.01f},
    {{4, 12, 20}, 129, 0}, {{2, 3, 7}, 200, 1e6f},
};
#define LAYERS COUNT_OF(layers)

static cp_run run_of(int which) {
    const layer *of = &layers[which];
    const cp_state_shape s = of->shape;
    const int64_t rows = of->tokens * s.heads;
    uint64_t state = 1 + (uint64_t)which;
    float *queries = room_for(rows * s.key_dim, 4);
    float *keys = room_for(rows * s.key_dim, 4);
    float *values = room_for(rows * s.value_dim, 4);
    float *decay = room_for(rows, 4), *rate = room_for(rows, 4);
    for (int64_t n = 0; n < rows; n++) {
        float *k = keys + n * s.key_dim, length = 0;
        for (int64_t d = 0; d < s.key_dim; d++) {
            queries[n * s.key_dim + d] = harness_uniform(&state);
            k[d] = harness_uniform(&state);
            length += k[d] * k[d];
        }
        for (int64_t d = 0; d < s.key_dim; d++)
            k[d] /= sqrtf(length);
        for (int64_t d = 0; d < s.value_dim; d++)
            values[n * s.value_dim + d] = harness_uniform(&state);
        decay[n] = -of->forget * fabsf(harness_uniform(&state));
        rate[n] = fabsf(harness_uniform(&state));
    }
    return (cp_run){s, of->tokens, queries, keys, values, decay, rate};
}

/* Tokens from first on, before end. */
static cp_run cut(const cp_run *run, int64_t first, int64_t end) {
    const cp_state_shape s = run->shape;
    const int64_t row = first * s.heads;
    return (cp_run){s,
                    end - first,
                    run->queries + row * s.key_dim,
                    run->keys + row * s.key_dim,
                    run->values + row * s.value_dim,
                    run->decay + row,
                    run->rate + row};
}

static float *pair_of(const cp_run *run, int64_t first, int64_t end) {
    const cp_run part = cut(run, first, end);
    float *pair = room_for(cp_pair_floats(&run->shape), 4);
    cp_pair_identity(&run->shape, pair);
    must(cp_run_pair(&part, 1, pair));
    return pair;
}

static void combine(const cp_run *run, const float *earlier, float *pair) {
    cp_pair_combine(&run->shape, earlier, pair,
                    room_for(run->shape.key_dim, 4));
}

/* What is expected has some length; what is got is so far from it. */
static double distance(const double *due, const float *got, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t n = 0; n < count; n++) {
        difference += pow(due[n] - (double)got[n], 2);
        norm += due[n] * due[n];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static void alike(const float *due, const float *got, int64_t count) {
    double *wide = room_for(count, 8);
    for (int64_t n = 0; n < count; n++)
        wide[n] = (double)due[n];
    ck_assert_double_le(distance(wide, got, count), 2e-6);
}

/* A state that is somewhere: known, so M = 0. */
static void fill_state(const cp_run *run, float *pair, double *state) {
    const int64_t keys = run->shape.key_dim, values = run->shape.value_dim;
    uint64_t seed = 5;
    cp_pair_clear(&run->shape, pair);
    for (int64_t n = 0; n < run->shape.heads * keys * values; n++) {
        const float number = harness_uniform(&seed);
        pair[n / values * (keys + values) + keys + n % values] = number;
        state[n] = (double)number;
    }
}

LOOP(blocks_are_the_recurrence, 0, LAYERS) {
    const cp_run run = run_of(_i);
    const cp_state_shape s = run.shape;
    const int64_t answers = run.tokens * s.heads * s.value_dim;
    double *state = room_for(s.heads * s.key_dim * s.value_dim, 8);
    double *due = room_for(answers, 8);
    float *pair = room_for(cp_pair_floats(&s), 4), *got = room_for(answers, 4);
    float *threads = room_for(answers, 4);
    fill_state(&run, pair, state);
    float *same = room_for(cp_pair_floats(&s), 4);
    memcpy(same, pair, (size_t)cp_pair_floats(&s) * 4);
    cp_run_oracle(&run, state, due);
    must(cp_run_answer(&run, 1, pair, got));
    ck_assert_double_le(distance(due, got, answers), 1e-6);
    must(cp_run_answer(&run, 3, same, threads));
    hold(memcmp(got, threads, (size_t)answers * 4) == 0);
    hold(memcmp(pair, same, (size_t)cp_pair_floats(&s) * 4) == 0);
    for (int64_t n = 0; n < s.heads * s.key_dim; n++) {
        const float *row = pair + n * (s.key_dim + s.value_dim);
        for (int64_t d = 0; d < s.key_dim; d++)
            hold(row[d] == 0);
    }
}

/* Cut in three at places that move, empty runs and all; put together from
 * either side, and advanced from one to the next. */
LOOP(runs_are_cut_anywhere, 0, LAYERS) {
    const cp_run run = run_of(_i);
    const int64_t floats = cp_pair_floats(&run.shape);
    float *whole = pair_of(&run, 0, run.tokens);
    for (int64_t a = 0; a <= run.tokens; a += cp_max(1, run.tokens / 5))
        for (int64_t b = a; b <= run.tokens; b += cp_max(1, run.tokens / 3)) {
            float *first = pair_of(&run, 0, a), *left = pair_of(&run, b, b);
            float *second = pair_of(&run, a, b), *on = pair_of(&run, 0, a);
            float *third = pair_of(&run, b, run.tokens);
            memcpy(left, second, (size_t)floats * 4);
            combine(&run, first, left); /* (first second) third */
            float *right = pair_of(&run, b, run.tokens);
            combine(&run, second, right); /* first (second third) */
            combine(&run, first, right);
            combine(&run, left, third);
            alike(whole, third, floats);
            alike(whole, right, floats);
            const cp_run rest = cut(&run, a, run.tokens);
            must(cp_run_pair(&rest, 2, on));
            alike(whole, on, floats);
        }
}

TEST(an_empty_run_changes_nothing) {
    const cp_run run = run_of(3);
    const int64_t floats = cp_pair_floats(&run.shape);
    float *empty = pair_of(&run, 9, 9), *some = pair_of(&run, 2, 9);
    float *before = pair_of(&run, 2, 9);
    combine(&run, empty, some);
    hold(memcmp(some, before, (size_t)floats * 4) == 0);
    combine(&run, some, empty);
    hold(memcmp(empty, before, (size_t)floats * 4) == 0);
}

/* A pair of what is known says so whatever comes before it. */
TEST(a_known_state_forgets_what_was_before) {
    const cp_run run = run_of(2);
    float *known = room_for(cp_pair_floats(&run.shape), 4);
    float *pair = pair_of(&run, 0, 30);
    float *same = room_for(cp_pair_floats(&run.shape), 4);
    fill_state(&run, known, room_for(2 * 8 * 5, 8));
    memcpy(same, known, (size_t)cp_pair_floats(&run.shape) * 4);
    combine(&run, pair, known);
    hold(memcmp(known, same, (size_t)cp_pair_floats(&run.shape) * 4) == 0);
}

/* Rows cut in pieces of any length: each is convolved after the tail of all
 * before, with the bits that it has in one piece. */
LOOP(tails_are_enough, 1, 6) {
    enum { CHANNELS = 3, TOKENS = 23 };
    const int64_t width = _i, tail_floats = cp_tail_floats(width, CHANNELS);
    uint64_t state = 3;
    float rows[TOKENS * CHANNELS], due[TOKENS * CHANNELS];
    float got[TOKENS * CHANNELS], weights[CHANNELS * 5];
    for (int n = 0; n < TOKENS * CHANNELS; n++)
        rows[n] = harness_uniform(&state);
    for (int n = 0; n < CHANNELS * 5; n++)
        weights[n] = harness_uniform(&state);
    cp_convolution all = {width, CHANNELS, TOKENS, rows, weights};
    float *nothing = room_for(tail_floats, 4);
    cp_convolve(&all, nothing, due);
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < CHANNELS; c++) {
            double sum = 0;
            for (int i = 0; i < width; i++) {
                const int at = t - (int)width + 1 + i;
                if (at >= 0)
                    sum += (double)weights[c * width + i] *
                           (double)rows[at * CHANNELS + c];
            }
            sum /= 1 + exp(-sum);
            hold(fabs(sum - (double)due[t * CHANNELS + c]) <= 1e-6);
        }
    for (int pieces = 1; pieces < 40; pieces++) {
        float *before = room_for(tail_floats, 4);
        for (int64_t t = 0; t < TOKENS;) {
            cp_convolution part = all;
            part.tokens = cp_min((int64_t)(harness_random(&state) % 5) *
                                     (pieces % 3 + 1) / 3,
                                 TOKENS - t);
            part.rows = rows + t * CHANNELS;
            float *tail =
                memset(room_for(tail_floats, 4), 0xFF, (size_t)tail_floats * 4);
            cp_convolve(&part, before, got + t * CHANNELS);
            cp_tail_take(&part, tail);
            cp_tail_combine(width - 1, CHANNELS, before, tail);
            before = tail;
            t += part.tokens;
            hold(memcmp(got, due, (size_t)(t * CHANNELS) * 4) == 0);
        }
    }
}

TEST(nobody_moves_a_state_without_threads) {
    cp_run run = run_of(2);
    float *pair = pair_of(&run, 0, 1);
    refuses(cp_run_pair(&run, 0, pair), CP_INVALID, "0 threads");
    run.tokens = -1;
    refuses(cp_run_pair(&run, 1, pair), CP_INVALID, "-1 tokens");
    run.shape.key_dim = 0;
    run.tokens = 1;
    refuses(cp_run_pair(&run, 1, pair), CP_INVALID, "states of 0 by 5");
}
