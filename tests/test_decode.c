/* Batched ring decode: owners, answers, bytes. */
#include "harness/suite.h"

#include "harness/rig.h"

static int64_t spread(const int64_t *counts, int ranks) {
    int64_t least = INT64_MAX, most = 0;
    for (int k = 0; k < ranks; k++) {
        least = cp_min(least, counts[k]);
        most = cp_max(most, counts[k]);
    }
    return most - least;
}

START_TEST(invariant_16_owners_go_round) {
    const int ranks = _i;
    for (int64_t batch = 1; batch <= 2 * ranks + 1; batch++) {
        int64_t ones[64];
        for (int i = 0; i < 64; i++)
            ones[i] = 1;
        rig rig = {
            .shape = {1, 1, 1}, .ranks = ranks, .sequences = batch, .room = 64};
        ck_assert_msg(rig_open(&rig), "%s", rig.failure);
        for (int step = 1; step <= 2 * ranks; step++) {
            ck_assert(rig_assume(&rig, ones, CP_DECODE));
            /* Compare what the ranks hold. */
            int64_t all[16] = {0};
            for (int64_t b = 0; b < batch; b++) {
                int64_t counts[16];
                for (int k = 0; k < ranks; k++)
                    all[k] += counts[k] = cp_cache_tokens(rig.cache, k, b);
                ck_assert_int_le(spread(counts, ranks), 1);
            }
            ck_assert_int_le(spread(all, ranks), step % ranks == 0 ? 0 : ranks);
        }
        rig_close(&rig);
    }
}
END_TEST

START_TEST(decode_equals_dense_attention) {
    const int ranks = _i == 10 ? 16 : _i;
    const cp_shape shapes[4] = {
        {3, 3, 32}, {3, 1, 64}, {14, 2, 80}, {16, 1, 128}};
    const int64_t past[5] = {1, 23, 0, 2 * ranks + 1, 4};
    for (int n = 0; n < 4; n++) {
        rig rig = {.shape = shapes[n],
                   .ranks = ranks,
                   .sequences = 5,
                   .room = 96,
                   .seed = (uint64_t)(n + 50 * ranks),
                   .spare = 1 + n % 3,
                   .disorder = (uint64_t)(n + 1)};
        ck_assert_msg(rig_open(&rig) && rig_call(&rig, past, CP_PASS_KV), "%s",
                      rig.failure);
        for (int step = 0; step < 6; step++) {
            const int64_t batch[5] = {1, step != 2, 1, step % 2, step > 3};
            ck_assert_msg(rig_call(&rig, batch, CP_DECODE),
                          "%d ranks, shape %d, step %d: %s", ranks, n, step,
                          rig.failure);
        }
        ck_assert_msg(rig_call(&rig, past, CP_PASS_Q),
                      "a follow-up over uneven shards: %s", rig.failure);
        rig_close(&rig);
    }
}
END_TEST

START_TEST(invariants_17_and_18_padding_and_labels_are_counted) {
    const int ranks = _i;
    for (int64_t batch = 1; batch <= 2 * ranks; batch++) {
        int64_t ones[32];
        for (int i = 0; i < 32; i++)
            ones[i] = 1;
        rig rig = {.shape = {4, 2, 8},
                   .ranks = ranks,
                   .sequences = batch,
                   .room = 8,
                   .seed = 2};
        ck_assert_msg(rig_open(&rig) && rig_call(&rig, ones, CP_DECODE) &&
                          rig_call(&rig, ones, CP_DECODE),
                      "%s", rig.failure);
        const int64_t rows = (batch + ranks - 1) / ranks;
        for (int k = 0; k < ranks; k++) {
            ck_assert_int_eq(rig.traffic[k].ring_bytes,
                             (ranks - 1) * rows * (4 * 8 * 4 + 16));
            ck_assert_int_eq(rig.traffic[k].all_to_all_bytes,
                             (ranks - 1) * rows * 4 * (8 + 1) * 4);
        }
        rig_close(&rig);
    }
}
END_TEST

START_TEST(decode_refuses_a_prefill) {
    const int64_t tokens = 5;
    const cp_shape shape = {1, 1, 1};
    const cp_call call = {
        .ranks = 2, .sequences = 1, .new_tokens = &tokens, .room = 9};
    cp_layout *layout;
    cp_plan *plan;
    ck_assert_int_eq(cp_layout_new(&call, &layout), CP_OK);
    ck_assert_int_eq(cp_plan_build(CP_DECODE, layout, &shape, NULL, &plan),
                     CP_INVALID);
    ck_assert_str_eq(cp_message(), "decode needs a call of one token a "
                                   "sequence; this one prefills 5 tokens");
    ck_assert_ptr_null(plan);
    cp_layout_free(layout);
}
END_TEST

static Suite *suite(void) {
    Suite *suite = suite_create("decode");
    TCase *tests = harness_case("decode");
    tcase_add_loop_test(tests, invariant_16_owners_go_round, 1, 10);
    tcase_add_loop_test(tests, decode_equals_dense_attention, 1, 11);
    tcase_add_loop_test(
        tests, invariants_17_and_18_padding_and_labels_are_counted, 1, 10);
    tcase_add_test(tests, decode_refuses_a_prefill);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(suite)
