/* Numbers in fewer bits on the wire: rows encoded and decoded, and answers
 * within their bounds. */
#define _GNU_SOURCE
#define EXPECT_ALSO where
static char where[200]; /* the current call, for failures */

#include "planned.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "harness/one_call.h"
#include "reference/attend/oracle.h"
#include "reference/run/encode.h"
#include "reference/run/threads.h"
#include "reference/run/walk.h"

enum { WIDEST = 40 };

/* For each encoding, the bytes of a row, and the error of a number: this
 * fraction of itself, or this fraction of the largest in its row. */
static const struct {
    cp_encoding encoding;
    int scale, bytes;
    double itself, largest;
} writings[] = {{CP_ENCODING_BF16, 0, 2, 1.0 / 256, 0},
                {CP_ENCODING_FP8, 4, 1, 1.0 / 16, 1.0 / 448 / 1024},
                {CP_ENCODING_INT8, 4, 1, 0, 1.0 / 254},
                {CP_ENCODING_BLOCK, 4, 2, 0, 1.0 / 32767}};

static void try_row(int kind, int dim, const float *row) {
    const cp_encoding encoding = writings[kind].encoding;
    const double scale = (double)cp_row_scale(encoding, dim, row);
    float back[WIDEST], most = 0;
    char sent[4 * WIDEST + 4];
    for (int d = 0; d < dim; d++)
        most = fmaxf(most, fabsf(row[d]));
    cp_rows_encode(encoding, 1, dim, row, sent);
    cp_rows_decode(encoding, 1, dim, sent, back);
    for (int d = 0; d < dim; d++) {
        const double off = fabs((double)back[d] - (double)row[d]);
        const double expected =
            fmax(writings[kind].itself * fabs((double)row[d]),
                 writings[kind].largest * (double)most);
        hold(off <= cp_number_error(encoding, scale, (double)row[d]));
        hold(off <= fmax(expected * 1.00001, 1.2e-38));
    }
}

/* Rows of every length and size, with outliers; NaN and infinities are
 * detected. */
LOOP(rows_come_back_as_near_as_promised, 0, 4 * WIDEST) {
    const int kind = _i / WIDEST, dim = _i % WIDEST + 1;
    const cp_encoding encoding = writings[kind].encoding;
    const int64_t bytes = cp_encoding_bytes(encoding, dim, 4);
    float row[WIDEST], back[WIDEST];
    char sent[4 * WIDEST + 4];
    uint64_t random = (uint64_t)_i + 1;
    ck_assert_int_eq(bytes, writings[kind].scale +
                                (dim * writings[kind].bytes + 3) / 4 * 4);
    for (int size = -44; size <= 37; size++) {
        const double spread = (double)(harness_random(&random) % 12);
        for (int d = 0; d < dim; d++)
            row[d] =
                (float)(pow(10,
                            size - spread * fabsf(harness_uniform(&random))) *
                        ((double)(harness_random(&random) % 2001) - 1000) /
                        1000);
        try_row(kind, dim, row);
    }
    row[dim / 2] = _i % 2 == 0 ? INFINITY : NAN;
    cp_rows_encode(encoding, 1, dim, row, sent);
    cp_rows_decode(encoding, 1, dim, sent, back);
    hold(!isfinite(back[dim / 2]));
    hold(kind == 0 || (isnan(back[0]) && isnan(back[dim - 1])));
    memset(row, 0, sizeof(row));
    cp_rows_encode(encoding, 1, dim, row, sent);
    cp_rows_decode(encoding, 1, dim, sent, back);
    hold(back[0] == 0 && back[dim - 1] == 0);
}

/* All 127 magnitudes of e4m3; midpoints between two round to the even one. */
TEST(fp8_is_e4m3) {
    float sizes[127], back[2];
    char sent[8];
    for (int n = 0; n < 127; n++)
        sizes[n] = n < 8 ? ldexpf((float)n, -9)
                         : ldexpf((float)(8 + n % 8), n / 8 - 10);
    ck_assert(sizes[126] == 448);
    for (int n = 0; n < 127; n++) {
        const float below = n > 0 ? (sizes[n - 1] + sizes[n]) / 2 : 0;
        const float row[][2] = {{448, -sizes[n]}, {448, below}};
        for (int i = 0; i < 2; i++) {
            cp_rows_encode(CP_ENCODING_FP8, 1, 2, row[i], sent);
            cp_rows_decode(CP_ENCODING_FP8, 1, 2, sent, back);
            ck_assert(back[0] == 448);
            ck_assert(i == 0 ? back[1] == -sizes[n]
                             : back[1] == sizes[n % 2 == 0 ? n : n - 1]);
        }
    }
}

/* One exponent for a row: encoding again changes nothing. */
TEST(a_block_is_written_once_and_for_all) {
    float row[] = {32767.4f, -3, 0.3f}, back[3], again[3];
    char sent[12];
    cp_rows_encode(CP_ENCODING_BLOCK, 1, 3, row, sent);
    cp_rows_decode(CP_ENCODING_BLOCK, 1, 3, sent, back);
    ck_assert(back[0] == 32767 && back[1] == -3 && back[2] == 0);
    row[0] = 32767.5f; /* would be 32,768 */
    cp_rows_encode(CP_ENCODING_BLOCK, 1, 3, row, sent);
    cp_rows_decode(CP_ENCODING_BLOCK, 1, 3, sent, back);
    ck_assert(back[0] == 32768 && back[1] == -4 && back[2] == 0);
    cp_rows_encode(CP_ENCODING_BLOCK, 1, 3, back, sent);
    cp_rows_decode(CP_ENCODING_BLOCK, 1, 3, sent, again);
    ck_assert(memcmp(back, again, sizeof(back)) == 0);
}

/* Attention in double precision over blocks of keys; each partial is computed
 * from the decoded numbers, and merged. */
enum { DIM = 12, KEYS = 24, BLOCKS = 3 };

typedef struct {
    cp_shape shape; /* one head */
    int keys;
    float query[DIM], key[KEYS * DIM], value[KEYS * DIM];
} question;

typedef struct {
    double output[DIM], lse;
} answer;

static void round_trip(cp_encoding encoding, int rows, float *numbers) {
    char sent[KEYS * (4 * DIM + 4)];
    if (encoding == CP_ENCODING_NONE)
        return;
    cp_rows_encode(encoding, rows, DIM, numbers, sent);
    cp_rows_decode(encoding, rows, DIM, sent, numbers);
}

static answer attend(const question *inputs, int from, int to) {
    double scores[KEYS], most = -INFINITY, sum = 0;
    answer out = {{0}, 0};
    for (int j = from; j < to; j++) {
        scores[j] = 0;
        for (int d = 0; d < DIM; d++)
            scores[j] +=
                (double)inputs->query[d] * (double)inputs->key[j * DIM + d];
        scores[j] /= sqrt(DIM);
        most = fmax(most, scores[j]);
    }
    for (int j = from; j < to; j++)
        sum += exp(scores[j] - most);
    for (int j = from; j < to; j++)
        for (int d = 0; d < DIM; d++)
            out.output[d] += exp(scores[j] - most) / sum *
                             (double)inputs->value[j * DIM + d];
    out.lse = most + log(sum);
    return out;
}

static int first_of(const question *inputs, int block) {
    return inputs->keys * block / BLOCKS;
}

/* The answer of one of BLOCKS ranks over all blocks; block 0 is its own. */
static answer attend_apart(const question *inputs, cp_wire wire,
                           cp_sent_kinds sent_kinds,
                           const cp_error_table *tables, cp_error_sum *sum) {
    answer all = {{0}, -INFINITY};
    *sum = cp_loss_none;
    for (int b = 0; b < BLOCKS; b++) {
        if (first_of(inputs, b) == first_of(inputs, b + 1))
            continue;
        question rounded = *inputs;
        float sent[DIM];
        const cp_sent_kinds kinds =
            b > 0 ? sent_kinds : (cp_sent_kinds){false, false, 0};
        double most = 0;
        if (kinds.keys) {
            const cp_encoding keys = cp_wire_encoding(wire, CP_PAYLOAD_KEYS, 4);
            round_trip(keys, inputs->keys, rounded.key);
            round_trip(keys, inputs->keys, rounded.value);
        }
        if (kinds.queries)
            round_trip(cp_wire_encoding(wire, CP_PAYLOAD_QUERIES, 4), 1,
                       rounded.query);
        answer part =
            attend(&rounded, first_of(inputs, b), first_of(inputs, b + 1));
        for (int d = 0; d < DIM; d++) {
            sent[d] = (float)part.output[d];
            most = fmax(most, fabs(part.output[d]));
        }
        if (kinds.partials > 0) {
            round_trip(cp_wire_encoding(wire, CP_PAYLOAD_PARTIALS, 4), 1, sent);
            for (int d = 0; d < DIM; d++)
                part.output[d] = (double)sent[d];
        }
        cp_error_merge(sum, part.lse,
                       cp_error_score(&tables[b], kinds, 0, inputs->query),
                       (kinds.keys ? cp_error_value(&tables[b], 0) : 0) +
                           kinds.partials * most / 32766);
        const double larger = fmax(all.lse, part.lse);
        const double a = exp(all.lse - larger), b2 = exp(part.lse - larger);
        for (int d = 0; d < DIM; d++)
            all.output[d] =
                (a * all.output[d] + b2 * part.output[d]) / (a + b2);
        all.lse = larger + log(a + b2);
    }
    return all;
}

static double part_of(double error, double bound) {
    return error <= 0 ? 0 : error / bound;
}

/* How near an answer comes to its two bounds: output before, LSE before; output
 * after, LSE after. Above 1 the bound is exceeded. */
static void come_near(const question *inputs, cp_wire wire,
                      cp_sent_kinds sent_kinds, double near[4]) {
    cp_error_table all, tables[BLOCKS];
    cp_error_sum sum;
    must(cp_error_table_new(wire, 4, &inputs->shape, &all));
    cp_error_table_add(&all, inputs->keys, inputs->key, inputs->value);
    for (int b = 0; b < BLOCKS; b++) {
        const int first = first_of(inputs, b);
        must(cp_error_table_new(wire, 4, &inputs->shape, &tables[b]));
        cp_error_table_add(&tables[b], first_of(inputs, b + 1) - first,
                           inputs->key + first * DIM,
                           inputs->value + first * DIM);
    }
    const answer exact = attend(inputs, 0, inputs->keys);
    const answer got = attend_apart(inputs, wire, sent_kinds, tables, &sum);
    const cp_wire_error before =
        cp_error_bound(&all, sent_kinds, 0,
                       cp_error_score(&all, sent_kinds, 0, inputs->query));
    const cp_wire_error after = cp_error_bound_of(&all, 0, &sum);
    const double lse = fabs(got.lse - exact.lse) - 1e-13 * fabs(exact.lse);
    double output = 0, size = 1e-300;
    for (int d = 0; d < DIM; d++) {
        output = fmax(output, fabs(got.output[d] - exact.output[d]));
        size = fmax(size, fabs(exact.output[d]));
    }
    /* The rounding of doubles, and of a partial's floats. */
    output -= 1.2e-7 * size;
    near[0] = part_of(output, before.output);
    near[1] = part_of(lse, before.lse);
    near[2] = part_of(output, after.output);
    near[3] = part_of(lse, after.lse);
    ck_assert(after.output <= before.output * 1.001);
    ck_assert(after.lse <= before.lse * 1.001);
    cp_error_table_free(&all);
    for (int b = 0; b < BLOCKS; b++)
        cp_error_table_free(&tables[b]);
}

/* Numbers of a kind: uniform; with outliers; nearly halfway between multiples
 * of an int8 row's step; and few but large. */
static float draw(uint64_t *random, int kind, int d) {
    const float even = harness_uniform(random);
    switch (kind) {
    case 0:
        return even;
    case 1:
        return even * expf(4 * harness_uniform(random));
    case 2:
        return d == 0 ? 127
                      : truncf(3 * even) +
                            (harness_random(random) % 2 ? 0.4999f : 0.5001f);
    default:
        return harness_random(random) % 4 == 0 ? 30 * even : 0;
    }
}

static const cp_sent_kinds kinds_of_travel[] = {
    {true, false, 0}, {false, true, 1}, {true, true, 1}};

LOOP(no_answer_is_beyond_its_bounds, 0, 3 * (CP_WIRES - 1)) {
    const cp_sent_kinds sent_kinds = kinds_of_travel[_i % 3];
    const cp_wire wire = (cp_wire)(1 + _i / 3);
    uint64_t random = (uint64_t)_i + 1;
    double nearest[4] = {0};
    for (int n = 0; n < 1500; n++) {
        question inputs = {.shape = {1, 1, DIM},
                           .keys = BLOCKS + (int)(harness_random(&random) %
                                                  (KEYS - BLOCKS + 1))};
        const float hot = expf(4 * harness_uniform(&random));
        double near[4];
        for (int d = 0; d < DIM; d++)
            inputs.query[d] =
                hot * draw(&random, n / 4 % 4 == 2 ? 0 : n / 4 % 4, d);
        for (int i = 0; i < inputs.keys * DIM; i++) {
            inputs.key[i] = draw(&random, n % 4, i % DIM);
            inputs.value[i] = draw(&random, n % 4, i % DIM);
        }
        come_near(&inputs, wire, sent_kinds, near);
        for (int i = 0; i < 4; i++) {
            ck_assert_msg(near[i] <= 1, "wire %d, case %d: %g of bound %d",
                          (int)wire, n, near[i], i);
            nearest[i] = fmax(nearest[i], near[i]);
        }
    }
    /* The bounds are not loose: a tenth is reached, and more for the LSE. */
    ck_assert_msg(nearest[0] > 0.1 && nearest[1] > 0.3 && nearest[2] > 0.1 &&
                      nearest[3] > 0.3,
                  "wire %d travels %d: %.3f %.3f %.3f %.3f", (int)wire, _i % 3,
                  nearest[0], nearest[1], nearest[2], nearest[3]);
}

/* Two keys whose scores are rounded apart as far as possible, one up, one down,
 * and whose values differ as much as values can. */
TEST(the_bound_is_nearly_reached) {
    question inputs = {.shape = {1, 1, DIM}, .keys = 2}; /* none is its own */
    double near[4];
    for (int j = 0; j < 2; j++) {
        inputs.key[j * DIM] = 127;
        inputs.key[j * DIM + 1] = j == 1 ? 0.5001f : 0.4999f;
        inputs.value[j * DIM] = j == 1 ? 127 : -127;
    }
    inputs.query[1] = 1.4f;
    come_near(&inputs, CP_WIRE_INT8, (cp_sent_kinds){true, false, 0}, near);
    ck_assert_msg(near[0] > 0.95 && near[2] > 0.85, "%.3f %.3f", near[0],
                  near[2]);
    /* One key alone: its score is the LSE. */
    inputs.keys = 1;
    come_near(&inputs, CP_WIRE_INT8, (cp_sent_kinds){true, false, 0}, near);
    ck_assert_msg(near[1] > 0.99 && near[3] > 0.99, "%.3f %.3f", near[1],
                  near[3]);
}

/* By hand: int8 rows have the scales 1 and 2; a score may be off by 10 / 2 of
 * these halves, and an answer by the tanh of that. */
TEST(bounds_are_as_by_hand) {
    const float q[] = {1, -2, 3, -4}, k[] = {127, 0, 0, 0, 0, 254, 0, 0};
    const float v[] = {0, 0, 0, 2, 1, 1, 1, 1};
    const cp_sent_kinds keys = {true, false, 0};
    cp_error_table table;
    must(cp_error_table_new(CP_WIRE_INT8, 4, &(cp_shape){1, 1, 4}, &table));
    cp_error_table_add(&table, 2, k, v);
    const double score = cp_error_score(&table, keys, 0, q);
    const cp_wire_error bound = cp_error_bound(&table, keys, 0, score);
    ck_assert_double_eq_tol(score, 10.0 / 2, 1e-3);
    ck_assert_double_eq_tol(bound.lse, score, 1e-9);
    ck_assert_double_eq_tol(bound.output, 2 / 254.0 + tanh(2.5), 1e-3);
    cp_error_table_free(&table);
    /* A key stored in bf16 is rounded before and after, and then its query is
     * not rounded when it is sent. */
    const float odd[] = {126.9f, 3.001f};
    must(cp_error_table_new(CP_WIRE_INT8, 2, &(cp_shape){1, 1, 1}, &table));
    cp_error_table_add(&table, 1, odd, odd);
    ck_assert_double_eq_tol(
        cp_error_score(&table, (cp_sent_kinds){true, true, 0}, 0, odd + 1),
        3 * (0.5 + 127.5 / 256), 1e-4);
    ck_assert_double_eq_tol(cp_error_value(&table, 0), 0.5 + 127.5 / 256, 1e-4);
    cp_error_table_free(&table);
    const float query[] = {1, 5}, held[] = {1, 254};
    must(cp_error_table_new(CP_WIRE_INT8, 4, &(cp_shape){2, 2, 1}, &table));
    cp_error_table_add(&table, 1, held, held);
    ck_assert_double_eq_tol(cp_error_score(&table, keys, 1, query + 1), 5,
                            1e-3);
    cp_error_table_free(&table);
}

/* Rings of threads: their answers, and their bounds. */
enum { FRESH = 33, PAST = 23, HEADS = 8, KV_HEADS = 4, WIDTH = 20 };

typedef struct {
    float q[FRESH * HEADS * WIDTH];
    float k[(FRESH + PAST) * KV_HEADS * WIDTH];
    float v[(FRESH + PAST) * KV_HEADS * WIDTH];
} wire_tensors;

static void fill_around(float *numbers, int64_t count, uint64_t seed,
                        float scale) {
    for (int64_t n = 0; n < count; n++)
        numbers[n] = scale * harness_uniform(&seed);
}

static void fill(wire_tensors *tensors, float scale) {
    fill_around(tensors->q, COUNT_OF(tensors->q), 5, scale);
    fill_around(tensors->k, COUNT_OF(tensors->k), 6, 1);
    fill_around(tensors->v, COUNT_OF(tensors->v), 7, 100);
}

static cp_sent_kinds ring(const wire_tensors *tensors, int ranks,
                          cp_variant variant, cp_wire wire, float *output,
                          float *lse, cp_wire_error bounds[2]) {
    const int64_t fresh = cp_variant_decodes(variant) ? 1 : FRESH;
    const one_call call = {{HEADS, KV_HEADS, WIDTH},
                           fresh,
                           PAST,
                           tensors->q,
                           tensors->k,
                           tensors->v,
                           output,
                           lse};
    one_call_facts facts;
    must(one_call_answer(&call, ranks, variant, wire, &facts));
    bounds[0] = facts.before;
    bounds[1] = facts.after;
    return facts.sent_kinds;
}

static const struct {
    cp_variant variant;
    bool keys, queries;
    int partials; /* over four ranks */
} rings[] = {{CP_PASS_KV, true, false, 0},    {CP_PASS_Q, false, true, 1},
             {CP_ALL_GATHER, true, false, 0}, {CP_MESH, true, true, 1},
             {CP_ULYSSES, true, true, 3},     {CP_DECODE, false, true, 1},
             {CP_GATHER_Q, false, true, 1},   {CP_SCATTER_Q, false, true, 3},
             {CP_TREE, false, false, 2},      {CP_GATHER_O, false, false, 1},
             {CP_HELIX, false, false, 1}};

/* Can the heads be split as a variant needs? */
static bool can(cp_variant variant, const cp_shape *shape, int ranks) {
    return variant < CP_ULYSSES || variant == CP_TREE ||
           variant == CP_GATHER_O || cp_shape_divides(shape, ranks);
}

LOOP(rings_are_within_the_bounds, 0, 5 * COUNT_OF(rings)) {
    static float output[2][FRESH * HEADS * WIDTH], lse[2][FRESH * HEADS];
    static wire_tensors tensors;
    const int kind = _i / 5, ranks = _i % 5 + 1;
    const cp_variant variant = rings[kind].variant;
    const int rows = HEADS * (cp_variant_decodes(variant) ? 1 : FRESH);
    const cp_shape shape = {HEADS, KV_HEADS, WIDTH};
    if (!can(variant, &shape, ranks))
        return;
    for (int n = 0; n < 3 * CP_WIRES; n++) {
        const cp_wire wire = (cp_wire)(n / 3);
        const float scale = (float[]){0.1f, 3, 100}[n % 3];
        cp_wire_error none[2], bounds[2];
        snprintf(where, sizeof(where), "%s over %d, wire %d, scale %g",
                 cp_variant_name(variant), ranks, (int)wire, (double)scale);
        fill(&tensors, scale);
        ring(&tensors, ranks, variant, CP_WIRE_FP32, output[0], lse[0], none);
        const cp_sent_kinds sent_kinds =
            ring(&tensors, ranks, variant, wire, output[1], lse[1], bounds);
        const double off = farthest(output[0], output[1], rows * WIDTH);
        const double lse_off = farthest(lse[0], lse[1], rows);
        const bool sent = ranks > 1 && wire != CP_WIRE_FP32;
        hold(none[0].output == 0 && none[1].output == 0);
        hold(sent ? off > 0 : off <= 5e-5);
        if (sent && ranks == 4)
            ck_assert_msg(sent_kinds.keys == rings[kind].keys &&
                              sent_kinds.queries == rings[kind].queries &&
                              sent_kinds.partials == rings[kind].partials,
                          "%s: %d %d %d", where, sent_kinds.keys,
                          sent_kinds.queries, sent_kinds.partials);
        /* The partial of rank 2 goes to rank 0, to rank 1, and back. */
        hold(!sent || ranks != 3 || variant != CP_TREE ||
             sent_kinds.partials == 3);
        for (int i = 0; i < 2; i++)
            ck_assert_msg(off <= bounds[i].output && lse_off <= bounds[i].lse,
                          "%s: off by %g of %g, LSE by %g of %g (%d)", where,
                          off, bounds[i].output, lse_off, bounds[i].lse, i);
    }
}

/* Calls of all kinds: shapes, variants, and numbers of any size for which fp32
 * gives an answer, so small ones underflow. The rounding of fp32 is also within
 * its bound. */
enum { KINDS = 8, MOST_TOKENS = 100, MOST_DIM = 32, MOST_HEADS = 4 };

static int64_t up_to(uint64_t *random, int64_t most) {
    return 1 + (int64_t)(harness_random(random) % (uint64_t)most);
}

static float size_of(uint64_t *random, double least, double most) {
    const double share = ((double)harness_uniform(random) + 1) / 2;
    return (float)pow(10, least + share * (most - least));
}

/* Two calls differ by no more than twice the distance of one from fp64. */
static void hold_rounding(const one_call *call, cp_wire_error rounding) {
    static double output[MOST_TOKENS * MOST_HEADS * MOST_DIM];
    static double lse[MOST_TOKENS * MOST_HEADS];
    const int64_t rows = call->fresh * call->shape.query_heads;
    cp_piece fresh = {{0, call->past, call->fresh, 1}, 0};
    cp_piece all = {{0, 0, call->past + call->fresh, 1}, 0};
    const cp_pieces queries = {&fresh, 1, 1}, keys = {&all, 1, 1};
    must(cp_oracle(&call->shape, &queries, call->queries, &keys, call->keys,
                   call->values, output, lse));
    for (int64_t n = 0; n < rows * call->shape.head_dim; n++) {
        const double off = fabs(output[n] - (double)call->output[n]);
        ck_assert_msg(off <= rounding.output / 2, "%s: off by %g of %g", where,
                      off, rounding.output / 2);
    }
    for (int64_t n = 0; n < rows; n++)
        hold(fabs(lse[n] - (double)call->lse[n]) <= rounding.lse / 2);
}

/* How near a call's two answers come to its bounds. */
static double nearest_of(one_call *call, int ranks, cp_variant variant,
                         cp_wire wire) {
    static float output[2][MOST_TOKENS * MOST_HEADS * MOST_DIM];
    static float lse[2][MOST_TOKENS * MOST_HEADS];
    const int64_t rows = call->fresh * call->shape.query_heads;
    one_call_facts none, facts;
    call->output = output[0], call->lse = lse[0];
    must(one_call_answer(call, ranks, variant, CP_WIRE_FP32, &none));
    call->output = output[1], call->lse = lse[1];
    must(one_call_answer(call, ranks, variant, wire, &facts));
    const cp_sent_kinds sent_kinds = facts.sent_kinds;
    if (sent_kinds.keys || sent_kinds.queries || sent_kinds.partials > 0) {
        one_call exact = *call;
        exact.output = output[0], exact.lse = lse[0];
        hold_rounding(&exact, facts.rounding);
    }
    const double off =
        farthest(output[0], output[1], rows * call->shape.head_dim);
    const double lse_off = farthest(lse[0], lse[1], rows);
    double nearest = 0;
    for (int64_t n = 0; n < rows * call->shape.head_dim; n++)
        hold(isfinite(output[0][n]) && isfinite(output[1][n]));
    for (int i = 0; i < 2; i++) {
        const cp_wire_error bound = i == 0 ? facts.before : facts.after;
        ck_assert_msg(off <= bound.output && lse_off <= bound.lse,
                      "%s: off by %g of %g, LSE by %g of %g (%d)", where, off,
                      bound.output, lse_off, bound.lse, i);
        nearest = fmax(nearest, part_of(off, bound.output));
    }
    return nearest;
}

LOOP(no_call_is_beyond_its_bounds, 0, KINDS) {
    static float q[MOST_TOKENS * MOST_HEADS * MOST_DIM];
    static float k[2 * MOST_TOKENS * MOST_HEADS * MOST_DIM];
    static float v[2 * MOST_TOKENS * MOST_HEADS * MOST_DIM];
    uint64_t random = 20260401 + (uint64_t)_i;
    double nearest = 0;
    for (int n = 0; n < 150; n++) {
        const cp_variant variant =
            rings[harness_random(&random) % COUNT_OF(rings)].variant;
        const cp_wire wire = (cp_wire)up_to(&random, CP_WIRES - 1);
        const int64_t kv_heads = up_to(&random, 2);
        const cp_shape shape = {kv_heads * up_to(&random, 2), kv_heads,
                                up_to(&random, MOST_DIM)};
        const int ranks = (int)up_to(&random, 7);
        /* Even kinds: numbers of usual sizes; odd: of all. */
        const double far = _i % 2 == 0 ? 1 : 36;
        const float values = size_of(&random, _i % 2 == 0 ? -1 : -45, 33);
        const float keys = size_of(&random, -far, far);
        const float queries = size_of(&random, -2, 2) / keys;
        one_call call = {.shape = shape,
                         .fresh = up_to(&random, MOST_TOKENS),
                         .past = up_to(&random, MOST_TOKENS),
                         .queries = q,
                         .keys = k,
                         .values = v};
        if (cp_variant_decodes(variant))
            call.fresh = 1;
        if (harness_random(&random) % 4 == 0)
            call.page = up_to(&random, 9);
        if (harness_random(&random) % 4 == 0)
            call.dealing = (cp_dealing){CP_INTERLEAVE, .block = 4};
        if (!can(variant, &shape, ranks))
            continue;
        snprintf(where, sizeof(where),
                 "%d: %s over %d, wire %d, sizes %g %g %g, %ld after %ld", n,
                 cp_variant_name(variant), ranks, (int)wire, (double)queries,
                 (double)keys, (double)values, call.fresh, call.past);
        fill_around(q, COUNT_OF(q), harness_random(&random), queries);
        fill_around(k, COUNT_OF(k), harness_random(&random), keys);
        fill_around(v, COUNT_OF(v), harness_random(&random), values);
        nearest = fmax(nearest, nearest_of(&call, ranks, variant, wire));
    }
    /* Small numbers underflow, and come near the bound. */
    ck_assert_msg(nearest > (_i % 2 == 0 ? 0.1 : 0.4), "%g", nearest);
}

/* If every rank ends with every answer, all have the same one: the sender of a
 * partial continues with the rounded values that the others got. (In a tree
 * whose ranks are no power of two, some get theirs by one more message.) */
enum { MOST_RANKS = 5, NUMBERS = HEADS * WIDTH };

typedef struct {
    const cp_plan *plan;
    float answers[MOST_RANKS][NUMBERS];
} shared_answers;

static cp_status answer_all(cp_comm *comm, void *context) {
    shared_answers *answers = context;
    const int64_t keys = (PAST + 1) * KV_HEADS * WIDTH;
    float *held = room_for(2 * keys, sizeof(float));
    cp_walker *walker;
    must(cp_walker_new(answers->plan, comm->rank, NULL, &walker));
    for (int n = 0; n < NUMBERS; n++)
        walker->queries[n] = 0.01f * (float)(n % 7);
    fill_around(held, keys, 1 + (uint64_t)comm->rank, 1);
    fill_around(held + keys, keys, 9 + (uint64_t)comm->rank, 100);
    fill_around(walker->new_keys, KV_HEADS * WIDTH, 3, 1);
    fill_around(walker->new_values, KV_HEADS * WIDTH, 4, 100);
    must(cp_walk(walker, comm, held, held + keys));
    memcpy(answers->answers[comm->rank], walker->result.output,
           sizeof(answers->answers[0]));
    cp_walker_free(walker);
    return CP_OK;
}

LOOP(every_rank_has_the_same_answer, 2, MOST_RANKS + 1) {
    const cp_shape shape = {HEADS, KV_HEADS, WIDTH};
    const cp_threads_options threads = {.ranks = _i};
    for (int n = 0; n < (_i == 2 || _i == 4 ? 2 : 1); n++) {
        static shared_answers answers;
        const cp_plan_options options = {4, .spare = 1, .wire = CP_WIRE_INT8};
        plan_one(n == 0 ? CP_GATHER_O : CP_TREE, _i, PAST, 1, &shape, &options);
        answers.plan = plan;
        must(cp_threads_run(&threads, answer_all, &answers));
        for (int r = 1; r < _i; r++) {
            const double off =
                farthest(answers.answers[0], answers.answers[r], NUMBERS);
            ck_assert_msg(off < 2e-4, "%d of %d: %g", r, _i, off);
        }
    }
}

/* The rules of Chapter 10 count the bytes that plans send. */
LOOP(a_head_has_the_bytes_of_its_slot, 0, CP_WIRES) {
    const cp_shape shape = {HEADS, KV_HEADS, WIDTH};
    const cp_plan_options options = {4, .spare = 1, .wire = (cp_wire)_i};
    const cp_head_bytes head = cp_head_bytes_of((cp_wire)_i, &shape, 4);
    for (int v = 0; v < 2; v++) {
        plan_one(v == 0 ? CP_PASS_KV : CP_PASS_Q, 3, PAST, 6, &shape, &options);
        for (int n = 0; n < plan->slot_count; n++) {
            const cp_slot *slot = &plan->slots[n];
            const int64_t expected =
                slot->kind == CP_SLOT_KEYS      ? KV_HEADS * head.keys
                : slot->kind == CP_SLOT_QUERIES ? HEADS * head.query
                : slot->kind == CP_SLOT_PARTIAL ? HEADS * head.partial
                                                : -1;
            if (expected >= 0)
                ck_assert_int_eq(slot->bytes, slot->rows * expected);
        }
    }
}
