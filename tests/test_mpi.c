/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Ranks as processes, started by mpirun. This program is also what it
 * starts: with --rank SCENE it plays one rank. */
#define _DEFAULT_SOURCE

#include "processes.h"

#include "comm_checks.h"
#include "harness/suite.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int faults; /* of this rank, in all scenes */

static void demand(bool holds, const cp_comm *comm, const char *scene,
                   const char *expected) {
    if (holds)
        return;
    fprintf(stderr, "%s, rank %d: '%s', not '%s'\n", scene, comm->rank,
            cp_message(), expected);
    faults++;
}

static void play(const char *scene, cp_mpi_options options,
                 cp_rank_main function, void *context, cp_status status,
                 const char *words) {
    cp_comm *comm;
    if (cp_mpi_open(&options, &comm) != CP_OK) {
        fprintf(stderr, "%s: %s\n", scene, cp_message());
        exit(1);
    }
    const cp_status got = cp_mpi_run(comm, function, context);
    demand(got == status && (status == CP_OK || strstr(cp_message(), words)),
           comm, scene, words);
    const int last = cp_mpi_close(comm, 0);
    if (last != 0) {
        fprintf(stderr, "%s: the goodbyes end with %d\n", scene, last);
        exit(1);
    }
}

static cp_status meet_in_time(cp_comm *comm, void *context) {
    double entered[16], mine;
    void *receive[16];
    (void)context;
    for (int r = 0; r < comm->ranks; r++)
        receive[r] = &entered[r];
    nap(15 * ((comm->rank + 1) % comm->ranks));
    entered[comm->rank] = mine = seconds();
    TRY(cp_comm_barrier(comm));
    const double left = seconds();
    TRY(cp_comm_all_gather(comm, &mine, receive, sizeof(mine)));
    for (int r = 0; r < comm->ranks; r++)
        REQUIRE(entered[r] <= left, "rank %d came %g s late to the barrier", r,
                entered[r] - left);
    REQUIRE(comm->sent.barriers == 1, "not one barrier");
    return CP_OK;
}

static void play_well(int ranks) {
    const int64_t pieces[] = {0, 100003, 7};
    for (int i = 0; i < 3; i++) {
        const cp_mpi_options options = {.patience = 10, .piece = pieces[i]};
        play("rotate", options, rotate, NULL, CP_OK, "");
        play("gather", options, gather_all, NULL, CP_OK, "");
        play("barrier", options, meet_in_time, NULL, CP_OK, "");
        play("oneself", options, talk_to_oneself, NULL, CP_OK, "");
        if (pieces[i] != 7)
            play("sizes", options, exchange_sizes, NULL, CP_OK, "");
        if (ranks != 2)
            continue;
        play("in order", options, send_in_order, NULL, CP_OK, "");
        play("wait alone", options, wait_alone, NULL, CP_OK, "");
    }
}

static cp_status meet_after_error(cp_comm *comm, void *context) {
    if (comm->rank != 1)
        return cp_comm_barrier(comm);
    const cp_status status = call_wrongly(comm, *(const int *)context);
    REQUIRE(cp_comm_barrier(comm) != CP_OK, "went on after an error");
    return status;
}

static void play_wrong_calls(void) {
    static const char *const words[] = {
        "rank 1: cannot send to rank 2: there are 2 ranks",
        "rank 1: cannot receive from rank -2: there are 2 ranks",
        "rank 1: cannot send to rank 0: 8 bytes at ",
        "rank 1: cannot send to rank 0: -8 bytes at ",
        "rank 1: 8 bytes to rank 0 overlap 1 from rank 0",
        "rank 1: cannot send to 2 ranks: no list of blocks",
        "rank 1: cannot send as rank 1: 8 bytes at ",
        "rank 1: rank 1 waits, but has no exchange outstanding",
    };
    for (int i = 0; i < 8; i++)
        play("wrong call", (cp_mpi_options){.patience = 10}, meet_after_error,
             &i, i == 7 ? CP_BROKEN : CP_INVALID, words[i]);
}

struct scene {
    int way, end;
};

static cp_status wait_and_hear(cp_comm *comm, void *context) {
    const struct scene *scene = context;
    if (comm->rank == 1) {
        nap(5);
        if (scene->end == ABORT)
            cp_comm_abort(comm, "enough");
        return scene->end == RETURN_EARLY ? CP_OK
                                          : cp_fail(CP_FILE, "no such file");
    }
    const cp_status status = wait_for_one(comm, scene->way);
    const char *words = scene->end == ABORT ? "rank 1 failed first: enough"
                        : scene->end == RETURN_ERROR
                            ? "rank 1 failed first: no such file"
                            : "rank 1 has left";
    demand(status == (scene->end == RETURN_EARLY && comm->ranks == 2
                          ? CP_BROKEN
                          : CP_ABORTED) ||
               (scene->end == RETURN_EARLY && status != CP_OK),
           comm, "a wait", words);
    demand(strstr(cp_message(), words) != NULL, comm, "a wait", words);
    return status;
}

static void play_failures(void) {
    for (int way = 0; way < WAYS; way++)
        for (int end = 0; end < 3; end++) {
            struct scene scene = {way, end};
            play("failure", (cp_mpi_options){.patience = 10}, wait_and_hear,
                 &scene, end == RETURN_EARLY ? CP_BROKEN : CP_FILE,
                 end == ABORT          ? "rank 1: enough"
                 : end == RETURN_ERROR ? "rank 1: no such file"
                                       : "but rank 1 has left");
        }
}

static cp_status dawdle(cp_comm *comm, void *context) {
    const int *way = context;
    if (comm->rank == 0)
        return wait_for_one(comm, *way);
    nap(450);
    return CP_OK;
}

static void play_impatience(void) {
    static const char *const words[] = {
        "rank 0 waits in an exchange for 8 bytes (message 1) from rank 1",
        "rank 0 waits in an exchange for rank 1 to take 8 bytes (message 1)",
        "rank 0 waits in an all-to-all for 8 bytes (message 1) from rank 1 "
        "and for rank 1 to take 8 bytes (message 1)",
        "rank 0 waits in an all-gather for 8 bytes (message 1) from rank 1 "
        "and for rank 1 to take 8 bytes (message 1)",
        "rank 0 waits at barrier 1 for rank 1",
    };
    for (int way = 0; way < WAYS; way++)
        play("patience", (cp_mpi_options){.patience = 0.3}, dawdle, &way,
             CP_BROKEN, words[way]);
}

static cp_status disagree(cp_comm *comm, void *context) {
    const int *slow = context;
    char data[96];
    const bool sends = comm->rank == 0;
    if (comm->rank == *slow)
        nap(5);
    cp_comm_exchange(comm, sends ? 1 : CP_NOBODY, data, 96,
                     sends ? CP_NOBODY : 0, data, 80);
    const cp_status status = cp_comm_wait(comm);
    const char *words = sends ? "rank 0 sends to rank 1 in an exchange: 96 "
                                "bytes (message 1), not the 80 that rank 1 "
                                "expects"
                              : "rank 1 receives from rank 0 in an exchange: "
                                "80 bytes (message 1), not the 96 that rank 0 "
                                "sends";
    demand(status == CP_BROKEN && strcmp(cp_message(), words) == 0, comm,
           "sizes", words);
    return status;
}

static cp_status leave_unwaited(cp_comm *comm, void *context) {
    static char in[4];
    (void)context;
    if (comm->rank == 1)
        return cp_comm_exchange(comm, CP_NOBODY, NULL, 0, 0, in, 4);
    return CP_OK;
}

enum { PAGES = 1 << 20 };

static cp_status snatch(cp_comm *comm, void *context) {
    const struct timespec delay = {0, *(const int *)context * 50000L};
    const int other = 1 - comm->rank;
    char *pages = mmap(NULL, 2 * PAGES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED, "no pages");
    memset(pages, comm->rank + 1, PAGES);
    cp_status status = cp_comm_exchange(comm, other, pages, PAGES, other,
                                        pages + PAGES, PAGES);
    if (comm->rank == 1) {
        nanosleep(&delay, NULL);
        cp_comm_poke(comm);
        cp_comm_abort(comm, "changed my mind");
        status = CP_ABORTED;
    } else if (status == CP_OK) {
        status = cp_comm_wait(comm);
        if (status == CP_OK)
            status = cp_comm_barrier(comm);
    }
    munmap(pages, 2 * PAGES);
    return status;
}

static void play_wrongly(int ranks) {
    play_failures();
    for (int i = 0; ranks == 2 && i < 2; i++)
        play("sizes", (cp_mpi_options){.patience = 10}, disagree, &i, CP_BROKEN,
             "96");
    if (ranks != 2)
        return;
    play_wrong_calls();
    play_impatience();
    play("unwaited", (cp_mpi_options){.patience = 10}, leave_unwaited, NULL,
         CP_BROKEN, "rank 1: returned, but never waited for an exchange");
    for (int i = 0; i < 30; i++)
        play("snatch", (cp_mpi_options){.patience = 10, .piece = 65536}, snatch,
             &i, CP_ABORTED, "rank 1: changed my mind");
}

static cp_status die_in_a_hop(cp_comm *comm, void *context) {
    static char blocks[2][PAGES];
    const int ranks = comm->ranks, rank = comm->rank;
    (void)context;
    TRY(cp_comm_barrier(comm));
    TRY(cp_comm_exchange(comm, (rank + 1) % ranks, blocks[0], PAGES,
                         (rank + ranks - 1) % ranks, blocks[1], PAGES));
    if (rank == 1)
        raise(SIGKILL);
    return cp_comm_wait(comm);
}

static int play_death(double patience) {
    const cp_mpi_options options = {.patience = patience, .piece = 1000};
    cp_comm *comm;
    if (cp_mpi_open(&options, &comm) != CP_OK)
        return 1;
    const cp_status status = cp_mpi_run(comm, die_in_a_hop, NULL);
    fprintf(stderr, "survivor %d: %s\n", comm->rank, cp_message());
    const int worst = cp_mpi_close(comm, status == CP_OK ? 0 : 1);
    fprintf(stderr, "survivor %d: ends\n", worst);
    cp_mpi_end(worst >= 0);
    return 1;
}

static int worker(const char *scene) {
    int size = 1;
    cp_comm *world;
    if (strcmp(scene, "death") == 0)
        return play_death(2);
    if (cp_mpi_open(&(cp_mpi_options){.patience = 10}, &world) != CP_OK)
        return 1;
    size = world->ranks;
    cp_mpi_close(world, 0);
    if (strcmp(scene, "well") == 0)
        play_well(size);
    else if (strcmp(scene, "wrong") == 0)
        play_wrongly(size);
    cp_mpi_end(true);
    return faults == 0 ? 0 : 1;
}

static char said[1 << 16];
static const char *self;

static int launch(const char *format, ...) {
    char line[2048], whole[3072];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof(whole),
             "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
             "OMP_NUM_THREADS=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
             "ASAN_OPTIONS=detect_leaks=0; { %s; } 2>&1 </dev/null",
             line);
    FILE *out = popen(whole, "r");
    ck_assert_ptr_nonnull(out);
    const size_t length = fread(said, 1, sizeof(said) - 1, out);
    said[length] = '\0';
    while (fgetc(out) != EOF)
        ;
    const int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void scene_ends_well(int ranks, const char *scene) {
    const int status =
        launch("timeout 18 mpirun -n %d %s --rank %s", ranks, self, scene);
    ck_assert_msg(status == 0, "%d ranks, %s: status %d\n%s", ranks, scene,
                  status, said);
}

static bool launcher_is_there(void) {
    return cp_mpi_name() != NULL &&
           system("command -v mpirun >/dev/null 2>&1") == 0;
}

static const int sizes[] = {1, 2, 3, 4, 8};

START_TEST(messages_arrive) {
    scene_ends_well(sizes[_i], "well");
}
END_TEST

START_TEST(failures_end_every_wait) {
    scene_ends_well(_i == 0 ? 2 : 4, "wrong");
}
END_TEST

START_TEST(a_dead_rank_ends_all) {
    const int status = launch("timeout 15 mpirun -n 3 %s --rank death", self);
    ck_assert_msg(status > 0 && status < 124 + 20, "status %d: %s", status,
                  said);
    ck_assert(status != 124);
}
END_TEST

START_TEST(survivors_run_out_of_patience) {
    if (strcmp(cp_mpi_name(), "Open MPI") != 0)
        return;
    const int status = launch("timeout 18 mpirun --enable-recovery -n 3 "
                              "sh -c '%s --rank death; echo it ended with $?'",
                              self);
    ck_assert_msg(status != 124, "%s", said);
    ck_assert_msg(strstr(said, "it ended with 1\n") != NULL, "%s", said);
    ck_assert_msg(strstr(said, "from rank 1") != NULL, "%s", said);
    ck_assert_msg(strstr(said, "in vain for 2 s") != NULL, "%s", said);
}
END_TEST

START_TEST(nothing_to_launch) {
    cp_comm *comm;
    puts("mpi: skipped, no MPI here");
    if (cp_mpi_name() != NULL)
        return;
    ck_assert_int_eq(cp_mpi_open(&(cp_mpi_options){.patience = 1}, &comm),
                     CP_BROKEN);
    ck_assert_ptr_null(comm);
}
END_TEST

static Suite *mpi_suite(void) {
    Suite *suite = suite_create("mpi");
    TCase *comm = harness_case("communicator");
    suite_add_tcase(suite, comm);
    if (!launcher_is_there()) {
        tcase_add_test(comm, nothing_to_launch);
        return suite;
    }
    tcase_add_loop_test(comm, messages_arrive, 0, 5);
    tcase_add_loop_test(comm, failures_end_every_wait, 0, 2);
    tcase_add_test(comm, a_dead_rank_ends_all);
    tcase_add_test(comm, survivors_run_out_of_patience);
    return suite;
}

int main(int count, char **arguments) {
    self = arguments[0];
    if (count == 3 && strcmp(arguments[1], "--rank") == 0)
        return worker(arguments[2]);
    return harness_main(mpi_suite());
}
