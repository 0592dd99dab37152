/* Caches that move to more ranks or fewer, and conversations that continue
 * there, or from a file. */
#define _GNU_SOURCE
#include "migration_cases.h"

#include "model/elastic.h"
#include "predict/draw.h"
#include "model/saved_conversation.h"
#include "reference/run/threads.h"
#include "tests/harness/tiny_gguf.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* A rank's tokens in a cache. */
static int64_t held(const cp_pieces *list) {
    return cp_pieces_tokens(list);
}

/* Every token that leaves is sent once, and nothing else is. */
static void check_bytes(const cp_migration *migration, const cp_plan *plan) {
    cp_plan_report report;
    int64_t bytes = 0;
    must(cp_plan_check(plan, &report));
    for (int rank = 0; rank < migration->ranks; rank++) {
        const int64_t leave = held(&migration->before[rank]) -
                              cp_transfer_of(migration, rank, rank)->rows;
        ck_assert_int_eq(report.bytes[rank],
                         leave * 4 * cp_kept_width(&plan->shape));
        ck_assert_int_ge(leave, held(&migration->before[rank]) -
                                    held(&migration->after[rank]));
        bytes += report.bytes[rank];
    }
    ck_assert_int_eq(bytes, migration->moved * 4 * cp_kept_width(&plan->shape));
    cp_plan_report_free(&report);
}

static cp_status assign_anew(cp_cache *cache, const cp_cache *from) {
    return cp_cache_assign(cache, from->length);
}

LOOP(every_token_arrives_once, 0, 81 * COUNT_OF(ways)) {
    const int from = 1 + _i % 9, to = 1 + _i / 9 % 9;
    const cp_dealing *how = &ways[_i / 81];
    const uint64_t seed = (uint64_t)_i % 4;
    cp_cache *before = lived_in(how, from, seed);
    cp_cache *after = empty_cache(how, to, seed * 7);
    cp_migration *migration;
    cp_plan *plan;
    must((_i % 2 == 0 ? assign_anew : cp_cache_assign_near)(after, before));
    must(cp_cache_migration(before, after, &migration));
    must(cp_migration_match(migration));
    must(cp_migration_plan(migration, &shapes[_i % 3], 4, &plan));
    check_bytes(migration, plan);
    if (migration->ranks <= 3)
        must(cp_plan_explore(plan, 1 << 20, NULL));
    const int64_t room = SEQUENCES * cp_max(before->room, after->room);
    fixture b = bench_open(migration, plan, room + SEQUENCES * PAGE);
    const cp_threads_options threads = {migration->ranks, 0, (uint64_t)_i};
    must(cp_threads_run(&threads, walk_rank, &b));
    for (int rank = 0; rank < migration->ranks; rank++)
        stamp_rows(&b, migration->ranks + rank, true);
    bench_close(&b);
    cp_plan_free(plan);
    cp_migration_free(migration);
    cp_cache_free(before);
    cp_cache_free(after);
}

typedef struct {
    cp_cache *before, *after;
    cp_migration *migration;
    cp_plan *plan;
} move_case;

static move_case move_case_new(void) {
    move_case m = {.after = empty_cache(&ways[0], 3, 2)};
    m.before = lived_in(&ways[0], 2, 1);
    must(cp_cache_assign(m.after, m.before->length));
    must(cp_cache_migration(m.before, m.after, &m.migration));
    must(cp_migration_match(m.migration));
    must(cp_migration_plan(m.migration, &shapes[0], 4, &m.plan));
    return m;
}

static void move_case_free(const move_case *m) {
    cp_plan_free(m->plan);
    cp_migration_free(m->migration);
    cp_cache_free(m->before);
    cp_cache_free(m->after);
}

static cp_op *find(const move_case *m, int rank, cp_op_kind kind, int64_t n) {
    const cp_program *program = &m->plan->programs[rank];
    for (int64_t i = 0; i < program->count; i++)
        if (program->ops[i].kind == kind && n-- == 0)
            return &program->ops[i];
    ck_abort_msg("rank %d has too few of them", rank);
    return NULL;
}

static void remove_op(const move_case *m, int rank, const cp_op *op) {
    cp_program *program = &m->plan->programs[rank];
    cp_op *at = &program->ops[op - program->ops];
    const int64_t behind = program->ops + --program->count - at;
    memmove(at, at + 1, (size_t)behind * sizeof(cp_op));
}

static void lose_a_row(const move_case *m) {
    cp_transfer *transfer = cp_transfer_of(m->migration, 0, 2);
    transfer->rows -= transfer->moves.items[0].count;
    transfer->moves.items[0] = transfer->moves.items[--transfer->moves.count];
}

static void send_a_row_twice(const move_case *m) {
    cp_transfer *transfer = cp_transfer_of(m->migration, 0, 2);
    must(cp_moves_append(&transfer->moves, transfer->moves.items[0]));
    transfer->rows += transfer->moves.items[0].count;
}

static void send_another_row(const move_case *m) {
    cp_transfer_of(m->migration, 0, 2)->moves.items[0].from++;
}

static void send_to_an_unowned_row(const move_case *m) {
    cp_transfer_of(m->migration, 0, 2)->moves.items[0].to += 100000;
}

static void miscount_rows(const move_case *m) {
    cp_transfer_of(m->migration, 0, 2)->rows++;
}

static void hold_a_token_twice(const move_case *m) {
    must(cp_pieces_append(&m->migration->before[1],
                          m->migration->before[0].items[0]));
}

static void hold_an_unknown_token(const move_case *m) {
    m->migration->before[0].items[0].span.start = 5000;
}

static void forget_a_token(const move_case *m) {
    m->migration->after[0].items[0].span.count--;
}

static void share_an_assigned_row(const move_case *m) {
    m->migration->after[0].items[1].row = m->migration->after[0].items[0].row;
}

static void forget_an_append(const move_case *m) {
    remove_op(m, 2, find(m, 2, CP_OP_APPEND, 0));
}

static void append_twice(const move_case *m) {
    cp_op *op = find(m, 2, CP_OP_APPEND, 1);
    *op = *find(m, 2, CP_OP_APPEND, 0);
}

static void append_anothers(const move_case *m) {
    *find(m, 0, CP_OP_APPEND, 0) =
        (cp_op){.kind = CP_OP_APPEND,
                .in = find(m, 0, CP_OP_PACK, 0)->out,
                .out = find(m, 0, CP_OP_APPEND, 1)->out};
}

static void append_to_the_old(const move_case *m) {
    find(m, 0, CP_OP_APPEND, 0)->out.slot = (int16_t)m->plan->cache;
}

static void pack_into_anothers(const move_case *m) {
    find(m, 0, CP_OP_PACK, 0)->out.slot = find(m, 0, CP_OP_PACK, 1)->out.slot;
}

static void believe_another(const move_case *m) {
    find(m, 2, CP_OP_APPEND, 0)->in.part = 1;
}

static void forget_a_wait(const move_case *m) {
    remove_op(m, 2, find(m, 2, CP_OP_WAIT, 1));
}

/* What a conversation read in one prefill must move, and moves: if ranks are
 * added, only tokens for the new ones. */
TEST(few_tokens_move) {
    static const struct {
        int from, to, percent;
    } cases[] = {{1, 4, 75}, {2, 4, 50}, {4, 8, 50}, {4, 6, 34}, {3, 4, 34},
                 {4, 4, 0},  {5, 8, 50}, {4, 1, 75}, {4, 2, 75}, {6, 4, 50}};
    for (int n = 0; n < COUNT_OF(cases); n++) {
        const int64_t lengths[] = {240, 0, 0};
        cp_cache *before = empty_cache(&ways[0], cases[n].from, 1);
        cp_cache *after = empty_cache(&ways[0], cases[n].to, 1);
        cp_migration *migration;
        must(cp_cache_assign(before, lengths));
        must(cp_cache_assign_near(after, before));
        must(cp_cache_migration(before, after, &migration));
        must(cp_migration_match(migration));
        ck_assert_int_le(100 * migration->moved,
                         cases[n].percent * migration->tokens);
        cp_migration_free(migration);
        cp_cache_free(before);
        cp_cache_free(after);
    }
}

LOOP(lost_and_doubled_tokens_are_found, 0, 16) {
    static const struct {
        void (*harm)(const move_case *m);
        const char *words;
    } cases[] = {
        {lose_a_row, "never arrives at rank 2"},
        {send_a_row_twice, "arrives twice at rank 2"},
        {send_another_row, "is not the token that arrives at rank 2"},
        {send_to_an_unowned_row, "which belongs to no token"},
        {miscount_rows, "rank 0 sends rank 2"},
        {hold_a_token_twice, "is held by rank 0 and by rank 1"},
        {hold_an_unknown_token, "which has no such token"},
        {forget_a_token, "is held by no rank"},
        {share_an_assigned_row, "shares its row on rank 0"},
        {forget_an_append, "rank 2 ends without the transfer from"},
        {append_twice, "twice"},
        {append_anothers, "the transfer from rank 0 to rank"},
        {append_to_the_old, "takes slot"},
        {pack_into_anothers, "takes slot"},
        {believe_another, "expects the transfer from rank"},
        {forget_a_wait, "which a receive is still filling"},
    };
    const move_case m = move_case_new();
    cp_plan_report report;
    must(cp_plan_check(m.plan, &report));
    cp_plan_report_free(&report);
    cases[_i].harm(&m);
    cp_plan_link(m.plan);
    refuses(cp_plan_check(m.plan, &report), CP_BROKEN, cases[_i].words);
    cp_plan_report_free(&report);
    move_case_free(&m);
}

TEST(a_migration_is_drawn) {
    const move_case m = move_case_new();
    char *page;
    size_t size;
    FILE *out = open_memstream(&page, &size);
    must(cp_draw(m.plan, CP_DRAW_ASCII, out));
    must(cp_draw(m.plan, CP_DRAW_SVG, out));
    fclose(out);
    hold(strstr(page, "receive") != NULL);
    hold(strstr(page, "<title>migration over 3 ranks</title>") != NULL);
    free(page);
    move_case_free(&m);
}

TEST(calls_that_do_not_fit_are_refused) {
    cp_cache *cache = empty_cache(&ways[0], 2, 0), *other;
    cp_migration *migration;
    refuses(cp_cache_assign(cache, (int64_t[]){1, 0, 5000}), CP_CAPACITY,
            "room for");
    must(cp_cache_assign(cache, (int64_t[]){1, 0, 0}));
    refuses(cp_cache_assign(cache, (int64_t[]){1, 0, 0}), CP_INVALID,
            "has 1 tokens already");
    must(cp_cache_new(2, SEQUENCES, 300, &other));
    must(cp_cache_assign(other, (int64_t[]){0, 0, 0}));
    must(cp_cache_migration(cache, other, &migration));
    refuses(cp_migration_match(migration), CP_BROKEN, "is held by no rank");
    cp_migration_free(migration);
    refuses(cp_cache_migration(other, cache, &migration), CP_INVALID,
            "no new token");
    cp_cache_free(cache);
    cp_cache_free(other);
}

static cp_model *model;

static cp_gguf *model_load(void) {
    static tiny_bytes bytes;
    const tiny_gguf_options tiny = {.seed = 4};
    cp_gguf *file;
    tiny_gguf_build(&tiny, &bytes);
    must(cp_gguf_parse(bytes.bytes, bytes.length, &file));
    must(cp_model_open(&cp_backend_threads, file, &model));
    return file;
}

static void model_drop(cp_gguf *file) {
    cp_model_close(model);
    cp_gguf_close(file);
}

enum { TALKS = 2 };

static cp_session *talk_open(const cp_session_options *base, int ranks) {
    cp_session_options options = *base;
    cp_session *session;
    options.ranks = ranks;
    options.sequences = TALKS;
    must(cp_session_open(model, &options, &session));
    return session;
}

/* The next call of both; returns the difference of their last logits. */
static double call(cp_session *const both[2], bool decode, int64_t first,
                   int64_t second) {
    const int64_t lengths[TALKS] = {first, second}, count = first + second;
    const int64_t words = model->facts.vocabulary;
    static int32_t next;
    int32_t *ids = room_for(count, sizeof(*ids));
    float *logits[2];
    double apart = 0;
    for (int64_t i = 0; i < count; i++)
        ids[i] = 10 + next++ % 50;
    for (int s = 0; s < 2; s++) {
        logits[s] = room_for(count * words, 4);
        must((decode ? cp_session_decode : cp_session_prefill)(both[s], lengths,
                                                               ids, NULL));
        must(cp_session_logits(both[s], 0, count, logits[s]));
    }
    for (int64_t i = 0; i < count * words; i++)
        apart = fmax(apart, fabs((double)logits[0][i] - (double)logits[1][i]));
    return apart;
}

static void move(cp_session *session, int from, int to, int64_t tokens) {
    cp_ranks_report report;
    must(cp_session_ranks(session, to, &report));
    hold(report.from == from && report.to == to);
    ck_assert_int_eq(report.tokens, tokens);
    ck_assert_int_eq(report.bytes, report.moved * model->facts.layers * 4 *
                                       cp_kept_width(&model->facts.shape));
    hold(report.most <= report.bytes && report.after < 1.3);
}

LOOP(a_conversation_continues_on_other_ranks, 0, 16 * 2) {
    const int from = 1 + _i % 4, to = 1 + _i / 4 % 4;
    const cp_session_options ways[] = {
        {.block = 4, .cores = 1},
        {.dealing = {CP_INTERLEAVE, 2, NULL}, .capacity = 200, .cores = 1},
    };
    const cp_session_options *how = &ways[_i / 16];
    cp_gguf *file = model_load();
    cp_session *const both[] = {talk_open(&ways[0], 1), talk_open(how, from)};
    move(both[1], from, from, 0);
    hold(call(both, false, 40, 11) < 2e-4);
    hold(call(both, true, 3, 1) < 2e-4);
    move(both[1], from, to, 55);
    for (int s = 0; s < 2; s++)
        must(cp_session_truncate(both[s], 1, 12));
    hold(call(both, true, 1, 1) < 2e-4);
    hold(call(both, true, 4, 0) < 2e-4);
    for (int s = 0; s < 2; s++)
        must(cp_session_truncate(both[s], 0, 46));
    hold(call(both, false, 9, 5) < 2e-4);
    move(both[1], to, from, 55 + 18);
    hold(call(both, true, 1, 1) < 2e-4);
    for (int s = 0; s < 2; s++)
        cp_session_close(both[s]);
    model_drop(file);
}

/* The contents of the conversation's file, in memory. */
static char *kept(cp_session *session, const cp_gguf *file, int64_t *bytes) {
    char path[] = "/tmp/longring-keep-XXXXXX", *data;
    const int made = mkstemp(path);
    cp_saved_conversation saved;
    hold(made >= 0);
    must(cp_saved_conversation_new(
        model, file, "tiny", TALKS,
        cp_session_length(session, 0) + cp_session_length(session, 1), &saved));
    for (int s = 0; s < TALKS; s++) {
        saved.lengths[s] = cp_session_length(session, s);
        saved.chances[s] = 7;
    }
    for (int64_t t = 0; t < saved.head.tokens; t++)
        saved.ids[t] = (int32_t)t % 9;
    must(cp_saved_conversation_write(path, &saved, session));
    *bytes = cp_saved_conversation_bytes(&saved);
    data = room_for(*bytes, 1);
    hold(read(made, data, (size_t)*bytes) == 0); /* the previous file */
    FILE *in = fopen(path, "rb");
    hold(in != NULL && fread(data, 1, (size_t)*bytes, in) == (size_t)*bytes);
    hold(fgetc(in) == EOF);
    fclose(in);
    close(made);
    unlink(path);
    cp_saved_conversation_free(&saved);
    return data;
}

static cp_status take(char *data, int64_t bytes, const cp_gguf *file,
                      cp_session *session, cp_saved_conversation *saved) {
    FILE *in = fmemopen(data, (size_t)bytes, "rb");
    cp_saved_conversation expected;
    must(cp_saved_conversation_new(model, file, "tiny", TALKS, 0, &expected));
    const cp_status status =
        cp_saved_conversation_read(in, "kept", &expected, session, saved);
    fclose(in);
    cp_saved_conversation_free(&expected);
    return status;
}

/* A saved conversation continues as one that moved to as many ranks, with the
 * same bits each time, and is saved with the same bytes. */
LOOP(a_saved_conversation_continues, 0, 9) {
    const int from = 1 + _i % 3, to = 1 + _i / 3;
    const cp_session_options how = {.block = 4, .cores = 1};
    cp_gguf *file = model_load();
    cp_session *const live[] = {talk_open(&how, 1), talk_open(&how, from)};
    cp_session *const both[] = {live[1], talk_open(&how, to)};
    cp_saved_conversation saved;
    int64_t bytes, again;
    call(live, false, 40, 11);
    call(live, true, 3, 1);
    char *data = kept(live[1], file, &bytes);
    cp_session *const same[] = {talk_open(&how, to), talk_open(&how, to)};
    for (int s = 0; s < 2; s++) {
        must(take(data, bytes, file, same[s], &saved));
        cp_saved_conversation_free(&saved);
    }
    hold(call(same, false, 7, 3) == 0 && call(same, true, 1, 1) == 0);
    must(take(data, bytes, file, both[1], &saved));
    hold(saved.head.tokens == 55 && saved.ids[10] == 1 &&
         saved.chances[1] == 7);
    hold(memcmp(data, kept(both[1], file, &again), (size_t)bytes) == 0);
    move(live[1], from, to, 55);
    hold(memcmp(data, kept(live[1], file, &again), (size_t)bytes) == 0);
    hold(call(both, false, 7, 3) < 2e-4 && call(both, true, 1, 1) < 2e-4);
    cp_saved_conversation_free(&saved);
    for (int s = 0; s < 2; s++) {
        cp_session_close(live[s]);
        cp_session_close(same[s]);
    }
    cp_session_close(both[1]);
    model_drop(file);
}

/* Whichever byte is changed, or missing. */
LOOP(damaged_saved_conversations_are_refused, 0, 10) {
    const cp_session_options how = {.cores = 1};
    cp_gguf *file = model_load();
    cp_session *const both[] = {talk_open(&how, 2), talk_open(&how, 3)};
    cp_session *const twice[] = {both[0], both[0]};
    uint64_t random = (uint64_t)_i + 1;
    cp_saved_conversation saved;
    int64_t bytes;
    /* An empty conversation is valid, too. */
    char *empty = kept(both[0], file, &bytes);
    must(take(empty, bytes, file, both[1], &saved));
    hold(saved.head.tokens == 0);
    cp_saved_conversation_free(&saved);
    call(twice, false, 5, 6);
    char *data = kept(both[0], file, &bytes);
    for (int n = 0; n < 200; n++) {
        const uint64_t drawn = harness_random(&random);
        const int64_t most = n % 2 == 0 ? 400 : bytes;
        const int64_t at = (int64_t)(drawn % (uint64_t)most);
        data[at] = (char)(data[at] ^ (1 << n % 8));
        hold(take(data, bytes, file, both[1], &saved) != CP_OK);
        cp_saved_conversation_free(&saved);
        data[at] = (char)(data[at] ^ (1 << n % 8));
        hold(take(data, at + 1 < bytes ? at + 1 : at, file, both[1], &saved) !=
             CP_OK);
        cp_saved_conversation_free(&saved);
        hold(cp_session_length(both[1], 0) + cp_session_length(both[1], 1) ==
             0);
    }
    must(take(data, bytes, file, both[1], &saved));
    cp_saved_conversation_free(&saved);
    refuses(take(data, bytes, file, both[1], &saved), CP_INVALID,
            "tokens already");
    cp_saved_conversation_free(&saved);
    for (int s = 0; s < 2; s++)
        cp_session_close(both[s]);
    model_drop(file);
}
