/* The first fp32 kernel against the fp64 oracle, and the oracle against values
 * computed by hand. */
#define KERNEL cp_attend
#include "kernel_checks.h"

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
