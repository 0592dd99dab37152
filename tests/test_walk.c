/* Walking plans: who met whom, read from the rows that really arrived. */
#include "harness/suite.h"

#include <string.h>

#include "reference/ring/threads.h"
#include "harness/rig.h"

START_TEST(every_causal_pair_meets_once) {
    const int ranks = _i == 10 ? 16 : _i;
    const int64_t past[3] = {17, 0, 3}, fresh[3] = {9, 21, 1};
    const int64_t one[3] = {1, 1, 1};
    for (cp_variant v = CP_PASS_KV; v <= CP_DECODE; v++) {
        rig rig = {.shape = {2, 1, 2},
                   .ranks = ranks,
                   .sequences = 3,
                   .room = 64,
                   .spare = 1 + _i % 3,
                   .disorder = (uint64_t)_i};
        ck_assert_msg(rig_open(&rig) && rig_assume(&rig, past, CP_PASS_KV) &&
                          rig_assume(&rig, one, CP_DECODE) &&
                          rig_ledger(&rig, v == CP_DECODE ? one : fresh, v),
                      "%s on %d ranks: %s", cp_variant_name(v), ranks,
                      rig.failure);
        rig_close(&rig);
    }
}
END_TEST

START_TEST(disorder_changes_nothing) {
    const int64_t first[2] = {31, 6}, second[2] = {5, 0};
    rig rig = {.shape = {6, 2, 16},
               .ranks = 2 + _i % 4,
               .sequences = 2,
               .room = 64,
               .seed = 7,
               .spare = 1 + _i % 3,
               .disorder = (uint64_t)_i};
    ck_assert_msg(rig_open(&rig) && rig_call(&rig, first, CP_PASS_KV) &&
                      rig_call(&rig, second, CP_PASS_Q),
                  "%s", rig.failure);
    rig_close(&rig);
}
END_TEST

static int merging;

static cp_status counting_kernel(const cp_attention *call) {
    if (call->merge)
        __atomic_add_fetch(&merging, 1, __ATOMIC_RELAXED);
    return cp_attend(call);
}

START_TEST(a_ring_merges_in_its_kernel) {
    const int64_t first[2] = {50, 9}, second[2] = {3, 31};
    rig rig = {.shape = {6, 2, 16},
               .ranks = _i,
               .sequences = 2,
               .room = 128,
               .seed = 3,
               .kernel = counting_kernel};
    for (rig.unwatched = 0; rig.unwatched < 2; rig.unwatched++) {
        merging = 0;
        ck_assert_msg(rig_open(&rig) && rig_call(&rig, first, CP_PASS_KV) &&
                          rig_call(&rig, second, CP_PASS_KV),
                      "%s", rig.failure);
        ck_assert_int_eq(merging, rig.unwatched ? 2 * _i * (_i - 1) : 0);
        ck_assert_msg(rig_call(&rig, second, CP_PASS_Q) &&
                          rig_call(&rig, second, CP_ALL_GATHER),
                      "%s", rig.failure);
        rig_close(&rig);
    }
}
END_TEST

typedef struct {
    cp_plan *plans[2];
    float keys[2][64], values[2][64];
} quarrel;

static cp_status quarrel_main(cp_comm *comm, void *context) {
    quarrel *it = context;
    cp_walker *walker = NULL;
    cp_status status =
        cp_walker_new(it->plans[comm->rank], comm->rank, NULL, &walker);
    if (status == CP_OK)
        status =
            cp_walk(walker, comm, it->keys[comm->rank], it->values[comm->rank]);
    cp_walker_free(walker);
    return status;
}

START_TEST(a_rank_with_other_ideas_is_refused) {
    const cp_shape shape = {1, 1, 2};
    const int64_t batches[2][3] = {{1, 1, 0}, {1, 0, 1}};
    cp_layout *layouts[2];
    quarrel it = {0};
    for (int n = 0; n < 2; n++) {
        const cp_call call = {.ranks = 2,
                              .sequences = 3,
                              .new_tokens = batches[n],
                              .room = 4,
                              .placement = CP_ROUND_ROBIN};
        ck_assert_int_eq(cp_layout_new(&call, &layouts[n]), CP_OK);
        ck_assert_int_eq(
            cp_plan_build(CP_DECODE, layouts[n], &shape, NULL, &it.plans[n]),
            CP_OK);
    }
    const cp_threads_options options = {2, 10, 0};
    ck_assert_int_eq(cp_threads_run(&options, quarrel_main, &it), CP_BROKEN);
    ck_assert_msg(strstr(cp_message(), "expects sequence") != NULL, "%s",
                  cp_message());
    for (int n = 0; n < 2; n++) {
        cp_plan_free(it.plans[n]);
        cp_layout_free(layouts[n]);
    }
}
END_TEST

static Suite *suite(void) {
    Suite *suite = suite_create("walk");
    TCase *tests = harness_case("walking");
    tcase_add_loop_test(tests, every_causal_pair_meets_once, 1, 11);
    tcase_add_loop_test(tests, disorder_changes_nothing, 1, 25);
    tcase_add_loop_test(tests, a_ring_merges_in_its_kernel, 2, 6);
    tcase_add_test(tests, a_rank_with_other_ideas_is_refused);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(suite)
