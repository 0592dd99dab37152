/* The ledger of a long conversation: whatever its turns, no rank gets more than
 * its room. */
#include "expect.h"

#include "ring/cache.h"

static cp_cache *cache;

/* Turns that a sequence takes alone or with others, chosen to be unkind. */
static int64_t turn_of(int kind, int ranks, int n, uint64_t *random) {
    const int64_t some = (int64_t)(harness_random(random) % 1000);
    const int64_t turns[] = {1,
                             ranks + 1,
                             2 * ranks + 1,
                             ranks + (INT64_C(1) << n % 5),
                             1 + some % (5 * ranks),
                             some % 9 == 0 ? some : 1 + some % 3};
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
        const int64_t due = cp_ceil_divide(weights[rank] * tokens, sum);
        ck_assert_int_le(holds, due + (step > 0 ? cache->ranks : 0));
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
        /* Another sequence has every step but each N-th. */
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
