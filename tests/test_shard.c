/* Sharding: nothing lost, nothing twice, equal blocks, fair shares. */
#include "expect.h"

#include <string.h>

#include <stdlib.h>

#include "tokens/layout.h"
#include "tokens/weighted.h"

static void mark(const cp_pieces *pieces, int64_t sequence, int *marks,
                 int64_t length) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        if (span.sequence != sequence)
            continue;
        if (span.start < 0 || cp_span_last(span) >= length)
            ck_abort_msg("a piece leaves sequence %ld", sequence);
        for (int64_t i = 0; i < span.count; i++)
            marks[span.start + i * span.step]++;
    }
}

static void in_order(const cp_pieces *pieces) {
    for (int64_t n = 1; n < pieces->count; n++)
        if (pieces->items[n].span.sequence < pieces->items[n - 1].span.sequence)
            ck_abort_msg("piece %ld is out of order", n);
}

enum { LISTS = 9 * 16 };

/* The current call's cached tokens, [ranks][sequences], and its layout; both
 * are freed after the test, or for the next call. */
static cp_pieces held[LISTS];
static cp_layout *layout;

static void free_all(void) {
    cp_layout_free(layout);
    layout = NULL;
    for (int n = 0; n < LISTS; n++) {
        cp_pieces_free(&held[n]);
        held[n] = (cp_pieces){0};
    }
}

AROUND_EACH(free_all, free_all);

/* Lay out fresh tokens after cached ones with the same placement. */
static void lay_out(int ranks, cp_dealing dealing, int64_t sequences,
                    const int64_t *cached, const int64_t *fresh) {
    cp_layout *original;
    int64_t total = 0;
    for (int64_t i = 0; i < sequences; i++)
        total += cached[i];
    free_all();
    cp_call call = {.ranks = ranks,
                    .sequences = sequences,
                    .new_tokens = cached,
                    .held = held,
                    .room = 256,
                    .dealing = dealing};
    if (total > 0) {
        must(cp_layout_new(&call, &original));
        for (int rank = 0; rank < ranks; rank++) {
            const cp_pieces *appended = &original->appended[rank].pieces;
            for (int64_t n = 0; n < appended->count; n++)
                must(cp_pieces_append(
                    &held[rank * sequences + appended->items[n].span.sequence],
                    appended->items[n]));
        }
        cp_layout_free(original);
    }
    call.new_tokens = fresh;
    must(cp_layout_new(&call, &layout));
}

/* The most new tokens of a sequence that a rank has. */
static int64_t most_of(int64_t sequence) {
    int64_t most = 0;
    for (int rank = 0; rank < layout->ranks; rank++) {
        const cp_pieces *queries = &layout->queries[rank].pieces;
        int64_t tokens = 0;
        for (int64_t n = 0; n < queries->count; n++)
            if (queries->items[n].span.sequence == sequence)
                tokens += queries->items[n].span.count;
        most = cp_max(most, tokens);
    }
    return most;
}

/* The most that a rank has, minus the least. */
static int64_t spread(int ranks, const int64_t *tokens) {
    int64_t least = INT64_MAX, most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        least = cp_min(least, tokens[rank]);
        most = cp_max(most, tokens[rank]);
    }
    return most - least;
}

static void check_round_trip(const int64_t *cached, const int64_t *fresh) {
    enum { MOST = 128 };
    for (int rank = 0; rank < layout->ranks; rank++) {
        in_order(&layout->queries[rank].pieces);
        in_order(&layout->keys[rank].pieces);
    }
    for (int64_t i = 0; i < layout->sequences; i++) {
        int queries[MOST] = {0}, keys[MOST] = {0}, lie[MOST] = {0};
        const int64_t length = cached[i] + fresh[i];
        for (int rank = 0; rank < layout->ranks; rank++) {
            mark(&layout->queries[rank].pieces, i, queries, length);
            mark(&layout->keys[rank].pieces, i, keys, length);
            mark(&layout->cache[rank].pieces, i, lie, length);
        }
        for (int64_t t = 0; t < length && fresh[i] > 0; t++)
            if (queries[t] != (t >= cached[i]) || keys[t] != 1 || lie[t] != 1)
                ck_abort_msg("position %ld: %d queries, %d keys, %d rows", t,
                             queries[t], keys[t], lie[t]);
    }
}

static void check_padding(cp_dealing dealing, const int64_t *fresh) {
    const bool zigzag =
        dealing.placement == CP_ZIGZAG && dealing.weights == NULL;
    const int64_t chunks = 2 * layout->ranks;
    int64_t rows = 0, slack = 0, tokens[9];
    for (int64_t i = 0; i < layout->sequences; i++) {
        const int64_t chunk = cp_ceil_divide(fresh[i], chunks);
        rows += zigzag ? 2 * chunk : most_of(i);
        slack += cp_min(chunk, chunks * chunk - fresh[i]);
    }
    for (int rank = 0; rank < layout->ranks; rank++) {
        if (layout->queries[rank].rows != rows ||
            layout->keys[rank].rows != layout->keys[0].rows ||
            layout->keys[rank].tokens > layout->keys[rank].rows)
            ck_abort_msg("rank %d: blocks of unequal length", rank);
        tokens[rank] = layout->queries[rank].tokens;
    }
    hold(!zigzag || spread(layout->ranks, tokens) <= slack);
}

/* The owner of an interleaved position follows a formula. */
static void check_owners(int64_t block) {
    for (int rank = 0; rank < layout->ranks; rank++)
        for (int64_t n = 0; n < layout->keys[rank].pieces.count; n++) {
            const cp_span span = layout->keys[rank].pieces.items[n].span;
            for (int64_t t = 0; t < span.count; t++)
                hold((span.start + t * span.step) / block % layout->ranks ==
                     rank);
        }
}

static const int64_t unlike[] = {3, 2, 1, 5, 1, 1, 40, 7, 2};
static const cp_dealing ways[] = {
    {.placement = CP_ZIGZAG},
    {.placement = CP_NAIVE},
    {.placement = CP_INTERLEAVE},
    {.placement = CP_INTERLEAVE, .block = 2},
    {.placement = CP_INTERLEAVE, .block = 3},
    {.placement = CP_INTERLEAVE, .block = 16},
    {.placement = CP_INTERLEAVE, .block = 64},
    {.placement = CP_ZIGZAG, .weights = unlike},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };
static const cp_dealing zigzag = {.placement = CP_ZIGZAG};

LOOP(every_small_shape_is_a_round_trip, 1, 10) {
    const int ranks = _i;
    for (int64_t t = 1; t <= 4 * ranks + 3; t++)
        for (int64_t p = 0; p <= 2 * ranks + 1; p++) {
            const int64_t cached[4] = {p, 0, 1, 2 * ranks};
            const int64_t fresh[4] = {t, 1, 2 * ranks, t % 3};
            for (int64_t sequences = 1; sequences <= 4; sequences++)
                for (size_t way = 0; way < WAYS; way++) {
                    lay_out(ranks, ways[way], sequences, cached, fresh);
                    check_round_trip(cached, fresh);
                    check_padding(ways[way], fresh);
                    if (ways[way].placement == CP_INTERLEAVE)
                        check_owners(cp_max(1, ways[way].block));
                }
        }
}

static int64_t pairs(int k, int s) {
    return cp_block_pairs(&layout->queries[k], &layout->keys[s], 0);
}

LOOP(invariants_7_and_8_the_fold_is_fair, 1, 10) {
    const int ranks = _i;
    const int64_t chunk = 5, fresh = 2 * ranks * chunk, cached = 3 * ranks;
    lay_out(ranks, zigzag, 1, &cached, &fresh);
    for (int k = 0; k < ranks; k++) {
        int64_t sum = 0;
        for (int s = 0; s < ranks; s++) {
            const int64_t pair_count = pairs(k, s);
            const int64_t past = cp_pieces_tokens(&held[s]);
            ck_assert_int_eq(pair_count, 2 * chunk * chunk + 2 * chunk * past +
                                             (k == s ? chunk : 0));
            sum += pair_count;
        }
        ck_assert_int_eq(sum, fresh * (fresh + 1) / (2 * ranks) +
                                  fresh * cached / ranks);
    }
}

/* Where the weights divide evenly, each rank scores exactly its share of the
 * pairs; elsewhere rounding changes it little. */
LOOP(uneven_chunks_are_work_in_proportion, 1, 10) {
    const int ranks = _i;
    const int64_t none = 0;
    int64_t sum = 0;
    for (int k = 0; k < ranks; k++)
        sum += unlike[k];
    for (int64_t fresh = sum; fresh <= 256; fresh++) {
        lay_out(ranks, ways[WAYS - 1], 1, &none, &fresh);
        for (int k = 0; k < ranks; k++) {
            const int64_t tokens = layout->queries[k].tokens;
            int64_t own_count = 0;
            for (int s = 0; s < ranks; s++)
                own_count += pairs(k, s);
            hold(llabs(2 * own_count - tokens * (fresh + 1)) <=
                 fresh + tokens * ranks);
            hold(fresh % (2 * sum) != 0 ||
                 2 * own_count == unlike[k] * (fresh / sum) * (fresh + 1));
        }
    }
}

/* No rank is ever ahead of its share by a whole token, and after each sum of
 * weights it has exactly its share. */
LOOP(turns_are_in_proportion, 1, 10) {
    int64_t held[9] = {0}, none[9] = {0}, scratch[9], sum = 0;
    for (int k = 0; k < _i; k++)
        sum += unlike[k];
    for (int64_t n = 0; n < 3 * sum; n++) {
        held[cp_weighted_owner(unlike, _i, n, held, scratch)]++;
        cp_weighted_deal(unlike, _i, n, none, scratch);
        for (int k = 0; k < _i; k++)
            hold(scratch[k] * sum < unlike[k] * n + sum);
    }
    for (int k = 0; k < _i; k++)
        hold(held[k] == 3 * unlike[k]);
}

LOOP(a_straight_cut_is_as_unfair_as_the_formula_says, 1, 10) {
    const int64_t ranks = _i, fresh = 12 * ranks, none = 0;
    lay_out((int)ranks, ways[1], 1, &none, &fresh);
    int64_t most = 0, total = 0;
    for (int k = 0; k < ranks; k++) {
        int64_t sum = 0;
        for (int s = 0; s < ranks; s++)
            sum += pairs(k, s);
        most = cp_max(most, sum);
        total += sum;
    }
    ck_assert_int_eq(total, fresh * (fresh + 1) / 2);
    ck_assert_int_eq(most * ranks * ranks * (fresh + 1),
                     total * ((2 * ranks - 1) * fresh + ranks));
}

LOOP(a_first_prompt_gives_part_n_to_rank_n, 1, 10) {
    const int64_t none = 0;
    for (int64_t count = 1; count <= 6 * _i; count++) {
        const int64_t chunk = cp_ceil_divide(count, 2 * _i);
        lay_out(_i, zigzag, 1, &none, &count);
        for (int64_t rank = 0; rank < _i && rank * chunk < count; rank++)
            ck_assert_int_eq(layout->queries[rank].pieces.items[0].span.start,
                             rank * chunk);
    }
}

LOOP(a_batch_of_short_prompts_keeps_every_rank_busy, 1, 20) {
    enum { BATCH = 16, RANKS = 4 };
    int64_t fresh[BATCH], none[BATCH] = {0};
    for (int n = 0; n < BATCH; n++)
        fresh[n] = _i;
    lay_out(RANKS, zigzag, BATCH, none, fresh);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(layout->queries[rank].tokens, BATCH * _i / RANKS);
}

/* Pieces that a kernel takes for few rows, however many tokens a step has. */
LOOP(each_token_of_a_step_is_a_piece, 1, 5) {
    const int64_t past = 20, fresh = 9;
    int64_t pieces = 0;
    lay_out(_i, (cp_dealing){.placement = CP_ROUND_ROBIN}, 1, &past, &fresh);
    for (int rank = 0; rank < _i; rank++)
        pieces += layout->queries[rank].pieces.count;
    ck_assert_int_eq(pieces, fresh);
}

static void expect(const cp_call *call, cp_status status, const char *text) {
    refuses(cp_layout_new(call, &layout), status, text);
    ck_assert_ptr_null(layout);
}

TEST(nonsense_is_refused_with_its_numbers) {
    int64_t fresh[2] = {20, 0};
    cp_call call = {.ranks = 2, .sequences = 2, .new_tokens = fresh, .room = 9};
    expect(&call, CP_CAPACITY, "would hold 10 tokens on rank 0");
    call.room = 10;
    call.ranks = 0;
    expect(&call, CP_INVALID, "0 ranks");
    call.ranks = 2;
    fresh[0] = -4;
    expect(&call, CP_INVALID, "brings -4 new tokens");
    fresh[0] = 0;
    expect(&call, CP_INVALID, "no new token");
    fresh[0] = 2;
    call.dealing.weights = (int64_t[]){2, 0};
    expect(&call, CP_INVALID, "rank 1 has weight 0");
    call.dealing.weights = (int64_t[]){9999, 2};
    expect(&call, CP_INVALID, "and their sum <= 10000");
    call.dealing.weights = NULL;
    fresh[0] = INT64_MAX;
    fresh[1] = INT64_MAX;
    call.dealing.placement = CP_ZIGZAG;
    expect(&call, CP_INVALID, "64 bits");
}
