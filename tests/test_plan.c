/* Plans: correct ones pass, and each kind of damage is found and named. */
#include "planned.h"

#include "plan/build.h"

static const cp_shape shape = {4, 2, 8};

/* A call without a past. */
static void plan_call(cp_variant variant, int ranks, int64_t tokens) {
    plan_one(variant, ranks, 0, tokens, &shape, NULL);
}

enum { MERGED_TWICE = 1, PACKED_TWICE = 11 };
enum { FIRST_OF_PASS_Q = 17, DAMAGES = 24 };

/* Damage a plan for 4 ranks; returns the expected message. */
static const char *damage(int which) {
    switch (which) {
    case 0: /* the merge of one hop is forgotten */
        erase(2, find(2, CP_OP_MERGE, 1));
        return "(rank 2) never met keys";
    case MERGED_TWICE: /* a partial is merged twice */
        *find(1, CP_OP_WAIT, 2) = *find(1, CP_OP_MERGE, 1);
        return "rank 1";
    case 2: /* attention reads a slot that is still being filled */
        find(0, CP_OP_ATTEND, 0)->keys = find(0, CP_OP_EXCHANGE, 0)->out;
        return "which a receive is still filling";
    case 3: /* a wait is missing: the next exchange fills a slot that is being
               sent */
        erase(3, find(3, CP_OP_WAIT, 0));
        return "rank 3, hop 2: exchange reads slot";
    case 4: /* the new tokens are not appended */
        erase(1, find(1, CP_OP_APPEND, 0));
        return "rank 1, hop 0: pack reads slot 0, which holds nothing";
    case 5: /* the block is not the one that the operation names */
        find(2, CP_OP_ATTEND, 1)->keys.origin = 3;
        return "expects the block of rank 3";
    case 6: /* one rank sends the wrong way */
        find(2, CP_OP_EXCHANGE, 0)->to = 1;
        return "rank 2, hop 1: the message to rank 1 meets no receive";
    case 7: /* one rank leaves out an exchange */
        erase(0, find(0, CP_OP_WAIT, 2));
        erase(0, find(0, CP_OP_EXCHANGE, 2));
        return "rank 3, hop 3: the message to rank 0 meets no receive";
    case 8: /* a message of another size */
        find(1, CP_OP_EXCHANGE, 0)->in.slot = find(1, CP_OP_ATTEND, 0)->in.slot;
        return "rank 2, hop 1: exchange takes slot";
    case 9: /* the last wait is forgotten, though nothing needs its slot */
        plan->programs[3].ops[plan->programs[3].count++] = (cp_op){
            .kind = CP_OP_EXCHANGE, .to = CP_NO_RANK, .from = CP_NO_RANK};
        return "rank 3 ends with an exchange that was not waited for";
    case 10: /* received into the slot that it sends */
        find(1, CP_OP_EXCHANGE, 1)->out.slot =
            find(1, CP_OP_EXCHANGE, 1)->in.slot;
        return "which its own send is still reading";
    case PACKED_TWICE: /* packed again while the first copy is being sent */
        *find(2, CP_OP_ATTEND, 0) = *find(2, CP_OP_PACK, 0);
        return "which a send is still reading";
    case 12: /* one of two buffers is four bytes longer */
        plan->slots[find(0, CP_OP_EXCHANGE, 0)->out.slot].bytes += 4;
        return "bytes to rank 1, which expects";
    case 13: /* one rank keeps its last block to itself */
        find(3, CP_OP_EXCHANGE, 2)->to = CP_NO_RANK;
        return "rank 0, hop 3: the message from rank 3 meets no";
    case 14: /* a partial over the cache */
        find(2, CP_OP_ATTEND, 0)->out.slot = (int16_t)plan->cache;
        return "rank 2, hop 0: attend writes slot 0, which is the cache";
    case 15: /* a neighbour's keys are packed as if they were the rank's own
                cache */
        *find(2, CP_OP_MERGE, 2) =
            (cp_op){.kind = CP_OP_PACK,
                    .hop = 3,
                    .in = find(2, CP_OP_ATTEND, 3)->keys,
                    .out = find(2, CP_OP_ATTEND, 3)->keys};
        return "rank 2, hop 3: pack takes slot";
    case 16: /* a partial where queries belong */
        find(1, CP_OP_ATTEND, 3)->out.slot = find(1, CP_OP_ATTEND, 3)->in.slot;
        return "rank 1, hop 3: attend takes slot";
    case FIRST_OF_PASS_Q: /* the partials go to the wrong ranks */
        find(1, CP_OP_ATTEND, 1)->out.slot = find(1, CP_OP_ATTEND, 2)->out.slot;
        return "rank 1";
    case FIRST_OF_PASS_Q + 1: /* a returned partial is not merged */
        erase(3, find(3, CP_OP_MERGE, 0));
        return "(rank 3) never met keys";
    case FIRST_OF_PASS_Q + 2: /* one is merged twice instead of another */
        *find(0, CP_OP_MERGE, 1) = *find(0, CP_OP_MERGE, 0);
        return "met twice the keys";
    case FIRST_OF_PASS_Q + 3: /* one rank skips the all-to-all */
        erase(2, find(2, CP_OP_ALL_TO_ALL, 0));
        return "rank 0 is at an all-to-all, rank 2 at an end";
    case FIRST_OF_PASS_Q + 4: /* one rank gathers where the others exchange */
        find(2, CP_OP_ALL_TO_ALL, 0)->kind = CP_OP_ALL_GATHER;
        return "rank 0 is at an all-to-all, rank 2 at an all-gather";
    case FIRST_OF_PASS_Q + 5: /* merged with a partial of another rank's
                                 queries */
        find(1, CP_OP_MERGE, 0)->in = find(1, CP_OP_ATTEND, 1)->out;
        return "merge expects the block of rank 1";
    case FIRST_OF_PASS_Q + 6: /* and into it */
        find(1, CP_OP_MERGE, 0)->out = find(1, CP_OP_ATTEND, 1)->out;
        return "merge expects the block of rank";
    }
    return NULL;
}

LOOP(damage_to_a_plan_is_found, 0, DAMAGES) {
    const bool pass_kv = _i < FIRST_OF_PASS_Q;
    plan_call(pass_kv ? CP_PASS_KV : CP_PASS_Q, 4, pass_kv ? 23 : 40);
    prove();
    is_wrong(damage(_i));
    if (_i == MERGED_TWICE) {
        ck_assert(!find(1, CP_OP_ATTEND, 2)->merged);
        ck_assert(find(1, CP_OP_ATTEND, 3)->merged);
    }
    if (_i == PACKED_TWICE)
        ck_assert_int_eq(cp_plan_explore(plan, 1000000, NULL), CP_BROKEN);
}

static void third_turn(cp_variant variant) {
    const int64_t turns[3][2] = {{17, 5}, {3, 8}, {9, 2}};
    new_cache(2, 2, 30);
    take_turn(false, turns[0]);
    take_turn(false, turns[1]);
    lay_out(false, turns[2]);
    build(variant, &shape, NULL);
}

enum { QUERIES, KEYS, CACHE, APPENDED };

/* Damage to one piece of one list: for 24 tokens on 3 ranks, or, in the cache's
 * lists, in the third turn. */
static const struct {
    int list, rank, piece;
    int64_t row, sequence, start, count; /* what is added */
    int64_t pieces;                      /* how many are cut off */
    const char *text;
} cuts[] = {
    {KEYS, 1, 0, 0, 0, 1, 0, 0,
     "key 8 of sequence 0 is held by rank 1 and by rank 2"},
    {KEYS, 1, 0, 0, 0, 0, -1, 0,
     "1 of the key positions before 24 of sequence 0 are held"},
    {KEYS, 1, 1, -1, 0, 0, 0, 0,
     "row 3 of the key block of rank 1 is used twice"},
    {KEYS, 0, 1, 0, 0, 0, -1, 0, /* the last token */
     "1 of the key positions before 24 of sequence 0 are held"},
    {KEYS, 0, 1, 0, 0, 0, 1, 0, /* a token that the sequence does not have */
     "the ranks hold 25 key positions of sequence 0; expected 24"},
    {KEYS, 0, 0, 0, 0, -1, 0, 0, /* a position before the first */
     "rank 0 holds the key positions -1 to 2 of sequence 0, which begin "
     "before 0"},
    {QUERIES, 1, 1, 0, 0, 9, 0, 0,
     "rank 1 holds the query positions 25 to 28 of sequence 0, which are not "
     "all new"},
    {KEYS, 0, 1, 0, 1, 0, 0, 0, /* a sequence that does not exist */
     "4 of the key positions before 24 of sequence 0 are held"},
    {QUERIES, 2, 0, 0, 0, 0, -2, 0,
     "2 of the query positions before 24 of sequence 0 are held"},
    {QUERIES, 0, 0, 0, 0, 1, -1, 0, /* the first token */
     "1 of the query positions before 24 of sequence 0 are held"},
    {QUERIES, 0, 1, 0, 0, 0, -1, 0, /* the last token */
     "1 of the query positions before 24 of sequence 0 are held"},
    {CACHE, 0, 0, 0, 0, 0, 0, 5, /* cut to one piece */
     "rank 0: the keys from 15 to 16 of sequence 0 are not the same in its "
     "cache"},
    {CACHE, 1, 0, 0, 0, 0, -1, 0,
     "rank 1: the keys from 5 to 14 of sequence 0 are not the same in its"},
    {CACHE, 1, 0, 0, 0, 1, 0, 0, "rank 1: the keys from 5 to 14"},
    {CACHE, 0, 0, 1, 0, 0, 0, 0,
     "rank 0 has 5 keys of sequence 0, from 0 on, in row 1 of its cache; "
     "expected row 0"},
    {CACHE, 0, 1, -1, 0, 0, 0, 0,
     "rank 0 has 2 keys of sequence 0, from 15 on, in row 4 of its cache; "
     "expected row 5"},
    {CACHE, 1, 3, -20, 0, 0, 0, 0, /* in the rows of another sequence */
     "of sequence 1, from"},
    {APPENDED, 0, 0, -9, 0, 0, 0, 0, /* over the first row */
     "rank 0 appends token 23 of sequence 0 in row 0, where its cache does "
     "not have it"},
    {APPENDED, 1, 1, 1, 0, 0, 0, 0,
     "rank 1 appends token 14 of sequence 1 in row 37"},
    {APPENDED, 0, 0, 0, 0, 0, -1, 0,
     "rank 0: the new tokens from 23 to 28 of sequence 0 are not the same "
     "where they are appended"},
    {APPENDED, 1, 0, 0, 0, 0, 0, 1, /* nothing of a sequence */
     "rank 1: the new tokens from 14 to 14 of sequence 1 are not the same"},
};

LOOP(damage_to_the_lists_of_a_layout_is_found, 0, COUNT_OF(cuts)) {
    for (cp_variant v = CP_PASS_KV; v < CP_DECODE; v++) {
        if (cuts[_i].list <= KEYS)
            plan_call(v, 3, 24);
        else
            third_turn(v);
        prove();
        cp_block *lists[] = {layout->queries, layout->keys, layout->cache,
                             layout->appended};
        cp_pieces *pieces = &lists[cuts[_i].list][cuts[_i].rank].pieces;
        cp_piece *piece = &pieces->items[cuts[_i].piece];
        ck_assert_int_gt(pieces->count, cuts[_i].pieces);
        pieces->count -= cuts[_i].pieces;
        piece->row += cuts[_i].row;
        piece->span.sequence += cuts[_i].sequence;
        piece->span.start += cuts[_i].start;
        piece->span.count += cuts[_i].count;
        is_wrong(cuts[_i].text);
    }
}

TEST(a_query_of_no_sequence_is_found) {
    plan_call(CP_PASS_KV, 3, 24);
    cp_pieces_append(&layout->queries[2].pieces, (cp_piece){{1, 0, 1, 1}, 8});
    is_wrong("rank 2 holds a query of sequence 1 of 1");
}

TEST(a_cache_without_room_is_found) {
    plan_call(CP_PASS_Q, 2, 24);
    layout->room = 11;
    is_wrong("rank 0 has 6 keys of sequence 0, from 18 on, in row 6 of its "
             "cache; expected row 6, and room ends before 11");
    layout->room = 24;
    layout->keys[1].rows++;
    is_wrong("the key block of rank 1 needs 12 rows and has 13; that of "
             "rank 0 has 12");
}

LOOP(no_interleaving_of_a_small_plan_goes_wrong, 0, 12) {
    const int ranks = 1 + _i / 3, spare = 1 + _i % 3;
    for (cp_variant v = CP_PASS_KV; v < CP_DECODE; v++) {
        const cp_plan_options options = {.element_bytes = 4, .spare = spare};
        int64_t states = 0;
        plan_one(v, ranks, 0, 11, &shape, &options);
        must(cp_plan_explore(plan, 20000000, &states));
        ck_assert_int_gt(states, ranks);
    }
}

static void block_sends(void) {
    for (int rank = 0; rank < plan->layout->ranks; rank++) {
        cp_program *program = &plan->programs[rank];
        cp_op *ops = calloc((size_t)program->count * 3, sizeof(cp_op));
        int64_t count = 0;
        for (int64_t n = 0; n < program->count; n++) {
            cp_op op = program->ops[n];
            if (op.kind == CP_OP_EXCHANGE) {
                cp_op half = op;
                half.from = CP_NO_RANK;
                ops[count++] = half;
                ops[count++] = (cp_op){.kind = CP_OP_WAIT, .hop = op.hop};
                op.to = CP_NO_RANK;
            }
            ops[count++] = op;
        }
        free(program->ops);
        *program = (cp_program){ops, count, count};
    }
}

LOOP(blocking_sends_deadlock_in_both_opinions, 0, 3) {
    plan_call(CP_PASS_KV, 2 + _i, 20);
    block_sends();
    is_wrong("deadlock: rank 0 waits for its send to rank 1");
    refuses(cp_plan_explore(plan, 1000000, NULL), CP_BROKEN,
            "all ranks are stuck");
}

TEST(a_missing_wait_is_found_in_both_opinions) {
    plan_call(CP_PASS_KV, 3, 20);
    erase(1, find(1, CP_OP_WAIT, 0));
    is_wrong("rank 1, hop 2: exchange");
    refuses(cp_plan_explore(plan, 1000000, NULL), CP_BROKEN,
            "in some order rank 1, hop 2");
}

/* A block is sent to two ranks, and is overwritten when one of them has it. */
static void send_twice(cp_plan *plan) {
    const int slots = cp_plan_add_slots(plan, CP_SLOT_KEYS, 3);
    for (int k = 0; k < 3; k++) {
        const cp_use cache_of = cp_use_of(plan->cache, k);
        const cp_use block = cp_use_of(slots, k);
        cp_emit(plan, k, 0, CP_OP_PACK, cache_of, block);
        for (int h = 1; h < 3; h++)
            cp_emit_exchange(plan, k, h, block, (k + h) % 3,
                             cp_use_of(slots + h, (k + 3 - h) % 3),
                             (k + 3 - h) % 3);
        cp_emit_wait(plan, k, 1);
        cp_emit(plan, k, 1, CP_OP_PACK, cache_of, block);
        cp_emit_wait(plan, k, 2);
    }
}

TEST(a_slot_that_is_sent_twice_is_lent_until_both_are_over) {
    new_cache(3, 1, 20);
    lay_out(false, (int64_t[]){20});
    must(cp_plan_new(send_twice, layout, &shape, NULL, &plan));
    is_wrong("hop 1: pack writes slot 4, which a send is still reading");
    refuses(cp_plan_explore(plan, 1000000, NULL), CP_BROKEN,
            "in some order rank");
}

TEST(one_buffer_overwrites_or_deadlocks) {
    plan_call(CP_PASS_KV, 3, 20);
    for (int rank = 0; rank < 3; rank++)
        for (int n = 0; n < 2; n++) {
            cp_op *op = find(rank, CP_OP_EXCHANGE, n);
            op->in.slot = op->out.slot = find(rank, CP_OP_PACK, 0)->out.slot;
        }
    is_wrong("which its own send is still reading");
    block_sends();
    is_wrong("deadlock");
}

LOOP(two_million_tokens_on_128_ranks, 0, 3) {
    const int64_t million = 1000000;
    new_cache(128, 1, 20000);
    take_turn(false, &million);
    lay_out(false, &million);
    build(CP_PASS_KV + (cp_variant)_i, &(cp_shape){128, 8, 128}, NULL);
    prove();
    int64_t pairs = 0;
    for (int k = 0; k < 128; k++)
        pairs += report.pairs[k];
    ck_assert_int_eq(pairs, million * (million + 1) / 2 + million * million);
    ck_assert(report.balance < 1.01);
}
