/* Layers with a state: blocks against the recurrence in double precision, and
 * runs that are cut anywhere and combined again. */
#include "expect.h"

#include <math.h>

#include <stdio.h>

#include "reference/model/state_tokens.h"
#include "predict/simulate.h"
#include "plan/check.h"

typedef struct {
    cp_state_shape shape;
    int64_t tokens;
    float forget; /* factor on decays, which are from -1 to 0 */
} state_layer;

static const state_layer layers[] = {
    {{1, 1, 1}, 1, 1},     {{1, 1, 1}, 70, 0},     {{2, 8, 5}, 64, 0.1f},
    {{3, 5, 8}, 65, 1},    {{1, 16, 3}, 63, 30},   {{2, 32, 16}, 300, 0.01f},
    {{4, 12, 20}, 129, 0}, {{2, 3, 7}, 200, 1e6f},
};
#define LAYERS COUNT_OF(layers)

static cp_state_run run_of(int which) {
    const state_layer *of = &layers[which];
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
        if (n / s.heads == 40) /* all is forgotten, once */
            decay[n] = which % 2 ? -1e30f : -INFINITY;
        rate[n] = fabsf(harness_uniform(&state));
    }
    return (cp_state_run){s, of->tokens, queries, keys, values, decay, rate};
}

/* Tokens from first on, before end. */
static cp_state_run cut(const cp_state_run *run, int64_t first, int64_t end) {
    const cp_state_shape s = run->shape;
    const int64_t row = first * s.heads;
    return (cp_state_run){s,
                          end - first,
                          run->queries + row * s.key_dim,
                          run->keys + row * s.key_dim,
                          run->values + row * s.value_dim,
                          run->decay + row,
                          run->rate + row};
}

static float *pair_of(const cp_state_run *run, int64_t first, int64_t end) {
    const cp_state_run part = cut(run, first, end);
    float *pair = room_for(cp_pair_floats(&run->shape), 4);
    cp_pair_identity(&run->shape, pair);
    must(cp_state_pair(&part, 1, pair));
    return pair;
}

static void combine(const cp_state_run *run, const float *earlier,
                    float *pair) {
    cp_pair_combine(&run->shape, earlier, pair);
}

/* The relative distance of the result from the expected one. */
static double distance(const double *expected, const float *got,
                       int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t n = 0; n < count; n++) {
        difference += pow(expected[n] - (double)got[n], 2);
        norm += expected[n] * expected[n];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static void alike(const float *expected, const float *got, int64_t count) {
    double *wide = room_for(count, 8);
    for (int64_t n = 0; n < count; n++)
        wide[n] = (double)expected[n];
    ck_assert_double_le(distance(wide, got, count), 2e-6);
}

/* A known state: M = 0. */
static void fill_state(const cp_state_run *run, float *pair, double *state) {
    const int64_t floats = cp_state_floats(&run->shape);
    float *numbers = room_for(floats, 4);
    uint64_t seed = 5;
    for (int64_t n = 0; n < floats; n++)
        state[n] = (double)(numbers[n] = harness_uniform(&seed));
    cp_pair_know(&run->shape, numbers, pair);
}

LOOP(blocks_are_the_recurrence, 0, LAYERS) {
    const cp_state_run run = run_of(_i);
    const cp_state_shape s = run.shape;
    const int64_t answers = run.tokens * s.heads * s.value_dim;
    double *state = room_for(s.heads * s.key_dim * s.value_dim, 8);
    double *expected = room_for(answers, 8);
    float *pair = room_for(cp_pair_floats(&s), 4), *got = room_for(answers, 4);
    float *threads = room_for(answers, 4);
    fill_state(&run, pair, state);
    float *same = room_for(cp_pair_floats(&s), 4);
    memcpy(same, pair, (size_t)cp_pair_floats(&s) * 4);
    cp_state_oracle(&run, state, expected);
    must(cp_state_answer(&run, 1, pair, got));
    ck_assert_double_le(distance(expected, got, answers), 1e-6);
    must(cp_state_answer(&run, 3, same, threads));
    hold(memcmp(got, threads, (size_t)answers * 4) == 0);
    hold(memcmp(pair, same, (size_t)cp_pair_floats(&s) * 4) == 0);
    for (int64_t n = 0; n < s.heads * s.key_dim; n++) {
        const float *row = pair + n * (s.key_dim + s.value_dim);
        for (int64_t d = 0; d < s.key_dim; d++)
            hold(row[d] == 0);
    }
}

/* Cut in three at varying positions, with empty runs; combined from either
 * side, and advanced from one to the next. */
LOOP(runs_are_cut_anywhere, 0, LAYERS) {
    const cp_state_run run = run_of(_i);
    const int64_t floats = cp_pair_floats(&run.shape);
    float *full = pair_of(&run, 0, run.tokens);
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
            alike(full, third, floats);
            alike(full, right, floats);
            const cp_state_run tail = cut(&run, a, run.tokens);
            must(cp_state_pair(&tail, 2, on));
            alike(full, on, floats);
        }
}

TEST(an_empty_run_changes_nothing) {
    const cp_state_run run = run_of(3);
    const int64_t floats = cp_pair_floats(&run.shape);
    float *empty = pair_of(&run, 9, 9), *pair = pair_of(&run, 2, 9);
    float *before = pair_of(&run, 2, 9);
    combine(&run, empty, pair);
    hold(memcmp(pair, before, (size_t)floats * 4) == 0);
    combine(&run, pair, empty);
    hold(memcmp(empty, before, (size_t)floats * 4) == 0);
}

/* A pair for a known state gives that state, whatever precedes it. */
TEST(a_known_state_replaces_the_earlier_one) {
    const cp_state_run run = run_of(2);
    float *known = room_for(cp_pair_floats(&run.shape), 4);
    float *pair = pair_of(&run, 0, 30);
    float *same = room_for(cp_pair_floats(&run.shape), 4);
    fill_state(&run, known, room_for(2 * 8 * 5, 8));
    memcpy(same, known, (size_t)cp_pair_floats(&run.shape) * 4);
    combine(&run, pair, known);
    hold(memcmp(known, same, (size_t)cp_pair_floats(&run.shape) * 4) == 0);
}

/* Rows cut in pieces of any length: each is convolved after the tail of all
 * before, with the bits of a single piece. */
LOOP(tails_are_enough, 1, 6) {
    enum { CHANNELS = 3, TOKENS = 23 };
    const int64_t width = _i, tail_floats = cp_tail_floats(width, CHANNELS);
    uint64_t state = 3;
    float rows[TOKENS * CHANNELS], expected[TOKENS * CHANNELS];
    float got[TOKENS * CHANNELS], weights[CHANNELS * 5];
    for (int n = 0; n < TOKENS * CHANNELS; n++)
        rows[n] = harness_uniform(&state);
    for (int n = 0; n < CHANNELS * 5; n++)
        weights[n] = harness_uniform(&state);
    cp_convolution all = {width, CHANNELS, TOKENS, rows, weights};
    float *nothing = room_for(tail_floats, 4);
    cp_convolve(&all, nothing, expected);
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
            hold(fabs(sum - (double)expected[t * CHANNELS + c]) <= 1e-6);
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
            hold(memcmp(got, expected, (size_t)(t * CHANNELS) * 4) == 0);
        }
    }
}

/* Rows in any order are convolved, and followed token by token, with the bits
 * that they have in theirs, wherever runs end. */
LOOP(bits_of_single_tokens_do_not_depend_on_runs, 0, LAYERS) {
    enum { WIDTH = 4 };
    cp_state_run run = run_of(_i);
    const cp_state_shape s = run.shape;
    const int64_t keys = s.heads * s.key_dim, values = s.heads * s.value_dim;
    const int64_t channels = 2 * keys + values, stride = channels + 2 * s.heads;
    const int64_t tokens = run.tokens, floats = cp_state_floats(&s);
    int64_t *order = room_for(tokens, 8);
    uint64_t random = (uint64_t)_i + 1;
    float *weights = room_for(channels * WIDTH, 4), *expected = NULL;
    for (int64_t n = 0; n < channels * WIDTH; n++)
        weights[n] = 0.3f * harness_uniform(&random);
    for (int round = 0; round < 6; round++) {
        float *rows = room_for(tokens * stride, 4);
        float *answers = room_for(tokens * values, 4);
        float *state = room_for(floats, 4);
        float *tail = room_for(cp_tail_floats(WIDTH, channels), 4);
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t at =
                (int64_t)(harness_random(&random) % (uint64_t)(t + 1));
            order[t] = order[at];
            order[at] = t;
        }
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t row = round == 0 ? t : order[t];
            float *to = rows + row * stride;
            memcpy(to, run.queries + t * keys, (size_t)keys * 4);
            memcpy(to + keys, run.keys + t * keys, (size_t)keys * 4);
            memcpy(to + 2 * keys, run.values + t * values, (size_t)values * 4);
            memcpy(to + channels, run.decay + t * s.heads, (size_t)s.heads * 4);
            memcpy(to + channels + s.heads, run.rate + t * s.heads,
                   (size_t)s.heads * 4);
        }
        for (int64_t t = 0; t < tokens;) {
            const int64_t most = round < 2 ? tokens : 1 + 40 * (round - 2);
            const int64_t count =
                cp_min(tokens - t,
                       1 + (int64_t)(harness_random(&random) % (uint64_t)most));
            const cp_convolution part = {.width = WIDTH,
                                         .channels = channels,
                                         .tokens = count,
                                         .rows = rows,
                                         .weights = weights,
                                         .stride = stride,
                                         .threads = 1 + round % 2,
                                         .order = order + t};
            const cp_convolution plain = {.width = WIDTH,
                                          .channels = channels,
                                          .tokens = count,
                                          .rows = rows + t * stride,
                                          .weights = weights,
                                          .stride = stride};
            const cp_convolution *call = round == 0 ? &plain : &part;
            const float *from = round == 0 ? rows + t * stride : rows;
            float *next = room_for(cp_tail_floats(WIDTH, channels), 4);
            cp_tail_take(call, next);
            cp_tail_combine(WIDTH - 1, channels, tail, next);
            cp_convolve(call, tail, (float *)(uintptr_t)from);
            tail = next;
            const cp_state_run one = {.shape = s,
                                      .tokens = count,
                                      .queries = from,
                                      .keys = from + keys,
                                      .values = from + 2 * keys,
                                      .decay = from + channels,
                                      .rate = from + channels + s.heads,
                                      .stride = stride,
                                      .single = true,
                                      .order = round == 0 ? NULL : order + t};
            must(cp_state_follow(&one, 1 + round % 3, state, state,
                                 answers + (round == 0 ? t * values : 0)));
            t += count;
        }
        float *sorted = room_for(tokens * values + floats, 4);
        for (int64_t t = 0; t < tokens; t++)
            memcpy(sorted + t * values,
                   answers + (round == 0 ? t : order[t]) * values,
                   (size_t)values * 4);
        memcpy(sorted + tokens * values, state, (size_t)floats * 4);
        if (round == 0)
            expected = sorted;
        hold(memcmp(expected, sorted, (size_t)(tokens * values + floats) * 4) ==
             0);
    }
}

/* A part of a row begins elsewhere in memory, and a loop may start there with
 * other lanes. */
LOOP(lengths_do_not_depend_on_addresses, 0, 6) {
    const int64_t dim = (int64_t[]){1, 5, 16, 24, 100, 128}[_i];
    float *numbers = room_for(2 * dim, 4), *expected = NULL;
    uint64_t random = 4;
    for (int64_t d = 0; d < 2 * dim; d++)
        numbers[d] = harness_uniform(&random);
    for (int offset = 0; offset < 16; offset++) {
        float *row = (float *)room_for(2 * dim + 16, 4) + offset;
        const cp_state_tokens one = {.shape = {1, dim, 1, 1},
                                     .threads = 1,
                                     .count = 1,
                                     .stride = 2 * dim,
                                     .rows = row};
        memcpy(row, numbers, (size_t)(2 * dim) * 4);
        cp_state_tokens_normalise(&one);
        expected = offset == 0 ? row : expected;
        ck_assert_mem_eq(expected, row, (size_t)(2 * dim) * 4);
    }
}

TEST(a_state_needs_threads) {
    cp_state_run run = run_of(2);
    float *pair = pair_of(&run, 0, 1);
    refuses(cp_state_pair(&run, 0, pair), CP_INVALID, "0 threads");
    run.tokens = -1;
    refuses(cp_state_pair(&run, 1, pair), CP_INVALID, "-1 tokens");
    run.shape.key_dim = 0;
    run.tokens = 1;
    refuses(cp_state_pair(&run, 1, pair), CP_INVALID, "states of 0 by 5");
}

/* A test's items are words, which are concatenated. */
enum { WORD = 40, MOST_RANKS = 16 };

typedef struct {
    const cp_plan *plan;
    char (*items)[WORD], (*expected)[WORD]; /* [2N] */
} scanned;

static void combine_words(const void *monoid, const void *earlier,
                          void *later) {
    char word[WORD];
    (void)monoid;
    hold(snprintf(word, WORD, "%s%s", (const char *)earlier,
                  (const char *)later) < WORD);
    memcpy(later, word, WORD);
}

static cp_status scan_rank(cp_comm *comm, void *context) {
    const scanned *scanned = context;
    const cp_plan *plan = scanned->plan;
    const cp_walk_options options = {.combine = combine_words, .poison = true};
    cp_walker *walker;
    CP_TRY(cp_walker_new(plan, comm->rank, &options, &walker));
    for (int half = 0; half < 2; half++) {
        const cp_use run = cp_plan_own_run(plan, comm->rank, half);
        memcpy(walker->buffers[2 * run.slot], scanned->items[run.origin], WORD);
    }
    const cp_status status = cp_walk(walker, comm, NULL, NULL);
    for (int half = 0; half < 2 && status == CP_OK; half++) {
        const cp_use expected = cp_plan_prefix_run(plan, comm->rank, half);
        if (expected.part >= 0)
            memcpy(scanned->expected[expected.part + 1],
                   walker->buffers[2 * expected.slot], WORD);
    }
    cp_walker_free(walker);
    return status;
}

static cp_layout *layout_over(int ranks) {
    const int64_t tokens = 1;
    const cp_call call = {
        .ranks = ranks, .sequences = 1, .new_tokens = &tokens, .room = 2};
    cp_layout *layout;
    must(cp_layout_new(&call, &layout));
    return layout;
}

static cp_plan *scan_over(cp_scan scan, cp_layout *layout, int64_t bytes) {
    cp_plan *plan;
    must(cp_plan_scan(scan, layout, bytes, &plan));
    return plan;
}

/* Letters over N ranks: each chunk gets the alphabet before it. */
LOOP(scans_are_checked_and_run, 0, MOST_RANKS *CP_SCANS) {
    const int ranks = _i / CP_SCANS + 1;
    const cp_scan scan = (cp_scan)(_i % CP_SCANS);
    cp_layout *layout = layout_over(ranks);
    cp_plan *plan = scan_over(scan, layout, WORD);
    cp_plan_report report;
    must(cp_plan_check(plan, &report));
    if (ranks <= 3)
        must(cp_plan_explore(plan, 1000000, NULL));
    char items[2 * MOST_RANKS][WORD] = {{0}}, expected[2 * MOST_RANKS][WORD];
    for (int c = 0; c < 2 * ranks; c++)
        items[c][0] = (char)('A' + c);
    scanned scanned = {plan, items, expected};
    const cp_threads_options threads = {
        .ranks = ranks, .timeout = 60, .disorder = 1 + (uint64_t)_i};
    must(cp_threads_run(&threads, scan_rank, &scanned));
    for (int c = 1; c < 2 * ranks; c++)
        for (int n = 0; n <= c; n++)
            ck_assert_int_eq(expected[c][n], n < c ? 'A' + n : 0);
    int64_t most = 0;
    for (int k = 0; k < ranks; k++)
        most = cp_max(most, report.messages[k]);
    int steps = 1;
    for (int far = 1; far < 2 * ranks - 1; far *= 2)
        steps++;
    const int64_t bound[] = {2 * (ranks - 1), 2, 2 * steps};
    hold(most <= bound[scan]);
    cp_plan_report_free(&report);
    cp_plan_free(plan);
    cp_layout_free(layout);
}

/* A conversation with a layer over N ranks: turns of any length, each from the
 * state after the previous one, with the answers of one rank. */
LOOP(a_layer_over_ranks_is_a_layer, 0, LAYERS *CP_SCANS) {
    const cp_state_run run = run_of(_i / CP_SCANS);
    const cp_state_shape s = run.shape;
    const int64_t width = s.heads * s.value_dim;
    double *exact = room_for(cp_state_floats(&s), 8);
    double *expected = room_for(run.tokens * width, 8);
    float *state = room_for(cp_state_floats(&s), 4);
    float *output = room_for(run.tokens * width, 4);
    float *pair = room_for(cp_pair_floats(&s), 4);
    fill_state(&run, pair, exact);
    cp_pair_state(&s, pair, state);
    cp_state_oracle(&run, exact, expected);
    for (int64_t from = 0, turn = 1; from < run.tokens; turn++) {
        const int64_t end = cp_min(run.tokens, from + turn * turn * 3);
        cp_state_job job = {.ranks = (int)(1 + (_i + turn) % 9),
                            .threads = 1,
                            .scan = (cp_scan)(_i % CP_SCANS),
                            .run = cut(&run, from, end),
                            .state = state,
                            .output = output + from * width};
        must(cp_state_job_run(&cp_runner_threads, &job));
        from = end;
    }
    ck_assert_double_le(distance(expected, output, run.tokens * width), 1.1e-6);
    ck_assert_double_le(distance(exact, state, cp_state_floats(&s)), 1.1e-6);
}

/* Rows convolved over N ranks, turn by turn, have the bits of one rank. */
enum { CHANNELS = 2, ROWS = 61 };

typedef struct {
    const cp_plan *plan;
    cp_convolution all; /* of this turn */
    int shift;
    float *tail, *out;
} convolved;

static cp_status convolve_rank(cp_comm *comm, void *context) {
    const convolved *convolved = context;
    const int ranks = comm->ranks;
    const cp_tail_shape shape = {convolved->all.width - 1, CHANNELS};
    cp_tail_scan scan = {.before = convolved->tail, .after = convolved->tail};
    int peers[MOST_RANKS], part = 0; /* part n is on rank n + shift */
    cp_walker *walker;
    for (int n = 0; n < ranks; n++) {
        peers[n] = (n + convolved->shift) % ranks;
        part = peers[n] == comm->rank ? n : part;
    }
    for (int half = 0; half < 2; half++) {
        const int c = cp_plan_chunk(convolved->plan, part, half);
        const cp_chunk chunk = cp_chunk_of(convolved->all.tokens, ranks, c);
        scan.chunks[half] = convolved->all;
        scan.chunks[half].tokens = chunk.count;
        scan.chunks[half].rows += chunk.first * CHANNELS;
        scan.outputs[half] = convolved->out + chunk.first * CHANNELS;
    }
    CP_TRY(cp_tail_walker_new(convolved->plan, part,
                              convolved->shift > 0 ? peers : NULL, &shape,
                              &walker));
    const cp_status status = cp_tail_walk(walker, comm, &scan);
    cp_walker_free(walker);
    return status;
}

LOOP(a_convolution_over_ranks_equals_one_rank, 0, 9 * CP_SCANS) {
    const int ranks = 1 + _i / CP_SCANS;
    const int64_t floats = cp_tail_floats(4, CHANNELS);
    cp_layout *layout = layout_over(ranks);
    cp_plan *plan = scan_over((cp_scan)(_i % CP_SCANS), layout, 4 * floats);
    float rows[ROWS * CHANNELS], expected[ROWS * CHANNELS],
        got[ROWS * CHANNELS];
    float weights[4 * CHANNELS];
    uint64_t state = 9;
    for (int n = 0; n < ROWS * CHANNELS; n++)
        rows[n] = harness_uniform(&state);
    for (int n = 0; n < 4 * CHANNELS; n++)
        weights[n] = harness_uniform(&state);
    const cp_convolution all = {4, CHANNELS, ROWS, rows, weights};
    convolved convolved = {plan, all, 0, room_for(floats, 4), NULL};
    cp_convolve(&all, room_for(floats, 4), expected);
    for (int64_t from = 0, turn = 1; from < ROWS; turn++) {
        convolved.all.tokens = cp_min(ROWS - from, turn * turn * turn % 31);
        convolved.all.rows = rows + from * CHANNELS;
        convolved.out = got + from * CHANNELS;
        convolved.shift = (int)turn % ranks;
        const cp_threads_options threads = {.ranks = ranks, .timeout = 60};
        must(cp_threads_run(&threads, convolve_rank, &convolved));
        from += convolved.all.tokens;
    }
    hold(memcmp(expected, got, sizeof(expected)) == 0);
    cp_plan_free(plan);
    cp_layout_free(layout);
}

/* A state that is followed, from one copy to the other, some tokens at a time,
 * which lie in rows of other numbers; heads share keys. */
LOOP(a_state_is_followed, 0, 4) {
    const int64_t most = (int64_t[]){1, 7, 64, 300}[_i], key_heads = 2;
    cp_state_run run = run_of(6);
    const cp_state_shape s = run.shape;
    const int64_t keys = key_heads * s.key_dim, values = s.heads * s.value_dim;
    const int64_t stride = 2 * keys + values + 2 * s.heads + 3;
    float *rows = room_for(run.tokens * stride, 4), *pair;
    float *copies = room_for(2 * cp_state_floats(&s), 4);
    float *got = room_for(run.tokens * values, 4);
    double *state = room_for(cp_state_floats(&s), 8);
    double *expected = room_for(run.tokens * values, 8);
    for (int64_t t = 0; t < run.tokens; t++) {
        float *row = rows + t * stride;
        memcpy(row, run.queries + t * s.heads * s.key_dim, (size_t)keys * 4);
        memcpy(row + keys, run.keys + t * s.heads * s.key_dim,
               (size_t)keys * 4);
        memcpy(row + 2 * keys, run.values + t * values, (size_t)values * 4);
        memcpy(row + 2 * keys + values, run.decay + t * s.heads,
               (size_t)s.heads * 4);
        memcpy(row + 2 * keys + values + s.heads, run.rate + t * s.heads,
               (size_t)s.heads * 4);
    }
    run = (cp_state_run){{s.heads, s.key_dim, s.value_dim, key_heads},
                         run.tokens,
                         rows,
                         rows + keys,
                         rows + 2 * keys,
                         rows + 2 * keys + values,
                         rows + 2 * keys + values + s.heads,
                         stride};
    pair = room_for(cp_pair_floats(&s), 4);
    fill_state(&run, pair, state);
    cp_pair_state(&s, pair, copies);
    cp_state_oracle(&run, state, expected);
    for (int64_t t = 0, now = 0; t < run.tokens; t += most, now = 1 - now) {
        cp_state_run part = run;
        part.tokens = cp_min(most, run.tokens - t);
        part.queries += t * stride;
        part.keys += t * stride;
        part.values += t * stride;
        part.decay += t * stride;
        part.rate += t * stride;
        float *before = copies + now * cp_state_floats(&s);
        float *after = copies + (1 - now) * cp_state_floats(&s);
        memset(after, 0xFF, (size_t)cp_state_floats(&s) * 4);
        must(cp_state_follow(&part, 2, before, after, got + t * values));
        if (t + most >= run.tokens)
            hold(distance(state, after, cp_state_floats(&s)) < 2e-6);
    }
    hold(distance(expected, got, run.tokens * values) < 2e-6);
}

/* A damaged plan is refused with a message that names chunks. */
LOOP(a_scan_in_another_order_is_refused, 0, 5) {
    static const struct {
        cp_scan scan;
        int rank, number; /* an operation of a plan over 3 ranks */
        int first;        /* becomes its first chunk; -1: drop the operation */
        const char *message;
    } faults[] = {
        {CP_SCAN_GATHER, 2, 3, -1, "rank 2 ends without chunks 0 to 1"},
        {CP_SCAN_GATHER, 0, 4, 1, "merge expects chunks 1 to 2"},
        {CP_SCAN_RING, 1, 2, -1, "expects chunks 0 to 1"},
        {CP_SCAN_RING, 2, 2, -1, "expects chunks 0 to 2"},
        {CP_SCAN_STEPS, 1, 8, -1, "chunks"},
    };
    cp_layout *layout = layout_over(3);
    cp_plan *plan = scan_over(faults[_i].scan, layout, 8);
    cp_program *program = &plan->programs[faults[_i].rank];
    cp_op *op = &program->ops[faults[_i].number];
    if (faults[_i].first < 0)
        memmove(op, op + 1,
                (size_t)(--program->count - faults[_i].number) * sizeof(*op));
    else
        op->in.origin = (int16_t)faults[_i].first;
    must(cp_plan_link(plan));
    cp_plan_report report;
    refuses(cp_plan_check(plan, &report), CP_BROKEN, faults[_i].message);
    cp_plan_free(plan);
    cp_layout_free(layout);
}

TEST(a_scan_of_nothing_is_refused) {
    cp_layout *layout = layout_over(2);
    cp_plan *plan;
    refuses(cp_plan_scan(CP_SCAN_RING, layout, 0, &plan), CP_INVALID,
            "runs of 0 bytes");
    cp_layout_free(layout);
}

/* In a hybrid model one layer of four attends, and the others take the time of
 * a layer with a state. */
LOOP(a_hybrid_is_predicted, 0, 3) {
    static const int64_t ranks[] = {1, 2, 16}, none = 0, fresh = 200000;
    cp_hardware gtt;
    cp_model_sizes hybrid, short_one;
    must(cp_hardware_read("gtt", NULL, &gtt));
    must(cp_model_sizes_read("qwen3.5-like", NULL, &hybrid));
    short_one = hybrid;
    short_one.layers = 16;
    short_one.state_layers = 0;
    cp_scenario scenario = {.hardware = &gtt,
                            .model = &hybrid,
                            .ranks = (int)ranks[_i],
                            .tensor = 4,
                            .sequences = 1,
                            .new_tokens = &fresh,
                            .cached_tokens = &none,
                            .variant = CP_PASS_KV};
    cp_forecast both, attends;
    must(cp_simulate(&scenario, &both));
    scenario.model = &short_one;
    must(cp_simulate(&scenario, &attends));
    const cp_state_forecast *state = &both.state;
    ck_assert_double_eq_tol(both.seconds, attends.seconds + 48 * state->seconds,
                            1e-9 * both.seconds);
    ck_assert_double_eq_tol(both.cache - attends.cache,
                            48.0 * (48 / 4) * 128 * 128 * 4, 1);
    hold((state->scan > 0) == (ranks[_i] > 1) && attends.state.seconds == 0);
    /* 7 d^2 + 3.5 C d multiplications, or 3 d^2 + 2 C d, at the rate reached. */
    const double each =
        ranks[_i] > 1 ? 7 * 16384 + 3.5 * 64 * 128 : 3 * 16384 + 2 * 64 * 128;
    ck_assert_double_eq_tol(state->run,
                            2 * each * 12 *
                                (double)cp_ceil_divide(fresh, ranks[_i]) /
                                (gtt.peak * gtt.linear_fraction),
                            0.01 * state->run);
}
