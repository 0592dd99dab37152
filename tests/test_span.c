/* Spans against brute force, and against known sums. */
#include "expect.h"
#include "tokens/span.h"

#include <string.h>

static uint64_t state = 20241104;

static int64_t pick(int64_t below) {
    return (int64_t)(harness_random(&state) % (uint64_t)below);
}

static cp_span random_span(void) {
    const int64_t count = 1 + pick(12);
    return (cp_span){.sequence = pick(4) / 3,
                     .start = pick(40),
                     .count = count,
                     .step = count == 1 ? 1 : 1 + pick(7)};
}

static int64_t position(cp_span span, int64_t i) {
    return span.start + i * span.step;
}

TEST(spans_agree_with_brute_force) {
    for (int trial = 0; trial < 100000; trial++) {
        const cp_span a = random_span(), b = random_span();
        int64_t seen = 0, first = -1, last = -1, both = 0;
        for (int64_t i = 0; i < a.count && a.sequence == b.sequence; i++)
            for (int64_t j = 0; j < b.count; j++) {
                seen += position(b, j) <= position(a, i);
                if (position(a, i) != position(b, j))
                    continue;
                last = position(a, i);
                first = both++ == 0 ? last : first;
            }
        const cp_span shared = cp_span_shared(a, b);
        const cp_relation relation = seen == 0                   ? CP_APART
                                     : seen == a.count * b.count ? CP_FULL
                                                                 : CP_DIAGONAL;
        ck_assert_int_eq(cp_span_pairs(a, b), seen);
        ck_assert_int_eq(cp_span_relate(a, b), relation);
        ck_assert_int_eq(shared.count, both);
        if (both == 0)
            continue;
        ck_assert_int_eq(shared.sequence, a.sequence);
        ck_assert_int_eq(shared.start, first);
        ck_assert_int_eq(cp_span_last(shared), last);
        ck_assert(both > 1 || shared.step == 1);
    }
}

static cp_span dealt(int64_t tokens, int64_t groups, int64_t group) {
    return (cp_span){.start = group,
                     .count = (tokens - group + groups - 1) / groups,
                     .step = groups};
}

TEST(a_million_tokens_over_seven_groups_keep_all_pairs) {
    const int64_t tokens = 1000003, groups = 7;
    int64_t pairs = 0;
    for (int64_t q = 0; q < groups; q++)
        for (int64_t k = 0; k < groups; k++)
            pairs += cp_span_pairs(dealt(tokens, groups, q),
                                   dealt(tokens, groups, k));
    ck_assert_int_eq(pairs, tokens * (tokens + 1) / 2);
}

TEST(spans_meet_where_the_remainders_say) {
    const cp_span a = {0, 3, 1000, 1009}, b = {0, 5, 1000, 1013};
    ck_assert_int_eq(cp_span_shared(a, b).start, 510557);
    ck_assert_int_eq(510557 % 1009, 3);
    ck_assert_int_eq(510557 % 1013, 5);
    const cp_span early = {0, 3, 506, 1009}, odd = {0, 1, 1000, 2};
    const cp_span even = {0, 1000000, 1000, 2};
    ck_assert_int_eq(cp_span_shared(early, b).count, 0);
    ck_assert_int_eq(cp_span_shared(odd, even).count, 0);
    ck_assert_int_eq(cp_span_pairs(even, odd), 1000000);
}

enum { TOKENS = 400 };

static int64_t append_random(cp_pieces *pieces, cp_piece tokens[TOKENS]) {
    int64_t count = 0, row = 0;
    for (int p = 0; p < 30; p++) {
        cp_span span = random_span();
        if (pick(2) == 0 && pieces->count > 0)
            span.start = cp_span_last(pieces->items[pieces->count - 1].span) +
                         1 + pick(3);
        row += pick(5) == 0;
        must(cp_pieces_append(pieces, (cp_piece){span, row}));
        for (int64_t i = 0; i < span.count; i++)
            tokens[count++] =
                (cp_piece){{span.sequence, position(span, i), 1, 1}, row++};
    }
    return count;
}

/* Check that the pieces are these tokens, at most `longest` in each. */
static void check_tokens(const cp_pieces *pieces, const cp_piece *tokens,
                         int64_t longest) {
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_piece piece = pieces->items[p];
        hold(piece.span.count >= 1 && piece.span.count <= longest);
        hold(piece.span.count > 1 || piece.span.step == 1);
        for (int64_t t = 0; t < piece.span.count; t++) {
            const cp_piece token = {
                {piece.span.sequence, position(piece.span, t), 1, 1},
                piece.row + t};
            ck_assert_mem_eq(&token, tokens++, sizeof(token));
        }
    }
}

TEST(a_list_holds_the_tokens_that_were_appended) {
    for (int trial = 0; trial < 500; trial++) {
        cp_pieces pieces = {0}, tiles = {0};
        cp_piece tokens[TOKENS];
        const int64_t count = append_random(&pieces, tokens);
        ck_assert_int_eq(cp_pieces_tokens(&pieces), count);
        check_tokens(&pieces, tokens, INT64_MAX);
        must(cp_pieces_cut(&pieces, 1 + trial % 9, &tiles));
        check_tokens(&tiles, tokens, 1 + trial % 9);
        cp_pieces_free(&pieces);
        cp_pieces_free(&tiles);
        ck_assert_ptr_null(pieces.items);
    }
}

TEST(adjacent_pieces_are_joined) {
    cp_pieces pieces = {0}, copy = {0};
    for (int64_t i = 0; i < 1000; i++)
        cp_pieces_append(&pieces, (cp_piece){{0, 4 * i, 1, 1}, i});
    ck_assert_int_eq(pieces.count, 1);
    ck_assert_int_eq(pieces.items[0].span.step, 4);
    ck_assert_int_eq(pieces.items[0].span.count, 1000);
    cp_pieces_append(&pieces, (cp_piece){{0, 4001, 2, 1}, 1000});
    cp_pieces_append(&pieces, (cp_piece){{0, 4003, 5, 1}, 1002});
    ck_assert_int_eq(pieces.count, 2);
    cp_pieces_append(&pieces, (cp_piece){{0, 4008, 1, 1}, 1008});
    cp_pieces_append(&pieces, (cp_piece){{1, 4009, 1, 1}, 1009});
    ck_assert_int_eq(pieces.count, 4);
    /* Copy the list, spoil the original, and look at the copy. */
    must(cp_pieces_copy(&copy, &pieces));
    must(cp_pieces_copy(&copy, &copy));
    pieces.items[1].row = -1;
    ck_assert_int_eq(copy.count, 4);
    ck_assert_int_eq(copy.items[1].row, 1000);
    ck_assert_int_eq(copy.items[1].span.count, 7);
    cp_pieces_free(&pieces);
    cp_pieces_free(&copy);
}

TEST(wrong_shapes_are_refused_with_the_numbers) {
    const cp_shape none = {8, 0, 64}, uneven = {9, 2, 64}, wide = {8, 8, 577};
    const cp_shape right = {9, 3, 64};
    ck_assert_int_eq(cp_shape_check(&none), CP_INVALID);
    refuses(cp_shape_check(&uneven), CP_INVALID, "2 key heads");
    ck_assert_ptr_nonnull(strstr(cp_message(), "9 query heads"));
    refuses(cp_shape_check(&wide), CP_INVALID, "577");
    must(cp_shape_check(&right));
}
