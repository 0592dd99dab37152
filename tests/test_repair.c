/* A rank is lost: the ledger of the survivors, the calls that restore what is
 * missing, and conversations that continue as if nothing had happened. */
#include "planned.h"

#include <math.h>
#include <string.h>

#include "model/session_repair.h"
#include "tokens/repair.h"
#include "tests/harness/tiny_gguf.h"

enum { SEQUENCES = 3, POSITIONS = 600, ROOM = 640, PAGE = 16 };

/* Lay a call out and prove its plan. */
static void plan_turn(bool decode, const int64_t *fresh, cp_variant variant) {
    lay_out(decode, fresh);
    build(decode ? CP_DECODE : variant, &(cp_shape){4, 2, 8}, NULL);
    prove();
}

static void make_turn(bool decode, const int64_t *fresh, cp_variant variant) {
    plan_turn(decode, fresh, variant);
    must(cp_cache_commit(cache, layout));
}

/* How many ranks hold a position of a sequence. */
static int64_t holders(int64_t sequence, int64_t position) {
    const cp_span token = {sequence, position, 1, 1};
    int64_t count = 0;
    for (int rank = 0; rank < cache->ranks; rank++) {
        const cp_pieces *held = cp_cache_held(cache, rank, sequence);
        for (int64_t n = 0; n < held->count; n++)
            count += cp_span_shared(held->items[n].span, token).count;
    }
    return count;
}

/* Check that each earlier token is on its old rank, unless that is lost. */
static void check_holders(bool none_lost) {
    for (int64_t s = 0; s < SEQUENCES; s++) {
        int64_t held = 0;
        for (int64_t p = 0; p < cache->length[s]; p++) {
            const int64_t count = holders(s, p);
            ck_assert(count == 1 || (count == 0 && !none_lost));
            held += count;
        }
        ck_assert_int_eq(holders(s, cache->length[s]), 0);
        for (int rank = 0; rank < cache->ranks; rank++) {
            int64_t row = s * cache->room;
            const cp_pieces *list = cp_cache_held(cache, rank, s);
            for (int64_t n = 0; n < list->count; n++) {
                ck_assert_int_eq(list->items[n].row, row);
                row += list->items[n].span.count;
                held -= list->items[n].span.count;
            }
        }
        ck_assert_int_eq(held, 0);
    }
}

static const int64_t unlike[] = {3, 2, 1, 5, 1, 1};
static const cp_dealing ways[] = {
    {.placement = CP_ZIGZAG},
    {.placement = CP_NAIVE},
    {.placement = CP_INTERLEAVE, .block = 1},
    {.placement = CP_INTERLEAVE, .block = 16},
    {.placement = CP_ZIGZAG, .weights = unlike},
    {.placement = CP_INTERLEAVE, .block = 64, .leaves = true},
};
static const cp_variant rings[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                   CP_TREE};

/* Restore some of the lost tokens; returns whether there were any. */
static bool refill_part(int64_t most, uint64_t *random) {
    int64_t lengths[SEQUENCES], count;
    must(cp_cache_refill(cache, most, lengths, &count));
    if (count == 0)
        return false;
    ck_assert_int_le(count, most);
    make_turn(false, lengths, rings[harness_random(random) % 4]);
    ck_assert_int_eq(layout->new_tokens, count);
    cp_cache_refilled(cache);
    check_holders(false);
    return true;
}

/* Restore all lost tokens, in calls of at most `most` tokens. */
static void refill(int64_t most, uint64_t *random) {
    while (refill_part(most, random))
        continue;
}

static void random_turns(uint64_t *random) {
    for (int n = 0; n < 4; n++) {
        const bool decode = harness_random(random) % 2 == 0;
        int64_t fresh[SEQUENCES], all = 0;
        for (int s = 0; s < SEQUENCES; s++) {
            const int64_t left = POSITIONS - cache->length[s];
            const uint64_t most = decode ? 3 : 90;
            fresh[s] = cp_min(left, (int64_t)(harness_random(random) % most));
            all += fresh[s];
        }
        if (all > 0)
            make_turn(decode, fresh, rings[harness_random(random) % 4]);
    }
}

LOOP(tokens_of_a_lost_rank_are_redistributed, 0, 6 * COUNT_OF(ways)) {
    uint64_t random = (uint64_t)_i + 1;
    const int ranks = 2 + _i % 3 + _i / COUNT_OF(ways) % 3;
    new_cache(ranks, SEQUENCES, ROOM);
    cache->dealing = ways[_i % COUNT_OF(ways)];
    if (_i % 2 == 0)
        must(cp_cache_page(cache, PAGE, ROOM * SEQUENCES / PAGE));
    for (random_turns(&random); cache->ranks > 1; random_turns(&random)) {
        const int lost =
            (int)(harness_random(&random) % (uint64_t)cache->ranks);
        must(cp_cache_lose(cache, lost, ROOM + ranks - cache->ranks));
        check_holders(false);
        /* One call is begun, and never made. */
        int64_t lengths[SEQUENCES], count;
        must(cp_cache_refill(cache, 1000, lengths, &count));
        refill(1 + (int64_t)(harness_random(&random) % 200), &random);
        check_holders(true);
    }
    check_holders(true);
}

/* Two of four ranks hold only new tokens; then another rank is lost while the
 * tokens of the first are being restored. */
TEST(a_second_loss_during_recovery) {
    int64_t lengths[SEQUENCES], count;
    uint64_t random = 3;
    new_cache(4, SEQUENCES, ROOM);
    make_turn(false, (int64_t[]){400, 0, 33}, CP_PASS_KV);
    must(cp_cache_lose(cache, 1, ROOM));
    must(cp_cache_refill(cache, 60, lengths, &count));
    ck_assert_int_eq(count, 60);
    make_turn(false, lengths, CP_PASS_Q);
    cp_cache_refilled(cache);
    must(cp_cache_lose(cache, 2, ROOM));
    refill(100, &random);
    check_holders(true);
}

/* The tokens of a rank that took over are not in the order of positions. That
 * rank is lost in turn, and its tokens are restored in calls that end one token
 * into a leaf. */
TEST(leaves_come_back_in_order) {
    uint64_t random = 3;
    new_cache(3, SEQUENCES, ROOM);
    cache->dealing = ways[COUNT_OF(ways) - 1];
    make_turn(false, (int64_t[]){512, 0, 0}, CP_PASS_KV);
    must(cp_cache_lose(cache, 1, ROOM));
    refill(1000, &random);
    must(cp_cache_lose(cache, 1, ROOM));
    refill_part(1, &random);
    refill_part(64, &random);
    refill(1000, &random);
    check_holders(true);
}

TEST(nothing_else_is_done_while_tokens_are_missing) {
    int64_t lengths[SEQUENCES], count;
    new_cache(3, SEQUENCES, ROOM);
    must(cp_cache_page(cache, PAGE, ROOM * SEQUENCES / PAGE));
    make_turn(false, (int64_t[]){90, 0, 0}, CP_PASS_KV);
    refuses(cp_cache_lose(cache, 3, ROOM), CP_INVALID,
            "lost rank 3: there are 3 ranks");
    refuses(cp_cache_lose(cache, 0, 1), CP_INVALID,
            "it must not be less than 640");
    must(cp_cache_lose(cache, 0, ROOM));
    forget_call();
    refuses(cp_cache_lay_out(cache, false, (int64_t[]){5, 0, 0}, &layout),
            CP_INVALID, "brings 5 tokens for 0 positions");
    must(cp_cache_refill(cache, 12, lengths, &count));
    refuses(cp_cache_lay_out(cache, true, lengths, &layout), CP_INVALID,
            "turns are for the tokens after the cached ones");
    refuses(cp_cache_truncate(cache, 0, 1), CP_INVALID, "are missing");
    refuses(cp_cache_fork(cache, 0, 1, 1), CP_INVALID, "are missing");
}

/* A sequence that has not begun loses nothing. */
TEST(losing_a_rank_without_tokens_changes_nothing) {
    int64_t lengths[SEQUENCES], count;
    new_cache(3, SEQUENCES, ROOM);
    must(cp_cache_lose(cache, 1, ROOM));
    must(cp_cache_refill(cache, 12, lengths, &count));
    ck_assert_int_eq(count, 0);
    must(cp_cache_lose(cache, 1, ROOM));
    refuses(cp_cache_lose(cache, 0, ROOM), CP_INVALID, "there are 1 ranks");
    make_turn(false, (int64_t[]){5, 6, 7}, CP_PASS_KV);
    check_holders(true);
}

/* Sequences that shared lost pages each restore their own copy. */
TEST(shared_pages_are_lost_and_brought_back) {
    uint64_t random = 5;
    new_cache(3, SEQUENCES, ROOM);
    must(cp_cache_page(cache, PAGE, ROOM * SEQUENCES / PAGE));
    make_turn(false, (int64_t[]){300, 0, 0}, CP_PASS_KV);
    must(cp_cache_fork(cache, 0, 1, 200));
    make_turn(true, (int64_t[]){1, 1, 0}, CP_DECODE);
    must(cp_cache_lose(cache, 2, ROOM));
    refill(1000, &random);
    check_holders(true);
    random_turns(&random);
    /* Tokens after the repair can be cut; those that it restored cannot. */
    const int64_t length = cache->length[0];
    make_turn(true, (int64_t[]){4, 0, 0}, CP_DECODE);
    must(cp_cache_truncate(cache, 0, length));
    refuses(cp_cache_truncate(cache, 0, 190), CP_INVALID, "between them");
    check_holders(true);
}

/* The proof of a call with holes, if one is omitted or filled twice. */
static void damaged(void (*damage)(void), const char *words) {
    int64_t lengths[SEQUENCES], count;
    new_cache(3, SEQUENCES, ROOM);
    make_turn(false, (int64_t[]){90, 0, 40}, CP_PASS_KV);
    make_turn(false, (int64_t[]){30, 0, 40}, CP_PASS_KV);
    must(cp_cache_lose(cache, 1, ROOM));
    must(cp_cache_refill(cache, 1000, lengths, &count));
    plan_turn(false, lengths, CP_PASS_KV);
    damage();
    cp_plan_report_free(&report);
    refuses(cp_plan_check(plan, &report), CP_BROKEN, words);
}

static void forget_hole(void) {
    layout->queries[0].pieces.count--;
    layout->appended[0].pieces.count--;
    layout->all_queries.pieces.count--;
    layout->keys[0].pieces.count--;
    layout->cache[0].pieces.count--;
}

static void drop_first(cp_pieces *pieces) {
    pieces->count--;
    memmove(pieces->items, pieces->items + 1,
            (size_t)pieces->count * sizeof(cp_piece));
}

static void lose_key(void) {
    drop_first(&layout->keys[1].pieces);
    drop_first(&layout->cache[1].pieces);
}

static void fill_elsewhere(void) {
    layout->queries[0].pieces.items[0].span.start--;
    layout->appended[0].pieces.items[0].span.start--;
}

static void fill_twice(void) {
    layout->queries[1].pieces.items[0].span =
        layout->queries[0].pieces.items[0].span;
}

static void move_every_row(void) {
    layout->all_queries.pieces.items[1].row++;
}

TEST(holes_that_are_not_filled_are_named) {
    damaged(forget_hole, "key positions of sequence 2; expected 80");
}

TEST(a_key_that_the_others_have_lost_is_named) {
    damaged(lose_key, "of the key positions before");
}

TEST(a_query_that_is_no_hole_is_named) {
    damaged(fill_elsewhere, "which are not all new");
}

TEST(a_hole_that_is_filled_twice_is_named) {
    damaged(fill_twice, "is held by rank 0 and by rank 1");
}

TEST(rows_of_all_holes_are_checked) {
    damaged(move_every_row, "new tokens, in rows");
}

/* Conversations with a tiny model, in two sessions: one has a single rank and
 * gets the same input as the other. */
enum { SPEAKERS = 3, MOST = 2600 };

static struct {
    tiny_bytes bytes;
    cp_gguf *file;
    cp_model *model;
    cp_session *alone, *many;
    int32_t transcript[SPEAKERS][MOST];
    int64_t words;
    uint64_t random;
    bool exact; /* compare bits */
} talk;

static void talk_begin(const cp_session_options *options) {
    cp_session_options one = *options;
    talk.random = 11;
    talk.words = tiny_gguf_vocabulary_size(&(tiny_gguf_options){0});
    tiny_gguf_build(&(tiny_gguf_options){.context = MOST}, &talk.bytes);
    must(cp_gguf_parse(talk.bytes.bytes, talk.bytes.length, &talk.file));
    must(cp_model_open(&cp_backend_threads, talk.file, &talk.model));
    one.ranks = 1;
    if (!options->dealing.leaves)
        one.dealing = (cp_dealing){0};
    talk.exact = options->dealing.leaves;
    one.rows = one.least = 0;
    must(cp_session_open(talk.model, &one, &talk.alone));
    must(cp_session_open(talk.model, options, &talk.many));
}

static void talk_end(void) {
    cp_session_close(talk.alone);
    cp_session_close(talk.many);
    cp_model_close(talk.model);
    cp_gguf_close(talk.file);
    free(talk.bytes.bytes);
}

/* Feed tokens of each conversation to both; every score must agree, in exact
 * order to the bit. */
static void feed(bool decode, const int64_t *lengths) {
    int32_t tokens[SPEAKERS * MOST];
    int64_t count = 0;
    for (int s = 0; s < SPEAKERS; s++)
        for (int64_t n = 0; n < lengths[s]; n++) {
            const int64_t at = cp_session_length(talk.many, s) + n;
            talk.transcript[s][at] = tokens[count++] =
                (int32_t)(harness_random(&talk.random) % (uint64_t)talk.words);
        }
    float *expected = room_for(count * talk.words, sizeof(float));
    float *got = room_for(count * talk.words, sizeof(float));
    float largest = 0, worst = 0;
    must((decode ? cp_session_decode : cp_session_prefill)(talk.alone, lengths,
                                                           tokens, NULL));
    must((decode ? cp_session_decode : cp_session_prefill)(talk.many, lengths,
                                                           tokens, NULL));
    must(cp_session_logits(talk.alone, 0, count, expected));
    must(cp_session_logits(talk.many, 0, count, got));
    for (int64_t n = 0; n < count * talk.words; n++) {
        hold(isfinite(got[n]));
        largest = fmaxf(largest, fabsf(expected[n]));
        worst = fmaxf(worst, fabsf(expected[n] - got[n]));
    }
    ck_assert_msg(worst <= (talk.exact ? 0.0f : 1e-5f * largest),
                  "off by %g of %g", (double)worst, (double)largest);
    for (int64_t n = 0; n < count; n++)
        hold(cp_sample_greedy(expected + n * talk.words, talk.words) ==
             cp_sample_greedy(got + n * talk.words, talk.words));
}

static cp_status repair(int rank, cp_repair_report *report) {
    const int32_t *transcript[SPEAKERS];
    for (int s = 0; s < SPEAKERS; s++)
        transcript[s] = talk.transcript[s];
    return cp_session_repair(talk.many, rank, transcript, report);
}

static int64_t lengths_of_all(void) {
    int64_t all = 0;
    for (int s = 0; s < SPEAKERS; s++)
        all += cp_session_length(talk.many, s);
    return all;
}

LOOP(a_session_goes_on_without_a_rank, 0, 4 * COUNT_OF(ways)) {
    static const cp_variant variants[] = {CP_AUTO, CP_PASS_KV, CP_PASS_Q,
                                          CP_ALL_GATHER};
    const int ranks = 2 + _i % 3;
    cp_repair_report report;
    talk_begin(&(cp_session_options){.ranks = ranks,
                                     .sequences = SPEAKERS,
                                     .capacity = 250,
                                     .variant = variants[_i % 4],
                                     .dealing = ways[_i / 4],
                                     .least = 1,
                                     .cores = 1});
    feed(false, (int64_t[]){130, 0, 31});
    for (int left = ranks - 1; left > 0; left--) {
        for (int n = 0; n < 3; n++)
            feed(true, (int64_t[]){1, 0, 1 + n / 2});
        const int64_t all = lengths_of_all();
        must(repair((_i + left) % (left + 1), &report));
        ck_assert(report.calls == (report.tokens > 0));
        hold(report.tokens > 0 || talk.exact);
        ck_assert_int_le(report.tokens, all);
        ck_assert_int_eq(lengths_of_all(), all);
        feed(true, (int64_t[]){1, 0, 1});
        feed(false, (int64_t[]){9, 3, 4});
    }
    talk_end();
}

/* A text in which each leaf has a block or two, then as many ranks as if none
 * had been lost. */
LOOP(a_long_text_keeps_its_bits, 0, 3) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER};
    cp_repair_report report;
    cp_ranks_report moved;
    talk_begin(&(cp_session_options){.ranks = 5,
                                     .sequences = SPEAKERS,
                                     .capacity = MOST - 1,
                                     .variant = variants[_i],
                                     .dealing = ways[COUNT_OF(ways) - 1],
                                     .least = 3,
                                     .cores = 1});
    feed(false, (int64_t[]){2300, 70, 0});
    must(repair(3, &report));
    feed(false, (int64_t[]){70, 1, 1});
    must(repair(1, &report));
    feed(true, (int64_t[]){1, 1, 1});
    feed(false, (int64_t[]){200, 1, 0});
    must(cp_session_ranks(talk.many, 4, &moved));
    feed(false, (int64_t[]){4, 1, 65});
    talk_end();
}

/* Ranks without room for more tokens: the message names the numbers. Nor has
 * a session without `least` rows to spare. */
LOOP(too_little_room_is_named, 0, 2) {
    static const int64_t texts[][SPEAKERS] = {{230, 0, 0}, {230, 230, 230}};
    static const char *const expected[] = {
        "rank 0: 2 more blocks of 64 tokens are needed, and 0 of 2 are free; "
        "the ranks left have 128 cache rows each: try more rows, or rows 0 "
        "with least 1",
        "the ranks left have 384 cache rows each: try more rows, or rows 0 "
        "with least 1"};
    cp_repair_report report;
    talk_begin(&(cp_session_options){.ranks = 2,
                                     .sequences = SPEAKERS,
                                     .capacity = 240,
                                     .rows = _i == 0 ? 128 : 0,
                                     .cores = 1});
    feed(false, texts[_i]);
    refuses(repair(1, &report), CP_CAPACITY, expected[_i]);
    refuses(cp_session_prefill(talk.many, (int64_t[]){1, 0, 0},
                               talk.transcript[0], NULL),
            CP_INVALID, "brings 1 tokens for");
    talk_end();
}
