/* What every fp32 kernel must do: compares KERNEL, which a suite defines before
 * including this, with the fp64 oracle. */
#ifndef TESTS_KERNEL_CHECKS_H
#define TESTS_KERNEL_CHECKS_H

#include "problem.h"
#include "reference/attend/attend.h"

static uint64_t state = 20241104;

/* New tokens after cached ones of one sequence; queries begin at row 2, keys at
 * row 1. */
static problem *prefill(cp_shape shape, int64_t cached, int64_t fresh,
                        float scale) {
    problem *p = new_problem(shape);
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, cached, fresh, 1}, 2});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 0, cached + fresh, 1}, 1});
    prepare(p, scale, harness_uniform, &state);
    return p;
}

static void attend(problem *p, int threads) {
    const cp_attention call = call_of(p, threads);
    must(KERNEL(&call));
}

static void attend_by_two(problem *p) {
    attend(p, 2);
}

static inline void same_bits(cp_shape shape, int64_t cached, int64_t fresh) {
    problem *p = prefill(shape, cached, fresh, 1.0f);
    const int64_t rows = p->query_rows * shape.query_heads;
    const int64_t count = rows * cp_value_dim(&shape);
    attend(p, 1);
    float *output = copied(p->output, count), *lse = copied(p->lse, rows);
    for (int threads = 2; threads <= 5; threads++) {
        attend(p, threads);
        ck_assert_mem_eq(output, p->output, (size_t)count * 4);
        ck_assert_mem_eq(lse, p->lse, (size_t)rows * 4);
    }
    check(p, attend_by_two, 1.0);
}

static void check_prefill(cp_shape shape, int64_t cached, int64_t fresh) {
    check(prefill(shape, cached, fresh, 1.0f), attend_by_two, 1.0);
}

LOOP(every_group_and_dimension, 0, 4) {
    static const int64_t groups[] = {1, 3, 7, 16};
    static const int64_t dims[] = {1, 32, 64, 80, 128, 250, 256};
    const int64_t group = groups[_i];
    for (int d = 0; d < 7; d++)
        check_prefill((cp_shape){(1 + d % 2) * group, 1 + d % 2, dims[d]}, 70,
                      75);
}

/* Values narrower and wider than keys, separate or part of the keys. */
static const cp_shape uneven[] = {
    {8, 2, 64, 32, false},  {6, 2, 20, 33, false},   {4, 1, 24, 1, false},
    {3, 3, 1, 7, false},    {2, 1, 192, 128, false}, {16, 2, 40, 32, true},
    {3, 1, 20, 5, true},    {4, 4, 17, 17, true},    {128, 1, 72, 64, true},
    {16, 1, 576, 512, true}};

LOOP(values_of_another_width, 0, COUNT_OF(uneven)) {
    static const int64_t lengths[] = {1, 2, 7, 40};
    for (int n = 0; n < COUNT_OF(lengths); n++)
        check_prefill(uneven[_i], 333, lengths[n]);
    same_bits(uneven[_i], 700, 2);
    const poisoning call = {uneven[_i], 30, 7, 3};
    poison_the_future(&call, harness_uniform, attend_by_two);
}

LOOP(every_length, 0, 4) {
    static const int64_t cached[] = {0, 1, 128, 200};
    static const int64_t lengths[] = {1,  2,  5,   6,   7,   16,
                                      63, 65, 127, 128, 129, 300};
    const int64_t past = cached[_i];
    for (int n = 0; n < 12; n++)
        check_prefill((cp_shape){6, 2, 32}, past, lengths[n]);
}

TEST(large_scores_do_not_overflow) {
    check(prefill((cp_shape){6, 2, 64}, 100, 200, sqrtf(30.0f)), attend_by_two,
          4.0);
}

TEST(long_sums_stay_accurate) {
    check_prefill((cp_shape){2, 1, 16}, 20000, 4);
}

TEST(scores_far_below_weigh_nothing) {
    problem *p = prefill((cp_shape){1, 1, 1}, 299, 1, 1.0f);
    p->queries[2] = 1.0f;
    for (int64_t i = 0; i < 300; i++)
        p->keys[1 + i] = i == 200 ? 500.0f : -10.0f * (float)i;
    attend(p, 1);
    ck_assert_float_eq(p->output[2], p->values[1 + 200]);
    ck_assert_float_eq(p->lse[2], 500.0f);
}

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

TEST(pieces_may_lie_in_any_order) {
    problem *p = new_problem((cp_shape){6, 2, 40});
    int64_t query_row = 1, key_row = 0;
    deal(&p->query_pieces, 2, 60, 90, 3, &query_row);
    deal(&p->query_pieces, 0, 0, 200, 2, &query_row);
    deal(&p->query_pieces, 1, 5, 6, 1, &query_row);
    deal(&p->key_pieces, 1, 0, 6, 4, &key_row);
    deal(&p->key_pieces, 0, 150, 200, 1, &key_row);
    deal(&p->key_pieces, 2, 0, 90, 4, &key_row);
    deal(&p->key_pieces, 0, 0, 150, 7, &key_row);
    prepare(p, 1.0f, harness_uniform, &state);
    check(p, attend_by_two, 1.0);
}

TEST(seeing_nothing_is_zero_and_minus_infinity) {
    problem *p = new_problem((cp_shape){4, 2, 64});
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, 10, 40, 1}, 0});
    cp_pieces_append(&p->query_pieces, (cp_piece){{3, 90, 5, 1}, 40});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 27, 100, 3}, 0});
    prepare(p, 1.0f, harness_uniform, &state);
    check(p, attend_by_two, 1.0);
    p->key_pieces.count = 0;
    check(p, attend_by_two, 1.0);
}

TEST(nan_reaches_only_queries_that_see_it) {
    const poisoning calls[] = {{{6, 2, 64}, 0, 150, 1},
                               {{8, 2, 64}, 180, 24, 1},
                               {{2, 2, 20}, 100, 40, 3},
                               {{4, 1, 64}, 60, 3, 1},
                               {{3, 1, 19}, 190, 2, 5}};
    for (int n = 0; n < COUNT_OF(calls); n++)
        poison_the_future(&calls[n], harness_uniform, attend_by_two);
}

TEST(a_query_of_nan_spoils_its_own_row) {
    problem *p = prefill((cp_shape){6, 2, 64}, 0, 50, 1.0f);
    p->queries[(2 + 20) * 6 * 64 + 64] = NAN;
    attend(p, 2);
    for (int64_t i = 2 * 6; i < 52 * 6; i++) {
        hold(isnan(p->lse[i]) == (i == 22 * 6 + 1));
        hold(isnan(p->output[i * 64]) == (i == 22 * 6 + 1));
    }
}

TEST(a_refusal_touches_nothing) {
    problem *p = prefill((cp_shape){6, 2, 64}, 0, 5, 1.0f);
    const cp_shape good = p->shape;
    const float untouched = p->output[2 * 6 * 64] = 12345.0f;
    for (int trial = 0; trial < 3; trial++) {
        p->shape = good;
        p->shape.kv_heads = trial == 0 ? 4 : 2;
        p->shape.head_dim = trial == 1 ? 600 : 64;
        const cp_attention call = call_of(p, trial == 2 ? 0 : 1);
        ck_assert_int_eq(KERNEL(&call), CP_INVALID);
        hold(p->output[2 * 6 * 64] == untouched);
    }
    ck_assert_ptr_nonnull(strstr(cp_message(), "0 threads"));
}

/* The number of threads does not change a bit. */
TEST(splits_add_up_on_any_thread) {
    same_bits((cp_shape){6, 2, 64}, 50, 250);
}

#endif
