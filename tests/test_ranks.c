/* Ranks and their messages: what arrives, what is counted, and how
 * every wait ends when somebody fails. */
#define _DEFAULT_SOURCE

#include "reference/ring/threads.h"

#include "comm_checks.h"
#include "harness/suite.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const int ring_sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
#define RING_SIZES (int)(sizeof(ring_sizes) / sizeof(ring_sizes[0]))

static cp_status run(int ranks, uint64_t disorder, cp_rank_main function,
                     void *context) {
    const cp_threads_options options = {ranks, 10, disorder};
    return cp_threads_run(&options, function, context);
}

static void run_well(int ranks, uint64_t disorder, cp_rank_main function) {
    const cp_status status = run(ranks, disorder, function, NULL);
    ck_assert_msg(status == CP_OK, "%d ranks, disorder %d: %s", ranks,
                  (int)disorder, cp_message());
}

static void await(atomic_int *flag, int value) {
    while (atomic_load(flag) < value)
        nap(1);
}

static void says(const char *expected) {
    ck_assert_msg(strstr(cp_message(), expected) != NULL,
                  "\"%s\" does not say \"%s\"", cp_message(), expected);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

static cp_status meet(cp_comm *comm, void *context) {
    atomic_int *arrived = context;
    for (int round = 1; round <= 5; round++) {
        atomic_fetch_add(arrived, 1);
        TRY(cp_comm_barrier(comm));
        const int count = atomic_load(arrived);
        REQUIRE(count == round * comm->ranks, "barrier %d let go with %d of %d",
                round, count, round * comm->ranks);
        TRY(cp_comm_barrier(comm));
    }
    REQUIRE(comm->sent.barriers == 10, "%lld barriers, not 10",
            (long long)comm->sent.barriers);
    return CP_OK;
}

static cp_status post_three(cp_comm *comm, void *context) {
    atomic_int *posted = context;
    const int other = 1 - comm->rank;
    int32_t out[3] = {7, 8, 9}, in[3][3] = {{0}};
    if (comm->rank == 1)
        await(posted, 1);
    for (int i = 0; i < 3; i++) {
        const int64_t bytes = 4 * (i + 1);
        TRY(cp_comm_exchange(comm, other, out, bytes, other, in[i], bytes));
    }
    if (comm->rank == 0)
        atomic_store(posted, 1);
    for (int i = 0; i < 3; i++) {
        TRY(cp_comm_wait(comm));
        for (int j = 0; j <= i; j++)
            REQUIRE(in[i][j] == 7 + j, "message %d is not there", i);
    }
    return CP_OK;
}

static cp_status push_to_the_busy(cp_comm *comm, void *context) {
    atomic_int *pushed = context;
    int32_t value = comm->rank == 0 ? 42 : 0;
    const int to = comm->rank == 0 ? 1 : CP_NOBODY;
    const int from = comm->rank == 0 ? CP_NOBODY : 0;
    TRY(cp_comm_exchange(comm, to, &value, 4, from, &value, 4));
    if (comm->rank == 1)
        await(pushed, 1);
    TRY(cp_comm_wait(comm));
    REQUIRE(value == 42, "%d arrived", (int)value);
    atomic_store(pushed, 1);
    return CP_OK;
}

START_TEST(every_ring_size) {
    for (uint64_t disorder = 0; disorder < 3; disorder++) {
        const int ranks = ring_sizes[_i];
        atomic_int arrived = 0;
        run_well(ranks, disorder, rotate); /* invariant 11 */
        run_well(ranks, disorder, gather_all);
        ck_assert_msg(run(ranks, disorder, meet, &arrived) == CP_OK, "%s",
                      cp_message());
    }
}
END_TEST

START_TEST(exchanges_of_every_kind) {
    for (uint64_t disorder = 0; disorder < 7; disorder++) {
        atomic_int posted = 0;
        ck_assert_msg(run(2, disorder, post_three, &posted) == CP_OK, "%s",
                      cp_message());
        posted = 0;
        if (disorder % 2 == 0)
            ck_assert_msg(run(2, disorder, push_to_the_busy, &posted) == CP_OK,
                          "%s", cp_message());
        run_well(2, disorder, send_in_order);
        run_well(2, disorder, wait_alone);
        run_well(1, disorder, talk_to_oneself);
        run_well(3, disorder, talk_to_oneself);
    }
    run_well(1, 0, exchange_sizes);
    run_well(3, 0, exchange_sizes);
    run_well(2, 1, exchange_sizes);
}
END_TEST

START_TEST(fifty_seeds) {
    for (uint64_t seed = 5 * (uint64_t)_i; seed < 5 * (uint64_t)_i + 5;
         seed++) {
        run_well(2 + (int)(seed % 4), seed + 1, rotate);
        run_well(2 + (int)(seed % 4), seed + 1, gather_all);
    }
}
END_TEST

START_TEST(two_hundred_runs) {
    for (int i = 0; i < 200; i++) {
        run_well(1 + i % 6, 0, rotate);
        run_well(1 + i % 6, 0, gather_all);
    }
}
END_TEST

static cp_status forget_wait(cp_comm *comm, void *context) {
    (void)context;
    const int ranks = comm->ranks, next = (comm->rank + 1) % ranks;
    const int previous = (comm->rank + ranks - 1) % ranks;
    float out[64], in[64];
    for (int i = 0; i < 64; i++)
        out[i] = in[i] = 1;
    TRY(cp_comm_exchange(comm, next, out, sizeof(out), previous, in,
                         sizeof(in)));
    nap(comm->rank == 0); /* time enough to arrive by luck */
    for (int i = 0; i < 64; i++)
        REQUIRE(isnan(in[i]), "%g was read before the wait", in[i]);
    TRY(cp_comm_wait(comm));
    for (int i = 0; i < 64; i++)
        REQUIRE(in[i] == 1, "%g was read after the wait", in[i]);
    return CP_OK;
}

static cp_status touch_lent(cp_comm *comm, void *context) {
    int32_t *seen = context; /* by rank 1 */
    int32_t sent[2] = {1, 2}, got[2] = {0, 0};
    const bool sends = comm->rank == 0;
    for (int i = 0; i < 2; i++) {
        if (!sends && i == 1)
            TRY(cp_comm_barrier(comm));
        TRY(cp_comm_exchange(comm, sends ? 1 : CP_NOBODY, &sent[i], 4,
                             sends ? CP_NOBODY : 0, &got[i], 4));
        if (sends && i == 1)
            TRY(cp_comm_barrier(comm));
    }
    sent[0] = -1; /* too early: message 0 is lent */
    got[1] = 0;   /* too early: message 1 may have come */
    TRY(cp_comm_barrier(comm));
    TRY(cp_comm_wait(comm));
    TRY(cp_comm_wait(comm));
    if (!sends)
        memcpy(seen, got, sizeof(got));
    return CP_OK;
}

START_TEST(missing_wait_reads_nan) {
    for (uint64_t seed = 1; seed < 50; seed += 2)
        run_well(2 + (int)(seed / 2 % 4), seed, forget_wait);
}
END_TEST

START_TEST(early_touch_shows) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        int32_t seen[2];
        const cp_status status = run(2, seed, touch_lent, seen);
        ck_assert_msg(status == CP_OK, "%s", cp_message());
        const bool late = seed % 2 == 1;
        ck_assert_int_eq(seen[0], late ? -1 : 1);
        ck_assert_int_eq(seen[1], late ? 2 : 0);
    }
}
END_TEST

static cp_status send_first(cp_comm *comm, void *context) {
    (void)context;
    int32_t out = 1, in;
    const int next = (comm->rank + 1) % comm->ranks;
    const int previous = (comm->rank + comm->ranks - 1) % comm->ranks;
    TRY(cp_comm_exchange(comm, next, &out, 4, CP_NOBODY, NULL, 0));
    TRY(cp_comm_wait(comm));
    TRY(cp_comm_exchange(comm, CP_NOBODY, NULL, 0, previous, &in, 4));
    return cp_comm_wait(comm);
}

START_TEST(sending_first_is_a_deadlock) {
    for (uint64_t disorder = 0; disorder < 3; disorder++) {
        const cp_threads_options options = {3, 0, disorder};
        ck_assert_int_eq(cp_threads_run(&options, send_first, NULL), CP_BROKEN);
        says("no rank can move: "
             "rank 0 waits in an exchange for rank 1 to take 4 bytes; "
             "rank 1 waits in an exchange for rank 2 to take 4 bytes; "
             "rank 2 waits in an exchange for rank 0 to take 4 bytes");
    }
}
END_TEST

static cp_status meet_after_error(cp_comm *comm, void *context) {
    if (comm->rank == 0)
        return cp_comm_barrier(comm);
    const cp_status status = call_wrongly(comm, *(const int *)context);
    REQUIRE(cp_comm_barrier(comm) != CP_OK, "went on after an error");
    return status;
}

START_TEST(wrong_calls_are_refused) {
    const char *const words[] = {
        "rank 1: cannot send to rank 2: there are 2 ranks",
        "rank 1: cannot receive from rank -2: there are 2 ranks",
        "rank 1: cannot send to rank 0: 8 bytes at ",
        "rank 1: cannot send to rank 0: -8 bytes at ",
        "rank 1: 8 bytes to rank 0 overlap 1 from rank 0",
        "rank 1: cannot send to 2 ranks: no list of blocks",
        "rank 1: cannot send as rank 1: 8 bytes at ",
        "rank 1: rank 1 waits, but has no exchange outstanding",
    };
    ck_assert_int_eq(run(2, 0, meet_after_error, &_i),
                     _i == 7 ? CP_BROKEN : CP_INVALID);
    says(words[_i]);
}
END_TEST

static cp_status leave_unwaited(cp_comm *comm, void *context) {
    static char in[4];
    (void)context;
    if (comm->rank == 1)
        return cp_comm_exchange(comm, CP_NOBODY, NULL, 0, 0, in, 4);
    return CP_OK;
}

START_TEST(leaving_without_wait_is_an_error) {
    ck_assert_int_eq(run(2, 0, leave_unwaited, NULL), CP_BROKEN);
    says("rank 1: returned, but never waited for an exchange");
}
END_TEST

struct scene {
    int way, end;
    int slow; /* the rank that comes later */
    cp_status status[4];
    char message[4][512];
};

static cp_status play(cp_comm *comm, void *context) {
    struct scene *scene = context;
    const int rank = comm->rank;
    if (rank != 1) {
        scene->status[rank] = wait_for_one(comm, scene->way);
        snprintf(scene->message[rank], sizeof(scene->message[rank]), "%s",
                 cp_message());
        return scene->status[rank];
    }
    nap(3);
    if (scene->end == ABORT)
        cp_comm_abort(comm, "enough");
    return scene->end == RETURN_EARLY ? CP_OK
                                      : cp_fail(CP_FILE, "no such file");
}

enum { PAGES = 1 << 20 };

static cp_status exchange_pages(cp_comm *comm, char *pages) {
    const int other = 1 - comm->rank;
    const char theirs = (char)(other + 1);
    TRY(cp_comm_exchange(comm, other, pages, PAGES, other, pages + PAGES,
                         PAGES));
    TRY(cp_comm_wait(comm));
    for (int64_t i = 0; i < PAGES; i++)
        REQUIRE(pages[PAGES + i] == theirs, "byte %lld", (long long)i);
    return CP_OK;
}

static cp_status snatch(cp_comm *comm, void *context) {
    const struct timespec delay = {0, *(const int *)context * 10000L};
    char *pages = mmap(NULL, 2 * PAGES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED, "no pages");
    memset(pages, comm->rank + 1, PAGES);
    cp_status status = CP_OK;
    if (comm->rank < comm->ranks - 1)
        status = exchange_pages(comm, pages);
    else {
        if (comm->rank == 1)
            status = cp_comm_exchange(comm, 0, pages, PAGES, 0, pages + PAGES,
                                      PAGES);
        nanosleep(&delay, NULL);
        cp_comm_abort(comm, "changed my mind");
    }
    munmap(pages, 2 * PAGES);
    return status == CP_ABORTED ? CP_OK : status;
}

START_TEST(failure_ends_every_wait) {
    struct scene scene = {.way = _i % WAYS,
                          .end = _i < WAYS ? ABORT : RETURN_ERROR};
    const bool aborts = scene.end == ABORT;
    ck_assert_int_eq(run(4, 0, play, &scene), CP_FILE);
    says(aborts ? "rank 1: enough" : "rank 1: no such file");
    for (int r = 0; r < 4; r += r == 0 ? 2 : 1) {
        ck_assert_int_eq(scene.status[r], CP_ABORTED);
        ck_assert_str_eq(scene.message[r],
                         aborts ? "rank 1 failed first: enough"
                                : "rank 1 failed first: no such file");
    }
}
END_TEST

START_TEST(early_leaving_ends_every_wait) {
    struct scene scene = {.way = _i, .end = RETURN_EARLY};
    ck_assert_int_eq(run(4, 0, play, &scene), CP_BROKEN);
    says("but rank 1 has left");
    for (int r = 0; r < 4; r += r == 0 ? 2 : 1) {
        ck_assert_int_ne(scene.status[r], CP_OK);
        ck_assert(strstr(scene.message[r], "rank 1 has left") != NULL);
    }
}
END_TEST

static cp_status fail_in_turn(cp_comm *comm, void *context) {
    const cp_status status = cp_comm_barrier(comm);
    (void)context;
    if (comm->rank == 2)
        return cp_fail(CP_CAPACITY, "first");
    while (cp_comm_barrier(comm) == CP_OK)
        ;
    return status == CP_OK ? cp_fail(CP_MEMORY, "later") : status;
}

static cp_status abort_mutely(cp_comm *comm, void *context) {
    (void)context;
    cp_comm_abort(comm, NULL);
    return CP_OK;
}

START_TEST(first_failure_wins) {
    ck_assert_int_eq(run(5, (uint64_t)_i, fail_in_turn, NULL), CP_CAPACITY);
    ck_assert_str_eq(cp_message(), "rank 2: first");
    ck_assert_int_eq(run(1, 0, abort_mutely, NULL), CP_ABORTED);
    ck_assert_str_eq(cp_message(), "rank 0: gave no reason");
}
END_TEST

static cp_status dawdle(cp_comm *comm, void *context) {
    const int *way = context;
    if (comm->rank == 0)
        return wait_for_one(comm, *way);
    nap(200);
    return CP_OK;
}

START_TEST(patience_ends) {
    const char *const words[] = {
        "rank 0 waits in an exchange for 8 bytes from rank 1",
        "rank 0 waits in an exchange for rank 1 to take 8 bytes",
        "rank 0 waits in an all-to-all for 8 bytes from rank 1 and for "
        "rank 1 to take 8 bytes",
        "rank 0 waits in an all-gather for 8 bytes from rank 1 and for "
        "rank 1 to take 8 bytes",
        "rank 0 waits at barrier 1 for rank 1",
    };
    const cp_threads_options options = {2, 0.05, 0};
    ck_assert_int_eq(cp_threads_run(&options, dawdle, &_i), CP_BROKEN);
    says(words[_i]);
    says(", in vain for 0.05 s");
}
END_TEST

static cp_status disagree(cp_comm *comm, void *context) {
    struct scene *scene = context;
    char data[96];
    const bool sends = comm->rank == 0;
    if (comm->rank == scene->slow)
        nap(3);
    cp_comm_exchange(comm, sends ? 1 : CP_NOBODY, data, 96,
                     sends ? CP_NOBODY : 0, data, 80);
    scene->status[comm->rank] = cp_comm_wait(comm);
    snprintf(scene->message[comm->rank], 512, "%s", cp_message());
    return scene->status[comm->rank];
}

START_TEST(sizes_must_agree) {
    for (uint64_t disorder = 0; disorder < 20; disorder++) {
        struct scene scene = {.slow = _i};
        ck_assert_int_eq(run(2, disorder, disagree, &scene), CP_BROKEN);
        ck_assert_int_eq(scene.status[0], CP_BROKEN);
        ck_assert_int_eq(scene.status[1], CP_BROKEN);
        ck_assert_str_eq(scene.message[0],
                         "rank 0 sends to rank 1 in an exchange: 96 bytes, "
                         "not the 80 that rank 1 expects");
        ck_assert_str_eq(scene.message[1],
                         "rank 1 receives from rank 0 in an exchange: 80 "
                         "bytes, not the 96 that rank 0 sends");
    }
}
END_TEST

START_TEST(no_copy_outlives_its_buffer) {
    for (int i = 0; i < 100; i++) {
        int delay = i % 10;
        const uint64_t disorder = i % 3 == 0 ? 0 : (uint64_t)i;
        ck_assert_int_eq(run(2 + _i, disorder, snatch, &delay), CP_ABORTED);
        says("changed my mind");
    }
}
END_TEST

START_TEST(wrong_options_are_refused) {
    cp_threads_options options = {0, 0, 0};
    ck_assert_int_eq(cp_threads_run(NULL, meet, NULL), CP_INVALID);
    ck_assert_int_eq(cp_threads_run(&options, meet, NULL), CP_INVALID);
    ck_assert_str_eq(cp_message(), "cannot run 0 ranks: 1 is the least");
    options.ranks = -3;
    ck_assert_int_eq(cp_threads_run(&options, meet, NULL), CP_INVALID);
    ck_assert_str_eq(cp_message(), "cannot run -3 ranks: 1 is the least");
    options.ranks = 1;
    ck_assert_int_eq(cp_threads_run(&options, NULL, NULL), CP_INVALID);
    options.patience = -1;
    ck_assert_int_eq(cp_threads_run(&options, meet, NULL), CP_INVALID);
    options.patience = NAN;
    ck_assert_int_eq(cp_threads_run(&options, meet, NULL), CP_INVALID);
}
END_TEST

static cp_status count_calls(cp_comm *comm, void *context) {
    atomic_fetch_add((atomic_int *)context, 1);
    return cp_comm_barrier(comm);
}

static void leave_room_for(int64_t bytes) {
    long long pages = 0;
    FILE *sizes = fopen("/proc/self/statm", "r");
    ck_assert(sizes != NULL && fscanf(sizes, "%lld", &pages) == 1);
    fclose(sizes);
    const rlim_t used = (rlim_t)(pages * sysconf(_SC_PAGESIZE));
    const struct rlimit limit = {used + (rlim_t)bytes, used + (rlim_t)bytes};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

START_TEST(too_few_threads_is_an_error) {
    atomic_int calls = 0;
    if (SANITIZED)
        return;
    leave_room_for(40 << 20);
    ck_assert_int_eq(run(500, 0, count_calls, &calls), CP_MEMORY);
    int started = -1, asked = -1;
    ck_assert_int_eq(
        sscanf(cp_message(), "could start %d of %d ranks: ", &started, &asked),
        2);
    ck_assert(started > 0 && started < 11 && asked == 500);
    ck_assert_int_eq(calls, 0);
    run_well(2, 0, rotate); /* and the next run is none the worse */
}
END_TEST

static Suite *ranks_suite(void) {
    Suite *suite = suite_create("ranks");
    TCase *right = harness_case("right");
    TCase *wrong = harness_case("wrong");
    TCase *failing = harness_case("failing");
    /* Add the tests. */
    tcase_add_loop_test(right, every_ring_size, 0, RING_SIZES);
    tcase_add_test(right, exchanges_of_every_kind);
    tcase_add_loop_test(right, fifty_seeds, 0, 10);
    tcase_add_test(right, two_hundred_runs);
    tcase_add_test(wrong, missing_wait_reads_nan);
    tcase_add_test(wrong, early_touch_shows);
    tcase_add_test(wrong, sending_first_is_a_deadlock);
    tcase_add_loop_test(wrong, wrong_calls_are_refused, 0, 8);
    tcase_add_test(wrong, leaving_without_wait_is_an_error);
    tcase_add_loop_test(failing, failure_ends_every_wait, 0, 2 * WAYS);
    tcase_add_loop_test(failing, early_leaving_ends_every_wait, 0, WAYS);
    tcase_add_loop_test(failing, first_failure_wins, 0, 10);
    tcase_add_loop_test(failing, patience_ends, 0, WAYS);
    tcase_add_loop_test(failing, sizes_must_agree, 0, 2);
    tcase_add_loop_test(failing, no_copy_outlives_its_buffer, 0, 2);
    tcase_add_test(failing, wrong_options_are_refused);
    tcase_add_test(failing, too_few_threads_is_an_error);
    suite_add_tcase(suite, right);
    suite_add_tcase(suite, wrong);
    suite_add_tcase(suite, failing);
    return suite;
}

SUITE_MAIN(ranks_suite)
