/* A cache in pages: the pager against plain lists, its plans, and conversations
 * that share a prefix. */
#define EXPECT_ALSO where
static char where[200]; /* the current step, for failures */

#include "planned.h"

#include <stdio.h>

#include "ground/random.h"
#include "harness/rig.h"

enum { SEQUENCES = 5, BLOCKS = 37, MOST = 200 };

/* The model of the pager: each row of each sequence has a token, whose number
 * is shared only with sequences forked from it. */
typedef struct {
    int64_t tokens[SEQUENCES][MOST], count[SEQUENCES], next;
} model;

static model expected;
static cp_pages *pages;
static int64_t memory[BLOCKS * 64]; /* the contents of a tensor */
static uint64_t dice;
static int64_t block;

enum { POISON = -1 };

static int64_t upto(int64_t most) {
    return (int64_t)(cp_random(&dice) % (uint64_t)(most + 1));
}

static void check_rows(void) {
    for (int64_t s = 0; s < SEQUENCES; s++) {
        ck_assert_int_eq(pages->tables[s].rows, expected.count[s]);
        for (int64_t n = 0, run; n < expected.count[s]; n += run) {
            run = expected.count[s] - n;
            const int64_t row = cp_pages_row(pages, NULL, s, n, &run);
            hold(run >= 1 && run <= expected.count[s] - n);
            for (int64_t i = 0; i < run; i++)
                if (memory[row + i] != expected.tokens[s][n + i])
                    ck_abort_msg("%s: sequence %ld: its %ld is %ld, not %ld",
                                 where, s, n + i, memory[row + i],
                                 expected.tokens[s][n + i]);
        }
    }
}

/* A block's users are the sequences that name it; all other blocks are on the
 * stack. */
static void check_users(void) {
    int64_t users[BLOCKS] = {0}, used = 0;
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const cp_table *table = &pages->tables[s];
        ck_assert_int_eq(table->count, cp_ceil_divide(table->rows, block));
        for (int64_t n = 0; n < table->count; n++)
            users[table->blocks[n]]++;
    }
    for (int64_t b = 0; b < BLOCKS; b++) {
        ck_assert_int_eq(users[b], pages->users[b]);
        used += users[b] > 0;
    }
    ck_assert_int_eq(pages->left, BLOCKS - used);
    for (int64_t n = 0; n < pages->left; n++)
        ck_assert_int_eq(users[pages->unused[n]]++, 0);
}

static void make_moves(const cp_moves *moves) {
    for (int64_t n = 0; n < moves->count; n++)
        memmove(memory + moves->items[n].to, memory + moves->items[n].from,
                (size_t)moves->items[n].count * sizeof(*memory));
}

static void spoil_unused(void) {
    for (int64_t n = 0; n < pages->left; n++)
        for (int64_t i = 0; i < block; i++)
            memory[pages->unused[n] * block + i] = POISON;
}

/* The blocks that a call needs, counted from the sharing. */
static int64_t needed_blocks(const cp_growth *growth) {
    int64_t needed = 0, users[BLOCKS];
    memcpy(users, pages->users, sizeof(users));
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const cp_table *table = &pages->tables[s];
        if (growth[s].rows == 0)
            continue;
        needed +=
            cp_ceil_divide(table->rows + growth[s].rows, block) - table->count;
        if (table->rows % block != 0 &&
            users[table->blocks[table->count - 1]] > 1) {
            users[table->blocks[table->count - 1]]--;
            needed++;
        }
    }
    return needed;
}

static void write_tokens(const cp_growth *growth, bool commits) {
    for (int64_t s = 0; s < SEQUENCES; s++)
        for (int64_t n = 0, run; n < growth[s].rows; n += run) {
            run = growth[s].rows - n;
            const int64_t row =
                cp_pages_row(pages, growth, s, expected.count[s] + n, &run);
            for (int64_t i = 0; i < run; i++)
                memory[row + i] =
                    expected.tokens[s][expected.count[s] + n + i] =
                        expected.next++;
        }
    for (int64_t s = 0; s < SEQUENCES && commits; s++)
        expected.count[s] += growth[s].rows;
}

static void append(void) {
    cp_growth growth[SEQUENCES];
    cp_moves copies = {0};
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const int64_t left = MOST - expected.count[s];
        const int64_t most = upto(4) == 0 ? upto(3 * block) : upto(2);
        growth[s].rows = upto(1) * cp_min(most, left);
    }
    const int64_t needed = needed_blocks(growth), left = pages->left;
    const cp_status status = cp_pages_plan(pages, growth, &copies);
    ck_assert_int_eq(status, needed > left ? CP_CAPACITY : CP_OK);
    ck_assert_int_eq(pages->left, left);
    check_rows();
    if (status == CP_OK) {
        const bool commits = upto(3) > 0; /* or the call fails midway */
        spoil_unused();
        make_moves(&copies);
        write_tokens(growth, commits);
        if (commits) {
            must(cp_pages_reserve(pages, growth));
            cp_pages_grow(pages, growth);
        }
    } else {
        ck_assert_int_eq(copies.count, 0);
    }
    cp_moves_free(&copies);
}

static void fork_one(void) {
    const int64_t from = upto(SEQUENCES - 1), to = upto(SEQUENCES - 1);
    const int64_t rows = upto(expected.count[from]);
    if (expected.count[to] > 0)
        return;
    must(cp_pages_fork(pages, from, to, rows));
    memcpy(expected.tokens[to], expected.tokens[from], (size_t)rows * 8);
    expected.count[to] = rows;
}

static void cut(void) {
    const int64_t s = upto(SEQUENCES - 1);
    expected.count[s] = upto(2) == 0 ? 0 : upto(expected.count[s]);
    cp_pages_cut(pages, s, expected.count[s]);
}

LOOP(the_pager_is_like_plain_lists, 0, 12) {
    static const int64_t sizes[] = {1, 2, 3, 8, 16, 64};
    const int64_t seed = 100 + _i;
    block = sizes[_i % 6];
    dice = (uint64_t)seed;
    expected = (model){.next = 1};
    must(cp_pages_new(SEQUENCES, block, BLOCKS, &pages));
    for (int step = 0; step < harness_seeds(3000); step++) {
        const int64_t what = upto(18);
        snprintf(where, sizeof(where), "seed %ld, step %d", seed, step);
        if (what < 12)
            append();
        else if (what < 15)
            fork_one();
        else
            cut();
        check_rows();
        check_users();
    }
    cp_pages_free(pages);
}

/* Conversations that share: calls, forks, tokens taken back. */
enum { CALL, FORK, CUT, TALKS = 4 };

static const struct {
    int what;
    cp_variant variant;
    int64_t tokens[TALKS]; /* or from, to, tokens */
} steps[] = {
    {CALL, CP_PASS_KV, {23, 5, 0, 0}},
    {FORK, 0, {0, 2, 17}},
    {CALL, CP_PASS_Q, {2, 0, 3, 0}},
    {CALL, CP_DECODE, {1, 1, 1, 0}},
    {FORK, 0, {2, 3, 20}},
    {CALL, CP_DECODE, {1, 0, 1, 1}},
    {CALL, CP_PASS_KV, {1, 9, 4, 11}},
    {CALL, CP_DECODE, {1, 1, 1, 1}},
    {CUT, 0, {3, 18}},
    {CUT, 0, {2, 9}},
    {CALL, CP_DECODE, {0, 1, 3, 2}},
    {CALL, CP_ALL_GATHER, {3, 0, 2, 7}},
    {CUT, 0, {0, 0}},
    {CALL, CP_PASS_Q, {1, 2, 9, 1}},
};

/* The sequence whose numbers a token has; after a cut, numbers are new. */
enum { ROOM = 80 };
static int64_t content[TALKS][ROOM], names;

static void begin_anew(int64_t sequence, int64_t length) {
    for (int64_t n = length; n < ROOM; n++)
        content[sequence][n] = names;
    names++;
}

static void share(rig *rig, const int64_t *fork) {
    const int64_t from = fork[0], to = fork[1], tokens = fork[2];
    must(cp_cache_fork(rig->cache, from, to, tokens));
    memcpy(content[to], content[from], (size_t)tokens * 8);
    ck_assert_int_eq(rig->cache->length[to], tokens);
}

static void take_back(rig *rig, const int64_t *cut) {
    must(cp_cache_truncate(rig->cache, cut[0], cut[1]));
    begin_anew(cut[0], cut[1]);
}

LOOP(conversations_in_pages_equal_dense_attention, 0, 5 * 4 * 3) {
    static const int64_t rows[] = {1, 3, 4, 16};
    static const int rank_counts[] = {1, 2, 3, 5, 7};
    static const cp_dealing dealings[] = {{.placement = CP_ZIGZAG},
                                          {.placement = CP_INTERLEAVE},
                                          {.placement = CP_NAIVE}};
    if (harness_spared(_i))
        return;
    rig rig = {.shape = {4, 2, 8},
               .ranks = rank_counts[_i % 5],
               .sequences = TALKS,
               .room = ROOM,
               .seed = (uint64_t)_i + 1,
               .disorder = (uint64_t)_i,
               .content = content[0]};
    for (int64_t sequence = 0; sequence < TALKS; sequence++)
        begin_anew(sequence, 0);
    must(rig_open(&rig));
    rig.cache->dealing = dealings[_i / 20];
    must(rig_page(&rig, rows[_i / 5 % 4], (uint64_t)_i + 1));
    for (int n = 0; n < COUNT_OF(steps); n++) {
        snprintf(where, sizeof(where), "%d ranks, blocks of %ld, step %d",
                 rig.ranks, rows[_i / 5 % 4], n);
        if (steps[n].what == CALL)
            must(rig_call(&rig, steps[n].tokens, steps[n].variant));
        else if (steps[n].what == FORK)
            share(&rig, steps[n].tokens);
        else
            take_back(&rig, steps[n].tokens);
    }
    rig_close(&rig);
}

/* A cache's state, as a number to compare. */
static uint64_t fingerprint(const cp_cache *cache) {
    uint64_t sum = cp_hash(0, cache->length, 8 * cache->sequences);
    for (int rank = 0; rank < cache->ranks; rank++) {
        const cp_pages *pages = cache->pages[rank];
        sum = cp_hash(sum, pages->users, 8 * pages->blocks);
        sum = cp_hash(sum, pages->unused, 8 * pages->left);
        for (int64_t s = 0; s < cache->sequences; s++) {
            const cp_pieces *held = cp_cache_held(cache, rank, s);
            sum = cp_hash(sum, pages->tables[s].blocks,
                          8 * pages->tables[s].count);
            sum = cp_hash(sum, &pages->tables[s].rows, 8);
            sum = cp_hash(sum, held->items,
                          held->count * (int64_t)sizeof(cp_piece));
        }
    }
    return sum;
}

TEST(a_refused_call_changes_nothing) {
    new_cache(2, 3, 100);
    refuses(cp_cache_fork(cache, 0, 1, 0), CP_INVALID, "without pages");
    refuses(cp_cache_page(cache, 0, 9), CP_INVALID, "9 blocks of 0 rows");
    must(cp_cache_page(cache, 4, 5));
    take_turn(false, (int64_t[]){13, 4, 0});
    must(cp_cache_fork(cache, 0, 2, 12));
    const uint64_t before = fingerprint(cache);
    refuses(cp_cache_page(cache, 4, 5), CP_INVALID,
            "sequence 0 already has 13 tokens, outside pages");
    refuses(cp_cache_fork(cache, 0, 1, 3), CP_INVALID,
            "sequence 1 has 4 tokens already");
    refuses(cp_cache_fork(cache, 0, 3, 3), CP_INVALID,
            "sequence 3 cannot fork sequence 0, of 3");
    forget_call();
    /* On each rank 3 blocks of 5 are used; a shared one would be copied. */
    refuses_with(cp_cache_lay_out(cache, false, (int64_t[]){0, 0, 26}, &layout),
                 CP_CAPACITY,
                 "rank 0: 4 more blocks of 4 tokens are needed, and 2 of 5 "
                 "are free");
    ck_assert_ptr_null(layout);
    lay_out(false, (int64_t[]){2, 0, 2}); /* a call that failed */
    hold(fingerprint(cache) == before);
    new_cache(2, 2, 100);
    must(cp_cache_page(cache, 4, 25));
    take_turn(false, (int64_t[]){3, 0});
    refuses(cp_cache_fork(cache, 0, 1, 4), CP_INVALID,
            "4 tokens of sequence 0, which has 3");
    /* An interleaved prompt alternates between ranks: its first half is not in
     * its first rows. */
    new_cache(2, 2, 200);
    cache->dealing = (cp_dealing){.placement = CP_INTERLEAVE, .block = 4};
    must(cp_cache_page(cache, 4, 50));
    take_turn(false, (int64_t[]){100, 0});
    const uint64_t combed = fingerprint(cache);
    refuses(cp_cache_fork(cache, 0, 1, 50), CP_INVALID,
            "cannot be shared up to 50 tokens: rank 0 has others between");
    hold(fingerprint(cache) == combed);
    must(cp_cache_fork(cache, 0, 1, 100));
}

/* The longest user of a shared block writes into it, after the rows of all, so
 * no more blocks are needed than without sharing. */
TEST(the_longest_user_of_a_block_does_not_copy_it) {
    new_cache(1, 3, 8);
    must(cp_cache_page(cache, 8, 3));
    take_turn(false, (int64_t[]){5, 0, 0});
    must(cp_cache_fork(cache, 0, 1, 5));
    must(cp_cache_fork(cache, 0, 2, 3));
    lay_out(true, (int64_t[]){1, 1, 1});
    ck_assert_int_eq(layout->copies[0].count, 2);
    const cp_move first = layout->copies[0].items[0];
    hold(first.from == 0 && first.to == 8 && first.count == 5);
    ck_assert_int_eq(layout->copies[0].items[1].count, 3);
    ck_assert_int_eq(layout->appended[0].pieces.items[1].row, 5);
    must(cp_cache_commit(cache, layout));
    ck_assert_int_eq(cache->pages[0]->left, 0);
}

/* The checker knows which rows two sequences may share. */
TEST(the_checker_finds_rows_shared_by_mistake) {
    static const struct {
        int64_t piece, row;
        const char *text;
    } damage[] = {
        {0, 1,
         "row 1 of the cache of rank 0 has a token of sequence 1 and "
         "another of sequence 0"}, /* 0 existing, and 1 of the other */
        {2, -2,
         "row 6 of the cache of rank 0 has a token of sequence 0 and "
         "another of sequence 1"}, /* both new */
        {2, -4,
         "row 4 of the cache of rank 0 has a token of sequence 0 and "
         "another of sequence 1"}, /* the same positions, but new */
        {0, 11, "rank 0 has keys in rows 11 to 17 of a cache of 16"},
    };
    new_cache(1, 2, 8);
    must(cp_cache_page(cache, 4, 4));
    take_turn(false, (int64_t[]){6, 0});
    must(cp_cache_fork(cache, 0, 1, 4));
    take_turn(false, (int64_t[]){0, 2});
    for (int n = 0; n < COUNT_OF(damage); n++) {
        lay_out(true, (int64_t[]){1, 1});
        build(CP_DECODE, &(cp_shape){2, 1, 8}, NULL);
        prove();
        cp_piece *items = layout->cache[0].pieces.items;
        items[damage[n].piece].row += damage[n].row;
        is_wrong(damage[n].text);
    }
}
