/* Tangled from book/13-nccl.nw; edit the chapter. */
/* Ranks over NCCL, as threads of one process on what stands in for it. */
#define _POSIX_C_SOURCE 200809L /* monotonic clock */
#include "talk.h"

#include <pthread.h>
#include <time.h>

#include "nccl_link.h"

typedef struct {
    talk *talk;
    int rank;
    double patience;
    ncclUniqueId id;
    cp_status status;
    char message[300];
} seat;

static cp_status walk_seat(seat *s) {
    talk *t = s->talk;
    cp_nccl *nccl;
    cp_status status =
        cp_nccl_new(&s->id, s->rank, t->ranks, s->patience, &nccl);
    if (status != CP_OK)
        return status;
    cp_stream_walker *w = t->walkers[s->rank];
    for (int layer = 0; layer < LAYERS && status == CP_OK; layer++) {
        status = give_all(t, s->rank);
        if (status == CP_OK)
            status =
                cp_stream_walk(w, cp_nccl_link(nccl), t->keys[layer][s->rank],
                               t->values[layer][s->rank]);
        if (status == CP_OK)
            status = take(t, layer, s->rank);
    }
    if (status == CP_OK)
        status = cp_stream_walker_finish(w, s->patience);
    if (status == CP_OK)
        status = cp_cuda(cudaStreamSynchronize(t->queues[s->rank].compute),
                         "taking the answers");
    snprintf(s->message, sizeof(s->message), "%s", cp_message());
    cp_nccl_free(nccl);
    return status;
}

static void *sit(void *argument) {
    seat *s = argument;
    s->status = walk_seat(s);
    if (s->status != CP_OK && s->message[0] == '\0')
        snprintf(s->message, sizeof(s->message), "%s", cp_message());
    return NULL;
}

static seat seats[MOST_RANKS];
static double patience = 20.0, patience_of_others = 20.0;

static cp_status walk_apart(talk *t) {
    pthread_t threads[MOST_RANKS];
    ncclUniqueId id;
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    stand_in_leave(t->ranks);
    for (int r = 0; r < t->ranks; r++) {
        seats[r] = (seat){.talk = t, .rank = r, .id = id};
        seats[r].patience = r == 0 ? patience : patience_of_others;
        pthread_create(&threads[r], NULL, sit, &seats[r]);
    }
    cp_status status = CP_OK;
    for (int r = 0; r < t->ranks; r++) {
        pthread_join(threads[r], NULL);
        if (status == CP_OK && seats[r].status != CP_OK)
            status = cp_fail(seats[r].status, "%s", seats[r].message);
    }
    return status;
}

START_TEST(conversations_over_nccl_equal_dense_attention) {
    static const cp_variant turns[] = {CP_PASS_KV, CP_DECODE, CP_PASS_Q,
                                       CP_DECODE, CP_ALL_GATHER};
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)_i;
    options.open = true;
    stand_in_begin(&options);
    talk t = {.shape = {4, 2, 12},
              .ranks = 1 + _i % 6,
              .spare = 1 + _i % 2,
              .sequences = 2,
              .room = 60,
              .element = (cp_element)(_i % 3),
              .walk = walk_apart};
    open_talk(&t);
    for (int turn = 0; turn < 5; turn++) {
        const int64_t fresh[] = {turn % 2 ? 1 : 3 + 5 * turn, turn % 2};
        call(&t, fresh, turns[turn]);
        ck_assert_msg(t.problem[0] == '\0', "turn %d: %s; %s", turn, t.problem,
                      stand_in_error());
    }
    close_talk(&t);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool somebody_says(const talk *t, const char *words) {
    for (int r = 0; r < t->ranks; r++)
        if (strstr(seats[r].message, words) != NULL)
            return true;
    return false;
}

START_TEST(survivors_of_a_silent_rank_end) {
    stand_in_begin(NULL);
    talk t = {.shape = {2, 1, 8},
              .ranks = 4,
              .sequences = 1,
              .room = 60,
              .walk = walk_apart};
    const int64_t fresh = 20, more = 9;
    open_talk(&t);
    call(&t, &fresh, CP_PASS_KV);
    ck_assert_msg(t.problem[0] == '\0', "%s", t.problem);
    patience = _i % 2 == 0 ? 0.5 : 8.0;
    patience_of_others = 8.0;
    if (_i % 2 == 0)
        stand_in_dead_rank(2, _i / 2);
    else
        stand_in_failing_rank(2, _i / 2);
    const double began = now();
    ck_assert_int_eq(call(&t, &more, _i % 4 < 2 ? CP_PASS_KV : CP_PASS_Q),
                     CP_BROKEN);
    ck_assert_double_le(now() - began, 4.0);
    for (int r = 0; r < t.ranks; r++)
        ck_assert(r == 2 || seats[r].status == CP_BROKEN);
    ck_assert(_i % 2 != 0 || somebody_says(&t, "waited 0.5 s for operation"));
    ck_assert_int_eq(t.cache->length[0], 20);
    close_talk(&t);
    stand_in_end();
}
END_TEST

START_TEST(a_peer_that_never_connects_is_not_waited_for) {
    stand_in_begin(NULL);
    ncclUniqueId id;
    cp_nccl *nccl;
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    ck_assert_int_eq(cp_nccl_new(&id, 1, 3, 0.2, &nccl), CP_BROKEN);
    ck_assert_ptr_null(nccl);
    ck_assert_ptr_nonnull(strstr(cp_message(), "joining"));
    stand_in_end();
}
END_TEST

START_TEST(a_lost_message_is_named) {
    stand_in_begin(NULL);
    talk t = {.shape = {2, 1, 8},
              .ranks = 3,
              .sequences = 1,
              .room = 60,
              .walk = walk_apart};
    const int64_t fresh = 20;
    patience = patience_of_others = 0.5;
    open_talk(&t);
    stand_in_break_message(STAND_IN_DROP, 0, 1, 1);
    ck_assert_int_eq(call(&t, &fresh, CP_PASS_KV), CP_BROKEN);
    ck_assert(somebody_says(&t, "hop 1: 512 bytes"));
    close_talk(&t);
    stand_in_end();
}
END_TEST

static Suite *nccl_suite(void) {
    Suite *suite = suite_create("streams over NCCL");
    TCase *tests = harness_case("NCCL");
    tcase_add_loop_test(tests, conversations_over_nccl_equal_dense_attention, 0,
                        40);
    tcase_add_loop_test(tests, survivors_of_a_silent_rank_end, 0, 8);
    tcase_add_test(tests, a_peer_that_never_connects_is_not_waited_for);
    tcase_add_test(tests, a_lost_message_is_named);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(nccl_suite)
