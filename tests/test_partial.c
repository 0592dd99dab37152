/* The laws of merging. test_ring.c checks that merged pieces are as exact as
 * the whole. */
#include "merge_checks.h"

#include <math.h>
#include <string.h>

enum { ROWS = 5, HEADS = 3, DIM = 20, CELLS = ROWS * HEADS };

typedef struct {
    float output[CELLS * DIM], lse[CELLS];
} storage;

static uint64_t state = 20241104;

static cp_partial in(storage *s) {
    return (cp_partial){ROWS, HEADS, DIM, s->output, s->lse, NULL};
}

static storage random_partial(void) {
    storage s;
    for (int i = 0; i < CELLS * DIM; i++)
        s.output[i] = harness_uniform(&state);
    for (int i = 0; i < CELLS; i++)
        s.lse[i] = 10.0f * harness_uniform(&state);
    return s;
}

static storage merged(storage a, storage b) {
    cp_partial out = in(&a);
    const cp_partial add = in(&b);
    cp_partial_merge(&out, &add);
    return a;
}

static double apart(const storage *a, const storage *b) {
    const float *one = (const float *)a, *other = (const float *)b;
    double largest = 0.0;
    for (size_t i = 0; i < sizeof(*a) / sizeof(float); i++) {
        const double distance = fabs((double)one[i] - other[i]);
        largest = distance > largest ? distance : largest;
    }
    return largest;
}

static void check_same(const storage *a, const storage *b) {
    ck_assert_mem_eq(a, b, sizeof(*a));
}

static storage constant(float output, float lse) {
    storage s;
    for (int i = 0; i < CELLS * DIM; i++)
        s.output[i] = output;
    for (int i = 0; i < CELLS; i++)
        s.lse[i] = lse;
    return s;
}

static storage nothing(float garbage) {
    return constant(garbage, -INFINITY);
}

TEST(invariants_2_and_4_an_empty_side_changes_nothing) {
    const float garbage[] = {0.0f, NAN, INFINITY, 1e30f};
    const storage a = random_partial(), zero = nothing(0.0f);
    for (int g = 0; g < 4; g++) {
        storage empty = nothing(garbage[g]);
        const storage left = merged(empty, a), right = merged(a, empty);
        const storage both = merged(empty, nothing(NAN));
        check_same(&left, &a);
        check_same(&right, &a);
        check_same(&both, &zero);
        cp_partial cleared = in(&empty);
        cp_partial_clear(&cleared);
        check_same(&empty, &zero);
    }
}

TEST(invariant_2_merging_commutes_and_to_rounding_associates) {
    for (int trial = 0; trial < 1000; trial++) {
        const storage a = random_partial(), b = random_partial();
        const storage c = random_partial();
        const storage one = merged(a, b), other = merged(b, a);
        const storage left = merged(one, c), right = merged(a, merged(b, c));
        check_same(&one, &other);
        ck_assert_double_le(apart(&left, &right), 2e-6);
    }
}

TEST(invariant_2_a_common_shift_moves_only_the_lse) {
    storage a = random_partial(), b = random_partial();
    storage plain = merged(a, b);
    for (int i = 0; i < CELLS; i++) {
        a.lse[i] += 64.0f;
        b.lse[i] += 64.0f;
        plain.lse[i] += 64.0f;
    }
    const storage shifted = merged(a, b);
    ck_assert_double_le(apart(&plain, &shifted), 2e-5);
}

TEST(the_logarithm_is_natural) {
    const storage s =
        merged(constant(0.0f, logf(3.0f)), constant(1.0f, logf(1.0f)));
    ck_assert_float_eq_tol(s.output[7], 0.25f, 1e-7f);
    ck_assert_float_eq_tol(s.lse[7], logf(4.0f), 1e-6f);
}

TEST(n_equal_sides_add_the_logarithm_of_n) {
    const storage a = random_partial();
    storage s = a;
    for (int n = 2; n <= 64; n++) {
        s = merged(s, a);
        storage expected = a;
        for (int i = 0; i < CELLS; i++)
            expected.lse[i] += logf((float)n);
        ck_assert_double_le(apart(&s, &expected), 1e-5);
    }
    storage twice = a;
    cp_partial self = in(&twice);
    cp_partial_merge(&self, &self);
    s = merged(a, a);
    check_same(&twice, &s);
}

TEST(a_dominant_side_is_the_answer) {
    const float ends[] = {-2e4f, -1e4f, 0.0f, 1e4f};
    for (int e = 0; e < 4; e++) {
        storage heavy = random_partial(), light = random_partial();
        for (int i = 0; i < CELLS; i++) {
            light.lse[i] = ends[e];
            heavy.lse[i] = ends[e] + 1e4f;
        }
        const storage one = merged(heavy, light), two = merged(light, heavy);
        check_same(&one, &heavy);
        check_same(&two, &heavy);
    }
}

/* A thousand partials with an LSE near 8, where floats are 1e-6 apart. */
TEST(a_running_answer_keeps_its_account) {
    storage merged, remainder;
    cp_partial all = in(&merged);
    double sum[CELLS] = {0}, worst[2] = {0};
    for (int kept = 0; kept < 2; kept++) {
        all.remainder = kept ? remainder.lse : NULL;
        cp_partial_clear(&all);
        memset(sum, 0, sizeof(sum));
        for (int n = 0; n < 1000; n++) {
            storage part = random_partial();
            const cp_partial add = in(&part);
            for (int i = 0; i < CELLS; i++) {
                part.lse[i] += 8.0f;
                sum[i] += exp((double)part.lse[i]);
            }
            cp_partial_merge(&all, &add);
        }
        for (int i = 0; i < CELLS; i++) {
            const double remainder_of = kept ? (double)remainder.lse[i] : 0;
            const double lse = (double)merged.lse[i] + remainder_of;
            worst[kept] = fmax(worst[kept], fabs(lse - log(sum[i])));
        }
    }
    ck_assert_double_gt(worst[0], 1e-6);
    ck_assert_double_lt(worst[1], 1e-11);
}

TEST(nan_is_not_averaged_away) {
    storage a = random_partial(), b = random_partial();
    a.lse[0] = NAN;
    a.output[DIM + 4] = NAN;
    const storage s = merged(b, a);
    for (int d = 0; d < DIM; d++) {
        ck_assert(isnan(s.output[d]));
        ck_assert(isnan(s.output[DIM + d]) == (d == 4));
    }
    ck_assert(isnan(s.lse[0]) && isfinite(s.lse[1]));
}

TEST(the_first_kernel_merges_in_place) {
    merges_in_place(cp_attend);
}
