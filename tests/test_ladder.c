/* Every rung of the ladder against the fp64 oracle, on the same problems. */
#include "reference/attend/ladder.h"
#include "harness/suite.h"
#include "reference/attend/oracle.h"

#include <string.h>

typedef struct {
    cp_shape shape;
    int64_t cached, fresh, step; /* step: tokens are dealt out in turn */
    float scale;                 /* of queries and keys */
} sizes;

static const sizes problems[] = {
    {{1, 1, 1}, 0, 1, 1, 1},      {{2, 1, 16}, 0, 40, 1, 1},
    {{6, 2, 64}, 0, 300, 1, 1},   {{7, 1, 80}, 130, 75, 1, 1},
    {{8, 2, 128}, 0, 600, 1, 1},  {{3, 3, 250}, 20, 33, 1, 1},
    {{16, 1, 256}, 0, 70, 1, 1},  {{6, 2, 32}, 100, 200, 3, 1},
    {{4, 2, 64}, 700, 1, 4, 1},   {{8, 2, 128}, 513, 97, 2, 1},
    {{6, 2, 64}, 100, 200, 1, 2},
};
enum { PROBLEMS = sizeof(problems) / sizeof(*problems) };
enum { ALL_RUNGS = CP_RUNGS + CP_SIDE_STEPS };

typedef struct {
    cp_shape shape;
    cp_pieces query_pieces, key_pieces;
    int64_t query_rows, key_rows;
    float *queries, *keys, *values, *output, *lse;
    double *true_output, *true_lse;
} problem;

/* The tokens from first to end - 1, dealt out in turn; after each span comes
 * a row that is nobody's. Returns the number of rows. */
static int64_t deal(cp_pieces *pieces, int64_t first, int64_t end,
                    int64_t step) {
    int64_t row = 0;
    for (int64_t s = first; s < cp_min(first + step, end); s++) {
        const int64_t count = cp_ceil_divide(end - s, step);
        const cp_span span = {0, s, count, count == 1 ? 1 : step};
        ck_assert_int_eq(cp_pieces_append(pieces, (cp_piece){span, row}),
                         CP_OK);
        row += count + 1;
    }
    return row;
}

static float *tensor(int64_t rows, const cp_pieces *pieces, int64_t width,
                     float scale) {
    static uint64_t state = 20261121;
    float *tensor;
    ck_assert_int_eq(cp_allocate(&tensor, rows * width, 4, "a tensor"), CP_OK);
    for (int64_t i = 0; i < rows * width; i++)
        tensor[i] = NAN;
    for (int64_t p = 0; p < pieces->count; p++) {
        float *to = tensor + pieces->items[p].row * width;
        for (int64_t i = 0; i < pieces->items[p].span.count * width; i++)
            to[i] = scale * harness_uniform(&state);
    }
    return tensor;
}

static problem prepare(const sizes *s) {
    problem p = {.shape = s->shape};
    const int64_t heads = p.shape.query_heads, dim = p.shape.head_dim;
    const int64_t width = p.shape.kv_heads * dim;
    p.query_rows =
        deal(&p.query_pieces, s->cached, s->cached + s->fresh, s->step);
    p.key_rows = deal(&p.key_pieces, 0, s->cached + s->fresh, s->step);
    p.queries = tensor(p.query_rows, &p.query_pieces, heads * dim, s->scale);
    p.keys = tensor(p.key_rows, &p.key_pieces, width, s->scale);
    p.values = tensor(p.key_rows, &p.key_pieces, width, 1.0f);
    const int64_t count = p.query_rows * heads;
    p.output = tensor(p.query_rows, &(cp_pieces){0}, heads * dim, 0.0f);
    p.lse = tensor(p.query_rows, &(cp_pieces){0}, heads, 0.0f);
    cp_allocate(&p.true_output, count * dim, 8, "true output");
    cp_allocate(&p.true_lse, count, 8, "true lse");
    ck_assert_int_eq(cp_oracle(&p.shape, &p.query_pieces, p.queries,
                               &p.key_pieces, p.keys, p.values, p.true_output,
                               p.true_lse),
                     CP_OK);
    return p;
}

static void discard(problem *p) {
    void *all[] = {p->queries, p->keys,        p->values,  p->output,
                   p->lse,     p->true_output, p->true_lse};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        free(all[i]);
    cp_pieces_free(&p->query_pieces);
    cp_pieces_free(&p->key_pieces);
}

static cp_attention ask(const problem *p, int threads) {
    return (cp_attention){.shape = &p->shape,
                          .query_pieces = &p->query_pieces,
                          .queries = p->queries,
                          .key_pieces = &p->key_pieces,
                          .keys = p->keys,
                          .values = p->values,
                          .threads = threads,
                          .output = p->output,
                          .lse = p->lse};
}

/* Whether no piece names the row. */
static bool is_spare(const cp_pieces *pieces, int64_t row) {
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_piece *piece = &pieces->items[p];
        if (piece->row <= row && row < piece->row + piece->span.count)
            return false;
    }
    return true;
}

static void compare(const problem *p, const char *name) {
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    double difference = 0.0, norm = 0.0, lse = 0.0;
    for (int64_t i = 0; i < p->query_rows * heads; i++) {
        const bool spare = is_spare(&p->query_pieces, i / heads);
        ck_assert_msg(isnan(p->lse[i]) == spare, "%s: lse of a spare row",
                      name);
        for (int64_t d = i * dim; d < (i + 1) * dim && !spare; d++) {
            const double off = (double)p->output[d] - p->true_output[d];
            difference += off * off;
            norm += p->true_output[d] * p->true_output[d];
        }
        if (!spare && (double)p->lse[i] != p->true_lse[i])
            lse = fmax(lse, fabs((double)p->lse[i] - p->true_lse[i]));
    }
    ck_assert_msg(difference <= 1e-12 * norm, "%s: output is off by %g", name,
                  sqrt(difference / norm));
    ck_assert_msg(lse <= 5e-6, "%s: lse is off by %g", name, lse);
}

START_TEST(every_rung_agrees_with_the_oracle) {
    problem p = prepare(&problems[_i]);
    for (int rung = 0; rung < ALL_RUNGS; rung++) {
        const cp_attention call = ask(&p, 2);
        for (int64_t i = 0; i < p.query_rows * p.shape.query_heads; i++)
            p.lse[i] = NAN;
        ck_assert_int_eq(cp_ladder[rung].attend(&call), CP_OK);
        compare(&p, cp_ladder[rung].name);
    }
    discard(&p);
}
END_TEST

START_TEST(two_halves_merge_into_the_whole) {
    problem p = prepare(&(sizes){{6, 2, 64}, 100, 200, 2, 1});
    for (int rung = 0; rung < ALL_RUNGS; rung++) {
        cp_pieces half = {.items = p.key_pieces.items, .count = 1};
        cp_attention call = ask(&p, 2);
        call.key_pieces = &half;
        ck_assert_int_eq(cp_ladder[rung].attend(&call), CP_OK);
        half.items++;
        call.merge = true;
        ck_assert_int_eq(cp_ladder[rung].attend(&call), CP_OK);
        compare(&p, cp_ladder[rung].name);
    }
    discard(&p);
}
END_TEST

START_TEST(a_row_that_sees_nothing_is_empty) {
    problem p = prepare(&(sizes){{4, 2, 64}, 0, 50, 1, 1});
    p.key_pieces.items[0].span.start = 17;
    for (int rung = 0; rung < ALL_RUNGS; rung++) {
        const cp_attention call = ask(&p, 1);
        ck_assert_int_eq(cp_ladder[rung].attend(&call), CP_OK);
        for (int64_t i = 0; i < 50 * 4; i++) {
            ck_assert_msg(isfinite(p.lse[i]) == (i >= 17 * 4), "%s, row %d",
                          cp_ladder[rung].name, (int)i);
            ck_assert((p.output[i * 64] == 0.0f) == (i < 17 * 4));
        }
    }
    discard(&p);
}
END_TEST

START_TEST(every_rung_refuses_what_it_cannot_do) {
    problem p = prepare(&(sizes){{4, 2, 64}, 0, 5, 1, 1});
    for (int trial = 0; trial < 2 * ALL_RUNGS; trial++) {
        const cp_attention call = ask(&p, trial % 2);
        p.shape.kv_heads = trial % 2 == 0 ? 2 : 3;
        ck_assert_int_eq(cp_ladder[trial / 2].attend(&call), CP_INVALID);
        ck_assert(isnan(p.output[0]));
    }
    discard(&p);
}
END_TEST

static Suite *ladder_suite(void) {
    Suite *suite = suite_create("ladder");
    TCase *tests = harness_case("ladder");
    tcase_add_loop_test(tests, every_rung_agrees_with_the_oracle, 0, PROBLEMS);
    tcase_add_test(tests, two_halves_merge_into_the_whole);
    tcase_add_test(tests, a_row_that_sees_nothing_is_empty);
    tcase_add_test(tests, every_rung_refuses_what_it_cannot_do);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(ladder_suite)
