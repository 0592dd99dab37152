/* Ring pass-Q: right, and as heavy as the formulas say. */
#include "harness/suite.h"

#include "harness/rig.h"

START_TEST(ragged_conversations_equal_dense_attention) {
    const int ranks = _i == 10 ? 16 : _i;
    const cp_shape shapes[4] = {
        {3, 3, 32}, {3, 1, 64}, {14, 2, 80}, {16, 1, 128}};
    const int64_t first[4] = {3 * ranks, 0, 2, 19};
    const int64_t second[4] = {2, 2 * ranks + 3, 1, 0};
    const int64_t third[4] = {1, 1, 0, 1};
    for (int n = 0; n < 4; n++) {
        rig rig = {.shape = shapes[n],
                   .ranks = ranks,
                   .sequences = 4,
                   .room = 160,
                   .seed = (uint64_t)(90 * ranks + n),
                   .spare = 1 + n % 3,
                   .disorder = (uint64_t)(n + 3)};
        ck_assert_msg(rig_open(&rig) && rig_call(&rig, first, CP_PASS_Q) &&
                          rig_call(&rig, second, CP_PASS_Q) &&
                          rig_call(&rig, third, CP_PASS_Q),
                      "%d ranks, shape %d: %s", ranks, n, rig.failure);
        rig_close(&rig);
    }
}
END_TEST

START_TEST(invariants_14_and_15_bytes_do_not_depend_on_the_cache) {
    const int ranks = _i == 10 ? 16 : _i;
    const int64_t turns[3][2] = {{13, 5}, {200, 40}, {13, 5}};
    rig rig = {.shape = {8, 2, 16},
               .ranks = ranks,
               .sequences = 2,
               .room = 300,
               .seed = 5};
    ck_assert_msg(rig_open(&rig), "%s", rig.failure);
    for (int n = 0; n < 3; n++) {
        ck_assert_msg(rig_call(&rig, turns[n], CP_PASS_Q), "%s", rig.failure);
        int64_t rows = 0;
        for (int i = 0; i < 2; i++)
            rows += 2 * ((turns[n][i] + 2 * ranks - 1) / (2 * ranks));
        for (int k = 0; k < ranks; k++) {
            ck_assert_int_eq(rig.traffic[k].hops, ranks - 1);
            ck_assert_int_eq(rig.traffic[k].ring_bytes,
                             (ranks - 1) * rows * 8 * 16 * 4);
            ck_assert_int_eq(rig.traffic[k].all_to_all_bytes,
                             (ranks - 1) * rows * 8 * (16 + 1) * 4);
        }
    }
    rig_close(&rig);
}
END_TEST

START_TEST(invariant_3_variants_may_alternate) {
    const int64_t turns[5][2] = {{40, 9}, {3, 30}, {17, 1}, {1, 1}, {5, 22}};
    const cp_variant variants[5] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                    CP_DECODE, CP_PASS_Q};
    rig rig = {.shape = {6, 3, 24},
               .ranks = _i,
               .sequences = 2,
               .room = 200,
               .seed = 11,
               .disorder = 2};
    ck_assert_msg(rig_open(&rig), "%s", rig.failure);
    for (int n = 0; n < 10; n++)
        ck_assert_msg(rig_call(&rig, turns[n % 5], variants[n % 5]),
                      "turn %d: %s", n, rig.failure);
    rig_close(&rig);
}
END_TEST

static Suite *suite(void) {
    Suite *suite = suite_create("pass-Q");
    TCase *tests = harness_case("pass-Q");
    tcase_add_loop_test(tests, ragged_conversations_equal_dense_attention, 1,
                        11);
    tcase_add_loop_test(
        tests, invariants_14_and_15_bytes_do_not_depend_on_the_cache, 1, 11);
    tcase_add_loop_test(tests, invariant_3_variants_may_alternate, 1, 9);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(suite)
