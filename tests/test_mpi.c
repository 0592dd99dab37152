/* Ranks as processes, started by mpirun. mpirun starts this same program: with
 * --rank SCENE it plays one rank. */
#define _DEFAULT_SOURCE

#include "reference/run/processes.h"

#include "comm_checks.h"
#include "expect.h"
#include "migration_cases.h"
#include "tests/harness/shell.h"
#include "harness/tiny_gguf.h"
#include "model/backend.h"
#include "group/process_group.h"
#include "app/npy.h"
#include "variants/variants.h"
#include "variants/move.h"

#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static int faults; /* of this rank, over all scenes */

static cp_comm *open_world(double timeout, int64_t piece) {
    cp_comm *comm;
    const cp_mpi_options options = {.timeout = timeout, .piece = piece};
    if (cp_mpi_open(&options, &comm) == CP_OK)
        return comm;
    fprintf(stderr, "open: %s\n", cp_message());
    exit(1);
}

static void play(const comm_scene *scene, int64_t piece) {
    bool is_reporter;
    cp_comm *comm = open_world(scene->timeout > 0 ? scene->timeout : 10, piece);
    if (comm->ranks >= scene->least && comm->ranks <= scene->most) {
        const cp_status status =
            cp_mpi_run(comm, scene->function, (void *)(uintptr_t)scene);
        faults += !comm_scene_ended(scene, comm->ranks, status);
    }
    const int rank = comm->rank, last = cp_mpi_close(comm, 0, &is_reporter);
    if (last == 0 && is_reporter == (rank == 0))
        return;
    fprintf(stderr, "%s: the goodbyes end with %d\n", scene->name, last);
    exit(1);
}

/* The contract, over processes: every scene, whole and in pieces. */
static void play_scenes(void) {
    static const int64_t pieces[] = {0, 100003, 7};
    for (int n = 0; n < COMM_SCENES; n++) {
        comm_scene scene = comm_scenes[n];
        const int last = scene.argument + (scene.times > 0 ? scene.times : 1);
        const int piece_count = scene.heavy || scene.times > 0 ? 1 : 3;
        for (; scene.argument < last; scene.argument++)
            for (int i = 0; i < piece_count; i++)
                play(&scene, scene.times > 8 ? 65536 : pieces[i]);
    }
}

enum { PAGES = 1 << 20 };

static cp_status die_in_a_hop(cp_comm *comm, void *context) {
    static char blocks[2][PAGES];
    (void)context;
    CP_TRY(cp_comm_barrier(comm));
    CP_TRY(pass_on(comm, blocks[0], blocks[1], PAGES));
    if (comm->rank == 1)
        raise(SIGKILL);
    return cp_comm_wait(comm);
}

static int play_death(double timeout) {
    bool is_reporter;
    play(&comm_scenes[2], 0);
    cp_comm *comm = open_world(timeout, 1000);
    const int rank = comm->rank;
    const cp_status status = cp_mpi_run(comm, die_in_a_hop, NULL);
    fprintf(stderr, "survivor %d: %s\n", rank, cp_message());
    const int worst = cp_mpi_close(comm, status == CP_OK ? 0 : 1, &is_reporter);
    fprintf(stderr, "survivor %d: ends\n", worst);
    cp_mpi_end(worst >= 0);
    return 1;
}

/* Rank 1 is silent; rank 2 waits for it, and rank 0 for rank 2. */
static cp_status wait_in_a_chain(cp_comm *comm, void *context) {
    char in[8];
    (void)context;
    if (comm->rank == 1)
        nap(15000);
    CP_TRY(cp_comm_exchange(comm, CP_NO_RANK, NULL, 0, comm->rank == 2 ? 1 : 2,
                            in, 8));
    return cp_comm_wait(comm);
}

static int play_silence(void) {
    bool is_reporter;
    cp_comm *comm = open_world(2, 0);
    const int rank = comm->rank;
    const double start = cp_clock();
    const cp_status status = cp_mpi_run(comm, wait_in_a_chain, NULL);
    const bool named = strstr(cp_message(), "rank 1 is silent") != NULL;
    const int worst = cp_mpi_close(comm, 1, &is_reporter);
    fprintf(stderr, "rank %d%s: %s; after %.1f s: %d, %d\n", rank,
            is_reporter ? " speaks" : "",
            named && cp_clock() - start < 4.5 ? "as it should" : cp_message(),
            cp_clock() - start, status, worst);
    nap(1000); /* the other one, too */
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
    attend_scene attend_scene = {.queries = decode ? 3 : 67};
    attend_scene.keys = attend_scene.queries + 80;
    attend_scene.job = (cp_attend_job){.shape = {4, 2, 32},
                                       .ranks = ranks,
                                       .sequences = 3,
                                       .new_tokens = decode ? ones : fresh,
                                       .turns = turns,
                                       .history = pasts,
                                       .variant = variant};
    attend_scene.job.queries = fill(attend_scene.queries * 4 * 32, 1);
    attend_scene.job.keys = fill(attend_scene.keys * 2 * 32, 2);
    attend_scene.job.values = fill(attend_scene.keys * 2 * 32, 3);
    return attend_scene;
}

static const cp_dealing leafwise = {
    .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};

/* The same with an indexer, which has many equal scores. */
static void choose_keys(attend_scene *attend_scene) {
    const int64_t counts[] = {attend_scene->queries * 2 * 8,
                              attend_scene->queries * 2,
                              attend_scene->keys * 8};
    float *numbers[3];
    for (int n = 0; n < 3; n++) {
        numbers[n] = fill(counts[n], 6 + (uint64_t)n);
        for (int64_t i = 0; i < counts[n]; i++)
            numbers[n][i] = roundf(2 * numbers[n][i]);
    }
    attend_scene->job.indexer = (cp_indexer){2, 8, 6};
    attend_scene->job.index_queries = numbers[0];
    attend_scene->job.index_weights = numbers[1];
    attend_scene->job.index_keys = numbers[2];
}

static void answer(attend_scene *attend_scene, const cp_backend *backend,
                   float *out) {
    attend_scene->job.output = out;
    attend_scene->job.lse = out + attend_scene->queries * 4 * 32;
    memset(out, 0xFF, (size_t)(attend_scene->queries * 4 * 33) * sizeof(float));
    if (backend->attend(&attend_scene->job) == CP_OK)
        return;
    fprintf(stderr, "attend: %s\n", cp_message());
    faults++;
}

static void play_attend(void) {
    const int ranks = cp_process_group_own()->ranks;
    for (int n = 0; n < 3 * (CP_DECODE + 1); n++) {
        const int v = n / 3;
        attend_scene attend_scene = scene_of(ranks, (cp_variant)v);
        if (n % 3 == 1)
            choose_keys(&attend_scene);
        if (n % 3 == 2) {
            attend_scene.job.shape.window = 30;
            attend_scene.job.dealing = leafwise;
        }
        const int64_t floats = attend_scene.queries * 4 * 33;
        float *together = fill(floats, 4), *alone = fill(floats, 5);
        answer(&attend_scene, &cp_backend_threads, alone);
        answer(&attend_scene, &cp_backend_mpi, together);
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
    const int rank = cp_process_group_own()->rank;
    attend_scene attend_scene =
        scene_of(cp_process_group_own()->ranks,
                 rank == 1 && what[0] == 'v' ? CP_PASS_Q : CP_PASS_KV);
    const int64_t other[] = {60, 1, 5};
    if (rank == 1 && what[0] == 'l')
        attend_scene.job.new_tokens = other;
    if (what[0] == 'o')
        attend_scene.job.dealing = leafwise;
    if (what[0] == 'o')
        attend_scene.job.dealing.owners =
            cp_owners_first(cp_process_group_own()->ranks);
    /* A leaf without tokens so far. */
    if (what[0] == 'o' && rank == 1)
        attend_scene.job.dealing.owners.rank[CP_LEAVES - 1] = 0;
    attend_scene.job.output = fill(attend_scene.queries * 4 * 33, 5);
    attend_scene.job.lse =
        attend_scene.job.output + attend_scene.queries * 4 * 32;
    const cp_status status = cp_backend_mpi.attend(&attend_scene.job);
    const char *words = what[0] == 'v'   ? "by pass-q"
                        : what[0] == 'l' ? "66 new tokens over 80"
                                         : "rank 1 has 67 new tokens over 80";
    if (status != CP_BROKEN || strstr(cp_message(), words) == NULL ||
        strstr(cp_message(), "the ranks disagree: rank 0 has 67 new tokens") ==
            NULL) {
        fprintf(stderr, "rank %d: status %d, '%s'\n", rank, status,
                cp_message());
        faults++;
    }
}

/* A cache moves to as many ranks as there are, or from them. */
static void play_migration(cp_comm *comm, int way) {
    const int ranks = comm->ranks;
    const int others = 1 + way % ranks;
    const bool grows = way % 2 == 0;
    const cp_dealing *how = &ways[way % COUNT_OF(ways)];
    cp_cache *before = lived_in(how, grows ? others : ranks, 3);
    cp_cache *after = empty_cache(how, grows ? ranks : others, 5);
    cp_migration *migration;
    cp_plan *plan;
    must(cp_cache_assign(after, before->length));
    must(cp_cache_migration(before, after, &migration));
    must(cp_migration_match(migration));
    must(cp_migration_plan(migration, &shapes[way % 3], 4, &plan));
    const int64_t room = SEQUENCES * cp_max(before->room, after->room);
    fixture b = bench_open(migration, plan, room + SEQUENCES * PAGE);
    must(cp_mpi_run(comm, walk_rank, &b));
    stamp_rows(&b, ranks + comm->rank, true);
    bench_close(&b);
    cp_plan_free(plan);
    cp_migration_free(migration);
    cp_cache_free(before);
    cp_cache_free(after);
}

static int play_migrations(void) {
    bool is_reporter;
    cp_comm *comm = open_world(10, 0);
    for (int way = 0; way < 10; way++)
        play_migration(comm, way);
    const int worst = cp_mpi_close(comm, 0, &is_reporter);
    cp_mpi_end(worst == 0);
    return worst != 0;
}

static int backend_scene(const char *scene) {
    char *const words[] = {"a", "test"};
    if (cp_backend_mpi.join(2, words) != CP_OK)
        return 1;
    if (strcmp(scene, "attend") == 0)
        play_attend();
    else
        play_disagreement(scene);
    return cp_process_group_own()->leave(faults > 0);
}

static int worker(const char *scene) {
    if (strcmp(scene, "death") == 0)
        return play_death(1);
    if (strcmp(scene, "silence") == 0)
        return play_silence();
    if (strcmp(scene, "migration") == 0)
        return play_migrations();
    if (strcmp(scene, "scenes") != 0)
        return backend_scene(scene);
    play_scenes();
    cp_mpi_end(true);
    return faults == 0 ? 0 : 1;
}

static char *self; /* the same from / on: another host starts elsewhere */

/* This many tests, if there is a launcher. */
static int launched(int tests) {
    static int has_mpirun = -1;
    if (has_mpirun < 0)
        has_mpirun = system("command -v mpirun >/dev/null 2>&1") == 0;
    return has_mpirun ? tests : 0;
}

/* Every line has both streams in output, and $S is this program. */
static void make_model(void) {
    const int64_t count = 75;
    int64_t ids[75];
    before_every_line(
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMP_NUM_THREADS=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
        "OMPI_MCA_odls_base_sigkill_timeout=0 "
        "ASAN_OPTIONS=detect_leaks=0 S='%s'; exec 2>&1 </dev/null;",
        self);
    make_directory();
    tiny_gguf_write(in("tiny.gguf"), &(tiny_gguf_options){.seed = 3});
    tiny_gguf_write(in("hybrid.gguf"),
                    &(tiny_gguf_options){.seed = 3, .family = "qwen35"});
    for (int64_t i = 0; i < count; i++)
        ids[i] = (37 * i + 11) % 250;
    must(cp_npy_write(in("ids.npy"), CP_NPY_INT64, 1, &count, ids));
}

AROUND_ALL(make_model, remove_directory);

static void says(const char *line, const char *words) {
    ck_assert_msg(strstr(output, words) != NULL, "%s: '%s' does not say '%s'",
                  line, output, words);
}

/* A scene of this program, on this many ranks. */
static const struct {
    const char *scene;
    int ranks;
} scenes[] = {
    {"scenes", 1},    {"scenes", 2},    {"scenes", 3},  {"scenes", 8},
    {"attend", 1},    {"attend", 2},    {"attend", 3},  {"attend", 5},
    {"attend", 8},    {"variant", 3},   {"lengths", 2}, {"owners", 2},
    {"migration", 2}, {"migration", 5},
};

LOOP(every_scene_ends_well, 0, launched(COUNT_OF(scenes))) {
    const int status = shell("timeout 18 mpirun -n %d $S --rank %s",
                             scenes[_i].ranks, scenes[_i].scene);
    ck_assert_msg(status == 0, "%s on %d ranks: status %d\n%s",
                  scenes[_i].scene, scenes[_i].ranks, status, output);
}

#define CHAT_WITH(model) "$L chat --on mpi --model $D/" model ".gguf "
#define CHAT CHAT_WITH("tiny")
/* In a conversation, the rank started last is killed once it has begun. */
#define A_KILLED_RANK(options, seconds)                                        \
    "X=$D/said-" seconds                                                       \
    "; (until grep -qs 'on mpi' $X; do sleep 0.05; done; "                     \
    "kill -9 $(pgrep -nf \"$D/tiny.gguf --timeout " seconds                    \
    "\"); until [ -e $X.ended ]; do sleep 0.05; done) | "                      \
    "{ timeout 18 mpirun " options " -n 3 " CHAT "--timeout " seconds          \
    " >$X 2>&1; E=$?; touch $X.ended; cat $X; exit $E; }"

/* The same between two questions, under a launcher that keeps the others alive;
 * one surviving rank then prints again what was printed. The last rank is
 * killed, or the first, which reads the questions, or the last two. With the
 * first, nothing more is asked: a launcher may crash that passes input to a
 * process as it dies. */
#define A_REPAIRED_LOSS(model, question, options, which, seconds)              \
    "X=$D/survivors-" seconds "; (echo " question "; "                         \
    "until grep -qs 'first token' $X; do sleep 0.05; done; "                   \
    "kill -9 $(pgrep -f \"^$L chat .*--timeout " seconds "\" | " which "); "   \
    "case '" which                                                             \
    "' in head*) until grep -qs 'every one' $X; do sleep 0.05; "               \
    "done;; *) echo 'three four'; echo five;; esac) | timeout 36 mpirun "      \
    "--enable-recovery -n 3 " CHAT_WITH(model) "--timeout " seconds            \
                                               " --most 20 --compare " options \
                                               ">$X 2>&1; "                    \
                                               "cat $X"

/* The last rank sleeps longer than the timeout, and wakes while the others
 * still talk. */
#define A_SLEEPER(seconds)                                                     \
    "X=$D/slept-" seconds "; (echo one two; "                                  \
    "until grep -qs 'first token' $X; do sleep 0.05; done; "                   \
    "P=$(pgrep -f \"^$L chat .*--timeout " seconds "\" | tail -n 1); "         \
    "kill -STOP $P; echo three; until grep -qs 'is lost' $X; do sleep 0.05; "  \
    "done; kill -CONT $P; while kill -0 $P; do sleep 0.05; done; "             \
    "echo four) 2>/dev/null | "                                                \
    "timeout 36 mpirun --enable-recovery -n 3 " CHAT "--timeout " seconds      \
    " --most 20 --compare >$X 2>&1; cat $X"

/* Lines in which ranks wait: a silent or dead rank is named after the timeout,
 * and a user who types may take longer. The lines run at the same time. */
static const struct {
    const char *line;
    bool recovery, fails;
    const char *says[3];
} waits[] = {
    {"timeout 18 mpirun -n 3 $S --rank silence", .fails = true,
     .says = {"rank 0 speaks: as it should", "rank 2: as it should"}},
    {"timeout 15 mpirun -n 3 $S --rank death", .fails = true},
    {"timeout 18 mpirun --enable-recovery -n 3 "
     "sh -c '$S --rank death; echo it ended with $?'",
     .recovery = true,
     .says = {"it ended with 1\n", "rank 1 is silent", "timed out after 1 s"}},
    {"(echo 'one two'; sleep 3; echo 'three') | timeout 18 mpirun -n 3 " CHAT
     "--most 9 --timeout 1.5 --compare",
     .says = {"every one of", "over 3 ranks on mpi"}},
    {A_KILLED_RANK("", "3"), .fails = true},
    {A_REPAIRED_LOSS("tiny", "one two", "", "tail -n 1", "2.2"),
     .recovery = true,
     .says = {"tokens are read again by 2 ranks", "every one of 60 tokens"}},
    {A_REPAIRED_LOSS("tiny", "$(seq -s ' ' 100)", "--exact-order ", "tail -n 1",
                     "2.3"),
     .recovery = true,
     .says = {"tokens are read again by 2 ranks", "every one of 60 tokens",
              "at most 0.00e+00"}},
    {A_REPAIRED_LOSS("tiny", "one two", "", "head -n 1", "2.4"),
     .recovery = true,
     .says = {"standard input with it", "read again by 2 ranks",
              "every one of 20 tokens"}},
    {A_REPAIRED_LOSS("tiny", "one two", "", "tail -n 2", "2.5"),
     .recovery = true,
     .says = {"rank 2 is lost\n", "rank 1 is lost; its ",
              "every one of 60 tokens"}},
    {A_REPAIRED_LOSS("hybrid", "one two", "", "tail -n 1", "2.7"),
     .recovery = true,
     .says = {"tokens are read again by 2 ranks", "every one of 60 tokens"}},
    {A_REPAIRED_LOSS("hybrid", "$(seq -s ' ' 100)", "--exact-order ",
                     "tail -n 1", "2.8"),
     .recovery = true,
     .says = {"tokens are read again by 2 ranks", "every one of 60 tokens",
              "at most 0.00e+00"}},
    {A_SLEEPER("2.6"), .recovery = true,
     .says = {"rank 2: evicted: this rank was silent for",
              "tokens are read again by 2 ranks"}},
};
enum { WAITS = COUNT_OF(waits) };

LOOP(waiting_ranks_time_out, 0, launched(1)) {
#ifdef OPEN_MPI
    const bool survivors = true;
#else
    const bool survivors = false;
#endif
    for (int n = 0; n < WAITS; n++)
        if (survivors || !waits[n].recovery)
            shell("({ %s; } >$D/%d.said 2>&1; echo $? >$D/%d.status) &",
                  waits[n].line, n, n);
    for (int n = 0; n < WAITS; n++) {
        if (!survivors && waits[n].recovery)
            continue;
        const int status =
            shell("until [ -s $D/%d.status ]; do sleep 0.05; "
                  "done; cat $D/%d.said; exit $(cat $D/%d.status)",
                  n, n, n);
        const bool ended = waits[n].fails      ? status > 0
                           : waits[n].recovery ? true
                                               : status == 0;
        ck_assert_msg(ended && status != 124, "%s: status %d\n%s",
                      waits[n].line, status, output);
        for (int i = 0; i < 3 && waits[n].says[i] != NULL; i++)
            says(waits[n].line, waits[n].says[i]);
    }
}

LOOP(logits_have_the_bits_of_threads, 0, launched(6)) {
    const int ranks[] = {1, 2, 8};
    const char *models[] = {"tiny", "hybrid"};
    const int status = shell(
        "A=\"logits --model $D/%s.gguf --tokens $D/ids.npy "
        "--history 40+d5+30 --positions all --generate 12\"; "
        "$L $A --ranks %d --out $D/t.npy >$D/t.txt && "
        "timeout 18 mpirun -n %d $L $A --on mpi --out $D/m.npy >$D/m.txt && "
        "tr -d '\\r' <$D/m.txt | cmp - $D/t.txt && cmp $D/m.npy $D/t.npy",
        models[_i / 3], ranks[_i % 3], ranks[_i % 3]);
    ck_assert_msg(status == 0, "status %d\n%s", status, output);
}

/* Processes have the bits of one rank on threads. */
LOOP(in_exact_order_any_processes_have_the_same_bits, 0, launched(6)) {
    const int ranks[] = {1, 3, 8};
    const char *models[] = {"tiny", "hybrid"};
    const int status = shell(
        "A=\"logits --model $D/%s.gguf --tokens $D/ids.npy --exact-order "
        "--positions all --generate 12\"; $L $A --ranks 1 --out $D/t.npy && "
        "timeout 18 mpirun -n %d $L $A --history 40+d5+30 --on mpi "
        "--out $D/m.npy && cmp $D/m.npy $D/t.npy",
        models[_i / 3], ranks[_i % 3]);
    ck_assert_msg(status == 0, "status %d\n%s", status, output);
}

LOOP(a_hybrid_is_saved_as_by_threads, 0, launched(1)) {
    const int status = shell(
        "A='chat --model '$D'/hybrid.gguf --most 9'; B='--ask One --ask Two'; "
        "answers() { tr -d '\\r' | sed -n '/^> Three/,/ tokens read /p' | "
        "sed '$d'; }; "
        "$L $A $B --ranks 3 --save $D/t.kept >/dev/null && "
        "timeout 18 mpirun -n 3 $L $A $B --on mpi --save $D/m.kept >/dev/null "
        "&& cmp $D/t.kept $D/m.kept && "
        "$L $A --ranks 4 --load $D/m.kept --ask Three | answers >$D/t.said && "
        "timeout 18 mpirun -n 2 $L $A --on mpi --load $D/m.kept --ask Three | "
        "answers >$D/m.said; test -s $D/t.said && cmp $D/t.said $D/m.said");
    ck_assert_msg(status == 0, "status %d\n%s", status, output);
}

static const struct {
    int status;
    const char *because, *line;
} refusals[] = {
    {1, "rank 2 has another tiny.gguf than rank 0",
     "mkdir -p $D/a $D/b && cp $D/tiny.gguf $D/a && cp $D/tiny.gguf $D/b && "
     "printf '\\001' | dd of=$D/b/tiny.gguf bs=1 seek=$(($(stat -c %s "
     "$D/tiny.gguf) / 2)) conv=notrunc status=none && "
     "X=$(realpath $L); mpirun -n 2 --wdir $D/a $X chat --on mpi --model "
     "tiny.gguf --ask x : "
     "-n 1 --wdir $D/b $X chat --on mpi --model tiny.gguf --ask x"},
    {2, "the launcher started 3", "mpirun -n 3 " CHAT "--ranks 2"},
    {2, "did you mean --ask", "mpirun -n 3 " CHAT "--akk x"},
    {1, "/no/such.gguf: No such file",
     "mpirun -n 3 $L chat --on mpi --model /no/such.gguf --ask x"},
    {1, "other arguments than rank 0",
     "mpirun -n 2 " CHAT "--ask x : -n 1 " CHAT "--ask y"},
    {2, "on mpi only ring can be measured",
     "mpirun -n 2 $L bench --on mpi --only causal"},
    {1, "No space left",
     "mpirun -n 2 $L logits --on mpi --model $D/tiny.gguf --tokens "
     "$D/ids.npy --out /dev/full"},
};

LOOP(all_ranks_fail_with_one_line, 0, launched(COUNT_OF(refusals))) {
    const char *line = refusals[_i].line;
    const int status = shell("%s", line);
    const char *first = strstr(output, "longring: ");
    ck_assert_msg(status == refusals[_i].status, "%s: status %d\n%s", line,
                  status, output);
    says(line, refusals[_i].because);
    ck_assert_msg(first != NULL && strstr(first + 1, "longring: ") == NULL,
                  "%s: not one line\n%s", line, output);
}

LOOP(the_ring_is_measured, 0, launched(1)) {
    accepted("timeout 18 mpirun -n 3 $L bench --on mpi --tokens 96 --rounds 1 "
             "--csv",
             "ring/pass-kv/3/96,");
    says("bench", "ring/pass-q/3/96,");
}

LOOP(two_hosts_have_the_bits_of_threads, 0, launched(1)) {
    const int status =
        shell("timeout 18 tests/harness/two-hosts 200mbit 2 $S --rank attend");
    if (status == 77)
        printf("mpi: two hosts skipped, %s", output);
    else
        ck_assert_msg(status == 0, "status %d\n%s", status, output);
}

LOOP(nothing_to_launch, 0, !launched(1)) {
    puts("mpi: skipped, no mpirun here");
}

int main(int count, char **arguments) {
    self = realpath(arguments[0], NULL);
    if (count == 3 && strcmp(arguments[1], "--rank") == 0)
        return worker(arguments[2]);
    return harness_run();
}
