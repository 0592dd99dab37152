/* Processes that find each other, and the environment that they find. Each
 * scene forks its ranks; they meet over this machine's sockets. */
#define _DEFAULT_SOURCE

#include "harness/suite.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ring/agree.h"
#include "ring/cache.h"
#include "ring/meet.h"
#include "ring/variants.h"
#include "ring/wire.h"

typedef struct {
    cp_status status;
    int left;       /* what leave has returned; -1: never left */
    double seconds; /* that it took */
    char message[512];
} report;

enum { MOST = 8 };

typedef struct {
    int ranks;
    cp_meet_options options; /* rank 0's; others' but for rank */
    void (*prepare)(int who, cp_meet_options *own); /* before it meets */
    cp_status (*play)(const cp_crew *crew, int64_t what);
    int64_t what;
    int fails; /* exit status with which rank 1 leaves */
    /* What it came to. */
    report *reports; /* [MOST] */
    pid_t players[MOST];
    int words; /* a file: what was said on stderr */
    char said[1000];
} scene;

static const scene *current; /* in a rank */

static void play_rank(const scene *it, int who) {
    cp_meet_options own = it->options;
    report *mine = &it->reports[who];
    cp_crew crew;
    const double began = cp_clock();
    alarm(15);
    dup2(it->words, 2);
    current = it;
    own.launch.rank = who;
    if (it->prepare != NULL)
        it->prepare(who, &own);
    mine->left = -1;
    mine->status = cp_meet(&own, &crew);
    const bool met = mine->status == CP_OK;
    if (met) {
        cp_crew_join(&crew);
        mine->status = it->play(&crew, it->what);
    }
    snprintf(mine->message, sizeof(mine->message), "%s",
             mine->status == CP_OK ? "" : cp_message());
    if (met && crew.leave != NULL)
        mine->left = crew.leave(mine->status != CP_OK ? 1
                                : who == 1            ? it->fails
                                                      : 0);
    mine->seconds = cp_clock() - began;
    _exit(0);
}

static void begin_scene(scene *it) {
    char path[] = "/tmp/longring-start-XXXXXX";
    it->words = mkstemp(path);
    unlink(path);
    it->reports = mmap(NULL, MOST * sizeof(report), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(it->reports != MAP_FAILED && it->words >= 0);
    for (int r = 0; r < it->ranks; r++)
        if ((it->players[r] = fork()) == 0)
            play_rank(it, r);
}

static void end_scene(scene *it) {
    for (int r = 0; r < it->ranks; r++)
        waitpid(it->players[r], NULL, 0);
    const ssize_t length = pread(it->words, it->said, sizeof(it->said) - 1, 0);
    it->said[length > 0 ? length : 0] = '\0';
    close(it->words);
}

static void play(scene *it) {
    begin_scene(it);
    end_scene(it);
}

static int free_port(void) {
    int port = 0, listener;
    ck_assert_int_eq(cp_wire_listen("127.0.0.1", &port, &listener), CP_OK);
    close(listener);
    return port;
}

static bool has_ipv6(void) {
    int port = 0, listener, first = 0;
    char why[128];
    if (cp_wire_listen("::1", &port, &listener) != CP_OK)
        return false;
    const int line = cp_wire_call("::1", port, &first, 1, why);
    close(listener);
    if (line >= 0)
        close(line);
    return line >= 0;
}

static scene scene_of(int ranks, const char *address) {
    if (address != NULL && strcmp(address, "::1") == 0 && !has_ipv6())
        address = "127.0.0.1";
    scene it = {.ranks = ranks, .options = {.patience = 8}};
    it.options.launch = (cp_launch){.launcher = "a test",
                                    .ranks = ranks,
                                    .locals = ranks,
                                    .address = address,
                                    .port = free_port()};
    return it;
}

static cp_status require(bool holds, const char *what, int64_t number) {
    return holds ? CP_OK
                 : cp_fail(CP_BROKEN, "%s (%lld)", what, (long long)number);
}

static cp_status agree_on(int64_t tokens) {
    cp_cache *cache = NULL;
    cp_layout *layout = NULL;
    cp_plan *plan = NULL;
    const cp_shape shape = {2, 1, 4};
    const cp_plan_options options = {4, 1};
    cp_status status = cp_cache_new(2, 1, 100, &cache);
    if (status == CP_OK)
        status = cp_cache_prefill(cache, &tokens, &layout);
    if (status == CP_OK)
        status = cp_plan_build(CP_PASS_KV, layout, &shape, &options, &plan);
    if (status == CP_OK)
        status = cp_crew_agree(plan, 7);
    cp_plan_free(plan);
    cp_layout_free(layout);
    cp_cache_free(cache);
    return status;
}

static cp_status agree(const cp_crew *crew) {
    cp_status status = agree_on(40);
    if (status == CP_OK && crew->ranks > 1)
        status = require(agree_on(crew->rank == 1 ? 41 : 40) == CP_BROKEN &&
                             strstr(cp_message(), "rank 1 has 41 new tokens") !=
                                 NULL,
                         "no disagreement", crew->rank);
    return status;
}

static void fill(unsigned char *bytes, int64_t count, int64_t seed) {
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)((i * 31 + seed * 17) % 251);
}

static cp_status share_and_collect(const cp_crew *crew, int64_t bytes) {
    unsigned char *all = malloc((size_t)(bytes * crew->ranks + 1));
    unsigned char *truth = malloc((size_t)bytes + 1);
    memset(all, 0xFF, (size_t)(bytes * crew->ranks));
    fill(truth, bytes, bytes);
    if (crew->rank == 0)
        memcpy(all, truth, (size_t)bytes);
    cp_status status = crew->share(all, bytes);
    if (status == CP_OK)
        status =
            require(memcmp(all, truth, (size_t)bytes) == 0, "shared", bytes);
    memset(all, 0xFF, (size_t)(bytes * crew->ranks));
    fill(all + crew->rank * bytes, bytes, crew->rank);
    if (status == CP_OK)
        status = crew->collect(all, bytes);
    for (int r = 0; r < crew->ranks && status == CP_OK; r++) {
        fill(truth, bytes, r);
        status = require(memcmp(all + r * bytes, truth, (size_t)bytes) == 0,
                         "collected of rank", r);
    }
    free(all);
    free(truth);
    return status;
}

static cp_status talk_well(const cp_crew *crew, int64_t what) {
    static const int64_t sizes[] = {1, 0, 7, 100003, 2000000};
    int local = -1, locals = -1;
    cp_status status = CP_OK;
    (void)what;
    for (int i = 0;
         i < (crew->ranks > 3 ? 4 : 5) && crew->ranks > 1 && status == CP_OK;
         i++)
        status = share_and_collect(crew, sizes[i]);
    if (status == CP_OK)
        status = cp_crew_local(&local, &locals);
    if (status == CP_OK)
        status = require(local == crew->rank && locals == crew->ranks,
                         "local ranks", locals);
    return status == CP_OK ? agree(crew) : status;
}

static void come_late(int who, cp_meet_options *own) {
    const struct timespec nap = {0, 120000000};
    if (who == own->launch.ranks / 2)
        nanosleep(&nap, NULL);
}

static void come_first(int who, cp_meet_options *own) {
    const struct timespec nap = {0, 120000000};
    (void)own;
    if (who == 0)
        nanosleep(&nap, NULL);
}

static void all_are_well(const scene *it) {
    for (int r = 0; r < it->ranks; r++)
        ck_assert_msg(it->reports[r].status == CP_OK &&
                          it->reports[r].left <= 0,
                      "rank %d of %d: %s; %s", r, it->ranks,
                      it->reports[r].message, it->said);
    ck_assert_str_eq(it->said, "");
}

static cp_status share_often(const cp_crew *crew, int64_t what) {
    int64_t word = 0;
    cp_status status = CP_OK;
    (void)what;
    for (int i = 0; i < 500 && status == CP_OK; i++)
        status = crew->share(&word, sizeof(word));
    return status;
}

static char file[64];

static const char *old_file(void) {
    snprintf(file, sizeof(file), "/tmp/longring-start-%ld", (long)getpid());
    FILE *out = fopen(file, "w");
    fprintf(out, "longring 1\n0123456789abcdef\n%d\n127.0.0.1\n", free_port());
    fclose(out);
    return file;
}

START_TEST(ranks_meet_and_talk) {
    static const int ranks[] = {1, 2, 3, 5, 8};
    static const char *const doors[] = {"127.0.0.1", "localhost", "::1", NULL};
    scene it = scene_of(ranks[_i % 5], doors[_i / 5]);
    it.play = talk_well;
    it.prepare = _i % 2 ? come_late : come_first;
    if (it.options.launch.address == NULL)
        it.options.file = old_file();
    play(&it);
    all_are_well(&it);
    ck_assert(it.ranks == 1 || access(file, F_OK) != 0);
    remove(file);
}
END_TEST

START_TEST(sharing_rests_nowhere) {
    scene it = scene_of(2, "127.0.0.1");
    it.play = share_often;
    play(&it);
    all_are_well(&it);
    ck_assert_double_le(it.reports[0].seconds, 0.45);
}
END_TEST

static void all_say(const scene *it, const char *words, int except) {
    for (int r = 0; r < it->ranks; r++)
        if (r != except)
            ck_assert_msg(it->reports[r].status != CP_OK &&
                              strstr(it->reports[r].message, words) != NULL,
                          "rank %d: '%s', not '%s'", r, it->reports[r].message,
                          words);
}

static cp_status nothing(const cp_crew *crew, int64_t what) {
    (void)crew, (void)what;
    return CP_OK;
}

static void rest(double seconds) {
    usleep((useconds_t)(seconds * 1e6));
}

static void never_come(int who, cp_meet_options *own) {
    (void)own;
    if (who == 2 || who == 4)
        _exit(0);
}

static scene some_never_come(int way) {
    scene it = scene_of(5, way == 0 ? "::1" : NULL);
    it.options.file = way == 0 ? NULL : old_file();
    it.options.patience = 0.7;
    it.prepare = never_come;
    it.play = nothing;
    return it;
}

static void they_are_named(const scene *it) {
    for (int r = 0; r < 4; r++)
        ck_assert_msg(r == 2 || strstr(it->reports[r].message,
                                       "within 0.7 s: 2, 4") != NULL,
                      "%s", it->reports[r].message);
    ck_assert_double_le(it->reports[3].seconds, 2.5);
}

static void answer_wrongly(int port, int64_t way) {
    char line[64] = "HTTP/1.1 400 Bad Request, and more of that kind\r\n\r\n";
    const double end = cp_clock() + 1.2;
    int listener;
    cp_wire_listen("127.0.0.1", &port, &listener);
    while (cp_clock() < end) {
        struct pollfd one = {.fd = listener, .events = POLLIN};
        poll(&one, 1, 100);
        const int caller = cp_wire_accept(listener);
        if (caller >= 0 && way == 2)
            cp_wire_put(caller, line, sizeof(line), 1);
        if (caller >= 0 && way != 3)
            close(caller);
    }
}

static void be_no_rank_0(int who, cp_meet_options *own) {
    if (who == 0 && current->what > 0)
        answer_wrongly(own->launch.port, current->what);
    if (who == 0)
        _exit(0);
}

static scene no_rank_0(int way) {
    scene it = scene_of(2, "127.0.0.1");
    it.options.patience = 0.8;
    it.prepare = be_no_rank_0;
    it.what = way;
    return it;
}

static void it_is_not_reached(const scene *it) {
    all_say(it, "rank 1 has not reached rank 0 at 127.0.0.1, port", 0);
    all_say(it, it->what == 0 ? "Connection refused" : "is not rank 0", 0);
    ck_assert_double_le(it->reports[1].seconds, 2);
}

static void be_rank_1_too(int who, cp_meet_options *own) {
    if (who != 2)
        return;
    rest(0.1);
    own->launch.rank = 1;
}

static scene one_comes_twice(int way) {
    scene it = scene_of(3, "127.0.0.1");
    (void)way;
    it.options.patience = 1;
    it.prepare = be_rank_1_too;
    it.play = nothing;
    return it;
}

static void it_is_sent_away(const scene *it) {
    all_say(it, "have not come", 2);
    all_say(it, ": 2, but somebody called itself rank 1 a second time", 2);
    ck_assert_msg(strstr(it->reports[2].message, "that rank is here already") !=
                      NULL,
                  "%s", it->reports[2].message);
}

static void be_otherwise(int who, cp_meet_options *own) {
    if (who != 2)
        return;
    rest(0.1);
    own->launch.job += current->what == 0;
    own->launch.ranks += current->what == 1;
    own->words += current->what == 2;
}

static scene one_is_not_of_us(int way) {
    scene it = scene_of(3, "127.0.0.1");
    it.options.patience = way == 0 ? 1 : 8;
    it.prepare = be_otherwise;
    it.play = nothing;
    it.what = way;
    return it;
}

static void all_are_told(const scene *it) {
    static const char *const words[] = {
        "these have not come to port ",
        "the ranks disagree: rank 2 is one of 4, rank 0 one of 3",
        "the ranks disagree: rank 2 was started with other words than rank 0"};
    all_say(it, words[it->what], it->what == 0 ? 2 : -1);
    ck_assert_double_le(it->reports[0].seconds, 3);
    ck_assert(it->what > 0 ||
              strstr(it->reports[2].message, "of another run") != NULL);
}

static void kill_rank_1(int who, cp_meet_options *own) {
    (void)own;
    if (who != 2)
        return;
    rest(0.3);
    kill(current->players[1], SIGKILL);
    rest(0.3);
}

static scene one_is_killed_at_the_door(int way) {
    scene it = scene_of(3, "127.0.0.1");
    (void)way;
    it.options.patience = 1.5;
    it.prepare = kill_rank_1;
    it.play = nothing;
    return it;
}

static void it_is_missed_at_once(const scene *it) {
    ck_assert_str_eq(it->reports[0].message,
                     "rank 1 has gone before all had come");
    ck_assert_double_le(it->reports[0].seconds, 1.2);
    ck_assert_int_ne(it->reports[2].status, CP_OK);
}

static cp_status stand_still(const cp_crew *crew, int64_t who) {
    int64_t items[MOST] = {0};
    crew->patience(who == 0 ? 0.3 : 0.5);
    if (crew->rank == who)
        rest(who == 0 ? 2.8 : 1.5);
    return who == 0 ? crew->share(items, sizeof(*items))
                    : crew->collect(items, sizeof(*items));
}

static scene one_stands_still(int way) {
    scene it = scene_of(3, "127.0.0.1");
    it.play = stand_still;
    it.what = way;
    return it;
}

static void it_is_not_waited_for(const scene *it) {
    if (it->what == 2)
        all_say(it, "rank 0 waited for rank 2 to collect, in vain for 0.5 s",
                -1);
    else
        all_say(it, "waited for rank 0 to share something, in vain", 0);
    ck_assert_double_le(it->reports[1].seconds, 4);
}

static cp_status hear_a_word(const cp_crew *crew, int64_t what) {
    int pipes[2];
    int64_t bytes = 6;
    void *text = crew->rank == 0 ? strdup("hello") : NULL;
    (void)what;
    crew->patience(0.5);
    if (pipe(pipes) != 0)
        return CP_FILE;
    if (crew->rank == 0 && fork() == 0) {
        sleep(3);
        _exit(write(pipes[1], "x", 1) != 1);
    }
    cp_status status = cp_crew_await(pipes[0]);
    if (status == CP_OK)
        status = cp_crew_share(CP_OK, NULL, 0, &text, &bytes);
    if (status == CP_OK)
        status = require(strcmp(text, "hello") == 0, "not the word", bytes);
    free(text);
    return status;
}

static scene somebody_types(int way) {
    scene it = scene_of(3, "127.0.0.1");
    (void)way;
    it.play = hear_a_word;
    return it;
}

static const struct {
    scene (*make)(int way);
    int way;
    void (*look)(const scene *it);
} waiting[] = {
    {some_never_come, 0, they_are_named},
    {some_never_come, 1, they_are_named},
    {no_rank_0, 0, it_is_not_reached},
    {no_rank_0, 1, it_is_not_reached},
    {no_rank_0, 2, it_is_not_reached},
    {no_rank_0, 3, it_is_not_reached},
    {one_comes_twice, 0, it_is_sent_away},
    {one_is_not_of_us, 0, all_are_told},
    {one_is_not_of_us, 1, all_are_told},
    {one_is_not_of_us, 2, all_are_told},
    {one_is_killed_at_the_door, 0, it_is_missed_at_once},
    {one_stands_still, 0, it_is_not_waited_for},
    {one_stands_still, 2, it_is_not_waited_for},
    {somebody_types, 0, all_are_well},
};
enum { WAITING = sizeof(waiting) / sizeof(waiting[0]) };

START_TEST(patience_is_bounded_and_says_for_whom) {
    static scene scenes[WAITING];
    for (int i = 0; i < WAITING; i++) {
        scenes[i] = waiting[i].make(waiting[i].way);
        begin_scene(&scenes[i]);
    }
    for (int i = 0; i < WAITING; i++)
        end_scene(&scenes[i]);
    for (int i = 0; i < WAITING; i++)
        waiting[i].look(&scenes[i]);
    remove(file);
}
END_TEST

static void knock(int port, int way) {
    static const char *const words[] = {
        "", "GET / HTTP/1.1\r\n\r\n", "longring",
        "longrinG, and nonsense longer than any greeting would be"};
    static const char zeros[64];
    char why[128];
    for (int i = 0; i < 60; i++) {
        int n = 0;
        const int line = cp_wire_call("127.0.0.1", port, &n, 1, why);
        if (line < 0)
            rest(0.005);
        else if (way < 4)
            cp_wire_put(line, words[way], (int64_t)strlen(words[way]), 1);
        else
            cp_wire_put(line, zeros, sizeof(zeros), 1);
        if (i % 3 == 0 && line >= 0)
            close(line);
    }
}

static void come_behind_strangers(int who, cp_meet_options *own) {
    if (who != 1)
        return;
    for (int way = 0; way < 5; way++)
        knock(own->launch.port, way);
}

START_TEST(strangers_are_not_listened_to) {
    scene it = scene_of(3, "127.0.0.1");
    it.prepare = come_behind_strangers;
    it.play = talk_well;
    play(&it);
    all_are_well(&it);
    ck_assert_double_le(it.reports[2].seconds, 4);
}
END_TEST

START_TEST(what_cannot_be_fails_at_once) {
    scene it = scene_of(3, NULL);
    cp_crew crew;
    int listener;
    ck_assert_int_eq(cp_meet(&it.options, &crew), CP_INVALID);
    ck_assert_ptr_nonnull(strstr(cp_message(), "set MASTER_ADDR"));
    it.options.file = "/no/such/folder/file";
    ck_assert_int_eq(cp_meet(&it.options, &crew), CP_FILE);
    ck_assert_ptr_nonnull(strstr(cp_message(), "/no/such/folder/file"));
    it.options.file = NULL;
    it.options.launch.address = "127.0.0.1";
    cp_wire_listen("127.0.0.1", &it.options.launch.port, &listener);
    ck_assert_int_eq(cp_meet(&it.options, &crew), CP_FILE);
    ck_assert_ptr_nonnull(strstr(cp_message(), "Address already in use"));
    it.options.launch.ranks = 5000;
    ck_assert_int_eq(cp_meet(&it.options, &crew), CP_INVALID);
    it.options.patience = -1;
    ck_assert_int_eq(cp_meet(&it.options, &crew), CP_INVALID);
}
END_TEST

static cp_status die_somewhere(const cp_crew *crew, int64_t what) {
    int64_t items[MOST] = {0};
    const int victim = (int)(what / 2);
    for (int round = 0; round < 3; round++) {
        const cp_status status = crew->share(items, sizeof(*items));
        if (status != CP_OK)
            return status;
        if (round == 1 && crew->rank == victim && what % 2 == 0)
            kill(getpid(), SIGKILL);
    }
    if (crew->rank == victim)
        kill(getpid(), SIGKILL);
    cp_status status = crew->collect(items, sizeof(*items));
    for (int more = 0; more < 3 && status == CP_OK; more++)
        status = crew->collect(items, sizeof(*items));
    return status;
}

START_TEST(survivors_of_a_killed_rank_end) {
    static const int victims[] = {0, 1, 3};
    const int victim = victims[_i / 2];
    char words[64];
    scene it = scene_of(4, "127.0.0.1");
    it.play = die_somewhere;
    it.what = victim * 2 + _i % 2;
    play(&it);
    snprintf(words, sizeof(words), "rank %d is gone", victim);
    all_say(&it, words, victim);
    for (int r = 0; r < 4; r++) {
        ck_assert_double_le(it.reports[r].seconds, 3);
        ck_assert(r == victim || it.reports[r].left == 1);
    }
    ck_assert_msg(victim > 0 ||
                      strstr(it.said, "longring: rank 3 ends: rank 0 is gone"),
                  "%s", it.said);
}
END_TEST

static cp_status share_on(const cp_crew *crew) {
    int64_t word = 0;
    cp_status status = CP_OK;
    for (int i = 0; i < 30 && status == CP_OK; i++) {
        rest(crew->rank == 0 ? 0.01 : 0);
        status = crew->share(&word, sizeof(word));
    }
    return status;
}

static cp_status differ(const cp_crew *crew, int64_t way) {
    char items[MOST * 100] = {0};
    const bool other = crew->rank == 1;
    if ((way == 2 || way == 4) && other)
        return cp_fail(CP_FILE, "no such thing");
    if (way % 2 == 1 && other)
        return crew->collect(items, way == 1 ? 96 : 80);
    if (way == 3 && crew->rank == 0)
        rest(0.1);
    if (way == 4)
        return share_on(crew);
    cp_status status = way % 2 == 1 ? crew->share(items, 80)
                                    : crew->collect(items, other ? 96 : 80);
    if (status == CP_OK)
        status = crew->collect(items, 80);
    return status;
}

START_TEST(ranks_that_do_different_things_are_told) {
    static const char *const words[] = {
        "in operation 1 rank 0 expects a collection of 80 bytes, rank 1 has a ",
        "the ranks disagree: in operation ", "no such thing",
        "rank 0 expects a share of 80 bytes, rank 1 has a collection of 80 ",
        "no such thing"};
    scene it = scene_of(3, "127.0.0.1");
    it.play = differ;
    it.what = _i;
    play(&it);
    all_say(&it, words[_i], -1);
    for (int r = 0; r < 3; r++)
        ck_assert_int_eq(it.reports[r].left, 1);
    if (_i == 2 || _i == 4)
        ck_assert_str_eq(it.reports[0].message,
                         "rank 1 has left: no such thing");
}
END_TEST

static void do_nothing(int signal_) {
    (void)signal_;
}

static void be_interrupted(int who, cp_meet_options *own) {
    const struct sigaction action = {.sa_handler = do_nothing};
    const pid_t rank = getpid();
    (void)who, (void)own;
    sigaction(SIGUSR1, &action, NULL);
    if (fork() == 0) {
        while (getppid() == rank && kill(rank, SIGUSR1) == 0)
            usleep(500);
        _exit(0);
    }
}

START_TEST(signals_interrupt_nothing) {
    scene it = scene_of(3, "::1");
    it.prepare = be_interrupted;
    it.play = talk_well;
    play(&it);
    all_are_well(&it);
}
END_TEST

static cp_status vanish(const cp_crew *crew, int64_t who) {
    if (crew->rank == who)
        _exit(0);
    return CP_OK;
}

START_TEST(all_leave_with_one_status) {
    scene it = scene_of(4, "127.0.0.1");
    it.play = _i == 0 ? nothing : vanish;
    it.fails = _i == 0 ? 2 : 0;
    it.what = 3;
    play(&it);
    for (int r = 0; r < (_i == 0 ? 4 : 3); r++)
        ck_assert_int_eq(it.reports[r].left, _i == 0 ? 2 : 1);
    ck_assert_str_eq(it.said,
                     _i == 0 ? "longring: rank 1: \n"
                             : "longring: rank 3 has gone without a word\n");
}
END_TEST

static char *own_path; /* the same from / on */

static int play_on_a_host(const char *path) {
    cp_meet_options options = {.file = path, .patience = 8};
    cp_crew crew;
    int local = -1, locals = -1;
    cp_status status = cp_launch_read(&options.launch);
    if (status == CP_OK)
        status = cp_meet(&options, &crew);
    if (status != CP_OK) {
        fprintf(stderr, "%s\n", cp_message());
        return 1;
    }
    cp_crew_join(&crew);
    status = share_and_collect(&crew, 100003);
    if (status == CP_OK)
        status = cp_crew_local(&local, &locals);
    if (status == CP_OK)
        status = require(local == options.launch.local && locals == 2 &&
                             crew.ranks == 4,
                         "local rank", local);
    if (status != CP_OK)
        fprintf(stderr, "rank %d: %s\n", crew.rank, cp_message());
    return crew.leave(status != CP_OK);
}

START_TEST(two_hosts_meet_by_a_file) {
    char command[600], text[2000];
    snprintf(command, sizeof(command),
             "timeout 18 tests/harness/two-hosts - 2 %s --rank %s 2>&1",
             own_path, old_file());
    FILE *out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    const size_t length = fread(text, 1, sizeof(text) - 1, out);
    text[length] = '\0';
    const int status = pclose(out);
    remove(file);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        printf("start: two hosts skipped, %s", text);
    else
        ck_assert_msg(status == 0, "status %d: %s", status, text);
}
END_TEST

typedef struct {
    const char *environment; /* "NAME=value NAME=value" */
    cp_launch expected;
    const char *error; /* in the message; NULL: none */
} launch_case;

static const launch_case launches[] = {
    {"", {NULL, 0, 1, 0, 1, NULL, 0, 0}, NULL},
    /* What torchrun and mpirun leave. */
    {"RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node-0 "
     "MASTER_PORT=1234",
     {"torchrun", 5, 16, 1, 4, "node-0", 1234, 0},
     NULL},
    {"RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node-0 "
     "MASTER_PORT=1234 TORCHELASTIC_USE_AGENT_STORE=True",
     {"torchrun", 5, 16, 1, 4, "node-0", 1235, 0},
     NULL},
    {"RANK=0 WORLD_SIZE=2", {"torchrun", 0, 2, -1, 0, NULL, 0, 0}, NULL},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "
     "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "SLURM_PROCID=0 SLURM_NTASKS=1 PMIX_RANK=1",
     {"Open MPI", 1, 2, 1, 2, "127.0.0.1", 29500, 0},
     NULL},
    {"PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 "
     "MASTER_ADDR=::1",
     {"MPICH", 3, 4, 1, 2, "::1", 29500, 0},
     NULL},
    {"PMI_RANK=3 PMI_SIZE=4", {"PMI", 3, 4, -1, 0, NULL, 0, 0}, NULL},
    /* What Slurm leaves. */
    {"SLURM_PROCID=3 SLURM_NTASKS=5 SLURM_LOCALID=0 SLURM_NODEID=1 "
     "SLURM_NTASKS_PER_NODE=3 SLURM_STEP_NODELIST=gpu[03-06,9],x "
     "MASTER_PORT=77 "
     "SLURM_STEP_TASKS_PER_NODE=3,1(x2) SLURM_LAUNCH_NODE_IPADDR=10.0.0.1",
     {"Slurm", 3, 5, 0, 1, "gpu03", 77, 0},
     NULL},
    {"SLURM_PROCID=3 SLURM_NTASKS=5 SLURM_LOCALID=0 SLURM_NTASKS_PER_NODE=4 "
     "SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 PMI_RANK=3 PMI_SIZE=5",
     {"Slurm", 3, 5, 0, 4, "10.0.0.1", 29500, 0},
     NULL},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_NTASKS_PER_NODE=8",
     {"Slurm", 1, 2, 1, 2, "127.0.0.1", 29500, 0},
     NULL},
    {"SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_LOCALID=2 SLURM_TASKS_PER_NODE=8(x2)",
     {"Slurm", 2, 3, 2, 3, "127.0.0.1", 29500, 0},
     NULL},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=nonsense "
     "SLURM_JOB_NODELIST=rack[1-2]n[5,7],y",
     {"Slurm", 1, 2, -1, 0, "rack1n5", 29500, 0},
     NULL},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7",
     {NULL, 0, 1, 0, 1, NULL, 0, 0},
     NULL},
    /* What is wrong. */
    {"RANK=2", {0}, "RANK is set and WORLD_SIZE is not"},
    {"WORLD_SIZE=2", {0}, "WORLD_SIZE is set and RANK is not"},
    {"RANK=2 WORLD_SIZE=2", {0}, "RANK is '2': a number from 0 to 1 is due"},
    {"RANK=-1 WORLD_SIZE=2", {0}, "RANK is '-1'"},
    {"RANK=1x WORLD_SIZE=2", {0}, "RANK is '1x'"},
    {"RANK= WORLD_SIZE=2", {0}, "RANK is ''"},
    {"RANK=0 WORLD_SIZE=99999999999999999999", {0}, "WORLD_SIZE is '999"},
    {"RANK=0 WORLD_SIZE=0", {0}, "WORLD_SIZE is '0'"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", {0}, "LOCAL_RANK is '2'"},
    {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
     {0},
     "LOCAL_RANK is '2': a number from 0 to 1"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", {0}, "LOCAL_WORLD_SIZE is '3'"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=", {0}, "MASTER_ADDR is empty"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65536",
     {0},
     "MASTER_PORT is '65536'"},
    {"OMPI_COMM_WORLD_RANK=1", {0}, "OMPI_COMM_WORLD_SIZE is not"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=a[1-3", {0}, "] is missing"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=,", {0}, "no first node"},
};
enum { LAUNCHES = sizeof(launches) / sizeof(launches[0]) };

static cp_status read_launch(const char *environment, cp_launch *out) {
    char words[512], *rest = words;
    snprintf(words, sizeof(words), "%s", environment);
    clearenv();
    for (char *word = strtok_r(words, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
    return cp_launch_read(out);
}

static bool same_text(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

START_TEST(launchers_are_understood) {
    const launch_case *it = &launches[_i];
    const cp_launch *wanted = &it->expected;
    cp_launch got;
    const cp_status status = read_launch(it->environment, &got);
    if (it->error != NULL) {
        ck_assert_int_eq(status, CP_INVALID);
        ck_assert_msg(strstr(cp_message(), it->error), "%s", cp_message());
        return;
    }
    ck_assert_msg(status == CP_OK, "%s", cp_message());
    ck_assert(same_text(got.launcher, wanted->launcher));
    ck_assert_int_eq(got.rank, wanted->rank);
    ck_assert_int_eq(got.ranks, wanted->ranks);
    ck_assert_int_eq(got.local, wanted->local);
    ck_assert_int_eq(got.locals, wanted->locals);
    ck_assert_msg(same_text(got.address, wanted->address), "%s", got.address);
    ck_assert_int_eq(got.port, wanted->port);
}
END_TEST

START_TEST(jobs_have_numbers) {
    const char *const words = "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7 "
                              "SLURM_JOB_NODELIST=a SLURM_STEP_ID=";
    char other[200];
    cp_launch one, same, next;
    snprintf(other, sizeof(other), "%s1", words);
    ck_assert_int_eq(read_launch(other, &one), CP_OK);
    ck_assert_int_eq(read_launch(other, &same), CP_OK);
    other[strlen(words)] = '2';
    ck_assert_int_eq(read_launch(other, &next), CP_OK);
    ck_assert(one.job == same.job && one.job != next.job && one.job != 0);
    ck_assert_int_ge(one.port, 20000);
    ck_assert_int_lt(one.port, 30000);
    ck_assert_int_ne(one.port, next.port);
}
END_TEST

static Suite *start_suite(void) {
    Suite *suite = suite_create("start");
    TCase *launch = harness_case("environment");
    TCase *meet = harness_case("meeting");
    tcase_add_loop_test(launch, launchers_are_understood, 0, LAUNCHES);
    tcase_add_test(launch, jobs_have_numbers);
    tcase_add_loop_test(meet, ranks_meet_and_talk, 0, 20);
    tcase_add_test(meet, sharing_rests_nowhere);
    tcase_add_test(meet, patience_is_bounded_and_says_for_whom);
    tcase_add_test(meet, strangers_are_not_listened_to);
    tcase_add_test(meet, what_cannot_be_fails_at_once);
    tcase_add_loop_test(meet, survivors_of_a_killed_rank_end, 0, 6);
    tcase_add_loop_test(meet, ranks_that_do_different_things_are_told, 0, 5);
    tcase_add_test(meet, signals_interrupt_nothing);
    tcase_add_loop_test(meet, all_leave_with_one_status, 0, 2);
    tcase_add_test(meet, two_hosts_meet_by_a_file);
    suite_add_tcase(suite, launch);
    suite_add_tcase(suite, meet);
    return suite;
}

int main(int count, char **words) {
    own_path = realpath(words[0], NULL);
    if (count == 3 && strcmp(words[1], "--rank") == 0)
        return play_on_a_host(words[2]);
    return harness_main(start_suite());
}
