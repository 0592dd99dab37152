/* A rank on a GPU is lost, and the conversation continues: ranks that share a
 * device, and ranks over NCCL, as threads of one process on the emulator. Each
 * answers as one rank on a core does. */
#define _DEFAULT_SOURCE /* sockets */
#include "on_device.h"

#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cuda/model/device_engine.h"
#include "cuda/run/rendezvous.h"
#include "harness/tiny_gguf.h"
#include "model/session_repair.h"
#include "group/process_group.h"

enum { SEQUENCES = 3, MOST = 500, RANKS = 5 };

typedef struct {
    bool decode;
    int64_t lengths[SEQUENCES];
} repair_turn;

/* The first is begin_talk's. From the third step on, decode is a graph's
 * launch. */
static repair_turn turns[] = {
    {false},           {true, {1, 1, 1}},   {true, {1, 1, 1}},
    {true, {1, 1, 1}}, {true, {1, 1, 1}},   {false, {4, 0, 37}},
    {true, {1, 0, 1}}, {true, {1, 0, 1}},   {true, {1, 0, 1}},
    {true, {1, 0, 1}}, {false, {12, 3, 0}}, {true, {1, 1, 1}},
};
enum { TURNS = COUNT_OF(turns) };

static struct {
    tiny_bytes bytes;
    cp_gguf *file;
    int64_t words;
    int32_t tokens[TURNS][MOST];         /* of each call */
    int32_t transcript[SEQUENCES][MOST]; /* all of it */
    float *expected[TURNS];              /* the scores of the last token */
    bool exact;                          /* compare bits */
    cp_model *model;
} f;

static int64_t tokens_of(const repair_turn *call) {
    int64_t count = 0;
    for (int s = 0; s < SEQUENCES; s++)
        count += call->lengths[s];
    return count;
}

static cp_status make_call(cp_session *session, int n) {
    const repair_turn *call = &turns[n];
    return (call->decode ? cp_session_decode : cp_session_prefill)(
        session, call->lengths, f.tokens[n], NULL);
}

static cp_session_options base_options = {
    .sequences = SEQUENCES, .capacity = 300, .least = 1, .cores = 1};

static void learn(void) {
    cp_session_options options = base_options;
    cp_session *session;
    int64_t at[SEQUENCES] = {0};
    uint64_t random = 7;
    options.ranks = 1;
    must(cp_model_open(f.exact ? &cp_backend_cuda_fp32 : &cp_backend_threads,
                       f.file, &f.model));
    must(cp_session_open(f.model, &options, &session));
    for (int n = 0; n < TURNS; n++) {
        int64_t count = 0;
        for (int s = 0; s < SEQUENCES; s++)
            for (int64_t t = 0; t < turns[n].lengths[s]; t++)
                f.transcript[s][at[s]++] = f.tokens[n][count++] =
                    (int32_t)(harness_random(&random) % (uint64_t)f.words);
        f.expected[n] = on_host(f.words * 4);
        must(make_call(session, n));
        must(cp_session_logits(session, count - 1, 1, f.expected[n]));
    }
    cp_session_close(session);
    cp_model_close(f.model);
}

/* In exact order, prompts are longer. */
static void begin_talk(bool exact) {
    static const tiny_gguf_options model = {.seed = 7};
    static const repair_turn prompts[] = {{false, {30, 7, 2}},
                                          {false, {130, 71, 2}}};
    static const cp_dealing dealings[] = {
        {0},
        {.placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true}};
    memset(&f, 0, sizeof(f));
    f.exact = exact;
    turns[0] = prompts[exact];
    base_options.dealing = dealings[exact];
    f.words = tiny_gguf_vocabulary_size(&model);
    emulator_begin(&(emulator_options){.seed = 2, .open = true});
    tiny_gguf_build(&model, &f.bytes);
    must(cp_gguf_parse(f.bytes.bytes, f.bytes.length, &f.file));
    learn();
}

static void end_talk(void) {
    cp_model_close(f.model);
    cp_gguf_close(f.file);
    free(f.bytes.bytes);
    end();
}

/* A call, and a check of its answer. */
static cp_status answer(cp_session *session, int n) {
    float *got, largest = 0, worst = 0;
    CP_TRY(make_call(session, n));
    CP_TRY(cp_allocate(&got, f.words, sizeof(float), "scores"));
    const cp_status status =
        cp_session_logits(session, tokens_of(&turns[n]) - 1, 1, got);
    for (int64_t i = 0; i < f.words && status == CP_OK; i++) {
        const float apart = fabsf(got[i] - f.expected[n][i]);
        largest = fmaxf(largest, fabsf(f.expected[n][i]));
        worst = apart <= worst ? worst : isnan(apart) ? INFINITY : apart;
    }
    free(got);
    CP_TRY(status);
    return (f.exact ? worst == 0.0f : worst < 2e-5f * largest)
               ? CP_OK
               : cp_refuse("turn %d is off by %g", n, (double)worst);
}

static cp_status repair(cp_session *session, int lost) {
    const int32_t *transcript[SEQUENCES];
    cp_repair_report report;
    for (int s = 0; s < SEQUENCES; s++)
        transcript[s] = f.transcript[s];
    return cp_session_repair(session, lost, transcript, &report);
}

/* The last four in exact order. */
LOOP(ranks_that_share_a_gpu_become_fewer, 0, 8) {
    cp_session *session;
    if (harness_spared(_i))
        return;
    begin_talk(_i >= 4);
    cp_session_options options = base_options;
    options.ranks = 4;
    must(cp_model_open(&cp_backend_cuda_fp32, f.file, &f.model));
    must(cp_session_open(f.model, &options, &session));
    for (int n = 0; n < TURNS; n++) {
        if (n == 2 || n == 4 || n == 9)
            must(repair(session, (_i + n) % (n == 2 ? 4 : n == 4 ? 3 : 2)));
        must(answer(session, n));
    }
    cp_session_close(session);
    end_talk();
}

/* Rank 1 comes in time; rank 2 expects another number of ranks; rank 3 comes
 * when the rendezvous is over. */
typedef struct {
    int rank, ranks;
    double after;
    cp_status status;
    bool present[5];
    int words[5];
} visitor;

static char root[40];

static void *come(void *given) {
    visitor *v = given;
    const struct timespec while_away = {0, (long)(v->after * 1e9)};
    nanosleep(&while_away, NULL);
    v->words[v->rank] = 10 + v->rank;
    v->status = cp_rendezvous(root, v->rank, v->ranks, 0.5, v->words,
                              sizeof(v->words[0]), v->present);
    return NULL;
}

/* A port of this host that is free. */
static void find_free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(s, (struct sockaddr *)&address, size), 0);
    getsockname(s, (struct sockaddr *)&address, &size);
    close(s);
    snprintf(root, sizeof(root), "127.0.0.1:%d", ntohs(address.sin_port));
}

static void come_all(visitor *all, int count) {
    pthread_t threads[4];
    find_free_port();
    for (int n = 0; n < count; n++)
        pthread_create(&threads[n], NULL, come, &all[n]);
    for (int n = 0; n < count; n++)
        pthread_join(threads[n], NULL);
}

/* Whichever of two ranks comes too late must not continue alone. */
LOOP(the_later_of_two_ranks_fails, 0, 2) {
    visitor all[] = {{0, 2, 0.0}, {1, 2, 0.0}};
    all[_i].after = 0.9;
    come_all(all, 2);
    ck_assert_int_eq(all[_i].status, CP_BROKEN);
    ck_assert_int_eq(all[1 - _i].status, CP_OK);
}

TEST(ranks_in_time_learn_which_ranks_joined) {
    visitor all[] = {{0, 4, 0.1}, {1, 4, 0.0}, {2, 5, 0.0}, {3, 4, 0.9}};
    come_all(all, 4);
    for (int n = 0; n < 4; n++)
        ck_assert_int_eq(all[n].status, n < 2 ? CP_OK : CP_BROKEN);
    for (int n = 0; n < 2; n++) {
        ck_assert(all[n].present[0] && all[n].present[1]);
        ck_assert(!all[n].present[2] && !all[n].present[3]);
        ck_assert(all[n].words[0] == 10 && all[n].words[1] == 11);
    }
}

/* Over NCCL a rank is a thread. The group is a shared table, and a rank that is
 * missing there is waited for up to the timeout, as elsewhere. */
static const double TIMEOUT = HARNESS_SANITIZED ? 2.4 : 0.6;

typedef struct {
    cp_process_group group;
    cp_nccl *world;
    bool died;
    cp_status status;
    char message[300];
} rank;

static rank all[RANKS];
static _Thread_local rank *me;
static _Thread_local cp_device_runner my_runner;
static ncclUniqueId first_id;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int living, arrived;
    int64_t round;
    void *boards[RANKS];
} table = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};

static cp_status barrier(void) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += (int64_t)(1.5e9 * TIMEOUT);
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&table.lock);
    const int64_t round = table.round;
    bool late = false;
    if (++table.arrived >= table.living) {
        table.arrived = 0;
        table.round++;
        pthread_cond_broadcast(&table.changed);
    }
    while (round == table.round && !late)
        late = pthread_cond_timedwait(&table.changed, &table.lock, &end) != 0;
    late = late && round == table.round;
    table.arrived -= late;
    pthread_mutex_unlock(&table.lock);
    return late ? cp_fail(CP_BROKEN, "a rank is missing") : CP_OK;
}

static cp_status read_boards(void *items, int64_t bytes, int ranks) {
    table.boards[me->group.rank] = items;
    CP_TRY(barrier());
    for (int r = 0; r < ranks; r++)
        if (r != me->group.rank)
            memcpy((char *)items + r * bytes,
                   (char *)table.boards[r] + r * bytes, (size_t)bytes);
    return barrier();
}

static cp_status broadcast(void *data, int64_t bytes) {
    return read_boards(data, bytes, 1);
}

static cp_status all_gather(void *items, int64_t bytes) {
    return read_boards(items, bytes, me->group.ranks);
}

/* How a rank dies: its messages never begin; its NCCL has an error; or it makes
 * no further call. */
typedef enum { IS_SILENT, FAILS, IS_GONE } fate;

typedef struct {
    int turn, rank, after; /* after this many messages in it */
    fate how;
    int also; /* another rank that dies the same way; 0: none */
} death;

static const struct {
    int ranks;
    death deaths[2];
} plays[] = {
    {4, {{0, 2, 3, IS_SILENT}}},
    {3, {{5, 1, 2, IS_SILENT}}},
    {4, {{1, 3, 1, IS_SILENT}}},
    {2, {{7, 1, 0, IS_GONE}}},
    {3, {{4, 1, 0, FAILS}}},
    {3, {{3, 2, 1, IS_SILENT}}},
    {5, {{2, 3, 1, IS_SILENT}, {8, 1, 1, FAILS}}},
    {3, {{5, 0, 2, IS_SILENT}}},
    {5, {{5, 1, 2, IS_SILENT, 4}}},
    {5, {{3, 3, 0, FAILS, 2}, {8, 1, 1, IS_SILENT}}},
};

static int play;
static _Thread_local int dying; /* which death is next; or -1 - n: this rank's
                                   was n */

static cp_status stay_silent(int number) {
    const double half = TIMEOUT / 2;
    const struct timespec a_while = {(time_t)half, (long)(fmod(half, 1) * 1e9)};
    const int living = table.living;
    if (plays[play].deaths[number].how == IS_SILENT)
        for (int n = 0; n < 15 && table.living == living; n++)
            nanosleep(&a_while, NULL);
    nanosleep(&a_while, NULL);
    return cp_fail(CP_BROKEN, "dead");
}

static cp_status agree(cp_nccl *world, cp_nccl_loss *loss) {
    struct {
        bool sound;
        ncclUniqueId id;
    } words[RANKS];
    bool present[RANKS];
    if (dying < 0) /* and is silent while the others agree */
        return stay_silent(-1 - dying);
    words[me->group.rank].sound = loss->sound;
    if (me->group.rank < 2)
        must(cp_nccl_id(&words[me->group.rank].id));
    CP_TRY(cp_rendezvous(root, me->group.rank, world->ranks, 2 * TIMEOUT, words,
                         sizeof(words[0]), present));
    pthread_mutex_lock(&table.lock);
    table.living = 0;
    for (int r = 0; r < world->ranks; r++) {
        if (!present[r])
            loss->lost[loss->count++] = r;
        loss->sound = loss->sound && (!present[r] || words[r].sound);
        table.living += present[r];
    }
    pthread_mutex_unlock(&table.lock);
    loss->id = words[present[0] ? 0 : 1].id;
    /* A rank with an error of its own cannot be excluded by shrinking. */
    return loss->sound == (plays[play].deaths[dying].how != FAILS)
               ? CP_OK
               : cp_fail(CP_BROKEN, "%s sound",
                         loss->sound ? "all" : "not all");
}

static cp_status go_on(cp_session *session) {
    int lost;
    me->world->link.abort(me->world); /* the group may be first to miss a
                                         rank */
    CP_TRY(cp_nccl_shrink(me->world, &lost));
    for (int next; cp_nccl_shrink(me->world, &next) == CP_OK; lost = next)
        CP_TRY(cp_session_lose(session, lost));
    my_runner.only = me->group.rank = me->world->rank;
    me->group.ranks = me->world->ranks;
    dying++;
    for (int r = 0; r < RANKS; r++)
        emulator_dead_rank(r, INT32_MAX);
    CP_TRY(barrier());
    return repair(session, lost);
}

/* Does this rank die in this turn? The first of these ranks arranges it. */
static cp_status arrange(int n, bool *dies) {
    const death *next = &plays[play].deaths[dying];
    *dies = false;
    if (dying > 1 || next->turn != n || (dying == 1 && n == 0))
        return CP_OK;
    *dies = me->group.rank == next->rank ||
            (next->also > 0 && me->group.rank == next->also);
    CP_TRY(barrier());
    if (*dies && next->how != IS_GONE)
        (next->how == FAILS ? emulator_failing_rank
                            : emulator_dead_rank)(me->group.rank, next->after);
    return barrier();
}

static cp_status talk_as(cp_session *session) {
    for (int n = 0; n < TURNS; n++) {
        bool dies;
        CP_TRY(arrange(n, &dies));
        me->died = me->died || dies;
        if (dies && plays[play].deaths[dying].how == IS_GONE)
            return cp_fail(CP_BROKEN, "gone");
        dying = dies ? -1 - dying : dying;
        cp_status status = answer(session, n);
        if (status == CP_BROKEN && dying >= 0) {
            CP_TRY(go_on(session));
            status = answer(session, n);
        }
        CP_TRY(status);
    }
    return CP_OK;
}

static cp_status live(void) {
    cp_session_options options = base_options;
    cp_session *session = NULL;
    options.ranks = me->group.ranks;
    CP_TRY(cp_nccl_new(&first_id, me->group.rank, me->group.ranks, 10,
                       &me->world));
    cp_nccl_set_timeout(me->world, TIMEOUT);
    me->world->agree = agree;
    my_runner = (cp_device_runner){.only = me->group.rank,
                                   .link = &me->world->link,
                                   .group = &me->group,
                                   .timeout = TIMEOUT,
                                   .graphs = true};
    cp_status status = cp_session_open(f.model, &options, &session);
    if (status == CP_OK)
        status = talk_as(session);
    snprintf(me->message, sizeof(me->message), "%s", cp_message());
    me->world->agree = NULL;
    cp_session_close(session);
    cp_nccl_free(me->world);
    return status;
}

static void *rank_main(void *given) {
    me = given;
    me->status = live();
    return NULL;
}

static cp_status my_engine(const cp_model *model,
                           const cp_session_options *options, cp_engine **out) {
    return cp_device_engine_new(&my_runner, model, options, out);
}

static void run_all(int ranks) {
    pthread_t threads[RANKS];
    table.living = ranks;
    must(ncclGetUniqueId(&first_id));
    for (int r = 0; r < ranks; r++) {
        all[r] = (rank){.group = {.rank = r,
                                  .ranks = ranks,
                                  .broadcast = broadcast,
                                  .all_gather = all_gather}};
        pthread_create(&threads[r], NULL, rank_main, &all[r]);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
}

LOOP(a_conversation_survives_a_rank_of_nccl, 0,
     COUNT_OF(plays) * emulator_pretends()) {
    cp_backend backend = cp_backend_cuda_fp32;
    int died = 0;
    if (harness_spared(_i))
        return;
    play = _i;
    begin_talk(false);
    find_free_port();
    backend.engine_new = my_engine;
    must(cp_model_open(&backend, f.file, &f.model));
    const double began = cp_clock();
    run_all(plays[_i].ranks);
    ck_assert_double_le(cp_clock() - began, 25 * TIMEOUT);
    for (int r = 0; r < plays[_i].ranks; r++) {
        died += all[r].died;
        ck_assert_msg((all[r].status == CP_OK) == !all[r].died, "rank %d: %s",
                      r, all[r].message);
    }
    for (int n = 0; n < 2; n++)
        died -= (n == 0 || plays[_i].deaths[n].turn > 0) +
                (plays[_i].deaths[n].also > 0);
    ck_assert_int_eq(died, 0);
    end_talk();
}
