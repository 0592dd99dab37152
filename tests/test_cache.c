/* The ledger of a long conversation: whatever its turns, and whatever is taken
 * back, no rank gets more than its room. */
#include "expect.h"

#include "tokens/cache.h"

static cp_cache *cache;

/* Turns of a sequence, alone or with others, chosen as hard cases. */
static int64_t turn_of(int kind, int ranks, int n, uint64_t *random) {
    const int64_t length = (int64_t)(harness_random(random) % 1000);
    const int64_t turns[] = {1,
                             ranks + 1,
                             2 * ranks + 1,
                             ranks + (INT64_C(1) << n % 5),
                             1 + length % (5 * ranks),
                             length % 9 == 0 ? length : 1 + length % 3};
    return turns[kind];
}

static void take_turn(const int64_t *fresh, bool decode) {
    cp_layout *layout;
    must(cp_cache_lay_out(cache, decode, fresh, &layout));
    must(cp_cache_commit(cache, layout));
    cp_layout_free(layout);
}

static void check_spread(int64_t sequence) {
    const int64_t *weights = cache->dealing.weights, step = cache->step;
    const int64_t tokens = cache->length[sequence];
    int64_t sum = 0;
    for (int rank = 0; rank < cache->ranks && weights != NULL; rank++)
        sum += weights[rank];
    for (int rank = 0; rank < cache->ranks && weights != NULL; rank++) {
        const int64_t holds =
            cp_pieces_tokens(cp_cache_held(cache, rank, sequence));
        const int64_t expected = cp_ceil_divide(weights[rank] * tokens, sum);
        ck_assert_int_le(holds, expected + (step > 0 ? cache->ranks : 0));
    }
    if (cache->dealing.placement != CP_ZIGZAG || weights != NULL)
        return;
    int64_t least = INT64_MAX, most = 0;
    for (int rank = 0; rank < cache->ranks; rank++) {
        const int64_t tokens =
            cp_pieces_tokens(cp_cache_held(cache, rank, sequence));
        least = cp_min(least, tokens);
        most = cp_max(most, tokens);
    }
    ck_assert_int_le(most - least, 2 * cache->ranks - 1);
}

static const int64_t unlike[] = {3, 2, 1, 5, 1, 1, 40, 7, 2};
static const cp_dealing ways[] = {
    {.placement = CP_ZIGZAG},
    {.placement = CP_INTERLEAVE, .block = 1},
    {.placement = CP_INTERLEAVE, .block = 16},
    {.placement = CP_INTERLEAVE, .block = 64},
    {.placement = CP_ZIGZAG, .weights = unlike},
};

LOOP(all_promised_positions_fit_in_the_room, 0, 54 * COUNT_OF(ways)) {
    enum { POSITIONS = 1500 };
    const int ranks = 1 + _i % 9, kind = _i / 9 % 6;
    const cp_dealing *how = &ways[_i / 54];
    uint64_t random = (uint64_t)_i % 54 + 1;
    must(cp_cache_new(ranks, 2, cp_shard_room(how, ranks, POSITIONS), &cache));
    cache->dealing = *how;
    for (int n = 0; cache->length[0] < POSITIONS; n++) {
        const int64_t left = POSITIONS - cache->length[0];
        const int64_t fresh = turn_of(kind, ranks, n, &random);
        const int64_t prompt[2] = {cp_min(fresh, left), 0};
        take_turn(prompt, false);
        /* Another sequence has every step except each N-th. */
        for (int step = 0; step < ranks; step++) {
            const bool first = step == 0 && cache->length[0] < POSITIONS;
            const bool second = !first && cache->length[1] < POSITIONS;
            const int64_t batch[2] = {first, second};
            if (first || second)
                take_turn(batch, true);
        }
        check_spread(0);
        check_spread(1);
    }
    cp_cache_free(cache);
}

/* Check that every rank's tokens are in its first rows, in order, and that all
 * ranks together have each position once. */
static void check_rows(int64_t sequence) {
    const int64_t length = cache->length[sequence];
    int64_t all = 0;
    for (int rank = 0; rank < cache->ranks; rank++) {
        const cp_pieces *held = cp_cache_held(cache, rank, sequence);
        int64_t row = sequence * cache->room, next = 0;
        for (int64_t n = 0; n < held->count; n++) {
            const cp_piece piece = held->items[n];
            ck_assert(piece.row == row && piece.span.start >= next);
            ck_assert(piece.span.count > 1 || piece.span.step == 1);
            row += piece.span.count;
            next = cp_span_last(piece.span) + 1;
        }
        ck_assert_int_le(next, length);
        all += row - sequence * cache->room;
    }
    ck_assert_int_eq(all, length);
}

static void cut(int64_t sequence, int64_t length) {
    must(cp_cache_truncate(cache, sequence, length));
    check_rows(sequence);
    check_spread(sequence);
}

/* Drafts of up to six tokens, of which all or fewer stay. */
static void take_step(int64_t most, uint64_t *random) {
    int64_t fresh[2], kept[2];
    for (int s = 0; s < 2; s++) {
        const uint64_t left = (uint64_t)cp_min(7, most - cache->length[s]);
        fresh[s] = (int64_t)(harness_random(random) % (left + 1));
        kept[s] = cache->length[s];
        if (fresh[s] > 0)
            kept[s] +=
                1 + (int64_t)(harness_random(random) % (uint64_t)fresh[s]);
    }
    if (fresh[0] + fresh[1] == 0)
        return;
    take_turn(fresh, true);
    for (int s = 0; s < 2; s++)
        cut(s, kept[s]);
}

LOOP(rows_are_bounded_whatever_is_truncated, 0, 9 * COUNT_OF(ways)) {
    enum { POSITIONS = HARNESS_SANITIZED ? 300 : 900 };
    const int ranks = 1 + _i % 9;
    const cp_dealing *how = &ways[_i / 9];
    uint64_t random = (uint64_t)_i + 1;
    must(cp_cache_new(ranks, 2, cp_shard_room(how, ranks, POSITIONS), &cache));
    cache->dealing = *how;
    take_turn((int64_t[]){2 * ranks + 1, 3}, false);
    while (cache->length[0] < POSITIONS || cache->length[1] < POSITIONS)
        take_step(POSITIONS, &random);
    cut(0, 2 * ranks + 1);
    cut(0, 0);
    take_turn((int64_t[]){7, 0}, false);
    check_rows(0);
    cp_cache_free(cache);
}

TEST(ten_thousand_steps_leave_four_ranks_balanced) {
    uint64_t random = 7;
    int64_t held[2] = {INT64_MAX, 0}, pieces = 0;
    must(cp_cache_new(4, 1, 30000, &cache));
    take_turn((int64_t[]){1000}, false);
    for (int n = 0; n < 10000; n++) {
        const int64_t kept = 1 + (int64_t)(harness_random(&random) % 5);
        take_turn((int64_t[]){5}, true);
        must(cp_cache_truncate(cache, 0, cache->length[0] - 5 + kept));
    }
    check_rows(0);
    for (int rank = 0; rank < 4; rank++) {
        const int64_t tokens = cp_pieces_tokens(cp_cache_held(cache, rank, 0));
        held[0] = cp_min(held[0], tokens);
        held[1] = cp_max(held[1], tokens);
        pieces = cp_max(pieces, cp_cache_held(cache, rank, 0)->count);
    }
    ck_assert_int_le(held[1] - held[0], 7);
    ck_assert_int_le(pieces, 4);
    cp_cache_free(cache);
}

/* Prefills of as many tokens as ranks give the first token to the fullest rank.
 * All but that token are taken back, until that rank has no room. */
TEST(repeated_truncation_can_fill_a_rank) {
    const int64_t fresh = 5;
    cp_layout *layout;
    cp_status status = CP_OK;
    int64_t steps = 0;
    must(cp_cache_new(4, 1, cp_shard_room(NULL, 4, 200), &cache));
    while (status == CP_OK && steps++ < 195) {
        status = cp_cache_lay_out(cache, false, &fresh, &layout);
        if (status == CP_OK) {
            must(cp_cache_commit(cache, layout));
            must(cp_cache_truncate(cache, 0, steps));
            cp_layout_free(layout);
        }
    }
    ck_assert_int_eq(status, CP_CAPACITY);
    cp_cache_free(cache);
}

TEST(an_impossible_cut_is_refused) {
    must(cp_cache_new(2, 2, 200, &cache));
    take_turn((int64_t[]){9, 100}, false);
    refuses(cp_cache_truncate(cache, 0, 10), CP_INVALID,
            "sequence 0 has 9 tokens; it cannot be cut to 10");
    refuses(cp_cache_truncate(cache, 0, -1), CP_INVALID, "cut to -1");
    cp_cache_free(cache);
    must(cp_cache_new(2, 1, 200, &cache));
    cache->dealing = (cp_dealing){CP_INTERLEAVE, .block = 2};
    take_turn((int64_t[]){3}, false);
    take_turn((int64_t[]){100}, false);
    refuses(cp_cache_truncate(cache, 0, 50), CP_INVALID,
            "rank 0 has others between them");
    ck_assert_int_eq(cache->length[0], 103);
    ck_assert_int_eq(cp_pieces_tokens(cp_cache_held(cache, 0, 0)), 52);
    must(cp_cache_truncate(cache, 0, 3));
    check_rows(0);
    cp_cache_free(cache);
}

/* A long prompt in pieces while four other sequences decode: each rank gets one
 * of their tokens and a quarter of the piece. */
TEST(pieces_beside_steps_are_balanced) {
    const int64_t fresh[5] = {64, 1, 1, 1, 1};
    must(cp_cache_new(4, 5, cp_shard_room(NULL, 4, 20000), &cache));
    take_turn((int64_t[]){0, 100, 100, 100, 100}, false);
    for (int n = 0; n < 300; n++) {
        cp_layout *layout;
        must(cp_cache_lay_out(cache, false, fresh, &layout));
        for (int rank = 0; rank < 4; rank++)
            ck_assert_int_eq(layout->queries[rank].tokens, 17);
        must(cp_cache_commit(cache, layout));
        cp_layout_free(layout);
        for (int64_t s = 0; s < 5; s++)
            check_spread(s);
    }
    cp_cache_free(cache);
}
