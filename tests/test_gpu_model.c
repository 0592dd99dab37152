/* A model on GPUs, pretended or real, against the same model on threads. */
#define _POSIX_C_SOURCE 200809L /* barriers */
#include "model/backend.h"
#include "harness/stand-in/stand_in.h"
#include "harness/suite.h"
#include "harness/tiny_gguf.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "cuda/model/device_engine.h"
#include "cuda/ring/nccl_link.h"

#define must(call) ck_assert_msg((call) == CP_OK, "%s", cp_message())

enum { SEQUENCES = 3, MOST = 4096 };

typedef struct {
    bool decode;
    int64_t lengths[SEQUENCES];
} turn;

typedef struct {
    tiny_bytes bytes;
    cp_gguf *file;
    int64_t words;
} fixture;

static fixture make_file(const tiny_gguf_options *options) {
    fixture f = {.words = tiny_gguf_vocabulary_size(options)};
    ck_assert_int_eq(tiny_gguf_build(options, &f.bytes), 0);
    must(cp_gguf_parse(f.bytes.bytes, f.bytes.length, &f.file));
    return f;
}

static void free_file(fixture *f) {
    cp_gguf_close(f->file);
    free(f->bytes.bytes);
}

static cp_status say(cp_session *session, const turn *call, uint64_t seed,
                     int64_t words, int64_t *count) {
    int32_t tokens[MOST];
    int64_t asked[SEQUENCES], batch = 0;
    uint64_t state = seed;
    *count = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        if (call->lengths[s] > 0)
            asked[batch++] = s;
        *count += call->lengths[s];
    }
    for (int64_t t = 0; t < *count; t++)
        tokens[t] = (int32_t)(harness_random(&state) % (uint64_t)words);
    return call->decode
               ? cp_session_decode(session, batch, asked, tokens, NULL)
               : cp_session_prefill(session, call->lengths, tokens, NULL);
}

static float *hold(const cp_model *model, int ranks, cp_variant variant,
                   const turn *turns, int count, int64_t words, int64_t *rows) {
    const cp_session_options options = {.ranks = ranks,
                                        .sequences = SEQUENCES,
                                        .variant = variant,
                                        .capacity = 400,
                                        .cores = 1};
    cp_session *session;
    float *logits = calloc((size_t)(MOST * words), sizeof(float));
    must(cp_session_open(model, &options, &session));
    *rows = 0;
    for (int n = 0; n < count; n++) {
        int64_t said;
        must(say(session, &turns[n], (uint64_t)n + 1, words, &said));
        must(cp_session_logits(session, 0, said, logits + *rows * words));
        *rows += said;
    }
    cp_session_close(session);
    return logits;
}

static double distance(const float *expected, const float *got, int64_t count) {
    double largest = 0.0, worst = 0.0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)expected[i]));
        const double apart = fabs((double)expected[i] - (double)got[i]);
        worst = apart <= worst ? worst : isnan(apart) ? INFINITY : apart;
    }
    return worst / largest;
}

static double compare(fixture *f, const cp_backend *backend, int ranks,
                      cp_variant variant, const turn *turns, int count) {
    cp_model *threads, *device;
    int64_t rows, others;
    must(cp_model_open(cp_backend_find("threads"), f->file, &threads));
    must(cp_model_open(backend, f->file, &device));
    float *expected = hold(threads, 1, CP_AUTO, turns, count, f->words, &rows);
    float *got = hold(device, ranks, variant, turns, count, f->words, &others);
    ck_assert_int_eq(rows, others);
    const double apart = distance(expected, got, rows * f->words);
    cp_model_close(threads);
    cp_model_close(device);
    free(expected);
    free(got);
    return apart;
}

static const turn talk[] = {
    {false, {23, 1, 0}}, {true, {1, 1, 0}},  {true, {1, 1, 0}},
    {false, {0, 9, 37}}, {true, {1, 1, 1}},  {true, {1, 0, 1}},
    {true, {1, 1, 1}},   {true, {1, 1, 1}},  {false, {1, 0, 0}},
    {true, {1, 1, 1}},   {false, {2, 2, 2}}, {true, {0, 0, 1}},
};
enum { TALK = sizeof(talk) / sizeof(talk[0]) };

static const struct {
    int ranks;
    cp_variant variant;
} places[] = {
    {1, CP_AUTO},   {2, CP_PASS_KV},    {2, CP_PASS_Q}, {3, CP_AUTO},
    {3, CP_PASS_Q}, {4, CP_ALL_GATHER}, {5, CP_PASS_Q}, {8, CP_PASS_KV},
};
enum { PLACES = sizeof(places) / sizeof(places[0]) };

START_TEST(a_model_on_gpus_says_what_it_says_on_threads) {
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)_i + 1;
    stand_in_begin(&options);
    fixture f = make_file(&(tiny_gguf_options){.seed = 7,
                                               .query = TINY_Q8_0,
                                               .down = TINY_Q4_1,
                                               .output = _i % 2,
                                               .rope_freqs = _i % 3 == 0});
    const double apart = compare(&f, &cp_backend_cuda_fp32, places[_i].ranks,
                                 places[_i].variant, talk, TALK);
    ck_assert_msg(apart < 2e-5, "%g", apart);
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

enum { SENDERS = 3 };

static void note_sent(const fixture *f, const cp_backend *backend,
                      cp_variant variant, int64_t *bytes) {
    static const int64_t lengths[SEQUENCES] = {23, 9, 1};
    static const int64_t all[SEQUENCES] = {0, 1, 2};
    static const int32_t tokens[33] = {0};
    const cp_session_options options = {
        .ranks = SENDERS, .sequences = SEQUENCES, .variant = variant};
    cp_turn_report report;
    cp_model *model;
    cp_session *session;
    must(cp_model_open(backend, f->file, &model));
    must(cp_session_open(model, &options, &session));
    must(cp_session_prefill(session, lengths, tokens, &report));
    memcpy(bytes, report.bytes, SENDERS * sizeof(bytes[0]));
    must(cp_session_decode(session, SEQUENCES, all, tokens, &report));
    memcpy(bytes + SENDERS, report.bytes, SENDERS * sizeof(bytes[0]));
    cp_session_close(session);
    cp_model_close(model);
}

START_TEST(ranks_on_gpus_send_what_threads_send) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER};
    stand_in_begin(NULL);
    fixture f = make_file(&(tiny_gguf_options){.seed = 7});
    int64_t expected[2 * SENDERS], got[2 * SENDERS];
    note_sent(&f, cp_backend_find("threads"), variants[_i], expected);
    note_sent(&f, &cp_backend_cuda_fp32, variants[_i], got);
    for (int n = 0; n < 2 * SENDERS; n++) {
        ck_assert_int_gt(got[n], 0);
        ck_assert_int_eq(got[n], expected[n]);
    }
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(fewer_bits_say_nearly_the_same) {
    stand_in_begin(NULL);
    fixture f = make_file(&(tiny_gguf_options){.seed = 7});
    const double bf16 =
        compare(&f, &cp_backend_cuda, 3, CP_PASS_KV, talk, TALK);
    const double fp8 =
        compare(&f, &cp_backend_cuda_fp8, 3, CP_PASS_KV, talk, TALK);
    ck_assert_msg(bf16 > 1e-4 && bf16 < 0.027, "bf16: %g", bf16);
    ck_assert_msg(fp8 > bf16 && fp8 < 0.3, "FP8: %g", fp8);
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

static cp_device_place eagerly = {.only = CP_NOBODY, .rows = 7};

static cp_status eager_engine(const cp_model *model,
                              const cp_session_options *options,
                              cp_engine **out) {
    return cp_device_engine_new(&eagerly, model, options, out);
}

enum { STEPS = 40 };

static void make_long_talk(turn *turns) {
    turns[0] = (turn){false, {30, 7, 2}};
    for (int n = 1; n <= STEPS; n++)
        turns[n] = (turn){true, {1, 1, n > 9}};
}

START_TEST(graphs_change_nothing) {
    stand_in_begin(NULL);
    fixture f = make_file(&(tiny_gguf_options){.seed = 5, .blocks = 1});
    cp_backend without = cp_backend_cuda_fp32;
    turn turns[STEPS + 1];
    cp_model *models[2];
    float *logits[2];
    int64_t rows;
    without.engine_new = eager_engine;
    make_long_talk(turns);
    must(cp_model_open(&without, f.file, &models[0]));
    must(cp_model_open(&cp_backend_cuda_fp32, f.file, &models[1]));
    for (int m = 0; m < 2; m++)
        logits[m] = hold(models[m], 1 + 3 * _i, CP_AUTO, turns, STEPS + 1,
                         f.words, &rows);
    if (stand_in_pretends())
        ck_assert_int_ge(stand_in_count().graph_launches, STEPS - 4);
    ck_assert_int_eq(
        memcmp(logits[0], logits[1], (size_t)(rows * f.words) * sizeof(float)),
        0);
    for (int m = 0; m < 2; m++) {
        cp_model_close(models[m]);
        free(logits[m]);
    }
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(a_stale_length_is_found) {
    if (!stand_in_pretends())
        return;
    stand_in_begin(NULL);
    fixture f = make_file(&(tiny_gguf_options){.seed = 5, .blocks = 1});
    turn turns[STEPS + 1];
    make_long_talk(turns);
    stand_in_freeze_uploads(true);
    const double apart =
        compare(&f, &cp_backend_cuda_fp32, 4, CP_AUTO, turns, STEPS + 1);
    ck_assert_msg(apart > 1e-3, "nothing was found: %g", apart);
    free_file(&f);
    stand_in_end();
}
END_TEST

typedef struct {
    cp_session *session;
    float *before, *after; /* [words]: undisturbed */
    int64_t words;
} disturbed;

static const turn first = {false, {20, 3, 0}}, second = {false, {4, 0, 2}},
                  third = {true, {1, 1, 1}};

static void ask(disturbed *d, const turn *call, uint64_t seed, float *out) {
    int64_t said;
    must(say(d->session, call, seed, d->words, &said));
    must(cp_session_logits(d->session, said - 1, 1, out));
}

static void disturb(disturbed *d, const turn *call, uint64_t seed,
                    void (*fault)(int64_t), int64_t n, const float *expected) {
    float *got = calloc((size_t)d->words, sizeof(float));
    int64_t said;
    fault(n);
    const cp_status status = say(d->session, call, seed, d->words, &said);
    fault(0);
    if (status == CP_OK)
        must(cp_session_logits(d->session, said - 1, 1, got));
    else
        ask(d, call, seed, got);
    ck_assert_msg(distance(expected, got, d->words) < 1e-6,
                  "failure %lld left something", (long long)n);
    free(got);
}

START_TEST(whatever_fails_the_conversation_goes_on) {
    void (*const faults[])(int64_t) = {
        stand_in_fail_allocation, stand_in_fail_launch, stand_in_fail_copy};
    if (!stand_in_pretends())
        return;
    stand_in_options machine = STAND_IN_DEFAULTS;
    machine.open = _i > 0; /* once is enough to see that no host looks in */
    stand_in_begin(&machine);
    fixture f = make_file(&(tiny_gguf_options){.seed = 9, .blocks = 1});
    const cp_session_options options = {
        .ranks = 2, .sequences = SEQUENCES, .variant = CP_PASS_Q};
    cp_model *model;
    disturbed d = {.words = f.words};
    d.before = calloc((size_t)f.words, sizeof(float));
    d.after = calloc((size_t)f.words, sizeof(float));
    must(cp_model_open(&cp_backend_cuda_fp32, f.file, &model));
    for (int64_t n = 0; n < 120; n += 1 + n / 4) {
        must(cp_session_open(model, &options, &d.session));
        float *mine = calloc((size_t)f.words, sizeof(float));
        ask(&d, &first, 1, mine);
        if (n == 0) {
            ask(&d, &second, 2, d.before);
            ask(&d, &third, 3, d.after);
        } else {
            disturb(&d, &second, 2, faults[_i], n, d.before);
            disturb(&d, &third, 3, faults[_i], n, d.after);
        }
        free(mine);
        cp_session_close(d.session);
    }
    cp_model_close(model);
    free(d.before);
    free(d.after);
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

enum { CROWD = 4 };

typedef struct {
    cp_crew crew; /* of all processes */
    int parts;    /* that share a rank's heads */
    const cp_model *model;
    ncclUniqueId id;
    int64_t words;
    bool odd;    /* is told something else in the second call */
    bool shaken; /* before the fourth goes well, one rank wishes to stop, and
                      then one finds no memory */
    volatile sig_atomic_t stop;
    double patience; /* 0: 10 seconds */
    float *logits;   /* of all calls */
    int64_t rows;
    cp_status status;
    char message[300];
} process;

static pthread_barrier_t meeting;
static void *boards[CROWD];
static _Thread_local process *myself;
static _Thread_local cp_device_place my_place;

static cp_status share(void *data, int64_t bytes) {
    const int rank = myself->crew.rank;
    boards[rank] = data;
    pthread_barrier_wait(&meeting);
    if (rank != 0)
        memcpy(data, boards[0], (size_t)bytes);
    pthread_barrier_wait(&meeting);
    return CP_OK;
}

static cp_status collect(void *items, int64_t bytes) {
    const int rank = myself->crew.rank;
    boards[rank] = items;
    pthread_barrier_wait(&meeting);
    for (int r = 0; r < myself->crew.ranks; r++)
        if (r != rank)
            memcpy((char *)items + r * bytes, (char *)boards[r] + r * bytes,
                   (size_t)bytes);
    pthread_barrier_wait(&meeting);
    return CP_OK;
}

static cp_status my_engine(const cp_model *model,
                           const cp_session_options *options, cp_engine **out) {
    return cp_device_engine_new(&my_place, model, options, out);
}

static bool fails_everywhere(cp_session *session, process *mine,
                             uint64_t seed) {
    int64_t count;
    mine->stop = mine->crew.rank == 1;
    if (say(session, &talk[3], seed, mine->words, &count) != CP_INTERRUPTED)
        return false;
    mine->stop = 0;
    if (mine->crew.rank == 0)
        stand_in_fail_allocation(1);
    pthread_barrier_wait(&meeting);
    const cp_status status = say(session, &talk[3], seed, mine->words, &count);
    pthread_barrier_wait(&meeting);
    if (mine->crew.rank == 0)
        stand_in_fail_allocation(0);
    pthread_barrier_wait(&meeting);
    return status == CP_MEMORY || status == CP_ABORTED;
}

static cp_status talk_as(process *mine, cp_session *session) {
    cp_status status = CP_OK;
    for (int n = 0; n < TALK && status == CP_OK; n++) {
        int64_t count;
        const uint64_t seed = (uint64_t)n + (mine->odd && n == 1 ? 99 : 1);
        if (mine->shaken && n == 3 && !fails_everywhere(session, mine, seed))
            return cp_fail(CP_BROKEN, "a call without memory went well");
        status = say(session, &talk[n], seed, mine->words, &count);
        if (status == CP_OK)
            status = cp_session_logits(session, 0, count,
                                       mine->logits + mine->rows * mine->words);
        mine->rows += count;
    }
    return status;
}

static cp_status live(process *mine) {
    const cp_session_options options = {.ranks = mine->crew.ranks / mine->parts,
                                        .sequences = SEQUENCES,
                                        .variant = CP_PASS_Q,
                                        .capacity = 400,
                                        .stop = &mine->stop};
    cp_nccl *world, *heads = NULL, *ring = NULL;
    cp_session *session;
    cp_status status =
        cp_nccl_new(&mine->id, mine->crew.rank, mine->crew.ranks, 10.0, &world);
    if (status != CP_OK)
        return status;
    if (mine->parts > 1)
        status = cp_nccl_split(world, mine->parts, &heads, &ring);
    my_place =
        (cp_device_place){.only = mine->crew.rank / mine->parts,
                          .link = cp_nccl_link(ring != NULL ? ring : world),
                          .crew = &mine->crew,
                          .tensor = heads,
                          .patience = mine->patience > 0 ? mine->patience : 10,
                          .graphs = true};
    if (status == CP_OK)
        status = cp_session_open(mine->model, &options, &session);
    if (status == CP_OK) {
        status = talk_as(mine, session);
        cp_session_close(session);
    }
    cp_nccl_free(heads);
    cp_nccl_free(ring);
    cp_nccl_free(world);
    return status;
}

static void *run_process(void *argument) {
    myself = argument;
    myself->status = live(myself);
    snprintf(myself->message, sizeof(myself->message), "%s", cp_message());
    return NULL;
}

static void run_processes(process *all, int count, int parts,
                          cp_model *const *models, int64_t words) {
    pthread_t threads[CROWD];
    ncclUniqueId id;
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    pthread_barrier_init(&meeting, NULL, (unsigned)count);
    stand_in_leave(count);
    for (int r = 0; r < count; r++) {
        all[r].crew = (cp_crew){
            .rank = r, .ranks = count, .share = share, .collect = collect};
        all[r].parts = parts;
        all[r].model = models[r % parts];
        all[r].id = id;
        all[r].words = words;
        all[r].logits = calloc((size_t)(MOST * words), sizeof(float));
        pthread_create(&threads[r], NULL, run_process, &all[r]);
    }
    for (int r = 0; r < count; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&meeting);
}

static cp_status open_half(const cp_gguf *file, cp_model **model) {
    return cp_device_model_open(file, CP_NUMBERS_F32, (cp_device_share){0, 2},
                                model);
}

static cp_status open_other_half(const cp_gguf *file, cp_model **model) {
    return cp_device_model_open(file, CP_NUMBERS_F32, (cp_device_share){1, 2},
                                model);
}

static const struct {
    int processes, parts;
} crowds[] = {{2, 1}, {3, 1}, {4, 1}, {2, 2}, {4, 2}, {3, 1}};
enum { CROWDS = sizeof(crowds) / sizeof(crowds[0]) };

static void open_apart(const fixture *f, int parts, cp_model **models) {
    static cp_backend apart[2];
    for (int p = 0; p < parts; p++) {
        apart[p] = cp_backend_cuda_fp32;
        apart[p].engine_new = my_engine;
        if (parts == 2)
            apart[p].model_open = p == 0 ? open_half : open_other_half;
        must(cp_model_open(&apart[p], f->file, &models[p]));
    }
}

START_TEST(ranks_apart_say_the_same) {
    const int count = crowds[_i].processes, parts = crowds[_i].parts;
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)_i;
    if (!stand_in_pretends())
        return;
    stand_in_begin(&options);
    fixture f = make_file(&(tiny_gguf_options){.seed = 7, .up = TINY_Q8_0});
    cp_model *threads, *devices[2];
    process all[CROWD] = {0};
    int64_t rows;
    must(cp_model_open(cp_backend_find("threads"), f.file, &threads));
    open_apart(&f, parts, devices);
    for (int r = 0; r < count; r++)
        all[r].shaken = _i == CROWDS - 1;
    float *expected = hold(threads, 1, CP_AUTO, talk, TALK, f.words, &rows);
    run_processes(all, count, parts, devices, f.words);
    for (int r = 0; r < count; r++) {
        ck_assert_msg(all[r].status == CP_OK, "rank %d: %s", r, all[r].message);
        const double off = distance(expected, all[r].logits, rows * f.words);
        ck_assert_msg(off < 2e-5, "rank %d: %g", r, off);
        ck_assert_int_eq(memcmp(all[r].logits, all[0].logits,
                                (size_t)(rows * f.words) * sizeof(float)),
                         0);
    }
    for (int r = 0; r < count; r++)
        free(all[r].logits);
    free(expected);
    cp_model_close(threads);
    for (int p = 0; p < parts; p++)
        cp_model_close(devices[p]);
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(a_model_that_cannot_be_shared_is_refused) {
    stand_in_begin(NULL);
    cp_model *model;
    const cp_device_share third = {0, 3}, half = {1, 2};
    fixture f = make_file(&(tiny_gguf_options){.down = TINY_Q4_1});
    ck_assert_int_eq(
        cp_device_model_open(f.file, CP_NUMBERS_F32, third, &model),
        CP_INVALID);
    ck_assert_ptr_nonnull(strstr(cp_message(), "2 key and value heads and 96"));
    ck_assert_int_eq(cp_device_model_open(f.file, CP_NUMBERS_F32, half, &model),
                     CP_INVALID);
    ck_assert_ptr_nonnull(strstr(cp_message(), "no whole blocks of 32"));
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(ranks_that_disagree_hear_of_it) {
    if (!stand_in_pretends())
        return;
    stand_in_begin(NULL);
    fixture f = make_file(&(tiny_gguf_options){.seed = 7});
    cp_model *device;
    process all[CROWD] = {0};
    open_apart(&f, 1, &device);
    all[2].odd = true;
    run_processes(all, 3, 1, &device, f.words);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(all[r].status, CP_BROKEN);
        ck_assert_msg(strstr(all[r].message, "disagree") != NULL, "%s",
                      all[r].message);
        free(all[r].logits);
    }
    cp_model_close(device);
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(a_silent_rank_ends_a_prefill) {
    bool said = false;
    if (!stand_in_pretends())
        return;
    stand_in_begin(NULL);
    fixture f = make_file(&(tiny_gguf_options){.seed = 7, .blocks = 5});
    cp_model *device;
    process all[CROWD] = {0};
    open_apart(&f, 1, &device);
    for (int r = 0; r < 3; r++)
        all[r].patience = 0.6;
    stand_in_dead_rank(1, 1 + 4 * _i);
    run_processes(all, 3, 1, &device, f.words);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(all[r].status, CP_BROKEN);
        said = said || strstr(all[r].message, "waited 0.6 s for ") != NULL;
        free(all[r].logits);
    }
    ck_assert(said);
    cp_model_close(device);
    free_file(&f);
    stand_in_end();
}
END_TEST

START_TEST(what_is_wanting_is_named) {
    stand_in_options options = STAND_IN_DEFAULTS;
    fixture f = make_file(&(tiny_gguf_options){.seed = 9});
    cp_model *model;
    if (!stand_in_pretends())
        return;
    ck_assert_int_eq(cp_model_open(&cp_backend_cuda, f.file, &model),
                     CP_BROKEN);
    ck_assert_ptr_nonnull(strstr(cp_message(), "no GPU"));
    options.bytes = 100000;
    stand_in_begin(&options);
    ck_assert_int_eq(cp_model_open(&cp_backend_cuda, f.file, &model),
                     CP_MEMORY);
    ck_assert_ptr_nonnull(strstr(cp_message(), "of 100000 left"));
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
    free_file(&f);
}
END_TEST

START_TEST(a_wish_to_stop_is_heard) {
    stand_in_begin(NULL);
    fixture f = make_file(&(tiny_gguf_options){.seed = 9, .blocks = 5});
    volatile sig_atomic_t stop = 0;
    const cp_session_options options = {
        .ranks = 2, .sequences = SEQUENCES, .stop = &stop};
    cp_model *model;
    cp_session *session;
    int64_t said;
    must(cp_model_open(&cp_backend_cuda_fp32, f.file, &model));
    must(cp_session_open(model, &options, &session));
    stop = 1;
    ck_assert_int_eq(say(session, &first, 1, f.words, &said), CP_INTERRUPTED);
    ck_assert_ptr_nonnull(strstr(cp_message(), "of 5 layers"));
    ck_assert_int_eq(cp_session_length(session, 0), 0);
    stop = 0;
    must(say(session, &first, 1, f.words, &said));
    cp_session_close(session);
    cp_model_close(model);
    free_file(&f);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

static Suite *gpu_model_suite(void) {
    Suite *suite = suite_create("model on GPUs");
    TCase *tests = harness_case("model on GPUs");
    suite_add_tcase(suite, tests);
    tcase_add_loop_test(tests, a_model_on_gpus_says_what_it_says_on_threads, 0,
                        PLACES);
    tcase_add_loop_test(tests, ranks_on_gpus_send_what_threads_send, 0, 3);
    tcase_add_test(tests, fewer_bits_say_nearly_the_same);
    tcase_add_loop_test(tests, graphs_change_nothing, 0, 2);
    tcase_add_test(tests, a_stale_length_is_found);
    tcase_add_loop_test(tests, whatever_fails_the_conversation_goes_on, 0, 3);
    tcase_add_loop_test(tests, ranks_apart_say_the_same, 0, CROWDS);
    tcase_add_test(tests, a_model_that_cannot_be_shared_is_refused);
    tcase_add_test(tests, ranks_that_disagree_hear_of_it);
    tcase_add_loop_test(tests, a_silent_rank_ends_a_prefill, 0, 3);
    tcase_add_test(tests, what_is_wanting_is_named);
    tcase_add_test(tests, a_wish_to_stop_is_heard);
    return suite;
}

SUITE_MAIN(gpu_model_suite)
