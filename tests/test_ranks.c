/* Ranks and their messages: what arrives, what is counted, and how every wait
 * ends when a rank fails. */
#define _DEFAULT_SOURCE

#include "reference/run/threads.h"

#include "comm_checks.h"
#include "expect.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static cp_status run_on(int carriers, const cp_threads_options *options,
                        cp_rank_main function, void *context) {
    cp_threads *threads;
    CP_TRY(cp_threads_start(options, &threads));
    const cp_status status =
        cp_threads_work(threads, carriers, function, context);
    cp_threads_end(threads);
    return status;
}

static cp_status run(int ranks, uint64_t disorder, cp_rank_main function,
                     void *context) {
    const cp_threads_options options = {ranks, 10, disorder};
    return cp_threads_run(&options, function, context);
}

static void await(atomic_int *flag, int value) {
    while (atomic_load(flag) < value)
        nap(1);
}

static cp_status post_three(cp_comm *comm, void *context) {
    atomic_int *posted = context;
    const int other = 1 - comm->rank;
    int32_t out[3] = {7, 8, 9}, in[3][3] = {{0}};
    if (comm->rank == 1)
        await(posted, 1);
    for (int i = 0; i < 3; i++) {
        const int64_t bytes = 4 * (i + 1);
        CP_TRY(cp_comm_exchange(comm, other, out, bytes, other, in[i], bytes));
    }
    if (comm->rank == 0)
        atomic_store(posted, 1);
    for (int i = 0; i < 3; i++) {
        CP_TRY(cp_comm_wait(comm));
        for (int j = 0; j <= i; j++)
            REQUIRE(in[i][j] == 7 + j, "message %d is not there", i);
    }
    return CP_OK;
}

static cp_status push_to_the_busy(cp_comm *comm, void *context) {
    atomic_int *pushed = context;
    int32_t value = comm->rank == 0 ? 42 : 0;
    CP_TRY(give(comm, &value, 4, 4));
    if (comm->rank == 1)
        await(pushed, 1);
    CP_TRY(cp_comm_wait(comm));
    REQUIRE(value == 42, "%d arrived", (int)value);
    atomic_store(pushed, 1);
    return CP_OK;
}

/* The contract, over threads: every scene, for every number of ranks, with
 * messages in order and out of order, each rank on its own thread or all on one
 * or two (where no rank times out while a slow rank has the thread). */
LOOP(scene, 0, COMM_SCENES) {
    static const int sizes[] = {1, 2, 3, 4, 8, 16};
    comm_scene comm_scene = comm_scenes[_i];
    const int last =
        comm_scene.argument + (comm_scene.times > 0 ? comm_scene.times - 1 : 0);
    for (; comm_scene.argument <= last; comm_scene.argument++)
        for (int n = 0; n < COUNT_OF(sizes); n++)
            for (int d = comm_scene.timeout > 0 ? 0 : -2;
                 d < (comm_scene.heavy || comm_scene.times > 0 ? 1 : 8); d++) {
                const int ranks = sizes[n], carriers = d < 0 ? -d : ranks;
                const cp_threads_options options = {
                    ranks, comm_scene.timeout > 0 ? comm_scene.timeout : 10,
                    comm_scene.times > 0 ? (uint64_t)comm_scene.argument % 3
                                         : (uint64_t)(d > 0 ? d : 0)};
                if (ranks < comm_scene.least || ranks > comm_scene.most)
                    continue;
                const cp_status status = run_on(
                    carriers, &options, comm_scene.function, &comm_scene);
                ck_assert_msg(comm_scene_ended(&comm_scene, ranks, status),
                              "%s", comm_scene.name);
            }
}

TEST(exchanges_return_at_once) {
    for (uint64_t disorder = 0; disorder < 7; disorder++) {
        atomic_int posted = 0;
        must(run(2, disorder, post_three, &posted));
        posted = 0;
        if (disorder % 2 == 0)
            must(run(2, disorder, push_to_the_busy, &posted));
    }
}

static cp_status forget_wait(cp_comm *comm, void *context) {
    (void)context;
    float out[64], in[64];
    for (int i = 0; i < 64; i++)
        out[i] = in[i] = 1;
    CP_TRY(pass_on(comm, out, in, sizeof(out)));
    nap(comm->rank == 0); /* enough time to arrive by chance */
    for (int i = 0; i < 64; i++)
        REQUIRE(isnan(in[i]), "%g was read before the wait", in[i]);
    CP_TRY(cp_comm_wait(comm));
    for (int i = 0; i < 64; i++)
        REQUIRE(in[i] == 1, "%g was read after the wait", in[i]);
    return CP_OK;
}

static cp_status touch_lent(cp_comm *comm, void *context) {
    int32_t *seen = context; /* by rank 1 */
    const bool sends = comm->rank == 0;
    int32_t data[2] = {sends ? 1 : 0, sends ? 2 : 0};
    CP_TRY(give(comm, &data[0], 4, 4));
    if (!sends)
        CP_TRY(cp_comm_barrier(comm));
    CP_TRY(give(comm, &data[1], 4, 4));
    if (sends)
        CP_TRY(cp_comm_barrier(comm));
    /* Too early: message 0 is still lent, and message 1 may have come. */
    data[sends ? 0 : 1] = sends ? -1 : 0;
    CP_TRY(cp_comm_barrier(comm));
    CP_TRY(cp_comm_wait(comm));
    CP_TRY(cp_comm_wait(comm));
    if (!sends)
        memcpy(seen, data, sizeof(data));
    return CP_OK;
}

TEST(missing_wait_reads_nan) {
    for (uint64_t seed = 1; seed < 50; seed += 2)
        must(run(2 + (int)(seed / 2 % 4), seed, forget_wait, NULL));
}

TEST(early_touch_shows) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        int32_t seen[2];
        must(run(2, seed, touch_lent, seen));
        const bool late = seed % 2 == 1;
        ck_assert_int_eq(seen[0], late ? -1 : 1);
        ck_assert_int_eq(seen[1], late ? 2 : 0);
    }
}

static cp_status send_first(cp_comm *comm, void *context) {
    (void)context;
    int32_t out = 1, in;
    CP_TRY(cp_comm_exchange(comm, (comm->rank + 1) % 3, &out, 4, CP_NO_RANK,
                            NULL, 0));
    CP_TRY(cp_comm_wait(comm));
    CP_TRY(cp_comm_exchange(comm, CP_NO_RANK, NULL, 0, (comm->rank + 2) % 3,
                            &in, 4));
    return cp_comm_wait(comm);
}

/* Two messages each way in a ring, before any rank waits. */
static cp_status two_under_way(cp_comm *comm, void *context) {
    (void)context;
    const int next = (comm->rank + 1) % comm->ranks;
    const int previous = (comm->rank + comm->ranks - 1) % comm->ranks;
    for (int64_t round = 0; round < 20; round++) {
        const int64_t out[] = {2 * round, 2 * round + 1};
        int64_t in[2];
        for (int n = 0; n < 2; n++)
            CP_TRY(
                cp_comm_exchange(comm, next, &out[n], 8, previous, &in[n], 8));
        CP_TRY(cp_comm_wait(comm));
        CP_TRY(cp_comm_wait(comm));
        if (in[0] != out[0] || in[1] != out[1])
            return cp_fail(CP_BROKEN, "got %ld, %ld in round %ld", in[0], in[1],
                           round);
    }
    return CP_OK;
}

LOOP(no_message_overtakes_another, 0, 30) {
    must(run(2 + _i % 4, (uint64_t)_i, two_under_way, NULL));
}

TEST(sending_first_is_a_deadlock) {
    for (uint64_t disorder = 0; disorder < 3; disorder++) {
        const cp_threads_options options = {3, 0, disorder};
        refuses(cp_threads_run(&options, send_first, NULL), CP_BROKEN,
                "no rank can move: "
                "rank 0 waits in an exchange for rank 1 to take 4 bytes; "
                "rank 1 waits in an exchange for rank 2 to take 4 bytes; "
                "rank 2 waits in an exchange for rank 0 to take 4 bytes");
    }
}

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

LOOP(first_failure_wins, 0, 10) {
    refuses_with(run(5, (uint64_t)_i, fail_in_turn, NULL), CP_CAPACITY,
                 "rank 2: first");
    refuses_with(run(1, 0, abort_mutely, NULL), CP_ABORTED,
                 "rank 0: gave no reason");
}

static cp_status fail_sometimes(cp_comm *comm, void *context) {
    const int *call = context;
    if (*call % 3 == 1 && comm->rank == comm->ranks - 1)
        return cp_fail(CP_FILE, "call %d", *call);
    return *call % 2 == 0 ? rotate(comm, NULL) : gather_all(comm, NULL);
}

/* Ranks outlive a call, even a failed one. */
LOOP(ranks_work_again, 0, 6) {
    cp_threads *threads;
    const cp_threads_options options = {1 + _i, 10, 0};
    must(cp_threads_start(&options, &threads));
    for (int call = 0; call < 200; call++) {
        const cp_status status =
            cp_threads_work(threads, 1 + call % 7, fail_sometimes, &call);
        ck_assert_msg(status == (call % 3 == 1 ? CP_FILE : CP_OK),
                      "call %d: %d, %s", call, status, cp_message());
    }
    cp_threads_end(threads);
    cp_threads_end(NULL);
}

TEST(wrong_options_are_refused) {
    cp_threads_options options = {0, 0, 0};
    refuses_with(cp_threads_run(&options, rotate, NULL), CP_INVALID,
                 "cannot run 0 ranks; expected at least 1");
    options.ranks = -3;
    refuses_with(cp_threads_run(&options, rotate, NULL), CP_INVALID,
                 "cannot run -3 ranks; expected at least 1");
    options.ranks = 1;
    refuses_with(run_on(0, &options, rotate, NULL), CP_INVALID,
                 "0 threads for the ranks; expected at least 1");
    options.timeout = -1;
    ck_assert_int_eq(cp_threads_run(&options, rotate, NULL), CP_INVALID);
    options.timeout = NAN;
    ck_assert_int_eq(cp_threads_run(&options, rotate, NULL), CP_INVALID);
}

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

TEST(too_few_threads_is_an_error) {
    atomic_int calls = 0;
    if (HARNESS_SANITIZED)
        return;
    leave_room_for(40 << 20);
    ck_assert_int_eq(run(500, 0, count_calls, &calls), CP_MEMORY);
    int started = -1, requested = -1;
    ck_assert_int_eq(sscanf(cp_message(), "could start %d of %d ranks: ",
                            &started, &requested),
                     2);
    ck_assert(started > 0 && started < 11 && requested == 500);
    ck_assert_int_eq(calls, 0);
    must(run(2, 0, rotate, NULL)); /* and the next run is unaffected */
}
