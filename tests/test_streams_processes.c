/* Ranks of NCCL as processes, started as by a launcher, that rendezvous, form a
 * process group, and walk rings; or fail, and end together. On a GPU, all of
 * them share it. The program starts itself: with --rank SCENE it plays one
 * rank. */
#define _GNU_SOURCE /* mkostemp */
#include "talk.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include "cuda/run/nccl_group.h"
#include "group/agree.h"

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

/* Start one rank, with its output in a file. */
static pid_t start_rank(int rank, int ranks, int port, const char *scene,
                        int output_file) {
    const pid_t child = fork();
    if (child != 0)
        return child;
    for (int i = 0; i < 8; i++)
        putenv((char *)(uintptr_t)nccl_on_one_gpu[i]);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("LONGRING_PORT", port);
    set_number("RANK", rank);
    set_number("WORLD_SIZE", ranks);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", ranks);
    set_number("NCCL_HOSTID", 1000 + rank);
    dup2(output_file, 2);
    execl("/proc/self/exe", "rank", "--rank", scene, (char *)NULL);
    _exit(9);
}

static const char *scene;

enum { MOST_PROCESSES = 4 };

/* Seconds from the start of a single process to its end; measure_start sets it
 * for all later processes. */
static const char START_SECONDS[] = "LONGRING_TEST_START_SECONDS";

/* A rank begins to wait when it has started. On a GPU four processes may start
 * one after another. */
static double at_least(double seconds) {
    const char *measured = getenv(START_SECONDS);
    const double start = measured != NULL ? strtod(measured, NULL) : 0.0;
    return fmax(seconds, ceil(MOST_PROCESSES * start));
}

/* The timeout for waits that must time out. */
static double wait_limit(void) {
    return at_least(5);
}

static double timeout_of(const char *name) {
    static const char *const complete[] = {"starts", "alone", "talk", "grid",
                                           "leave"};
    for (int i = 0; i < COUNT_OF(complete); i++)
        if (strcmp(name, complete[i]) == 0)
            return 60;
    return strcmp(name, "shrinks") == 0 ? at_least(4) : wait_limit();
}

/* This process's part of a call; rank 1 may die in it. */
static cp_status own_part(talk *t, cp_nccl *tp, cp_nccl *cp, bool deadly) {
    const int rank = cp->rank;
    CP_TRY(cp_agree_on_plan(cp_process_group_own(), t->plan, 0, CP_OK));
    CP_TRY(make_walker(t, rank));
    const cp_status status = walk_rank(t, rank, tp, cp);
    if (status == CP_OK && deadly && rank == 1)
        kill(getpid(), SIGKILL);
    CP_TRY(end_walk(t, rank, status, timeout_of(scene)));
    for (int layer = 0; layer < LAYERS; layer++)
        compare_sum(t, layer, rank, tp->ranks);
    return t->problem[0] == '\0' ? CP_OK : cp_fail(CP_BROKEN, "%s", t->problem);
}

static cp_status converse(cp_nccl *tp, cp_nccl *cp) {
    talk t = {
        .shape = {4, 2, 32}, .ranks = cp->ranks, .sequences = 1, .room = 400};
    cp_status status = CP_OK;
    open_talk(&t);
    for (int turn = 0; turn < TURNS && status == CP_OK; turn++) {
        const int64_t fresh = turn % 2 ? 1 : 30 + 41 * turn;
        const bool deadly = strcmp(scene, "death") == 0 && turn == 2;
        status = plan_call(&t, &fresh, alternate[turn]);
        if (status == CP_OK)
            status = own_part(&t, tp, cp, deadly);
        if (status == CP_OK)
            cp_cache_commit(t.cache, t.layout);
        forget_call(&t);
    }
    close_talk(&t);
    return status;
}

static cp_status converse_in_groups(cp_nccl *world, int groups) {
    cp_nccl *tp = NULL, *cp = NULL;
    cp_status status = cp_nccl_try_capture(world);
    if (status == CP_OK)
        status = cp_nccl_split(world, groups, &tp, &cp);
    if (status == CP_OK)
        status = converse(tp, cp);
    cp_nccl_free(tp);
    cp_nccl_free(cp);
    return status;
}

static cp_status require(bool holds, const char *what, int64_t number) {
    return holds ? CP_OK : cp_fail(CP_BROKEN, "%s (%ld)", what, number);
}

static void fill_bytes(unsigned char *bytes, int64_t count, int64_t seed) {
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)((i * 31 + seed * 17) % 251);
}

/* Share and collect `bytes` bytes, with room for those of all ranks. */
static cp_status exchange_bytes(const cp_process_group *group, int64_t bytes,
                                unsigned char *all, unsigned char *truth) {
    if (group->rank == 0)
        fill_bytes(all, bytes, bytes);
    CP_TRY(group->broadcast(all, bytes));
    fill_bytes(truth, bytes, bytes);
    CP_TRY(require(memcmp(all, truth, (size_t)bytes) == 0, "shared", bytes));
    memset(all, 0xFF, (size_t)(bytes * group->ranks));
    fill_bytes(all + group->rank * bytes, bytes, group->rank);
    CP_TRY(group->all_gather(all, bytes));
    for (int r = 0; r < group->ranks; r++) {
        fill_bytes(truth, bytes, r);
        CP_TRY(require(memcmp(all + r * bytes, truth, (size_t)bytes) == 0,
                       "collected of rank", r));
    }
    return CP_OK;
}

/* A group at work: small and large items, a plan that all share and one on
 * which one rank differs, and a user who types more slowly than the timeout. */
static cp_status become_a_group(const cp_process_group *group, int64_t unused) {
    static const int64_t sizes[] = {1, 0, 7, 488, 489, 100003, 5000000};
    static unsigned char all[3 * 5000000], truth[5000000];
    char *words[] = {"rank", "same"};
    char *differing[] = {"rank", group->rank == 1 ? "b" : "a"};
    void *text = group->rank == 0 ? strdup("hello") : NULL;
    int64_t bytes = 6;
    int pipes[2];
    (void)unused;
    CP_TRY(cp_agree_on_arguments(2, words));
    for (int i = 0; i < 7; i++)
        CP_TRY(exchange_bytes(group, sizes[i], all, truth));
    CP_TRY(require(pipe(pipes) == 0, "no pipe", 0));
    if (group->rank == 0 && fork() == 0) {
        sleep((unsigned)wait_limit() + 2);
        _exit(write(pipes[1], "x", 1) != 1);
    }
    CP_TRY(cp_process_group_await(pipes[0]));
    CP_TRY(cp_process_group_broadcast(CP_OK, NULL, 0, &text, &bytes));
    CP_TRY(require(strcmp(text, "hello") == 0, "not the word", bytes));
    free(text);
    return require(cp_agree_on_arguments(2, differing) == CP_INVALID,
                   "the same words", 0);
}

static cp_status differ(const cp_process_group *group, int64_t way) {
    char items[100 * 8] = {0};
    const bool other = group->rank == 1;
    if (way == 0 && other)
        return cp_fail(CP_FILE, "no such thing");
    if (way == 1 && other)
        return group->broadcast(items, 80);
    if (way == 3 && other)
        kill(getpid(), SIGKILL);
    if (way == 4 && other)
        sleep((unsigned)wait_limit() + 3);
    cp_status status = group->all_gather(items, way == 2 && other ? 96 : 80);
    if (way == 5 && other)
        exit(0);
    return status;
}

static cp_status start_only(const cp_process_group *group, int64_t unused) {
    (void)group, (void)unused;
    return CP_OK;
}

/* Ranks 1 and 2 are killed one after the other, before they collect; the last
 * message of rank 1 reaches all ranks except rank 0. */
static cp_status shrink_twice(const cp_process_group *group, int64_t unused) {
    static const int lost_one_by_one[] = {1, 1};
    int64_t world_ranks[4], lost = 0;
    const int world_rank = group->rank;
    (void)unused;
    CP_TRY(require(!group->shrink(&(int){0}), "shrunk", 0));
    for (int n = 0; n < 35; n++) {
        if (n == 6 && world_rank == 0)
            emulator_drop_message(1, 0, 1);
        if (n % 15 == 7 && world_rank == 1 + n / 15)
            kill(getpid(), SIGKILL);
        world_ranks[group->rank] = world_rank;
        const cp_status status =
            group->all_gather(world_ranks, sizeof(world_ranks[0]));
        int rank = -1;
        if (status == CP_OK && world_ranks[group->ranks - 1] == 3)
            continue;
        if (lost == 2 || !group->shrink(&rank))
            return status != CP_OK ? status : require(false, "wrong", n);
        CP_TRY(require(rank == lost_one_by_one[lost++], "lost", rank));
    }
    return require(lost == 2 && group->ranks == 2, "ranks", group->ranks);
}

static const struct {
    const char *name;
    cp_status (*play)(const cp_process_group *group, int64_t way);
    int64_t way;
} group_scenes[] = {
    {"shrinks", shrink_twice, 0}, {"group", become_a_group, 0},
    {"starts", start_only, 0},    {"fails", differ, 0},
    {"shares", differ, 1},        {"sizes", differ, 2},
    {"killed", differ, 3},        {"sleeps", differ, 4},
    {"exits", differ, 5},
};

static const cp_process_group *own_group;
static cp_nccl *own_world;
static cp_status outcome = CP_BROKEN;

static cp_status play_by_name(void) {
    for (int i = 0; i < COUNT_OF(group_scenes); i++)
        if (strcmp(scene, group_scenes[i].name) == 0)
            return group_scenes[i].play(own_group, group_scenes[i].way);
    return converse_in_groups(own_world, strcmp(scene, "grid") == 0 ? 2 : 1);
}

static void play_the_scene(int unused) {
    (void)unused;
    outcome = play_by_name();
}

/* The talk asserts as it runs, which Check allows only inside a test. */
static cp_status run_as_test(void) {
    static const TTest test = {"a scene", play_the_scene, __FILE__, __LINE__};
    Suite *suite = suite_create("a rank");
    TCase *tests = tcase_create("a rank");
    SRunner *runner = srunner_create(suite);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, &test);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    srunner_free(runner);
    return outcome;
}

static cp_status join_group(double timeout, cp_process_group *group) {
    cp_launch launch;
    int devices = 0;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(cp_launch_read(&launch));
    CP_TRY(cp_cuda(cudaSetDevice(launch.rank % devices), "a device"));
    return cp_nccl_group_join(&launch, timeout, strcmp(scene, "shrinks") == 0,
                              &own_world, group);
}

static int play_rank(const char *name) {
    cp_process_group group;
    scene = name;
    emulator_begin(&(emulator_options){.seed = 1, .open = true, .timeout = 20});
    if (join_group(timeout_of(name), &group) != CP_OK) {
        fprintf(stderr, "longring: %s\n", cp_message());
        return 1;
    }
    cp_process_group_set(&group);
    own_group = &group;
    const cp_status status = run_as_test();
    if (status != CP_OK && group.rank == 0)
        fprintf(stderr, "longring: %s\n", cp_message());
    const int fault = strcmp(name, "leave") == 0 && group.rank == 1 ? 2 : 0;
    const int left = group.leave(status != CP_OK ? 1 : fault);
    cp_nccl_free(own_world);
    return left;
}

/* A socket that holds a free port of this host. */
static int hold_port(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(held, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(listen(held, 1), 0);
    getsockname(held, (struct sockaddr *)&address, &size);
    *port = ntohs(address.sin_port);
    return held;
}

static const struct {
    int ranks;
    const char *scene;
    int end, other; /* exit status of all ranks except rank 1; of rank 1 */
    const char *expected; /* in the output of all, %g: timeout; NULL: empty */
    int come;             /* how many ranks come; 0: all */
    bool taken;           /* the port is in use */
    int also;             /* exit status of rank 2 */
} plays[] = {
    {1, .scene = "alone"},
    {2, .scene = "talk"},
    {4, .scene = "talk"},
    {4, .scene = "grid"},
    {3, "leave", 2, 2, .expected = "longring: rank 1: "},
    {3, "fails", 1, 1, .expected = "longring: rank 1 has left: no such thing"},
    {3, "shares", 1, 1,
     .expected = "in operation 0 rank 0 has a gather of 80 bytes, rank 1 a "
                 "broadcast of"},
    {3, "sizes", 1, 1, .expected = "rank 1 a gather of 96"},
    {4, "death", 1, -SIGKILL, .expected = "longring: rank 0"},
    {3, "killed", 1, -SIGKILL, .expected = "longring: rank 0"},
    {3, "exits", 1, .expected = ": NCCL: remote process exited"},
    /* These wait for a long time. */
    {4, "shrinks", 0, -SIGKILL, .also = -SIGKILL},
    {3, .scene = "group"},
    {3, "sleeps", 1, 1,
     .expected = " timed out after %g s while gathering the ranks'"},
    {3, "timed out", 1, 1, .come = 2,
     .expected =
         "timed out after %g s while joining; rank 0 is expected at 127"},
    {3, "taken", 1, 1, .taken = true,
     .expected = "longring: rank 0, joining: NCCL: unhandled system"},
};
enum { PLAYS = COUNT_OF(plays), SHORT_PLAYS = PLAYS - 5 };

typedef struct {
    pid_t players[MOST_PROCESSES];
    int come, held, output_file;
} started_process;

static started_process start_play(int n) {
    char path[] = "/tmp/longring-nccl-XXXXXX";
    int port;
    started_process play = {.come =
                                plays[n].come ? plays[n].come : plays[n].ranks,
                            .held = hold_port(&port),
                            .output_file = mkostemp(path, O_CLOEXEC)};
    unlink(path);
    if (!plays[n].taken)
        close(play.held);
    for (int r = 0; r < play.come; r++)
        play.players[r] = start_rank(r, plays[n].ranks, port, plays[n].scene,
                                     play.output_file);
    return play;
}

/* Check that all processes of a play end as expected, with the expected
 * output. */
static void end_play(int n, started_process *play) {
    const char *scene_of = plays[n].scene;
    static char output[1 << 13], expected[100];
    int ends[MOST_PROCESSES]; /* exit statuses; -9: killed */
    for (int r = 0; r < play->come; r++) {
        int status = 0;
        waitpid(play->players[r], &status, 0);
        ends[r] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    const ssize_t length =
        pread(play->output_file, output, sizeof(output) - 1, 0);
    output[length > 0 ? length : 0] = '\0';
    close(play->output_file);
    if (plays[n].taken)
        close(play->held);
    for (int r = 0; r < play->come; r++)
        ck_assert_msg(ends[r] == (r == 1                    ? plays[n].other
                                  : r == 2 && plays[n].also ? plays[n].also
                                                            : plays[n].end),
                      "%s: rank %d of %d ends with %d: %s", scene_of, r,
                      plays[n].ranks, ends[r], output);
    /* The address sanitizer prints its own line about fibers. */
    const bool silent =
        output[0] == '\0' || (HARNESS_SANITIZED && !strstr(output, "longring"));
    if (plays[n].expected != NULL)
        snprintf(expected, sizeof(expected), plays[n].expected, wait_limit());
    ck_assert_msg(plays[n].expected == NULL ? silent
                                            : strstr(output, expected) != NULL,
                  "%s: %s", scene_of, output);
}

static void measure_start(void) {
    char digits[24];
    int port;
    close(hold_port(&port));
    const double began = cp_clock();
    waitpid(start_rank(0, 1, port, "starts", STDERR_FILENO), NULL, 0);
    snprintf(digits, sizeof(digits), "%.3f", cp_clock() - began);
    setenv(START_SECONDS, digits, 1);
}

AROUND_ALL(measure_start, NULL);

/* GPUs take their time to begin. */
#define LIMIT (emulator_pretends() ? 20 : 120)

LOOP_FOR(LIMIT, processes_join_and_end_together, 0, SHORT_PLAYS) {
    started_process play = start_play(_i);
    end_play(_i, &play);
}

/* At the same time, since they mostly wait; but one by one on a GPU, which
 * takes long to start many processes. */
LOOP_FOR(LIMIT, waiting_ranks_time_out, 0, 1) {
    started_process play[PLAYS];
    for (int n = SHORT_PLAYS; n < PLAYS; n++) {
        play[n] = start_play(n);
        if (!emulator_pretends())
            end_play(n, &play[n]);
    }
    for (int n = SHORT_PLAYS; n < PLAYS && emulator_pretends(); n++)
        end_play(n, &play[n]);
}

TEST(rank_0_must_be_somewhere) {
    const cp_launch launch = {.launcher = "PMI", .ranks = 2};
    cp_nccl *world;
    cp_process_group group;
    refuses(cp_nccl_group_join(&launch, 1, true, &world, &group), CP_INVALID,
            "set MASTER_ADDR");
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "--rank") == 0)
        return play_rank(words[2]);
    int devices = 0;
    if (!emulator_pretends() && cp_device_count(&devices) != CP_OK) {
        fprintf(stderr, "%s\n", cp_message());
        return 1;
    }
    return harness_run();
}
