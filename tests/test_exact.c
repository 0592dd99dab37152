/* Exact order: the tree of leaves, the node lists of a plan, and bits that
 * neither ranks nor variants nor turns change. */
#define EXPECT_ALSO where
static char where[200]; /* the current call, for failures */

#include "model/attend_call.h"
#include "model/head_cuts.h"
#include "harness/rig.h"
#include "planned.h"
#include "problem.h"
#include "reference/attend/fast.h"
#include "reference/attend/micro.h"
#include "reference/attend/nodes.h"
#include "plan/node_lists.h"

#include <stdio.h>

static const cp_dealing leafwise = {
    .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};

static int bits_in(uint32_t set) {
    int count = 0;
    for (; set != 0; set &= set - 1)
        count++;
    return count;
}

LOOP(leaves_are_dealt_in_order_and_evenly, 1, CP_LEAVES + 1) {
    const cp_owners owners = cp_owners_first(_i);
    cp_node nodes[CP_NODES_MAX];
    uint32_t all = 0;
    for (int rank = 0; rank < _i; rank++) {
        const uint32_t owned = cp_rank_leaves(&owners, rank);
        ck_assert_uint_eq(all & owned, 0);
        hold(all == 0 || (all ^ (all + owned)) == owned); /* after the others */
        hold((owned & ~(owned - 1)) == 1u << CP_LEAVES * rank / _i);
        hold(bits_in(owned) == CP_LEAVES / _i ||
             bits_in(owned) == CP_LEAVES / _i + 1);
        const int count = cp_leaves_nodes(owned, nodes);
        hold(CP_LEAVES % _i != 0 || count == 1);
        hold(cp_leaves_tokens(owned, 0, 2048 * 3) == 3 * 64 * bits_in(owned));
        all |= owned;
    }
    ck_assert_uint_eq(all, cp_all_leaves);
}

/* One rank after another is lost, until one is left. */
LOOP(leaves_of_a_lost_rank_are_shared, 2, CP_LEAVES + 1) {
    uint64_t state = (uint64_t)_i;
    cp_owners owners = cp_owners_first(_i);
    for (int ranks = _i; ranks > 1; ranks--) {
        const cp_owners before = owners;
        const int lost = (int)(harness_random(&state) % (uint64_t)ranks);
        uint32_t all = 0;
        owners = cp_owners_without(before, lost, ranks);
        for (int rank = 0; rank < ranks - 1; rank++) {
            const uint32_t owned = cp_rank_leaves(&owners, rank);
            const uint32_t had = cp_rank_leaves(&before, rank + (rank >= lost));
            ck_assert_uint_eq(owned & had, had);
            hold(bits_in(owned) == CP_LEAVES / (ranks - 1) ||
                 bits_in(owned) == CP_LEAVES / (ranks - 1) + 1);
            all |= owned;
        }
        ck_assert_uint_eq(all, cp_all_leaves);
    }
}

TEST(survivors_get_whole_subtrees) {
    static const uint32_t expected[] = {0x000043ff, 0x00ff8c00, 0xff003000};
    const cp_owners owners = cp_owners_without(cp_owners_first(4), 1, 4);
    for (int rank = 0; rank < 3; rank++)
        ck_assert_uint_eq(cp_rank_leaves(&owners, rank), expected[rank]);
}

TEST(a_leaf_is_a_block_read_from_its_lowest_bit) {
    const int64_t blocks[] = {0, 1, 2, 3, 4, 31, 32, 33};
    const int leaves[] = {0, 16, 8, 24, 4, 31, 0, 16};
    for (int n = 0; n < COUNT_OF(blocks); n++) {
        ck_assert_int_eq(cp_leaf_of(blocks[n] * 64), leaves[n]);
        ck_assert_int_eq(cp_leaf_of(blocks[n] * 64 + 63), leaves[n]);
    }
    ck_assert_int_eq(cp_leaves_tokens(1u << 16, 100, 30), 28);
    ck_assert_int_eq(cp_leaves_tokens(1u << 16, 0, 2048 + 65), 65);
}

TEST(sets_of_leaves_are_the_fewest_nodes) {
    uint64_t state = 3;
    for (int n = 0; n < 2000; n++) {
        cp_node nodes[CP_NODES_MAX];
        const uint32_t set = (uint32_t)harness_random(&state);
        const int count = cp_leaves_nodes(set, nodes);
        uint64_t sum = 0;
        for (int i = 0; i < count; i++) {
            ck_assert_int_eq(nodes[i].first % nodes[i].count, 0);
            hold(i == 0 || nodes[i - 1].count != nodes[i].count ||
                 nodes[i - 1].first % (2 * nodes[i].count) != 0 ||
                 nodes[i - 1].first + nodes[i].count != nodes[i].first);
            sum |= (((uint64_t)1 << nodes[i].count) - 1) << nodes[i].first;
        }
        ck_assert_uint_eq(sum, set);
    }
}

enum { DIM = 5, ROWS = 3, SIZE = ROWS * (DIM + 1) };

static cp_partial node_lists_at(float *memory) {
    return (cp_partial){ROWS, 1, DIM, memory, memory + ROWS * DIM, NULL};
}

/* Thirty-two leaves, merged in random pairs: one root. */
TEST(any_order_of_merges_gives_the_same_root) {
    uint64_t state = 11;
    float leaves[CP_LEAVES][SIZE], first[SIZE];
    for (int n = 0; n < CP_LEAVES; n++)
        for (int i = 0; i < SIZE; i++)
            leaves[n][i] = i >= ROWS * DIM && harness_random(&state) % 5 == 0
                               ? -INFINITY
                               : 9.0f * harness_uniform(&state);
    for (int round = 0; round < 40; round++) {
        static float node_lists[CP_LEAVES][CP_NODES_MAX * SIZE];
        uint32_t held[CP_LEAVES];
        int count = CP_LEAVES;
        for (int n = 0; n < CP_LEAVES; n++) {
            memcpy(node_lists[n], leaves[n], sizeof(leaves[n]));
            held[n] = 1u << n;
        }
        for (; count > 1; count--) {
            const uint64_t drawn = harness_random(&state);
            const int a = (int)(drawn % (uint64_t)count);
            const int b = (a + 1 + (int)(drawn >> 33) % (count - 1)) % count;
            cp_partial out = node_lists_at(node_lists[a]),
                       add = node_lists_at(node_lists[b]);
            cp_nodes_merge(&out, held[a], &add, held[b]);
            held[a] |= held[b];
            memcpy(node_lists[b], node_lists[count - 1], sizeof(node_lists[b]));
            held[b] = held[count - 1];
            if (a == count - 1) {
                memcpy(node_lists[b], node_lists[a], sizeof(node_lists[b]));
                held[b] = held[a];
            }
        }
        if (round == 0)
            memcpy(first, node_lists[0], sizeof(first));
        ck_assert_uint_eq(held[0], cp_all_leaves);
        ck_assert_mem_eq(first, node_lists[0], sizeof(first));
    }
}

static const cp_shape shapes[] = {{6, 2, 40},
                                  {16, 1, 96},
                                  {3, 3, 17},
                                  {8, 2, 128},
                                  {16, 2, 40, 32, true},
                                  {4, 1, 24, 33},
                                  {6, 2, 40, .window = 1},
                                  {3, 3, 17, .window = 63},
                                  {16, 1, 96, .window = 64},
                                  {4, 1, 24, 33, .window = 65},
                                  {16, 2, 40, 32, true, .window = 150},
                                  {8, 2, 128, .window = 3000}};

static void attend_exactly(problem *p, int threads) {
    cp_attention call = call_of(p, threads);
    call.leaves = cp_all_leaves;
    call.node_size = 1;
    must(cp_attend_fast(&call));
}

static void attend_by_two(problem *p) {
    attend_exactly(p, 2);
}

static problem *prefill(cp_shape shape, int64_t cached, int64_t fresh) {
    uint64_t state = 7;
    problem *p = new_problem(shape);
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, cached, fresh, 1}, 2});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 0, cached + fresh, 1}, 1});
    prepare(p, 1.0f, harness_uniform, &state);
    return p;
}

/* Cut pieces at random; a query may be alone in one. */
static void cut_at_random(cp_pieces *pieces, int64_t longest, uint64_t *state) {
    cp_pieces parts = {0};
    const cp_piece full = pieces->items[0];
    for (int64_t i = 0; i < full.span.count;) {
        const cp_piece part = cp_piece_part(
            full, i, 1 + (int64_t)(harness_random(state) % (uint64_t)longest));
        must(cp_pieces_reserve(&parts, parts.count + 1));
        parts.items[parts.count++] = part;
        i += part.span.count;
    }
    cp_pieces_free(pieces);
    *pieces = parts;
}

LOOP(bits_do_not_depend_on_pieces_or_threads, 0, COUNT_OF(shapes)) {
    static const int64_t calls[][2] = {{0, 150}, {2000, 131}, {6100, 3}};
    uint64_t state = (uint64_t)_i + 1;
    for (int n = 0; n < COUNT_OF(calls); n++) {
        problem *p = prefill(shapes[_i], calls[n][0], calls[n][1]);
        const int64_t rows = p->query_rows * p->shape.query_heads;
        const int64_t count = rows * cp_value_dim(&p->shape);
        check(p, attend_by_two, 1.0);
        const float *output = copied(p->output, count);
        const float *lse = copied(p->lse, rows);
        for (int round = 0; round < 8; round++) {
            cut_at_random(&p->key_pieces, round % 2 == 0 ? 70 : 9, &state);
            cut_at_random(&p->query_pieces, round < 3 ? 100 : 7, &state);
            attend_exactly(p, 1 + round % 3);
            ck_assert_mem_eq(output, p->output, (size_t)count * 4);
            ck_assert_mem_eq(lse, p->lse, (size_t)rows * 4);
            cp_piece full = {{0, 0, calls[n][0] + calls[n][1], 1}, 1};
            cp_pieces_free(&p->key_pieces);
            cp_pieces_append(&p->key_pieces, full);
            full = (cp_piece){{0, calls[n][0], calls[n][1], 1}, 2};
            cp_pieces_free(&p->query_pieces);
            cp_pieces_append(&p->query_pieces, full);
        }
    }
}

/* The same tokens, which begin in row 1, in the rows of other pieces. */
static float *moved(const problem *p, const float *from, int64_t width) {
    float *to = room_for(p->key_rows * width, 4);
    int64_t row = 1;
    for (int64_t n = 0; n < p->key_pieces.count; n++) {
        const cp_piece piece = p->key_pieces.items[n];
        memcpy(to + piece.row * width, from + row * width,
               (size_t)(piece.span.count * width) * 4);
        row += piece.span.count;
    }
    return to;
}

/* Pages in which neighbours of the sequence are often swapped: a block's first
 * and last row are then still in place. */
static void lay_in_pages(problem *p, int64_t page, uint64_t *state) {
    const cp_piece full = p->key_pieces.items[0];
    cp_pieces uncut = p->key_pieces;
    p->key_pieces = (cp_pieces){0};
    must(cp_pieces_cut(&uncut, page, &p->key_pieces));
    cp_pieces_free(&uncut);
    for (int64_t n = 1; n < p->key_pieces.count; n++) {
        cp_piece *two = &p->key_pieces.items[n - 1];
        if (harness_random(state) % 2 == 0 && two[1].span.count == page) {
            two[0].row += page;
            two[1].row -= page;
            n++;
        }
    }
    ck_assert_int_eq(cp_pieces_tokens(&p->key_pieces), full.span.count);
    p->keys = moved(p, p->keys, p->shape.kv_heads * p->shape.head_dim);
    p->values = p->shape.latent
                    ? p->keys
                    : moved(p, p->values, cp_value_width(&p->shape));
}

/* The oracle is asked once for all sizes of a page: the tokens are the same. */
LOOP(bits_do_not_depend_on_the_order_of_pages, 0, COUNT_OF(shapes)) {
    static const int64_t pages[] = {1, 7, 15, 16, 17, 32, 64, 96};
    uint64_t state = (uint64_t)_i + 1;
    for (int64_t fresh = 3; fresh < 400; fresh += 197) {
        problem *one = prefill(shapes[_i], 400, fresh);
        const int64_t rows = one->query_rows * one->shape.query_heads;
        const int64_t count = rows * cp_value_dim(&one->shape);
        check(one, attend_by_two, 1.0);
        for (int n = 0; n < COUNT_OF(pages); n++) {
            problem *p = prefill(shapes[_i], 400, fresh);
            lay_in_pages(p, pages[n], &state);
            attend_by_two(p);
            ck_assert_mem_eq(one->output, p->output, (size_t)count * 4);
            ck_assert_mem_eq(one->lse, p->lse, (size_t)rows * 4);
        }
    }
}

LOOP(unseen_keys_may_be_nan, 0, COUNT_OF(shapes)) {
    const poisoning few = {shapes[_i], 30, 2, 3};
    const poisoning many = {shapes[_i], 30, 27, 3};
    poison_the_future(&few, harness_uniform, attend_by_two);
    poison_the_future(&many, harness_uniform, attend_by_two);
}

enum { SEQUENCES = 3, ROOM = 2304, RANKS = 11 };

/* The same tokens in other turns, by P (pass-KV), Q, A, U or M; in steps by D,
 * G, S, O, T or H. Answers of + are not computed. */
static const char *const histories[] = {
    "P 150 70 1",
    "Q 150 70 1",
    "A 150 70 1",
    "U 150 70 1",
    "M 150 70 1",
    "P 60 10 0 Q 7 58 1 A 83 2 0",
    "Q 147 68 0 D 1 1 1 D 1 0 0 D 1 1 0",
    "A 145 69 0 G 1 1 0 S 1 0 0 O 1 0 0 T 1 0 0 H 1 0 1",
    "+ 2090 130 60 P 30 3 8",
    "+ 2090 130 60 Q 30 3 8",
    "+ 2090 130 60 A 28 1 8 D 1 1 0 T 1 1 0",
    "+ 2090 130 60 U 10 2 0 M 20 0 7 S 0 1 1",
};
enum { LATER = 8 }; /* the first of those */

static cp_variant variant_of(char letter) {
    static const char letters[] = "PQADUMGSOTH";
    static const cp_variant variants[] = {
        CP_PASS_KV,  CP_PASS_Q, CP_ALL_GATHER, CP_DECODE,
        CP_ULYSSES,  CP_MESH,   CP_GATHER_Q,   CP_SCATTER_Q,
        CP_GATHER_O, CP_TREE,   CP_HELIX};
    return variants[strchr(letters, letter) - letters];
}

/* Heads cannot be cut into any number of parts. */
static bool can_cut(const cp_shape *shape, int ranks, const char *turns) {
    return strpbrk(turns, "UMGSH") == NULL || cp_shape_divides(shape, ranks);
}

static void converse(cp_shape shape, int ranks, const char *turns,
                     uint64_t *bits, uint64_t disorder) {
    rig rig = {.shape = shape,
               .ranks = ranks,
               .sequences = SEQUENCES,
               .room = ROOM,
               .seed = 9,
               .disorder = disorder,
               .kernel = cp_attend_fast,
               .unwatched = 1,
               .bits = bits};
    long tokens[SEQUENCES];
    char letter;
    int length;
    must(rig_open(&rig));
    rig.cache->dealing = leafwise;
    for (; sscanf(turns, " %c %ld %ld %ld%n", &letter, &tokens[0], &tokens[1],
                  &tokens[2], &length) == 4;
         turns += length) {
        const int64_t fresh[] = {tokens[0], tokens[1], tokens[2]};
        snprintf(where, sizeof(where), "%d ranks, %c of %s", ranks, letter,
                 turns);
        if (letter == '+')
            must(rig_assume(&rig, fresh, CP_PASS_KV));
        else
            must(rig_call(&rig, fresh, variant_of(letter)));
    }
    rig_close(&rig);
}

LOOP(ranks_variants_and_turns_leave_the_bits_alone, 0, 8 * RANKS) {
    static const cp_shape of[] = {{16, 2, 8},
                                  {6, 3, 20, 12},
                                  {16, 2, 8, .window = 1},
                                  {6, 3, 20, 12, .window = 63},
                                  {16, 2, 8, .window = 64},
                                  {4, 2, 9, .window = 65},
                                  {6, 3, 20, 12, .window = 1000},
                                  {16, 2, 8, .window = 9000}};
    static const int ranks[RANKS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32};
    const cp_shape shape = of[_i / RANKS];
    uint64_t *bits = calloc((size_t)(SEQUENCES * ROOM * shape.query_heads), 8);
    converse(shape, 1, histories[0], bits, 0);
    converse(shape, 1, histories[LATER], bits, 0);
    for (int h = 0; h < COUNT_OF(histories); h++)
        if ((shape.window == 0 || (h + _i) % 2 == 0) &&
            can_cut(&shape, ranks[_i % RANKS], histories[h]))
            converse(shape, ranks[_i % RANKS], histories[h], bits,
                     (uint64_t)(_i + h) % 3);
    free(bits);
}

static void plan_call(cp_variant variant, int ranks) {
    const int64_t fresh = 1, past = 300;
    new_cache(ranks, 1, 400);
    cache->dealing = leafwise;
    take_turn(false, &past);
    lay_out(cp_variant_decodes(variant), &fresh);
    build(variant, &(cp_shape){16, 16, 4}, NULL);
}

static void expect(const char *words) {
    cp_plan_report_free(&report);
    refuses(cp_plan_check(plan, &report), CP_BROKEN, words);
}

/* With one subtree on each rank a message has one node. Only partials that grow
 * on their way have more. */
TEST(a_power_of_two_sends_no_byte_more) {
    for (int ranks = 1; ranks <= 16; ranks *= 2)
        for (cp_variant v = CP_PASS_KV; v < CP_VARIANTS; v++) {
            plan_call(v, ranks);
            for (int slot = 0; slot < plan->slot_count; slot++)
                if (plan->slots[slot].kind == CP_SLOT_PARTIAL &&
                    v != CP_SCATTER_Q)
                    ck_assert_int_eq(plan->slots[slot].bytes,
                                     cp_plan_node_bytes(plan, slot));
        }
    plan_call(CP_PASS_Q, 5);
    ck_assert_int_eq(plan->slots[plan->slot_count - 1].bytes,
                     3 * cp_plan_node_bytes(plan, plan->slot_count - 1));
}

TEST(calls_that_do_not_fit_are_refused) {
    plan_call(CP_PASS_KV, 5);
    plan->slots[plan->result].held /= 2;
    expect("; expected ");
    plan_call(CP_PASS_Q, 3);
    for (int slot = plan->slot_count - 6; slot < plan->slot_count; slot++)
        plan->slots[slot].bytes /= 2;
    expect("; expected ");
}

TEST(an_exchange_says_whose_leaves_arrive) {
    plan_call(CP_TREE, 4);
    cp_program *program = &plan->programs[1];
    for (int64_t n = 0; n < program->count; n++)
        if (program->ops[n].kind == CP_OP_EXCHANGE)
            program->leaves[n] ^= 1;
    expect("a partial of leaves 000000ff arrives where one of 000000fe is "
           "expected");
}

TEST(keys_of_other_leaves_are_refused) {
    plan_call(CP_PASS_KV, 4);
    cp_piece *one = &layout->keys[0].pieces.items[0];
    cp_piece *other = &layout->keys[1].pieces.items[0];
    ck_assert_int_eq(one->span.count, other->span.count);
    layout->leaves = false;
    prove();
    layout->leaves = true;
    const cp_span kept = one->span;
    one->span = layout->cache[0].pieces.items[0].span = other->span;
    other->span = layout->cache[1].pieces.items[0].span = kept;
    expect("outside its leaves");
}

TEST(calls_without_an_exact_order_are_refused) {
    const int64_t fresh[] = {300};
    const cp_shape shape = {4, 2, 8};
    cp_call call = {.ranks = 33,
                    .sequences = 1,
                    .new_tokens = fresh,
                    .room = 300,
                    .dealing = leafwise};
    refuses(cp_layout_new(&call, &layout), CP_INVALID, "33 ranks");
    call.ranks = 4;
    must(cp_layout_new(&call, &layout));
    const cp_plan_options rounded = {
        .element_bytes = 4, .spare = 1, .wire = CP_WIRE_BF16};
    refuses(cp_plan_build(CP_PASS_KV, layout, &shape, &rounded, &plan),
            CP_INVALID, "rounded");
    const cp_plan_options chosen = {
        .element_bytes = 4, .spare = 1, .indexer = {1, 4, 8}};
    refuses(cp_plan_build(CP_PASS_KV, layout, &shape, &chosen, &plan),
            CP_INVALID, "chosen keys");
    problem *p = prefill(shapes[0], 3, 3);
    cp_attention attention = call_of(p, 1);
    attention.leaves = cp_all_leaves;
    refuses(cp_attend(&attention), CP_INVALID, "has no exact order");
}

/* If all ranks end with all answers, a token's answer is read from the rank
 * that holds it, whichever reads last: ranks may read at the same time. */
LOOP(an_answer_is_read_from_where_its_token_is, 0, 2) {
    static const int64_t fresh[] = {5, 3};
    static const int64_t turns[] = {1, 0};
    static const cp_turn past[] = {{false, 4}};
    static const cp_turn *const history[] = {past, NULL};
    static const cp_machine machine = {.element_bytes = 4};
    float output[8 * 2 * 8], lse[8 * 2], forwards[8 * 2];
    cp_attend_job job = {.shape = {2, 1, 8},
                         .ranks = 3,
                         .sequences = 2,
                         .new_tokens = fresh,
                         .turns = turns,
                         .history = history,
                         .variant = _i == 0 ? CP_GATHER_O : CP_TREE,
                         .output = output,
                         .lse = lse};
    cp_attend_call call;
    int ranks = 0;
    must(cp_attend_call_new(&machine, &job, &call));
    for (int order = 0; order < 2; order++) {
        for (int n = 0; n < 3; n++) {
            const int rank = order == 0 ? n : 2 - n;
            float rank_output[9 * 2 * 8], rank_lse[9 * 2];
            for (int i = 0; i < COUNT_OF(rank_output); i++)
                rank_output[i] = (float)rank;
            for (int i = 0; i < COUNT_OF(rank_lse); i++)
                rank_lse[i] = (float)rank;
            cp_attend_read(&call, rank, rank_output, rank_lse);
        }
        if (order == 0)
            memcpy(forwards, lse, sizeof(lse));
    }
    ck_assert_mem_eq(forwards, lse, sizeof(lse));
    for (int i = 0; i < COUNT_OF(lse); i++) {
        hold(output[i * 8] == lse[i]);
        ranks |= 1 << (int)lse[i];
    }
    ck_assert_int_eq(ranks, 7);
    cp_attend_call_free(&call);
}

/* Rows of all ranks, in the order in which a state needs them: prompts of two
 * sequences, the second after earlier turns. */
LOOP(an_order_lists_rows_by_position, 1, CP_LEAVES + 1) {
    static const int64_t pasts[][2] = {{0, 0}, {1, 700}, {64, 63}, {200, 5000}};
    static const int64_t news[][2] = {{1, 5000}, {129, 1}, {64, 0}, {63, 2500}};
    for (int n = 0; n < COUNT_OF(pasts); n++) {
        int64_t *positions = room_for(8000, 8), *order = room_for(8000, 8);
        int64_t rows = 0;
        new_cache(_i, 2, 8000);
        cache->dealing = leafwise;
        if (pasts[n][1] > 0)
            take_turn(false, pasts[n]);
        lay_out(false, news[n]);
        for (int r = 0; r < _i; r++) {
            const cp_pieces *pieces = &layout->queries[r].pieces;
            ck_assert_int_eq(cp_state_rows_before(layout, r), rows);
            for (int64_t i = 0; i < pieces->count; i++)
                for (int64_t t = 0; t < pieces->items[i].span.count; t++)
                    positions[rows++] = pieces->items[i].span.sequence * 10000 +
                                        pieces->items[i].span.start + t;
        }
        for (int64_t s = 0; s < 2; s++) {
            cp_state_order(layout, s, order);
            for (int64_t t = 0; t < news[n][s]; t++)
                ck_assert_int_eq(positions[order[t]],
                                 s * 10000 + pasts[n][s] + t);
        }
    }
}

/* Every number of a row is in one slice, and heads keep their key heads. */
LOOP(slices_of_heads_are_cut_once, 1, 12) {
    static const cp_state_facts all[] = {
        {4, 4, 2, 16, 24, 4}, {4, 5, 5, 3, 2, 1}, {2, 21, 7, 8, 8, 3}};
    for (int n = 0; n < COUNT_OF(all); n++)
        for (cp_cut_kind kind = CP_CUT_ROW; kind <= CP_CUT_TAPS; kind++) {
            const cp_state_facts *f = &all[n];
            int64_t seen[4096] = {0}, before = 0;
            for (int r = 0; r < _i; r++) {
                const cp_head_slice slice = cp_head_slice_of(f, _i, r);
                const cp_head_cut cut = cp_head_cut_of(f, &slice, kind);
                const int64_t widths[] = {
                    cp_state_channels(&slice.facts) + 2 * slice.facts.heads,
                    slice.facts.heads * f->value_dim,
                    slice.facts.heads * f->key_dim * f->value_dim,
                    cp_state_channels(&slice.facts),
                    cp_state_channels(&slice.facts) * f->taps};
                int64_t parts = 0;
                ck_assert_int_eq(cp_head_cut_before(&cut), before);
                ck_assert_int_eq(cut.part_width, widths[kind]);
                before += cut.part_width;
                for (int i = 0; i < cut.count; i++) {
                    const cp_head_strip s = cut.strips[i];
                    ck_assert_int_eq(s.part, parts);
                    parts += s.groups * cut.has * s.dim;
                    for (int64_t g = 0; g < s.groups; g++)
                        for (int64_t h = 0; h < cut.has; h++)
                            seen[s.full + (g * f->key_heads + slice.first + h) *
                                              s.dim]++;
                }
                ck_assert_int_eq(parts, cut.part_width);
            }
            const cp_head_slice full = cp_head_slice_of(f, 1, 0);
            const cp_head_cut cut = cp_head_cut_of(f, &full, kind);
            ck_assert_int_eq(cut.width, before);
            for (int i = 0; i < cut.count; i++) {
                const cp_head_strip s = cut.strips[i];
                for (int64_t at = 0; at < s.groups * f->key_heads; at++)
                    ck_assert_int_eq(seen[s.full + at * s.dim], 1);
            }
        }
}
