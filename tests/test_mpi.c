/* Ranks as processes, started by mpirun. This program is also what it
 * starts: with --rank SCENE it plays one rank. */
#define _DEFAULT_SOURCE

#include "reference/ring/processes.h"

#include "comm_checks.h"
#include "harness/suite.h"
#include "harness/tiny_gguf.h"
#include "model/backend.h"
#include "ring/crew.h"
#include "app/npy.h"
#include "ring/variants.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

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
    entered[comm->rank] = mine = cp_clock();
    TRY(cp_comm_barrier(comm));
    const double left = cp_clock();
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
    play("barrier", (cp_mpi_options){.patience = 10}, meet_in_time, NULL, CP_OK,
         "");
    if (cp_mpi_open(&options, &comm) != CP_OK)
        return 1;
    const cp_status status = cp_mpi_run(comm, die_in_a_hop, NULL);
    fprintf(stderr, "survivor %d: %s\n", comm->rank, cp_message());
    const int worst = cp_mpi_close(comm, status == CP_OK ? 0 : 1);
    fprintf(stderr, "survivor %d: ends\n", worst);
    cp_mpi_end(worst >= 0);
    return 1;
}

static float *fill(int64_t count, uint64_t seed) {
    float *numbers = calloc((size_t)count, sizeof(float));
    for (int64_t i = 0; i < count; i++)
        numbers[i] = harness_uniform(&seed);
    return numbers;
}

typedef struct {
    cp_attend_job job;
    int64_t queries, keys;
} attend_scene;

static attend_scene scene_of(int ranks, cp_variant variant) {
    static const cp_turn first[] = {{false, 50}, {true, 20}, {false, 7}};
    static const cp_turn second[] = {{true, 3}};
    static const cp_turn *const pasts[] = {first, second, NULL};
    static const int64_t turns[] = {3, 1, 0};
    static const int64_t fresh[] = {61, 1, 5}, ones[] = {1, 1, 1};
    const bool decode = variant == CP_DECODE;
    attend_scene it = {.queries = decode ? 3 : 67};
    it.keys = it.queries + 80;
    it.job = (cp_attend_job){.shape = {4, 2, 32},
                             .ranks = ranks,
                             .sequences = 3,
                             .new_tokens = decode ? ones : fresh,
                             .turns = turns,
                             .history = pasts,
                             .variant = variant};
    it.job.queries = fill(it.queries * 4 * 32, 1);
    it.job.keys = fill(it.keys * 2 * 32, 2);
    it.job.values = fill(it.keys * 2 * 32, 3);
    return it;
}

static void answer(attend_scene *it, const cp_backend *backend, float *out) {
    it->job.output = out;
    it->job.lse = out + it->queries * 4 * 32;
    memset(out, 0xFF, (size_t)(it->queries * 4 * 33) * sizeof(float));
    if (backend->attend(&it->job) == CP_OK)
        return;
    fprintf(stderr, "attend: %s\n", cp_message());
    faults++;
}

static void play_attend(void) {
    const int ranks = cp_crew_mine()->ranks;
    for (int v = CP_AUTO; v <= CP_DECODE; v++) {
        attend_scene it = scene_of(ranks, (cp_variant)v);
        const int64_t floats = it.queries * 4 * 33;
        float *together = fill(floats, 4), *alone = fill(floats, 5);
        answer(&it, cp_backend_find("threads"), alone);
        answer(&it, cp_backend_find("mpi"), together);
        if (memcmp(together, alone, (size_t)floats * sizeof(float)) != 0 ||
            isnan(alone[0])) {
            fprintf(stderr, "%d ranks, %s: not the bits of threads\n", ranks,
                    cp_variant_name((cp_variant)v));
            faults++;
        }
        free(together);
        free(alone);
    }
}

static void play_disagreement(const char *what) {
    const int rank = cp_crew_mine()->rank;
    attend_scene it =
        scene_of(cp_crew_mine()->ranks,
                 rank == 1 && what[0] == 'v' ? CP_PASS_Q : CP_PASS_KV);
    const int64_t other[] = {60, 1, 5};
    if (rank == 1 && what[0] == 'l')
        it.job.new_tokens = other;
    it.job.output = fill(it.queries * 4 * 33, 5);
    it.job.lse = it.job.output + it.queries * 4 * 32;
    const cp_status status = cp_backend_find("mpi")->attend(&it.job);
    const char *words = what[0] == 'v' ? "by pass-q" : "66 new tokens over 80";
    if (status != CP_BROKEN || strstr(cp_message(), words) == NULL ||
        strstr(cp_message(), "the ranks disagree: rank 0 has 67 new tokens") ==
            NULL) {
        fprintf(stderr, "rank %d: status %d, '%s'\n", rank, status,
                cp_message());
        faults++;
    }
}

static int backend_scene(const char *scene) {
    char *const words[] = {"a", "test"};
    if (cp_backend_find("mpi")->join(2, words) != CP_OK)
        return 1;
    if (strcmp(scene, "attend") == 0)
        play_attend();
    else
        play_disagreement(scene);
    const int status = cp_crew_mine()->leave(faults > 0);
    return status;
}

static int worker(const char *scene) {
    int size = 1;
    cp_comm *world;
    if (strcmp(scene, "death") == 0)
        return play_death(1);
    if (strcmp(scene, "well") != 0 && strcmp(scene, "wrong") != 0)
        return backend_scene(scene);
    if (cp_mpi_open(&(cp_mpi_options){.patience = 10}, &world) != CP_OK)
        return 1;
    size = world->ranks;
    cp_mpi_close(world, 0);
    if (strcmp(scene, "well") == 0)
        play_well(size);
    else
        play_wrongly(size);
    cp_mpi_end(true);
    return faults == 0 ? 0 : 1;
}

static char said[1 << 16];
static const char *self;
static char *own_path; /* the same from / on: another host starts elsewhere */

static int launch(const char *format, ...) {
    char line[2048], whole[3072];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof(whole),
             "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
             "OMP_NUM_THREADS=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
             "OMPI_MCA_odls_base_sigkill_timeout=0 "
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

static bool leaves_survivors(void) {
    return strcmp(cp_mpi_name(), "Open MPI") == 0;
}

START_TEST(survivors_run_out_of_patience) {
    if (!leaves_survivors())
        return;
    const int status = launch("timeout 18 mpirun --enable-recovery -n 3 "
                              "sh -c '%s --rank death; echo it ended with $?'",
                              self);
    ck_assert_msg(status != 124, "%s", said);
    ck_assert_msg(strstr(said, "it ended with 1\n") != NULL, "%s", said);
    ck_assert_msg(strstr(said, "from rank 1") != NULL, "%s", said);
    ck_assert_msg(strstr(said, "in vain for 1 s") != NULL, "%s", said);
}
END_TEST

static const int crews[] = {1, 2, 3, 4, 5, 8};

START_TEST(attention_has_the_bits_of_threads) {
    scene_ends_well(crews[_i], "attend");
}
END_TEST

START_TEST(disagreement_is_heard_by_all) {
    scene_ends_well(2 + _i / 2, _i % 2 == 0 ? "variant" : "lengths");
}
END_TEST

static char directory[] = "/tmp/longring-mpi-XXXXXX";

static void make_model(void) {
    char path[128];
    const int64_t count = 75;
    int64_t ids[75];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/tiny.gguf", directory);
    ck_assert_int_eq(tiny_gguf_write(path, &(tiny_gguf_options){.seed = 3}), 0);
    for (int64_t i = 0; i < count; i++)
        ids[i] = (37 * i + 11) % 250;
    snprintf(path, sizeof(path), "%s/ids.npy", directory);
    ck_assert_int_eq(cp_npy_write(path, CP_NPY_INT64, 1, &count, ids), CP_OK);
}

static void remove_model(void) {
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
}

static const char *program(void) {
    const char *path = getenv("LONGRING");
    return path != NULL ? path : "build/longring";
}

START_TEST(logits_have_the_bits_of_threads) {
    const int ranks[] = {1, 2, 4, 8};
    const int status = launch(
        "D=%s; L=%s; A=\"logits --model $D/tiny.gguf --tokens $D/ids.npy "
        "--history 40+d5+30 --positions all --generate 12\"; "
        "$L $A --ranks %d --out $D/t.npy >$D/t.txt && "
        "timeout 18 mpirun -n %d $L $A --on mpi --out $D/m.npy >$D/m.txt && "
        "tr -d '\\r' <$D/m.txt | cmp - $D/t.txt && cmp $D/m.npy $D/t.npy",
        directory, program(), ranks[_i], ranks[_i]);
    ck_assert_msg(status == 0, "%d ranks: status %d\n%s", ranks[_i], status,
                  said);
}
END_TEST

START_TEST(a_chat_is_shared) {
    const int status = launch(
        "D=%s; L=%s; (echo 'one two'; sleep 3; echo 'three') | timeout 18 "
        "mpirun -n 3 $L chat --on mpi --model $D/tiny.gguf --most 9 "
        "--timeout 2.5 --compare",
        directory, program());
    ck_assert_msg(status == 0, "status %d\n%s", status, said);
    ck_assert_msg(strstr(said, "every one of") != NULL, "%s", said);
    ck_assert_msg(strstr(said, "over 3 ranks on mpi") != NULL, "%s", said);
}
END_TEST

static void refused(int status, const char *because, const char *line) {
    const int got =
        launch("D=%s; L=%s; timeout 18 %s", directory, program(), line);
    const char *first = strstr(said, "longring: ");
    ck_assert_msg(got == status, "%s: status %d\n%s", line, got, said);
    ck_assert_msg(first != NULL && strstr(said, because) != NULL,
                  "%s: '%s' does not say '%s'", line, said, because);
    ck_assert_msg(strstr(first + 1, "longring: ") == NULL, "%s: two lines\n%s",
                  line, said);
}

START_TEST(one_line_for_all) {
    refused(2, "the launcher has started 3",
            "mpirun -n 3 $L chat --on mpi --model $D/tiny.gguf --ranks 2");
    refused(2, "did you mean --ask",
            "mpirun -n 3 $L chat --on mpi --model $D/tiny.gguf --akk x");
    refused(1, "/no/such.gguf: No such file",
            "mpirun -n 3 $L chat --on mpi --model /no/such.gguf --ask x");
    refused(1, "other words than rank 0",
            "mpirun -n 2 $L chat --on mpi --model $D/tiny.gguf --ask x : "
            "-n 1 $L chat --on mpi --model $D/tiny.gguf --ask y");
    refused(2, "on mpi the ring alone is measured",
            "mpirun -n 2 $L bench --on mpi --only causal");
    refused(1, "No space left",
            "mpirun -n 2 $L logits --on mpi --model $D/tiny.gguf --tokens "
            "$D/ids.npy --out /dev/full");
}
END_TEST

START_TEST(the_ring_is_measured) {
    const int status = launch("timeout 18 mpirun -n 3 %s bench --on mpi "
                              "--tokens 96 --rounds 1 --csv",
                              program());
    ck_assert_msg(status == 0 && strstr(said, "ring/pass-kv/3/96,") != NULL &&
                      strstr(said, "ring/pass-q/3/96,") != NULL,
                  "status %d\n%s", status, said);
}
END_TEST

START_TEST(a_killed_rank_ends_the_conversation) {
    if (_i == 1 && !leaves_survivors())
        return;
    const int status = launch(
        "D=%s; L=%s; rm -f $D/said $D/ended; "
        "(until grep -qs 'on mpi' $D/said; do sleep 0.05; done; "
        "P=$(pgrep -f \"$D/tiny.gguf --timeout\" | tail -n 1); kill -9 $P; "
        "until [ -e $D/ended ]; do sleep 0.05; done) | { timeout 18 mpirun %s "
        "-n 3 $L chat --on mpi --model $D/tiny.gguf --timeout 2 >$D/said 2>&1; "
        "S=$?; touch $D/ended; cat $D/said; (exit $S); }",
        directory, program(), _i == 0 ? "" : "--enable-recovery");
    ck_assert_msg(status != 124, "%s", said);
    if (_i == 0)
        ck_assert_msg(status > 0, "status %d: %s", status, said);
    else
        ck_assert_msg(strstr(said, "in vain for 2 s") != NULL, "%s", said);
}
END_TEST

START_TEST(two_hosts_have_the_bits_of_threads) {
    const int status =
        launch("timeout 18 tests/harness/two-hosts 200mbit 2 %s --rank attend",
               own_path);
    if (status == 77)
        printf("mpi: two hosts skipped, %s", said);
    else
        ck_assert_msg(status == 0, "status %d\n%s", status, said);
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
    TCase *backend = harness_case("backend");
    suite_add_tcase(suite, comm);
    suite_add_tcase(suite, backend);
    if (!launcher_is_there()) {
        tcase_add_test(comm, nothing_to_launch);
        return suite;
    }
    tcase_add_loop_test(comm, messages_arrive, 0, 5);
    tcase_add_loop_test(comm, failures_end_every_wait, 0, 2);
    tcase_add_test(comm, a_dead_rank_ends_all);
    tcase_add_test(comm, survivors_run_out_of_patience);
    tcase_add_unchecked_fixture(backend, make_model, remove_model);
    tcase_add_loop_test(backend, attention_has_the_bits_of_threads, 0, 6);
    tcase_add_test(backend, two_hosts_have_the_bits_of_threads);
    tcase_add_loop_test(backend, disagreement_is_heard_by_all, 0, 4);
    tcase_add_loop_test(backend, logits_have_the_bits_of_threads, 0, 4);
    tcase_add_test(backend, a_chat_is_shared);
    tcase_add_test(backend, one_line_for_all);
    tcase_add_test(backend, the_ring_is_measured);
    tcase_add_loop_test(backend, a_killed_rank_ends_the_conversation, 0, 2);
    return suite;
}

int main(int count, char **arguments) {
    self = arguments[0];
    own_path = realpath(self, NULL);
    if (count == 3 && strcmp(arguments[1], "--rank") == 0)
        return worker(arguments[2]);
    return harness_main(mpi_suite());
}
