/* The fp32 kernels against the fp64 oracle, and the oracle against values worked
 * out by hand. Each test asks both kernels, but for what only the fast one could
 * get wrong. */
#define _POSIX_C_SOURCE 200809L /* setenv, and blis.h wants pthread barriers */
#include "reference/attend/fast.h"
#include "problem.h"
#include "reference/attend/exp2.h"
#include "reference/attend/micro.h"
#include "reference/attend/partial.h"

#include <blis.h>
#include <stdio.h>
#include <string.h>

static cp_kernel kernel = cp_attend_fast;

/* Of two instances of a test one asks the plain kernel. Which of them it is. */
static int choose_kernel(int instance) {
    kernel = instance % 2 == 0 ? cp_attend : cp_attend_fast;
    return instance / 2;
}

static uint64_t state = 20241104;

/* Fresh tokens after cached ones of one sequence; their queries lie from row 2
 * on, all keys from row 1. */
static problem *prefill(cp_shape shape, int64_t cached, int64_t fresh,
                        float scale) {
    problem *p = new_problem(shape);
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, cached, fresh, 1}, 2});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 0, cached + fresh, 1}, 1});
    prepare(p, scale, harness_uniform, &state);
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
                          .merge = p->merge,
                          .output = p->output,
                          .lse = p->lse};
}

static void attend(problem *p, int threads) {
    const cp_attention call = ask(p, threads);
    must(kernel(&call));
}

static void attend_by_two(problem *p) {
    attend(p, 2);
}

TEST(the_oracle_knows_an_answer_by_heart) {
    const cp_shape shape = {1, 1, 1};
    cp_pieces pieces = {0};
    cp_pieces_append(&pieces, (cp_piece){{0, 7, 2, 1}, 0});
    const float queries[] = {1.0f, 1.0f}, values[] = {10.0f, 2.0f};
    const float keys[] = {0.0f, 1.0986123f};
    double output[2], lse[2];
    must(cp_oracle(&shape, &pieces, queries, &pieces, keys, values, output,
                   lse));
    ck_assert_double_eq(output[0], 10.0);
    ck_assert_double_eq(lse[0], 0.0);
    ck_assert_double_eq_tol(output[1], 4.0, 1e-6);
    ck_assert_double_eq_tol(lse[1], log(4.0), 1e-7);
    cp_pieces_free(&pieces);
}

static void check_prefill(cp_shape shape, int64_t cached, int64_t fresh) {
    check(prefill(shape, cached, fresh, 1.0f), attend_by_two, 1.0);
}

LOOP(every_group_and_dimension, 0, 8) {
    static const int64_t groups[] = {1, 3, 7, 16};
    static const int64_t dims[] = {1, 32, 64, 80, 128, 250, 256};
    const int64_t group = groups[choose_kernel(_i)];
    for (int d = 0; d < 7; d++)
        check_prefill((cp_shape){(1 + d % 2) * group, 1 + d % 2, dims[d]}, 70,
                      75);
}

LOOP(every_length, 0, 8) {
    static const int64_t cached[] = {0, 1, 128, 200};
    static const int64_t lengths[] = {1,  2,  5,   6,   7,   16,
                                      63, 65, 127, 128, 129, 300};
    const int64_t past = cached[choose_kernel(_i)];
    for (int n = 0; n < 12; n++)
        check_prefill((cp_shape){6, 2, 32}, past, lengths[n]);
}

LOOP(large_scores_do_not_overflow, 0, 2) {
    choose_kernel(_i);
    check(prefill((cp_shape){6, 2, 64}, 100, 200, sqrtf(30.0f)), attend_by_two,
          4.0);
}

LOOP(long_sums_stay_accurate, 0, 2) {
    choose_kernel(_i);
    check_prefill((cp_shape){2, 1, 16}, 20000, 4);
}

LOOP(scores_far_below_weigh_nothing, 0, 2) {
    choose_kernel(_i);
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

LOOP(pieces_may_lie_in_any_order, 0, 2) {
    choose_kernel(_i);
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

LOOP(seeing_nothing_is_zero_and_minus_infinity, 0, 2) {
    choose_kernel(_i);
    problem *p = new_problem((cp_shape){4, 2, 64});
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, 10, 40, 1}, 0});
    cp_pieces_append(&p->query_pieces, (cp_piece){{3, 90, 5, 1}, 40});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 27, 100, 3}, 0});
    prepare(p, 1.0f, harness_uniform, &state);
    check(p, attend_by_two, 1.0);
    p->key_pieces.count = 0;
    check(p, attend_by_two, 1.0);
}

LOOP(nan_reaches_those_who_see_it_and_nobody_else, 0, 2) {
    choose_kernel(_i);
    const poisoning calls[] = {{{6, 2, 64}, 0, 150, 1},
                               {{8, 2, 64}, 180, 24, 1},
                               {{2, 2, 20}, 100, 40, 3},
                               {{4, 1, 64}, 60, 3, 1},
                               {{3, 1, 19}, 190, 2, 5}};
    for (int n = 0; n < COUNT_OF(calls); n++)
        poison_the_future(&calls[n], harness_uniform, attend_by_two);
}

LOOP(a_query_of_nan_spoils_its_own_row, 0, 2) {
    choose_kernel(_i);
    problem *p = prefill((cp_shape){6, 2, 64}, 0, 50, 1.0f);
    p->queries[(2 + 20) * 6 * 64 + 64] = NAN;
    attend(p, 2);
    for (int64_t i = 2 * 6; i < 52 * 6; i++) {
        hold(isnan(p->lse[i]) == (i == 22 * 6 + 1));
        hold(isnan(p->output[i * 64]) == (i == 22 * 6 + 1));
    }
}

static void same_bits(cp_shape shape, int64_t cached, int64_t fresh) {
    problem *p = prefill(shape, cached, fresh, 1.0f);
    const int64_t rows = p->query_rows * shape.query_heads;
    const int64_t count = rows * shape.head_dim;
    attend(p, 1);
    float *output = copied(p->output, count), *lse = copied(p->lse, rows);
    for (int threads = 2; threads <= 5; threads++) {
        attend(p, threads);
        ck_assert_mem_eq(output, p->output, (size_t)count * 4);
        ck_assert_mem_eq(lse, p->lse, (size_t)rows * 4);
    }
    check(p, attend_by_two, 1.0);
}

LOOP(a_refusal_touches_nothing, 0, 2) {
    choose_kernel(_i);
    problem *p = prefill((cp_shape){6, 2, 64}, 0, 5, 1.0f);
    const cp_shape good = p->shape;
    const float untouched = p->output[2 * 6 * 64] = 12345.0f;
    for (int trial = 0; trial < 3; trial++) {
        p->shape = good;
        p->shape.kv_heads = trial == 0 ? 4 : 2;
        p->shape.head_dim = trial == 1 ? 300 : 64;
        const cp_attention call = ask(p, trial == 2 ? 0 : 1);
        ck_assert_int_eq(kernel(&call), CP_INVALID);
        hold(p->output[2 * 6 * 64] == untouched);
    }
    ck_assert_ptr_nonnull(strstr(cp_message(), "0 threads"));
}

/* Rows that see something, before or now, both times, or never. */
LOOP(merging_in_place_gives_the_same_bits, 0, 2) {
    choose_kernel(_i);
    for (int64_t fresh = 3; fresh <= 200; fresh += 197) {
        problem *p = new_problem((cp_shape){4, 2, 48});
        cp_pieces_append(&p->query_pieces,
                         (cp_piece){{0, 200 - fresh, fresh, 1}, 0});
        cp_pieces_append(&p->key_pieces, (cp_piece){{0, 40, 160, 1}, 0});
        prepare(p, 1.0f, harness_uniform, &state);
        problem merged = *p;
        merged.merge = true;
        merged.output = copied(p->output, fresh * 4 * 48);
        merged.lse = copied(p->lse, fresh * 4);
        cp_partial all = {fresh,
                          4,
                          48,
                          copied(p->output, fresh * 4 * 48),
                          copied(p->lse, fresh * 4),
                          NULL};
        const cp_partial add = {fresh, 4, 48, p->output, p->lse, NULL};
        attend(&merged, 2);
        attend(p, 2);
        cp_partial_merge(&all, &add);
        ck_assert_mem_eq(merged.output, all.output, (size_t)fresh * 4 * 48 * 4);
        ck_assert_mem_eq(merged.lse, all.lse, (size_t)fresh * 4 * 4);
    }
}

enum { MICRO_KERNELS = 4 };

/* BLIS's own choice, or another that was built and runs here. */
static bool choose_micro_kernel(int which) {
    const struct {
        int number;
        bool runs;
    } all[] = {
        {-1, true},
#ifdef BLIS_CONFIG_SANDYBRIDGE
        {BLIS_ARCH_SANDYBRIDGE, __builtin_cpu_supports("avx")},
#endif
#ifdef BLIS_CONFIG_PENRYN
        {BLIS_ARCH_PENRYN, __builtin_cpu_supports("sse3")},
#endif
#ifdef BLIS_CONFIG_SKX
        {BLIS_ARCH_SKX, __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512bw")},
#endif
    };
    char text[16];
    if (which >= COUNT_OF(all) || !all[which].runs)
        return false;
    snprintf(text, sizeof(text), "%d", all[which].number);
    return which == 0 || setenv("BLIS_ARCH_TYPE", text, 1) == 0;
}

enum { DEPTH = 37, FIELD = 70 };

static double wrong_by(const cp_micro *micro, int64_t rows, int64_t columns,
                       bool add, const float *slice, const float *panel) {
    static float c[FIELD * FIELD];
    double worst = 0.0;
    for (int i = 0; i < FIELD * FIELD; i++)
        c[i] = add || i / FIELD >= rows || i % FIELD >= columns ? 7.0f : NAN;
    cp_micro_multiply(micro, rows, columns, DEPTH, slice, panel, add, c, FIELD);
    for (int64_t i = 0; i < FIELD; i++)
        for (int64_t j = 0; j < FIELD; j++) {
            const bool inside = i < rows && j < columns;
            double sum = inside && !add ? 0.0 : 7.0;
            for (int64_t k = 0; k < DEPTH && inside; k++)
                sum += (double)slice[k * micro->slice_stride + i] *
                       (double)panel[k * micro->panel_stride + j];
            worst = fmax(worst, fabs(sum - (double)c[i * FIELD + j]));
        }
    return worst;
}

static float *random_lines(int64_t count) {
    float *lines;
    must(cp_allocate_lines(&lines, count, 4, "lines"));
    for (int64_t i = 0; i < count; i++)
        lines[i] = harness_uniform(&state);
    return lines;
}

LOOP(a_tile_is_the_product_and_touches_nothing_else, 0, MICRO_KERNELS) {
    if (!choose_micro_kernel(_i))
        return;
    const cp_micro *micro = cp_micro_get();
    float *slice = random_lines(micro->slice_stride * DEPTH);
    float *panel = random_lines(micro->panel_stride * DEPTH);
    for (int64_t rows = 1; rows <= micro->slice; rows++)
        for (int64_t columns = 1; columns <= micro->panel; columns++)
            for (int add = 0; add < 2; add++)
                hold(wrong_by(micro, rows, columns, add, slice, panel) <= 1e-5);
    free(slice);
    free(panel);
}

static double worst_of(uint32_t first, uint32_t last) {
    double worst = 0.0;
    for (uint32_t bits = first; bits <= last; bits += 61) {
        const float x = cp_from_bits(bits);
        const double truth = exp2((double)x);
        const double unit = ldexp(1.0, ilogb(truth) - 23);
        worst = fmax(worst, fabs((double)cp_exp2(x) - truth) / unit);
    }
    return worst;
}

TEST(powers_of_two_are_within_two_units) {
    const uint32_t tiny = cp_to_bits(1e-9f), minus = 0x80000000u;
    ck_assert_double_le(worst_of(tiny, cp_to_bits(127.0f)), 2.0);
    ck_assert_double_le(worst_of(tiny | minus, cp_to_bits(-126.0f)), 2.0);
    for (int n = -126; n <= 127; n++)
        hold(cp_exp2((float)n) == ldexpf(1.0f, n));
    hold(cp_exp2(-0.0f) == 1.0f && cp_exp2(1e-30f) == 1.0f);
    hold(cp_exp2(-126.001f) == 0.0f && cp_exp2(-3e38f) == 0.0f);
    hold(cp_exp2(-INFINITY) == 0.0f && isnan(cp_exp2(NAN)));
}

LOOP(every_micro_kernel_is_right, 0, MICRO_KERNELS) {
    static const int64_t dims[] = {1, 7, 36, 64, 80, 128, 256};
    if (!choose_micro_kernel(_i))
        return;
    for (int d = 0; d < COUNT_OF(dims); d++) {
        const int64_t group = 1 + 2 * ((d + _i) % 3);
        check_prefill((cp_shape){2 * group, 2, dims[d]}, 230, 67);
    }
    check_prefill((cp_shape){16, 1, 96}, 0, 500);
}

/* Threads do not change a bit. */
LOOP(shares_add_up_whoever_does_them, 0, 2) {
    choose_kernel(_i);
    same_bits((cp_shape){6, 2, 64}, 50, 250);
    if (kernel == cp_attend)
        return;
    same_bits((cp_shape){8, 2, 128}, 5000, 1);
    same_bits((cp_shape){9, 3, 40}, 4500, 4);
    same_bits((cp_shape){3, 3, 33}, 777, 3);
    same_bits((cp_shape){8, 1, 64}, 6000, 40);
    same_bits((cp_shape){6, 2, 16}, 100, 1500);
}
