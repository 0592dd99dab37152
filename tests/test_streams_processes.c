/* Ranks of NCCL as processes, started as a launcher would. On a GPU, several
 * of them share it; on what stands in for one, there can be only one, and the
 * others see that they end. This program is also what it starts: with --rank
 * SCENE it plays one rank. */
#define _DEFAULT_SOURCE
#include "talk.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/ring/nccl_link.h"
#include "ring/agree.h"
#include "ring/meet.h"
#include "ring/wire.h"

static int said_by_all; /* a file for stderr */

static const char *const nccl_on_one_gpu[] = {
    "NCCL_NET=Socket",     "NCCL_IB_DISABLE=1",   "NCCL_SOCKET_IFNAME=lo",
    "NCCL_MNNVL_ENABLE=0", "NCCL_NVLS_ENABLE=0",  "NCCL_MAX_CTAS=2",
    "NCCL_RAS_ENABLE=0",   "NCCL_CUMEM_ENABLE=0",
};

static void set_number(const char *name, int number) {
    char digits[16];
    snprintf(digits, sizeof(digits), "%d", number);
    setenv(name, digits, 1);
}

static pid_t start_rank(int rank, int ranks, int port, const char *scene) {
    const pid_t child = fork();
    if (child != 0)
        return child;
    for (int i = 0; i < 8; i++)
        putenv((char *)(uintptr_t)nccl_on_one_gpu[i]);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", port);
    set_number("RANK", rank);
    set_number("WORLD_SIZE", ranks);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", ranks);
    set_number("NCCL_HOSTID", 1000 + rank);
    dup2(said_by_all, 2);
    execl("/proc/self/exe", "rank", "--rank", scene, (char *)NULL);
    _exit(9);
}

static const char *scene;
static bool deadly;
static double patience = 60;

static void die_if_it_is_time(int rank) {
    if (rank == 1)
        kill(getpid(), SIGKILL);
}

static cp_status own_part(talk *t, cp_nccl *tp, cp_nccl *cp) {
    const int rank = cp_nccl_rank(cp);
    const cp_stream_options options = {.blocks = 4, .poison = true};
    cp_status status = cp_crew_agree(t->plan, 0);
    if (status == CP_OK)
        status = cp_stream_walker_new(t->plan, rank, t->queues[rank], &options,
                                      &t->walkers[rank]);
    cp_stream_walker *w = t->walkers[rank];
    const int64_t numbers = t->layout->queries[rank].rows *
                            t->shape.query_heads * t->shape.head_dim;
    for (int layer = 0; layer < LAYERS && status == CP_OK; layer++) {
        status = give_all(t, rank);
        if (status == CP_OK)
            status = cp_stream_walk(w, cp_nccl_link(cp), t->keys[layer][rank],
                                    t->values[layer][rank]);
        if (status == CP_OK)
            status = cp_nccl_sum(tp, cp_stream_walker_output(w), numbers,
                                 t->queues[rank].compute);
        if (status == CP_OK)
            status = take(t, layer, rank);
    }
    if (status == CP_OK && deadly)
        die_if_it_is_time(rank);
    const cp_status ended =
        w != NULL ? cp_stream_walker_finish(w, patience) : CP_OK;
    status = status == CP_OK ? ended : status;
    return status == CP_OK
               ? cp_cuda(cudaStreamSynchronize(t->queues[rank].compute),
                         "taking the answers")
               : status;
}

static cp_status compare_own(talk *t, int groups, int rank) {
    const int64_t numbers = t->layout->queries[rank].rows *
                            t->shape.query_heads * t->shape.head_dim;
    t->problem[0] = '\0';
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int64_t i = 0; i < numbers; i++)
            t->answers[layer][rank][i] /= (float)groups;
        compare(t, layer, rank);
    }
    return t->problem[0] == '\0' ? CP_OK : cp_fail(CP_BROKEN, "%s", t->problem);
}

static cp_status converse(cp_nccl *tp, cp_nccl *cp) {
    static const cp_variant turns[] = {CP_PASS_KV, CP_DECODE, CP_PASS_Q,
                                       CP_DECODE, CP_ALL_GATHER};
    talk t = {.shape = {4, 2, 32},
              .ranks = cp_nccl_ranks(cp),
              .sequences = 1,
              .room = 400};
    cp_status status = CP_OK;
    open_talk(&t);
    for (int turn = 0; turn < 5 && status == CP_OK; turn++) {
        const int64_t fresh = turn % 2 ? 1 : 30 + 41 * turn;
        status = plan_call(&t, &fresh, turns[turn]);
        deadly = strcmp(scene, "death") == 0 && turn == 2;
        if (status == CP_OK)
            status = own_part(&t, tp, cp);
        if (status == CP_OK)
            status = compare_own(&t, cp_nccl_ranks(tp), cp_nccl_rank(cp));
        if (status == CP_OK)
            cp_cache_commit(t.cache, t.layout);
        forget_call(&t);
    }
    close_talk(&t);
    return status;
}

static cp_status join_and_converse(const cp_crew *crew) {
    cp_nccl *world = NULL, *tp = NULL, *cp = NULL;
    const int groups = strcmp(scene, "grid") == 0 ? 2 : 1;
    int devices = 0;
    cp_status status = cp_device_count(&devices);
    if (status == CP_OK)
        status = cp_cuda(cudaSetDevice(crew->rank % devices), "a device");
    if (status == CP_OK)
        status = cp_nccl_join(crew, patience, &world);
    if (status == CP_OK)
        status = cp_nccl_split(world, groups, &tp, &cp);
    if (status == CP_OK)
        status = converse(tp, cp);
    cp_nccl_free(tp);
    cp_nccl_free(cp);
    cp_nccl_free(world);
    return status;
}

static const cp_crew *own_crew;
static cp_status outcome = CP_BROKEN;

START_TEST(play_the_scene) {
    outcome = join_and_converse(own_crew);
}
END_TEST

static cp_status run_here(const cp_crew *crew) {
    Suite *suite = suite_create("a rank");
    TCase *tests = tcase_create("a rank");
    SRunner *runner = srunner_create(suite);
    own_crew = crew;
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, play_the_scene);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    srunner_free(runner);
    return outcome;
}

static int play_rank(const char *name) {
    char *words[] = {"rank", (char *)(uintptr_t)name};
    cp_meet_options options = {.words = cp_fingerprint_words(2, words)};
    cp_crew crew;
    scene = name;
    if (strcmp(name, "alone") != 0 && strcmp(name, "talk") != 0 &&
        strcmp(name, "grid") != 0)
        patience = stand_in_pretends() ? 1 : 5;
    options.patience = patience;
    stand_in_begin(&(stand_in_options){.seed = 1,
                                       .devices = 1,
                                       .driver = 13000,
                                       .bytes = 1 << 30,
                                       .open = true,
                                       .patience = 5});
    cp_status status = cp_launch_read(&options.launch);
    if (status == CP_OK)
        status = cp_meet(&options, &crew);
    if (status != CP_OK) {
        fprintf(stderr, "longring: %s\n", cp_message());
        return 1;
    }
    cp_crew_join(&crew);
    status = run_here(&crew);
    if (status != CP_OK && crew.rank == 0)
        fprintf(stderr, "longring: %s\n", cp_message());
    return crew.leave != NULL ? crew.leave(status != CP_OK) : status != CP_OK;
}

enum { MOST_PROCESSES = 8 };

static char said[1 << 13];
static int ends[MOST_PROCESSES]; /* exit statuses; -9: killed */

static void play_processes(int ranks, const char *name) {
    char path[] = "/tmp/longring-nccl-XXXXXX";
    pid_t players[MOST_PROCESSES];
    int port = 0, listener;
    ck_assert_int_eq(cp_wire_listen("127.0.0.1", &port, &listener), CP_OK);
    close(listener);
    said_by_all = mkstemp(path);
    unlink(path);
    for (int r = 0; r < ranks; r++)
        players[r] = start_rank(r, ranks, port, name);
    for (int r = 0; r < ranks; r++) {
        int status = 0;
        waitpid(players[r], &status, 0);
        ends[r] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    const ssize_t length = pread(said_by_all, said, sizeof(said) - 1, 0);
    said[length > 0 ? length : 0] = '\0';
    close(said_by_all);
}

static void all_end_with(int ranks, int status, int except) {
    for (int r = 0; r < ranks; r++)
        ck_assert_msg(r == except || ends[r] == status,
                      "rank %d of %d ends with %d: %s", r, ranks, ends[r],
                      said);
}

START_TEST(ranks_on_one_gpu_equal_dense_attention) {
    static const int ranks[] = {1, 2, 4, 4};
    static const char *const scenes[] = {"alone", "talk", "talk", "grid"};
    play_processes(ranks[_i], scenes[_i]);
    all_end_with(ranks[_i], 0, -1);
}
END_TEST

START_TEST(survivors_of_a_killed_rank_of_nccl_end) {
    play_processes(4, "death");
    all_end_with(4, 1, 1);
    ck_assert_int_eq(ends[1], -SIGKILL);
}
END_TEST

START_TEST(ranks_that_cannot_join_end_together) {
    play_processes(3, "in vain");
    all_end_with(3, 1, -1);
    ck_assert_msg(strstr(said, "longring: rank 0 of 3 waited 1 s in vain, "
                               "joining") != NULL,
                  "%s", said);
}
END_TEST

static Suite *processes_suite(void) {
    Suite *suite = suite_create("streams of processes");
    TCase *tests = harness_case("NCCL");
    suite_add_tcase(suite, tests);
    tcase_add_loop_test(tests, ranks_on_one_gpu_equal_dense_attention, 0,
                        stand_in_pretends() ? 1 : 4);
    if (stand_in_pretends()) {
        tcase_add_test(tests, ranks_that_cannot_join_end_together);
        return suite;
    }
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, survivors_of_a_killed_rank_of_nccl_end);
    return suite;
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "--rank") == 0)
        return play_rank(words[2]);
    int devices = 0;
    if (!stand_in_pretends() && cp_device_count(&devices) != CP_OK) {
        fprintf(stderr, "%s\n", cp_message());
        return 1;
    }
    return harness_main(processes_suite());
}
