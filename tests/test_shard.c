/* Sharding: nothing lost, nothing twice, equal blocks, fair shares. */
#include "expect.h"

#include <string.h>

#include "ring/cache.h"

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

static void check_round_trip(const cp_layout *layout, const int64_t *cached,
                             const int64_t *fresh) {
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

static cp_layout *lay_out(int ranks, cp_placement placement, int64_t sequences,
                          const int64_t *cached, const int64_t *fresh,
                          cp_pieces *held) {
    cp_call call = {.ranks = ranks,
                    .sequences = sequences,
                    .new_tokens = cached,
                    .room = 256,
                    .placement = placement};
    cp_layout *past = NULL, *layout = NULL;
    int64_t total = 0;
    for (int64_t i = 0; i < sequences; i++)
        total += cached[i];
    if (total > 0 && cp_layout_new(&call, &past) != CP_OK)
        ck_abort_msg("%s", cp_message());
    for (int rank = 0; past != NULL && rank < ranks; rank++) {
        const cp_pieces *added = &past->appended[rank].pieces;
        for (int64_t n = 0; n < added->count; n++)
            cp_pieces_append(
                &held[rank * sequences + added->items[n].span.sequence],
                added->items[n]);
    }
    call.new_tokens = fresh;
    call.held = held;
    if (cp_layout_new(&call, &layout) != CP_OK)
        ck_abort_msg("%s", cp_message());
    cp_layout_free(past);
    if (cp_layout_copy(layout, &past) != CP_OK)
        ck_abort_msg("%s", cp_message());
    cp_layout_free(layout);
    return past;
}

static void check_padding(const cp_layout *layout, cp_placement placement,
                          const int64_t *cached, const int64_t *fresh) {
    const int64_t ranks = layout->ranks;
    int64_t rows = 0, slack = 0;
    (void)cached;
    for (int64_t i = 0; i < layout->sequences; i++) {
        rows += cp_shard_rows(placement, (int)ranks, fresh[i]);
        slack +=
            cp_min(cp_ceil_divide(fresh[i], 2 * ranks),
                   2 * ranks * cp_ceil_divide(fresh[i], 2 * ranks) - fresh[i]);
    }
    int64_t least = INT64_MAX, most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        if (layout->queries[rank].rows != rows ||
            layout->keys[rank].rows != layout->keys[0].rows ||
            layout->keys[rank].tokens > layout->keys[rank].rows)
            ck_abort_msg("rank %d: blocks of unequal length", rank);
        least = cp_min(least, layout->queries[rank].tokens);
        most = cp_max(most, layout->queries[rank].tokens);
    }
    if (placement == CP_ZIGZAG && most - least > slack)
        ck_abort_msg("shares from %ld to %ld", least, most);
}

static void try_shape(int ranks, int64_t sequences, const int64_t *cached,
                      const int64_t *fresh) {
    for (int p = CP_ZIGZAG; p <= CP_STRIPED; p++) {
        cp_pieces held[9 * 4] = {{0}};
        cp_layout *layout =
            lay_out(ranks, (cp_placement)p, sequences, cached, fresh, held);
        check_round_trip(layout, cached, fresh);
        check_padding(layout, (cp_placement)p, cached, fresh);
        cp_layout_free(layout);
        for (int n = 0; n < 9 * 4; n++)
            cp_pieces_free(&held[n]);
    }
}

LOOP(every_small_shape_is_a_round_trip, 1, 10) {
    const int ranks = _i;
    for (int64_t t = 1; t <= 4 * ranks + 3; t++)
        for (int64_t p = 0; p <= 2 * ranks + 1; p++) {
            const int64_t cached[4] = {p, 0, 1, 2 * ranks};
            const int64_t fresh[4] = {t, 1, 2 * ranks, t % 3};
            for (int64_t sequences = 1; sequences <= 4; sequences++)
                try_shape(ranks, sequences, cached, fresh);
        }
}

static int64_t pairs(const cp_layout *layout, int k, int s) {
    return cp_block_pairs(&layout->queries[k], &layout->keys[s]);
}

LOOP(invariants_7_and_8_the_fold_is_fair, 1, 10) {
    const int ranks = _i;
    const int64_t chunk = 5, fresh = 2 * ranks * chunk, cached = 3 * ranks;
    cp_pieces held[16] = {{0}};
    cp_layout *layout = lay_out(ranks, CP_ZIGZAG, 1, &cached, &fresh, held);
    for (int k = 0; k < ranks; k++) {
        int64_t sum = 0;
        for (int s = 0; s < ranks; s++) {
            const int64_t here = pairs(layout, k, s);
            const int64_t past = cp_pieces_tokens(&held[s]);
            ck_assert_int_eq(here, 2 * chunk * chunk + 2 * chunk * past +
                                       (k == s ? chunk : 0));
            sum += here;
        }
        ck_assert_int_eq(sum, fresh * (fresh + 1) / (2 * ranks) +
                                  fresh * cached / ranks);
    }
    cp_layout_free(layout);
    for (int n = 0; n < ranks; n++)
        cp_pieces_free(&held[n]);
}

LOOP(a_straight_cut_is_as_unfair_as_the_formula_says, 1, 10) {
    const int64_t ranks = _i, fresh = 12 * ranks, none = 0;
    cp_pieces held[16] = {{0}};
    cp_layout *layout = lay_out((int)ranks, CP_NAIVE, 1, &none, &fresh, held);
    int64_t most = 0, total = 0;
    for (int k = 0; k < ranks; k++) {
        int64_t sum = 0;
        for (int s = 0; s < ranks; s++)
            sum += pairs(layout, k, s);
        most = cp_max(most, sum);
        total += sum;
    }
    ck_assert_int_eq(total, fresh * (fresh + 1) / 2);
    ck_assert_int_eq(most * ranks * ranks * (fresh + 1),
                     total * ((2 * ranks - 1) * fresh + ranks));
    cp_layout_free(layout);
}

static void prompt_alone(int ranks, int64_t count) {
    cp_pieces held[9] = {{0}};
    const int64_t none = 0, chunk = cp_ceil_divide(count, 2 * ranks);
    cp_layout *layout = lay_out(ranks, CP_ZIGZAG, 1, &none, &count, held);
    for (int64_t rank = 0; rank < ranks; rank++)
        if (rank * chunk < count)
            ck_assert_int_eq(layout->queries[rank].pieces.items[0].span.start,
                             rank * chunk);
    cp_layout_free(layout);
}

LOOP(a_first_prompt_gives_part_n_to_rank_n, 1, 10) {
    for (int64_t count = 1; count <= 6 * _i; count++)
        prompt_alone(_i, count);
}

/* Turns that a sequence takes alone or with others, chosen to be unkind. */
static int64_t turn_of(int kind, int ranks, int n, uint64_t *random) {
    const int64_t some = (int64_t)(harness_random(random) % 1000);
    switch (kind) {
    case 0:
        return 1;
    case 1:
        return ranks + 1;
    case 2:
        return 2 * ranks + 1;
    case 3:
        return ranks + (INT64_C(1) << n % 5);
    case 4:
        return 1 + some % (5 * ranks);
    default:
        return some % 9 == 0 ? some : 1 + some % 3;
    }
}

static void take_turn(cp_cache *cache, const int64_t *fresh, bool decode) {
    cp_layout *layout;
    const cp_status status = decode ? cp_cache_decode(cache, fresh, &layout)
                                    : cp_cache_prefill(cache, fresh, &layout);
    ck_assert_msg(status == CP_OK, "%ld held: %s", cache->length[0],
                  cp_message());
    must(cp_cache_commit(cache, layout));
    cp_layout_free(layout);
}

static void check_spread(const cp_cache *cache, int64_t sequence) {
    int64_t least = INT64_MAX, most = 0;
    for (int rank = 0; rank < cache->ranks; rank++) {
        const int64_t tokens =
            cp_pieces_tokens(cp_cache_held(cache, rank, sequence));
        least = cp_min(least, tokens);
        most = cp_max(most, tokens);
    }
    ck_assert_int_le(most - least, 2 * cache->ranks - 1);
}

LOOP(all_promised_positions_fit_in_the_room, 0, 54) {
    enum { POSITIONS = 1500 };
    const int ranks = 1 + _i % 9, kind = _i / 9;
    uint64_t random = (uint64_t)_i + 1;
    cp_cache *cache;
    must(cp_cache_new(ranks, 2, cp_shard_room(ranks, POSITIONS), &cache));
    for (int n = 0; cache->length[0] < POSITIONS; n++) {
        const int64_t left = POSITIONS - cache->length[0];
        const int64_t fresh = turn_of(kind, ranks, n, &random);
        const int64_t prompt[2] = {cp_min(fresh, left), 0};
        take_turn(cache, prompt, false);
        /* Another sequence has every step but each N-th. */
        for (int step = 0; step < ranks; step++) {
            const bool first = step == 0 && cache->length[0] < POSITIONS;
            const bool second = !first && cache->length[1] < POSITIONS;
            const int64_t batch[2] = {first, second};
            if (first || second)
                take_turn(cache, batch, true);
        }
        check_spread(cache, 0);
        check_spread(cache, 1);
    }
    cp_cache_free(cache);
}

LOOP(a_batch_of_short_prompts_is_work_for_all, 1, 20) {
    enum { BATCH = 16, RANKS = 4 };
    int64_t fresh[BATCH], none[BATCH] = {0};
    cp_pieces held[RANKS * BATCH] = {{0}};
    for (int n = 0; n < BATCH; n++)
        fresh[n] = _i;
    cp_layout *layout = lay_out(RANKS, CP_ZIGZAG, BATCH, none, fresh, held);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(layout->queries[rank].tokens, BATCH * _i / RANKS);
    cp_layout_free(layout);
}

static void expect(const cp_call *call, cp_status status, const char *text) {
    cp_layout *layout = NULL;
    ck_assert_int_eq(cp_layout_new(call, &layout), status);
    ck_assert_ptr_null(layout);
    ck_assert_msg(strstr(cp_message(), text) != NULL, "%s", cp_message());
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
    call.placement = CP_ROUND_ROBIN;
    expect(&call, CP_INVALID, "brings 2 new tokens to a decode step");
    fresh[0] = INT64_MAX;
    fresh[1] = INT64_MAX;
    call.placement = CP_ZIGZAG;
    expect(&call, CP_INVALID, "64 bits");
}
