/* The choice of keys against a sort of all keys, and attention to the chosen
 * ones against the oracle. */
#include "problem.h"
#include "reference/attend/select.h"

/* Cached and new tokens of one sequence, and how its scores are made. */
typedef struct {
    cp_indexer indexer;
    int64_t cached, fresh;
    int levels; /* number of distinct values; 0: any */
} choice;

static const choice choices[] = {
    {{2, 8, 4}, 0, 37, 0},     {{1, 1, 1}, 0, 1, 0},
    {{4, 20, 16}, 100, 50, 0}, {{3, 5, 7}, 61, 3, 3},
    {{2, 2, 9}, 0, 80, 2},     {{1, 3, 5}, 40, 40, 1},
    {{2, 16, 500}, 30, 33, 3}, {{64, 128, 32}, 200, 5, 0},
    {{2, 4, 1}, 0, 90, 2},     {{1, 257, 20}, 17, 16, 0},
};
#define CHOICES COUNT_OF(choices)

typedef struct {
    const choice *of;
    int64_t tokens, room;
    cp_pieces query_pieces, key_pieces; /* all, in one piece */
    float *queries, *weights, *keys;
    cp_candidate *expected; /* expected for each query, in order of position */
} chosen;

static float draw(const choice *of, uint64_t *state) {
    if (of->levels == 0)
        return harness_uniform(state);
    return (float)(harness_random(state) % (uint64_t)of->levels) - 0.5f;
}

static float *random_floats(const choice *of, int64_t count, uint64_t *state) {
    float *numbers = room_for(count, 4);
    for (int64_t n = 0; n < count; n++)
        numbers[n] = draw(of, state);
    return numbers;
}

static int in_order(const void *left, const void *right) {
    const cp_candidate *a = left, *b = right;
    return cp_candidate_before(*a, *b) ? -1 : cp_candidate_before(*b, *a);
}

static cp_candidate score_of(const chosen *result, int64_t query, int64_t key) {
    const cp_indexer ix = result->of->indexer;
    const float *k = result->keys + key * ix.dim;
    float total = 0.0f;
    for (int64_t h = query * ix.heads; h < (query + 1) * ix.heads; h++) {
        float dot = 0.0f;
        for (int64_t d = 0; d < ix.dim; d++)
            dot = cp_fused(result->queries[h * ix.dim + d], k[d], dot);
        total = cp_fused(result->weights[h], dot <= 0.0f ? 0.0f : dot, total);
    }
    return (cp_candidate){isnan(total) ? -INFINITY : total, (int32_t)key};
}

/* Sort all that each query sees. */
static void choose_by_sorting(chosen *result) {
    cp_candidate *all = room_for(result->tokens, sizeof(*all));
    result->expected =
        room_for(result->of->fresh * result->room, sizeof(*result->expected));
    cp_candidates_clear(result->expected, result->of->fresh * result->room);
    for (int64_t q = 0; q < result->of->fresh; q++) {
        const int64_t sees = result->of->cached + q + 1;
        for (int64_t s = 0; s < sees; s++)
            all[s] = score_of(result, q, s);
        qsort(all, (size_t)sees, sizeof(*all), in_order);
        memcpy(result->expected + q * result->room, all,
               (size_t)cp_min(sees, result->room) * sizeof(*all));
    }
}

static chosen *chosen_of(int which) {
    uint64_t state = 20241104 + (uint64_t)which;
    const choice *of = &choices[which];
    const int64_t heads = of->indexer.heads, dim = of->indexer.dim;
    chosen *result = room_for(1, sizeof(*result));
    *result = (chosen){
        .of = of, .tokens = of->cached + of->fresh, .room = of->indexer.top_k};
    result->queries = random_floats(of, of->fresh * heads * dim, &state);
    result->weights = random_floats(of, of->fresh * heads, &state);
    result->keys = random_floats(of, result->tokens * dim, &state);
    cp_pieces_append(&result->query_pieces,
                     (cp_piece){{0, of->cached, of->fresh, 1}, 0});
    cp_pieces_append(&result->key_pieces,
                     (cp_piece){{0, 0, result->tokens, 1}, 0});
    choose_by_sorting(result);
    return result;
}

static cp_candidate *chosen_by(const chosen *result, const cp_pieces *keys,
                               const float *rows, int threads) {
    const int64_t count = result->of->fresh * result->room;
    cp_candidate *list = room_for(count, sizeof(*list));
    const cp_selection call = {.indexer = &result->of->indexer,
                               .query_pieces = &result->query_pieces,
                               .queries = result->queries,
                               .weights = result->weights,
                               .key_pieces = keys,
                               .keys = rows,
                               .threads = threads,
                               .room = result->room,
                               .candidates = list};
    cp_candidates_clear(list, count);
    must(cp_select(&call));
    return list;
}

static void check_list(const chosen *result, const cp_candidate *list) {
    ck_assert_mem_eq(list, result->expected,
                     (size_t)(result->of->fresh * result->room) *
                         sizeof(*list));
}

LOOP(the_best_keys_are_chosen, 0, CHOICES) {
    const chosen *result = chosen_of(_i);
    for (int threads = 1; threads <= 3; threads++)
        check_list(result, chosen_by(result, &result->key_pieces, result->keys,
                                     threads));
}

/* The keys of one of several ranks, dealt out in growing runs, with rows not in
 * the order of positions. */
static void share_out(const chosen *result, int ranks, int rank,
                      cp_pieces *pieces, float *rows) {
    const int64_t dim = result->of->indexer.dim;
    int64_t run = 0, row = result->tokens;
    for (int64_t start = 0; start < result->tokens;
         start += run / 3 + 1, run++) {
        const int64_t count = cp_min(run / 3 + 1, result->tokens - start);
        if (run % ranks != rank)
            continue;
        row -= count;
        cp_pieces_append(pieces, (cp_piece){{0, start, count, 1}, row});
        memcpy(rows + row * dim, result->keys + start * dim,
               (size_t)(count * dim) * 4);
    }
}

LOOP(merged_lists_of_ranks_have_the_same_bits, 0, CHOICES) {
    const chosen *result = chosen_of(_i);
    for (int ranks = 1; ranks <= 9; ranks++) {
        cp_candidate *all = NULL;
        for (int k = 0; k < ranks; k++) {
            cp_pieces pieces = {0};
            float *rows = room_for(result->tokens * result->of->indexer.dim, 4);
            share_out(result, ranks, ranks - 1 - k, &pieces, rows);
            cp_candidate *list = chosen_by(result, &pieces, rows, 1);
            for (int64_t q = 0; all != NULL && q < result->of->fresh; q++)
                cp_candidates_merge(all + q * result->room,
                                    list + q * result->room, result->room);
            all = all == NULL ? list : all;
            cp_pieces_free(&pieces);
        }
        check_list(result, all);
    }
}

/* Even positions first, then odd ones. */
static int64_t row_by_two(int64_t tokens, int64_t position) {
    return position % 2 * ((tokens + 1) / 2) + position / 2;
}

static cp_pieces dealt_by_two(int64_t tokens) {
    cp_pieces pieces = {0};
    for (int64_t first = 0; first < cp_min(2, tokens); first++)
        must(cp_pieces_append(&pieces,
                              (cp_piece){{0, first, (tokens - first + 1) / 2,
                                          tokens - first > 2 ? 2 : 1},
                                         row_by_two(tokens, first)}));
    return pieces;
}

TEST(every_other_position_is_a_span_too) {
    const chosen *result = chosen_of(2);
    const int64_t dim = result->of->indexer.dim;
    cp_pieces pieces = dealt_by_two(result->tokens);
    float *rows = room_for(result->tokens * dim, 4);
    for (int64_t s = 0; s < result->tokens; s++)
        memcpy(rows + row_by_two(result->tokens, s) * dim,
               result->keys + s * dim, (size_t)dim * 4);
    check_list(result, chosen_by(result, &pieces, rows, 2));
    cp_pieces_free(&pieces);
}

TEST(a_nan_score_is_chosen_last) {
    chosen *result = chosen_of(6);
    const int64_t dim = result->of->indexer.dim;
    result->keys[3 * dim] = NAN;
    result->keys[5 * dim + 1] = INFINITY;
    result->keys[6 * dim + 1] = -INFINITY;
    result->keys[7 * dim] = result->keys[7 * dim + 1] = INFINITY;
    choose_by_sorting(result);
    check_list(result, chosen_by(result, &result->key_pieces, result->keys, 1));
    for (int64_t q = 0; q < result->of->fresh; q++) {
        const cp_candidate *list = result->expected + q * result->room;
        const int64_t last = result->of->cached + q;
        hold(list[last].score == -INFINITY && list[last].position <= last);
        hold(list[last + 1].position == INT32_MAX);
    }
}

static cp_shape shape = {6, 2, 20};
static chosen *now;

static void attend_to_chosen(problem *p) {
    const cp_attention call = call_of(p, 2);
    const int64_t count = now->of->fresh * now->room;
    int32_t *positions = room_for(count, sizeof(*positions));
    for (int64_t n = 0; n < count; n++)
        positions[n] = now->expected[n].position;
    must(cp_attend_chosen(&call, positions, now->room));
}

/* Ask the oracle for each query alone, over the keys it has chosen. */
LOOP(attention_is_exact_over_what_was_chosen, 0, CHOICES) {
    uint64_t state = 7;
    problem *p = new_problem(shape);
    now = chosen_of(_i);
    p->query_pieces = now->query_pieces;
    p->key_pieces = dealt_by_two(now->tokens);
    prepare(p, 1.0f, harness_uniform, &state);
    attend_to_chosen(p);
    for (int64_t q = 0; q < now->of->fresh; q++) {
        problem one = *p;
        double output[6 * 20], lse[6], difference = 0.0, norm = 0.0;
        const int64_t wide = 6 * 20;
        const cp_piece query = {{0, now->of->cached + q, 1, 1}, 0};
        one.query_pieces = one.key_pieces = (cp_pieces){0};
        must(cp_pieces_append(&one.query_pieces, query));
        for (int64_t n = 0; n < now->room; n++) {
            const int32_t at = now->expected[q * now->room + n].position;
            if (at != INT32_MAX)
                must(cp_pieces_append(
                    &one.key_pieces,
                    (cp_piece){{0, at, 1, 1}, row_by_two(now->tokens, at)}));
        }
        must(cp_oracle(&shape, &one.query_pieces, p->queries + q * wide,
                       &one.key_pieces, p->keys, p->values, output, lse));
        cp_pieces_free(&one.query_pieces);
        cp_pieces_free(&one.key_pieces);
        for (int64_t i = 0; i < wide; i++) {
            difference += pow(p->output[q * wide + i] - output[i], 2);
            norm += output[i] * output[i];
            hold(fabs(p->lse[q * 6 + i / 20] - lse[i / 20]) <= 5e-6);
        }
        ck_assert_double_le(sqrt(difference), 1e-6 * sqrt(norm));
    }
}

/* Queries that choose all keys get the answers of any kernel. */
TEST(choosing_all_keys_is_dense_attention) {
    uint64_t state = 7;
    problem *p = new_problem(shape);
    now = chosen_of(6);
    p->query_pieces = now->query_pieces;
    p->key_pieces = dealt_by_two(now->tokens);
    prepare(p, 1.0f, harness_uniform, &state);
    check(p, attend_to_chosen, 1.0);
}

TEST(selection_needs_threads) {
    const cp_selection call = {.indexer = &choices[0].indexer};
    refuses(cp_select(&call), CP_INVALID, "0 threads");
}
