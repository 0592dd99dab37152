/* The persistent cache: conversations, their books, and failed calls. */
#include "harness/suite.h"

#include <string.h>

#include "harness/rig.h"

/* Every position of every sequence is held once; rows do not overlap. */
static void check_books(const cp_cache *cache) {
    for (int64_t i = 0; i < cache->sequences; i++) {
        int seen[512] = {0};
        for (int rank = 0; rank < cache->ranks; rank++) {
            const cp_pieces *held = cp_cache_held(cache, rank, i);
            int64_t row = i * cache->room;
            for (int64_t n = 0; n < held->count; n++) {
                const cp_piece piece = held->items[n];
                if (piece.row != row)
                    ck_abort_msg("rank %d: a hole in its rows", rank);
                row += piece.span.count;
                for (int64_t t = 0; t < piece.span.count; t++)
                    seen[piece.span.start + t * piece.span.step]++;
            }
        }
        for (int64_t t = 0; t < 512; t++)
            if (seen[t] != (t < cache->length[i]))
                ck_abort_msg("position %lld is held %d times", (long long)t,
                             seen[t]);
    }
}

START_TEST(random_conversations_equal_dense_attention) {
    uint64_t random = (uint64_t)_i + 1;
    const int64_t groups[4] = {1, 3, 7, 2};
    rig rig = {.shape = {groups[_i % 4] * 2, 2, 16},
               .ranks = 1 + (int)(harness_random(&random) % 8),
               .sequences = 1 + (int64_t)(harness_random(&random) % 3),
               .room = 300,
               .seed = (uint64_t)_i,
               .disorder = harness_random(&random) % 3};
    ck_assert_msg(rig_open(&rig), "%s", rig.failure);
    for (int turn = 0; turn < 12; turn++) {
        int64_t fresh[3] = {0};
        const bool decode = harness_random(&random) % 3 == 0;
        /* Draw the new tokens of a turn. */
        const uint64_t most = decode ? 2 : 1 + harness_random(&random) % 30;
        for (int64_t i = 0; i < rig.sequences; i++)
            fresh[i] = (int64_t)(harness_random(&random) % most);
        if (fresh[0] + fresh[1] + fresh[2] == 0)
            fresh[0] = 1;
        const cp_variant variant =
            decode ? CP_DECODE
                   : CP_PASS_KV + (cp_variant)(harness_random(&random) % 3);
        ck_assert_msg(rig_call(&rig, fresh, variant),
                      "turn %d, %d ranks, %s: %s", turn, rig.ranks,
                      cp_variant_name(variant), rig.failure);
        check_books(rig.cache);
    }
    rig_close(&rig);
}
END_TEST

START_TEST(a_long_conversation_is_a_short_list) {
    const int64_t turn[1] = {23}, one[1] = {1};
    rig rig = {.shape = {1, 1, 1}, .ranks = 4, .sequences = 1, .room = 4000};
    ck_assert_msg(rig_open(&rig), "%s", rig.failure);
    for (int n = 0; n < 10; n++) {
        ck_assert(rig_assume(&rig, turn, CP_PASS_KV));
        for (int step = 0; step < 100; step++)
            ck_assert(rig_assume(&rig, one, CP_DECODE));
    }
    for (int rank = 0; rank < 4; rank++)
        ck_assert_int_le(cp_cache_held(rig.cache, rank, 0)->count, 40);
    ck_assert_int_eq(rig.cache->length[0], 1230);
    rig_close(&rig);
}
END_TEST

static int calls_until_failure;

static cp_status failing_kernel(const cp_attention *call) {
    if (__atomic_sub_fetch(&calls_until_failure, 1, __ATOMIC_RELAXED) == 0)
        return cp_fail(CP_MEMORY, "the test says so");
    return cp_attend(call);
}

START_TEST(a_failed_call_leaves_the_cache_as_it_was) {
    const int64_t first[2] = {30, 7}, second[2] = {9, 14};
    rig rig = {
        .shape = {2, 1, 8}, .ranks = 3, .sequences = 2, .room = 99, .seed = 4};
    ck_assert_msg(rig_open(&rig) && rig_call(&rig, first, CP_PASS_KV), "%s",
                  rig.failure);
    rig.kernel = failing_kernel;
    calls_until_failure = 1 + _i;
    ck_assert(!rig_call(&rig, second, _i % 2 == 0 ? CP_PASS_KV : CP_PASS_Q));
    ck_assert_int_eq(rig.status, CP_MEMORY);
    ck_assert_msg(strstr(rig.failure, "the test says so") != NULL, "%s",
                  rig.failure);
    ck_assert_int_eq(rig.cache->length[0], 30);
    check_books(rig.cache);
    rig.kernel = NULL;
    ck_assert_msg(rig_call(&rig, second, CP_PASS_Q), "%s", rig.failure);
    rig_close(&rig);
}
END_TEST

START_TEST(what_does_not_fit_is_refused_before_any_work) {
    const int64_t first = 40, exact = 24, more = 25;
    rig rig = {.shape = {2, 1, 8}, .ranks = 4, .sequences = 1, .room = 16};
    ck_assert_msg(rig_open(&rig) && rig_call(&rig, &first, CP_PASS_KV), "%s",
                  rig.failure);
    ck_assert(!rig_call(&rig, &more, CP_PASS_KV));
    ck_assert_int_eq(rig.status, CP_CAPACITY);
    ck_assert_msg(strstr(rig.failure,
                         "sequence 0 would hold 18 tokens on "
                         "rank 2; its cache has room for 16") != NULL,
                  "%s", rig.failure);
    ck_assert_msg(rig_call(&rig, &exact, CP_PASS_KV), "%s", rig.failure);
    rig_close(&rig);
}
END_TEST

static Suite *suite(void) {
    Suite *suite = suite_create("cache");
    TCase *tests = harness_case("conversations");
    tcase_add_loop_test(tests, random_conversations_equal_dense_attention, 0,
                        40);
    tcase_add_test(tests, a_long_conversation_is_a_short_list);
    tcase_add_loop_test(tests, a_failed_call_leaves_the_cache_as_it_was, 0, 8);
    tcase_add_test(tests, what_does_not_fit_is_refused_before_any_work);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(suite)
