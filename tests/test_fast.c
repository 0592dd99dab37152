/* The fast kernel: all that the first one was asked, and what only this one
 * could get wrong. */
#define _POSIX_C_SOURCE 200809L /* setenv, and blis.h wants pthread barriers */
#include "reference/attend/fast.h"

#define ANOTHER_KERNEL cp_attend_fast
#include "test_attention.c"

#include <stdio.h>

#include <blis.h>

#include "reference/attend/exp2.h"
#include "reference/attend/micro.h"
#include "reference/attend/partial.h"

static const int numbers[] = {
    -1, /* BLIS's own choice */
#ifdef BLIS_CONFIG_SANDYBRIDGE
    BLIS_ARCH_SANDYBRIDGE,
#endif
#ifdef BLIS_CONFIG_PENRYN
    BLIS_ARCH_PENRYN,
#endif
#ifdef BLIS_CONFIG_SKX
    BLIS_ARCH_SKX,
#endif
};

enum { KERNELS = sizeof(numbers) / sizeof(numbers[0]) };

static bool can_run(int number) {
#ifdef BLIS_CONFIG_SANDYBRIDGE
    if (number == BLIS_ARCH_SANDYBRIDGE)
        return __builtin_cpu_supports("avx");
#endif
#ifdef BLIS_CONFIG_SKX
    if (number == BLIS_ARCH_SKX)
        return __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw");
#endif
    return number < 0 || __builtin_cpu_supports("sse3");
}

static bool choose_micro_kernel(int which) {
    char text[16];
    snprintf(text, sizeof(text), "%d", numbers[which]);
    if (numbers[which] >= 0 && can_run(numbers[which]))
        setenv("BLIS_ARCH_TYPE", text, 1);
    return can_run(numbers[which]);
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

START_TEST(a_tile_is_the_product_and_touches_nothing_else) {
    if (!choose_micro_kernel(_i))
        return;
    const cp_micro *micro = cp_micro_get();
    float *slice, *panel;
    cp_allocate_lines(&slice, micro->slice_stride * DEPTH, 4, "a slice");
    cp_allocate_lines(&panel, micro->panel_stride * DEPTH, 4, "a panel");
    for (int64_t i = 0; i < micro->slice_stride * DEPTH; i++)
        slice[i] = harness_uniform(&state);
    for (int64_t i = 0; i < micro->panel_stride * DEPTH; i++)
        panel[i] = harness_uniform(&state);
    for (int64_t rows = 1; rows <= micro->slice; rows++)
        for (int64_t columns = 1; columns <= micro->panel; columns++)
            for (int add = 0; add < 2; add++)
                ck_assert_double_le(
                    wrong_by(micro, rows, columns, add, slice, panel), 1e-5);
    free(slice);
    free(panel);
}
END_TEST

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

START_TEST(powers_of_two_are_within_two_units) {
    const uint32_t tiny = cp_to_bits(1e-9f), minus = 0x80000000u;
    ck_assert_double_le(worst_of(tiny, cp_to_bits(127.0f)), 2.0);
    ck_assert_double_le(worst_of(tiny | minus, cp_to_bits(-126.0f)), 2.0);
    for (int n = -126; n <= 127; n++)
        ck_assert(cp_exp2((float)n) == ldexpf(1.0f, n));
    ck_assert(cp_exp2(-0.0f) == 1.0f && cp_exp2(1e-30f) == 1.0f);
    ck_assert(cp_exp2(-126.001f) == 0.0f && cp_exp2(-3e38f) == 0.0f);
    ck_assert(cp_exp2(-INFINITY) == 0.0f && isnan(cp_exp2(NAN)));
}
END_TEST

START_TEST(every_micro_kernel_is_right) {
    static const int64_t dims[] = {1, 7, 36, 64, 80, 128, 256};
    if (!choose_micro_kernel(_i))
        return;
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
        for (int64_t group = 1; group <= 5; group += 2) {
            const cp_shape shape = {2 * group, 2, dims[d]};
            problem full = prefill(shape, 230, 67, 1.0f);
            check(&full, 2, 1.0);
        }
    problem causal = prefill((cp_shape){16, 1, 96}, 0, 500, 1.0f);
    check(&causal, 2, 1.0);
}
END_TEST

static void same_bits(cp_shape shape, int64_t cached, int64_t fresh) {
    problem p = prefill(shape, cached, fresh, 1.0f);
    const int64_t rows = (fresh + 2) * shape.query_heads;
    float *output, *lse;
    cp_allocate(&output, rows * shape.head_dim, 4, "output");
    cp_allocate(&lse, rows, 4, "lse");
    for (int threads = 1; threads <= 5; threads++) {
        attend(&p, threads);
        if (threads == 1) {
            memcpy(output, p.output, (size_t)(rows * shape.head_dim) * 4);
            memcpy(lse, p.lse, (size_t)rows * 4);
        }
        ck_assert_mem_eq(output, p.output, (size_t)(rows * shape.head_dim) * 4);
        ck_assert_mem_eq(lse, p.lse, (size_t)rows * 4);
    }
    free(output);
    free(lse);
    check(&p, 3, 1.0);
}

START_TEST(shares_add_up_whoever_does_them) {
    same_bits((cp_shape){8, 2, 128}, 5000, 1);
    same_bits((cp_shape){9, 3, 40}, 4500, 4);
    same_bits((cp_shape){3, 3, 33}, 777, 3);
    same_bits((cp_shape){8, 1, 64}, 6000, 40);
    same_bits((cp_shape){6, 2, 16}, 100, 1500);
}
END_TEST

START_TEST(a_batch_of_decoded_tokens_finds_its_keys) {
    problem p = {.shape = {8, 2, 72}};
    for (int64_t s = 0; s < 5; s++)
        cp_pieces_append(&p.query_pieces,
                         (cp_piece){{s, 300 * s + 2, 1, 1}, 2 * s});
    int64_t row = 1;
    for (int64_t s = 0; s < 5; s++)
        deal(&p.key_pieces, s, s, 300 * s + 3, 3, &row);
    prepare(&p, 1.0f);
    check(&p, 3, 1.0);
}
END_TEST

static void poison_the_future(cp_shape shape, int64_t cached, int64_t fresh,
                              int64_t step) {
    problem p = {.shape = shape};
    cp_pieces_append(&p.query_pieces, (cp_piece){{0, cached, fresh, step}, 0});
    cp_pieces_append(&p.key_pieces,
                     (cp_piece){{0, 0, cached + fresh * step + 9, 1}, 0});
    prepare(&p, 1.0f);
    const int64_t heads = shape.query_heads, dim = shape.head_dim;
    const int64_t width = shape.kv_heads * dim;
    float *clean;
    cp_allocate(&clean, fresh * heads * dim, 4, "output");
    attend(&p, 2);
    memcpy(clean, p.output, (size_t)(fresh * heads * dim) * 4);
    for (int64_t q = fresh - 1; q >= 0; q--) {
        for (int64_t i = (cached + q * step + 1) * width;
             i < (cached + (q + 1) * step + 1) * width; i++)
            p.keys[i] = p.values[i] = NAN;
        attend(&p, 2);
        ck_assert_mem_eq(p.output, clean, (size_t)((q + 1) * heads * dim) * 4);
    }
    free(clean);
    discard(&p);
}

START_TEST(what_lies_ahead_is_not_seen) {
    poison_the_future((cp_shape){8, 2, 64}, 180, 24, 1);
    poison_the_future((cp_shape){2, 2, 20}, 100, 40, 3);
    poison_the_future((cp_shape){4, 1, 64}, 60, 3, 1);
    poison_the_future((cp_shape){3, 1, 19}, 190, 2, 5);
}
END_TEST

static void halves(problem *p, cp_kernel kernel, bool merge, float *output,
                   float *lse) {
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    cp_piece keys = p->key_pieces.items[0];
    const cp_pieces part = {&keys, 1, 1};
    cp_attention call = ask(p, 2);
    call.key_pieces = &part;
    keys.span.start = 40, keys.span.count = 60, keys.row += 40;
    call.output = output, call.lse = lse;
    ck_assert_int_eq(kernel(&call), CP_OK);
    keys.span.start = 100, keys.span.count = 100, keys.row += 60;
    call.output = merge ? output : p->output;
    call.lse = merge ? lse : p->lse;
    call.merge = merge;
    ck_assert_int_eq(kernel(&call), CP_OK);
    const int64_t first = p->query_pieces.items[0].row;
    const int64_t rows = p->query_pieces.items[0].span.count;
    cp_partial all = {rows, heads, dim, output + first * heads * dim,
                      lse + first * heads};
    const cp_partial add = {rows, heads, dim, p->output + first * heads * dim,
                            p->lse + first * heads};
    if (!merge)
        cp_partial_merge(&all, &add);
}

START_TEST(merging_in_place_gives_the_same_bits) {
    static const cp_kernel kernels[] = {cp_attend, cp_attend_fast};
    for (int64_t fresh = 3; fresh <= 200; fresh += 197) {
        problem p = prefill((cp_shape){4, 2, 48}, 200 - fresh, fresh, 1.0f);
        const int64_t rows = p.query_rows * 4;
        float *one, *other, *lse, *other_lse;
        cp_allocate(&one, rows * 48, 4, "output");
        cp_allocate(&other, rows * 48, 4, "output");
        cp_allocate(&lse, rows, 4, "lse");
        cp_allocate(&other_lse, rows, 4, "lse");
        halves(&p, kernels[_i], false, one, lse);
        halves(&p, kernels[_i], true, other, other_lse);
        ck_assert_mem_eq(one, other, (size_t)(rows * 48) * 4);
        ck_assert_mem_eq(lse, other_lse, (size_t)rows * 4);
        free(one);
        free(other);
        free(lse);
        free(other_lse);
        discard(&p);
    }
}
END_TEST

static Suite *fast_suite(void) {
    Suite *suite = attention_suite();
    TCase *tests = harness_case("fast");
    tcase_add_loop_test(tests, a_tile_is_the_product_and_touches_nothing_else,
                        0, KERNELS);
    tcase_add_loop_test(tests, every_micro_kernel_is_right, 0, KERNELS);
    tcase_add_test(tests, powers_of_two_are_within_two_units);
    tcase_add_test(tests, shares_add_up_whoever_does_them);
    tcase_add_test(tests, a_batch_of_decoded_tokens_finds_its_keys);
    tcase_add_test(tests, what_lies_ahead_is_not_seen);
    tcase_add_loop_test(tests, merging_in_place_gives_the_same_bits, 0, 2);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(fast_suite)
