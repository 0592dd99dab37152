/* Ring pass-KV and its baseline: right, and as heavy as the formulas say. */
#include "harness/suite.h"

#include <stdlib.h>

#include "harness/rig.h"

START_TEST(ragged_batches_equal_dense_attention) {
    const int ranks = _i == 10 ? 16 : _i;
    const cp_shape shapes[4] = {
        {3, 3, 32}, {3, 1, 64}, {14, 2, 80}, {16, 1, 128}};
    const int64_t first[4] = {2 * ranks + 1, 1, 0, 37};
    const int64_t second[4] = {1, 5 * ranks - 1, 3, 0};
    for (int n = 0; n < 4; n++) {
        rig rig = {.shape = shapes[n],
                   .ranks = ranks,
                   .sequences = 4,
                   .room = 160,
                   .seed = (uint64_t)(10 * ranks + n),
                   .spare = 1 + n % 3,
                   .disorder = (uint64_t)(n + 1)};
        ck_assert_msg(rig_open(&rig) && rig_call(&rig, first, CP_PASS_KV) &&
                          rig_call(&rig, second, CP_PASS_KV) &&
                          rig_call(&rig, first, CP_ALL_GATHER),
                      "%d ranks, shape %d: %s", ranks, n, rig.failure);
        rig_close(&rig);
    }
}
END_TEST

static int64_t chunk_tokens(int64_t tokens, int64_t ranks, int64_t chunk) {
    const int64_t size = (tokens + 2 * ranks - 1) / (2 * ranks);
    const int64_t left = tokens - chunk * size;
    return left < 0 ? 0 : left < size ? left : size;
}

static int ascending(const void *a, const void *b) {
    const int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
    return (one > other) - (one < other);
}

/* Of each turn, whoever holds most gets the smallest share. */
static int64_t longest(const int64_t *turns, int count, int ranks) {
    int64_t held[16] = {0}, shares[16];
    for (int n = 0; n < count; n++) {
        for (int k = 0; k < ranks; k++)
            shares[k] = chunk_tokens(turns[n], ranks, k) +
                        chunk_tokens(turns[n], ranks, 2 * ranks - 1 - k);
        qsort(shares, (size_t)ranks, sizeof(int64_t), ascending);
        for (int k = 0; k < ranks; k++)
            held[k] += shares[ranks - 1 - k];
        qsort(held, (size_t)ranks, sizeof(int64_t), ascending);
    }
    return held[ranks - 1];
}

START_TEST(invariants_10_to_12_bytes_and_hops) {
    const int ranks = _i == 10 ? 16 : _i;
    const int64_t turns[3] = {41, 7, 30};
    rig rig = {.shape = {8, 2, 16}, .ranks = ranks, .sequences = 1, .room = 99};
    ck_assert_msg(rig_open(&rig), "%s", rig.failure);
    for (int n = 0; n < 3; n++) {
        ck_assert_msg(rig_call(&rig, &turns[n], CP_PASS_KV), "%s", rig.failure);
        const int64_t bytes = (int64_t)(ranks - 1) *
                              longest(turns, n + 1, ranks) * 2 * 2 * 16 * 4;
        for (int k = 0; k < ranks; k++) {
            ck_assert_int_eq(rig.traffic[k].hops, ranks - 1);
            ck_assert_int_eq(rig.traffic[k].ring_bytes, bytes);
            ck_assert_int_eq(rig.traffic[k].all_to_all_bytes, 0);
        }
    }
    rig_close(&rig);
}
END_TEST

START_TEST(invariants_11_and_13_one_exchange_under_each_attention) {
    const int ranks = _i;
    const int64_t tokens = 50;
    const cp_shape shape = {2, 1, 4};
    const cp_call call = {
        .ranks = ranks, .sequences = 1, .new_tokens = &tokens, .room = tokens};
    cp_layout *layout;
    cp_plan *plan;
    ck_assert_int_eq(cp_layout_new(&call, &layout), CP_OK);
    ck_assert_int_eq(cp_plan_build(CP_PASS_KV, layout, &shape, NULL, &plan),
                     CP_OK);
    for (int k = 0; k < ranks; k++) {
        int hop = 0, flying = 0;
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            flying += op->kind == CP_OP_EXCHANGE;
            flying -= op->kind == CP_OP_WAIT;
            if (op->kind != CP_OP_ATTEND)
                continue;
            ck_assert_int_eq(op->keys.origin, (k - hop + ranks) % ranks);
            ck_assert_int_eq(flying, hop < ranks - 1);
            hop++;
        }
        ck_assert_int_eq(hop, ranks);
    }
    cp_plan_free(plan);
    cp_layout_free(layout);
}
END_TEST

START_TEST(all_gather_sends_what_the_ring_sends) {
    const int64_t tokens = 77;
    rig rigs[2] = {
        {.shape = {4, 2, 8}, .ranks = _i, .sequences = 1, .room = 99},
        {.shape = {4, 2, 8}, .ranks = _i, .sequences = 1, .room = 99}};
    ck_assert_msg(rig_open(&rigs[0]) && rig_call(&rigs[0], &tokens, CP_PASS_KV),
                  "%s", rigs[0].failure);
    ck_assert_msg(rig_open(&rigs[1]) &&
                      rig_call(&rigs[1], &tokens, CP_ALL_GATHER),
                  "%s", rigs[1].failure);
    for (int k = 0; k < _i; k++)
        ck_assert_int_eq(rigs[0].report.bytes[k], rigs[1].report.bytes[k]);
    ck_assert(rigs[0].output_error == rigs[1].output_error);
    ck_assert_int_eq(rigs[1].report.hops, 0);
    rig_close(&rigs[0]);
    rig_close(&rigs[1]);
}
END_TEST

START_TEST(large_logits_survive_the_ring) {
    const int64_t tokens[2] = {60, 9};
    rig rig = {.shape = {4, 2, 64},
               .ranks = _i,
               .sequences = 2,
               .room = 150,
               .seed = 3,
               .scale = 30};
    ck_assert_msg(rig_open(&rig) && rig_call(&rig, tokens, CP_PASS_KV) &&
                      rig_call(&rig, tokens, CP_PASS_Q),
                  "%s", rig.failure);
    rig_close(&rig);
}
END_TEST

START_TEST(the_error_is_that_of_one_rank) {
    const int64_t tokens[2] = {700, 300};
    const cp_variant variants[2] = {CP_PASS_KV, CP_PASS_Q};
    rig rig = {.shape = {4, 2, 64},
               .ranks = 1 << (1 + _i / 2),
               .sequences = 1,
               .room = 1000,
               .seed = 8,
               .strict = _i < 6 ? 1.1 : 1.2};
    for (int n = 0; n < 2; n++)
        ck_assert_msg((n > 0 || rig_open(&rig)) &&
                          rig_call(&rig, &tokens[n], variants[_i % 2]),
                      "%s", rig.failure);
    rig_close(&rig);
}
END_TEST

static Suite *suite(void) {
    Suite *suite = suite_create("pass-KV");
    TCase *tests = harness_case("pass-KV and all-gather");
    tcase_add_loop_test(tests, ragged_batches_equal_dense_attention, 1, 11);
    tcase_add_loop_test(tests, invariants_10_to_12_bytes_and_hops, 1, 11);
    tcase_add_loop_test(
        tests, invariants_11_and_13_one_exchange_under_each_attention, 1, 10);
    tcase_add_loop_test(tests, all_gather_sends_what_the_ring_sends, 1, 8);
    tcase_add_loop_test(tests, large_logits_survive_the_ring, 1, 6);
    tcase_add_loop_test(tests, the_error_is_that_of_one_rank, 0,
                        HARNESS_SANITIZED ? 4 : 8);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(suite)
