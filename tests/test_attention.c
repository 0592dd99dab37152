/* The fp32 kernel against the fp64 oracle, and the oracle against values
 * worked out by hand. */
#include "reference/attend/attend.h"
#include "harness/suite.h"
#include "reference/attend/oracle.h"

#include <math.h>
#include <string.h>

#ifdef ANOTHER_KERNEL /* a chapter that has one includes this file */
#define KERNEL ANOTHER_KERNEL
#else
#define KERNEL cp_attend
#endif

enum { SPARE_ROWS = 3 };
static const float untouched = 12345.0f;

typedef struct {
    cp_shape shape;
    cp_pieces query_pieces, key_pieces;
    int64_t query_rows, key_rows;
    float *queries, *keys, *values, *output, *lse;
    double *true_output, *true_lse;
} problem;

static uint64_t state = 20241104;

static int64_t rows_of(const cp_pieces *pieces) {
    int64_t rows = 0;
    for (int64_t p = 0; p < pieces->count; p++)
        rows = cp_max(rows, pieces->items[p].row + pieces->items[p].span.count);
    return rows + SPARE_ROWS;
}

static float *tensor(const cp_pieces *pieces, int64_t width, float scale) {
    const int64_t rows = rows_of(pieces);
    float *tensor;
    ck_assert_int_eq(cp_allocate(&tensor, rows * width, 4, "a tensor"), CP_OK);
    for (int64_t i = 0; i < rows * width; i++)
        tensor[i] = NAN;
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_piece piece = pieces->items[p];
        for (int64_t i = 0; i < piece.span.count * width; i++)
            tensor[piece.row * width + i] = scale * harness_uniform(&state);
    }
    return tensor;
}

static void prepare(problem *p, float scale) {
    const int64_t dim = p->shape.head_dim, heads = p->shape.query_heads;
    const int64_t width = p->shape.kv_heads * dim;
    p->query_rows = rows_of(&p->query_pieces);
    p->key_rows = rows_of(&p->key_pieces);
    p->queries = tensor(&p->query_pieces, heads * dim, scale);
    p->keys = tensor(&p->key_pieces, width, scale);
    p->values = tensor(&p->key_pieces, width, 1.0f);
    const int64_t count = p->query_rows * heads;
    cp_allocate(&p->output, count * dim, 4, "output");
    cp_allocate(&p->lse, count, 4, "lse");
    cp_allocate(&p->true_output, count * dim, 8, "true output");
    cp_allocate(&p->true_lse, count, 8, "true lse");
    for (int64_t i = 0; i < count * dim; i++)
        p->output[i] = untouched;
    for (int64_t i = 0; i < count; i++)
        p->lse[i] = untouched;
}

static problem prefill(cp_shape shape, int64_t cached, int64_t fresh,
                       float scale) {
    problem p = {.shape = shape};
    cp_pieces_append(&p.query_pieces, (cp_piece){{0, cached, fresh, 1}, 2});
    cp_pieces_append(&p.key_pieces, (cp_piece){{0, 0, cached + fresh, 1}, 1});
    prepare(&p, scale);
    return p;
}

static cp_attention ask(problem *p, int threads) {
    return (cp_attention){.shape = &p->shape,
                          .query_pieces = &p->query_pieces,
                          .queries = p->queries,
                          .key_pieces = &p->key_pieces,
                          .keys = p->keys,
                          .values = p->values,
                          .threads = threads,
                          .output = p->output,
                          .lse = p->lse};
}

static void attend(problem *p, int threads) {
    const cp_attention call = ask(p, threads);
    ck_assert_int_eq(KERNEL(&call), CP_OK);
}

static void discard(problem *p) {
    void *all[] = {p->queries, p->keys,        p->values,  p->output,
                   p->lse,     p->true_output, p->true_lse};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        free(all[i]);
    cp_pieces_free(&p->query_pieces);
    cp_pieces_free(&p->key_pieces);
}

static bool named(const cp_pieces *pieces, int64_t row) {
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_piece piece = pieces->items[p];
        if (piece.row <= row && row < piece.row + piece.span.count)
            return true;
    }
    return false;
}

typedef struct {
    double difference, norm, lse;
} distance;

static void add_row(const problem *p, int64_t row, distance *sum) {
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    for (int64_t i = row * heads * dim; i < (row + 1) * heads * dim; i++) {
        const double off = (double)p->output[i] - p->true_output[i];
        sum->difference += off * off;
        sum->norm += p->true_output[i] * p->true_output[i];
    }
    for (int64_t i = row * heads; i < (row + 1) * heads; i++) {
        if (p->true_lse[i] == -INFINITY)
            ck_assert(p->lse[i] == -INFINITY);
        else
            sum->lse = fmax(sum->lse, fabs((double)p->lse[i] - p->true_lse[i]));
        ck_assert(isfinite(p->true_lse[i]) == isfinite(p->lse[i]));
    }
}

static void check(problem *p, int threads, double slack) {
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    distance sum = {0};
    attend(p, threads);
    cp_oracle(&p->shape, &p->query_pieces, p->queries, &p->key_pieces, p->keys,
              p->values, p->true_output, p->true_lse);
    for (int64_t row = 0; row < p->query_rows; row++) {
        if (named(&p->query_pieces, row)) {
            add_row(p, row, &sum);
            continue;
        }
        for (int64_t i = row * heads * dim; i < (row + 1) * heads * dim; i++)
            ck_assert(p->output[i] == untouched);
        ck_assert(p->lse[row * heads] == untouched);
    }
    ck_assert_double_le(sqrt(sum.difference), slack * 1e-6 * sqrt(sum.norm));
    ck_assert_double_le(sum.lse, slack * 5e-6);
    discard(p);
}

START_TEST(the_oracle_knows_an_answer_by_heart) {
    const cp_shape shape = {1, 1, 1};
    cp_pieces pieces = {0};
    cp_pieces_append(&pieces, (cp_piece){{0, 7, 2, 1}, 0});
    const float queries[] = {1.0f, 1.0f}, values[] = {10.0f, 2.0f};
    const float keys[] = {0.0f, 1.0986123f};
    double output[2], lse[2];
    ck_assert_int_eq(
        cp_oracle(&shape, &pieces, queries, &pieces, keys, values, output, lse),
        CP_OK);
    ck_assert_double_eq(output[0], 10.0);
    ck_assert_double_eq(lse[0], 0.0);
    ck_assert_double_eq_tol(output[1], 4.0, 1e-6);
    ck_assert_double_eq_tol(lse[1], log(4.0), 1e-7);
    cp_pieces_free(&pieces);
}
END_TEST

static const int64_t groups[] = {1, 3, 7, 16};
static const int64_t dims[] = {1, 32, 64, 80, 128, 250, 256};

START_TEST(invariant_1_every_group_and_dimension) {
    const int64_t group = groups[_i % 4], dim = dims[_i / 4];
    problem p = prefill((cp_shape){2 * group, 2, dim}, 70, 75, 1.0f);
    check(&p, 2, 1.0);
}
END_TEST

static const int64_t lengths[] = {1,  2,  5,   6,   7,   16,
                                  63, 65, 127, 128, 129, 300};
static const int64_t cached[] = {0, 1, 128, 200};

START_TEST(invariant_1_every_length) {
    const cp_shape shape = {6, 2, 32};
    problem p = prefill(shape, cached[_i % 4], lengths[_i / 4], 1.0f);
    check(&p, 2, 1.0);
}
END_TEST

START_TEST(large_scores_do_not_overflow) {
    const float thirty = sqrtf(30.0f);
    problem p = prefill((cp_shape){6, 2, 64}, 100, 200, thirty);
    check(&p, 2, 4.0);
}
END_TEST

START_TEST(long_sums_stay_accurate) {
    problem p = prefill((cp_shape){2, 1, 16}, 20000, 4, 1.0f);
    check(&p, 2, 1.0);
}
END_TEST

START_TEST(scores_far_below_weigh_nothing) {
    problem p = prefill((cp_shape){1, 1, 1}, 299, 1, 1.0f);
    p.queries[2] = 1.0f;
    for (int64_t i = 0; i < 300; i++)
        p.keys[1 + i] = i == 200 ? 500.0f : -10.0f * (float)i;
    attend(&p, 1);
    ck_assert_float_eq(p.output[2], p.values[1 + 200]);
    ck_assert_float_eq(p.lse[2], 500.0f);
    discard(&p);
}
END_TEST

START_TEST(a_mean_of_ones_is_one) {
    problem p = prefill((cp_shape){6, 2, 80}, 33, 200, 1.0f);
    for (int64_t i = 0; i < p.key_rows * 2 * 80; i++)
        p.values[i] = isnan(p.values[i]) ? NAN : 1.0f;
    attend(&p, 1);
    for (int64_t i = 2 * 6 * 80; i < 202 * 6 * 80; i++)
        ck_assert_float_eq_tol(p.output[i], 1.0f, 1e-6f);
    discard(&p);
}
END_TEST

static void deal(cp_pieces *pieces, int64_t sequence, int64_t first,
                 int64_t end, int64_t step, int64_t *row) {
    for (int64_t start = first; start < first + step && start < end; start++) {
        const int64_t count = (end - start + step - 1) / step;
        cp_pieces_append(
            pieces,
            (cp_piece){{sequence, start, count, count == 1 ? 1 : step}, *row});
        *row += count + 1;
    }
}

START_TEST(pieces_may_lie_in_any_order) {
    problem p = {.shape = {6, 2, 40}};
    int64_t query_row = 1, key_row = 0;
    deal(&p.query_pieces, 2, 60, 90, 3, &query_row);
    deal(&p.query_pieces, 0, 0, 200, 2, &query_row);
    deal(&p.query_pieces, 1, 5, 6, 1, &query_row);
    deal(&p.key_pieces, 1, 0, 6, 4, &key_row);
    deal(&p.key_pieces, 0, 150, 200, 1, &key_row);
    deal(&p.key_pieces, 2, 0, 90, 4, &key_row);
    deal(&p.key_pieces, 0, 0, 150, 7, &key_row);
    prepare(&p, 1.0f);
    check(&p, 2, 1.0);
}
END_TEST

START_TEST(seeing_nothing_is_zero_and_minus_infinity) {
    problem p = {.shape = {4, 2, 64}};
    cp_pieces_append(&p.query_pieces, (cp_piece){{0, 10, 40, 1}, 0});
    cp_pieces_append(&p.query_pieces, (cp_piece){{3, 90, 5, 1}, 40});
    cp_pieces_append(&p.key_pieces, (cp_piece){{0, 27, 100, 3}, 0});
    prepare(&p, 1.0f);
    attend(&p, 2);
    for (int64_t row = 0; row < 45; row++) {
        const bool sees = row >= 17 && row < 40;
        ck_assert(isfinite(p.lse[4 * row]) == sees);
        ck_assert((p.output[4 * 64 * row] != 0.0f) == sees);
        ck_assert(sees || p.lse[4 * row + 3] == -INFINITY);
    }
    p.key_pieces.count = 0;
    check(&p, 2, 1.0);
}
END_TEST

static void poison_and_compare(int64_t at, bool key, bool value) {
    const int64_t width = 2 * 64, out = 6 * 64;
    problem clean = prefill((cp_shape){6, 2, 64}, 0, 150, 1.0f);
    problem p = clean;
    cp_allocate(&p.output, p.query_rows * out, 4, "output");
    attend(&clean, 1);
    for (int64_t i = (at + 1) * width; i < (at + 2) * width; i++) {
        p.keys[i] = key ? NAN : p.keys[i];
        p.values[i] = value ? NAN : p.values[i];
    }
    attend(&p, 1);
    ck_assert_mem_eq(p.output + 2 * out, clean.output + 2 * out,
                     (size_t)(at * out) * sizeof(float));
    for (int64_t i = (at + 2) * out; i < 152 * out; i++)
        ck_assert(isnan(p.output[i]));
    free(p.output);
    discard(&clean);
}

START_TEST(nan_reaches_those_who_see_it_and_nobody_else) {
    for (int64_t at = 70; at <= 71; at++) {
        poison_and_compare(at, true, false);
        poison_and_compare(at, false, true);
        poison_and_compare(at, true, true);
    }
}
END_TEST

START_TEST(a_query_of_nan_spoils_its_own_row) {
    problem p = prefill((cp_shape){6, 2, 64}, 0, 50, 1.0f);
    p.queries[(2 + 20) * 6 * 64 + 64] = NAN;
    attend(&p, 2);
    for (int64_t i = 2 * 6; i < 52 * 6; i++) {
        ck_assert(isnan(p.lse[i]) == (i == 22 * 6 + 1));
        ck_assert(isnan(p.output[i * 64]) == (i == 22 * 6 + 1));
    }
    discard(&p);
}
END_TEST

START_TEST(threads_do_not_change_a_bit) {
    problem p = prefill((cp_shape){6, 2, 64}, 50, 250, 1.0f);
    float first[252 * 6], *output;
    cp_allocate(&output, 252 * 6 * 64, 4, "output");
    for (int threads = 1; threads <= 3; threads++) {
        attend(&p, threads);
        if (threads == 1) {
            memcpy(first, p.lse, sizeof(first));
            memcpy(output, p.output, 64 * sizeof(first));
        }
        ck_assert_mem_eq(first, p.lse, sizeof(first));
        ck_assert_mem_eq(output, p.output, 64 * sizeof(first));
    }
    free(output);
    discard(&p);
}
END_TEST

START_TEST(a_refusal_touches_nothing) {
    problem p = prefill((cp_shape){6, 2, 64}, 0, 5, 1.0f);
    const cp_shape good = p.shape;
    for (int trial = 0; trial < 3; trial++) {
        p.shape = good;
        p.shape.kv_heads = trial == 0 ? 4 : 2;
        p.shape.head_dim = trial == 1 ? 300 : 64;
        const cp_attention call = ask(&p, trial == 2 ? 0 : 1);
        ck_assert_int_eq(KERNEL(&call), CP_INVALID);
        ck_assert(p.output[2 * 6 * 64] == untouched);
    }
    ck_assert_ptr_nonnull(strstr(cp_message(), "0 threads"));
    discard(&p);
}
END_TEST

static Suite *attention_suite(void) {
    Suite *suite = suite_create("attention");
    TCase *tests = harness_case("attention");
    tcase_add_test(tests, the_oracle_knows_an_answer_by_heart);
    tcase_add_loop_test(tests, invariant_1_every_group_and_dimension, 0, 28);
    tcase_add_loop_test(tests, invariant_1_every_length, 0, 48);
    tcase_add_test(tests, large_scores_do_not_overflow);
    tcase_add_test(tests, long_sums_stay_accurate);
    tcase_add_test(tests, scores_far_below_weigh_nothing);
    tcase_add_test(tests, a_mean_of_ones_is_one);
    tcase_add_test(tests, pieces_may_lie_in_any_order);
    tcase_add_test(tests, seeing_nothing_is_zero_and_minus_infinity);
    tcase_add_test(tests, nan_reaches_those_who_see_it_and_nobody_else);
    tcase_add_test(tests, a_query_of_nan_spoils_its_own_row);
    tcase_add_test(tests, threads_do_not_change_a_bit);
    tcase_add_test(tests, a_refusal_touches_nothing);
    suite_add_tcase(suite, tests);
    return suite;
}

#ifndef ANOTHER_KERNEL
SUITE_MAIN(attention_suite)
#endif
