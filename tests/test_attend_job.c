/* Attention over ranks with a past, against the oracle. */
#include "reference/model/attend_job.h"
#include "reference/attend/oracle.h"
#include "reference/attend/partial.h"
#include "expect.h"

#include <math.h>
#include <string.h>

enum { SEQUENCES = 4 };

static const cp_turn first_past[] = {{false, 50}, {true, 20}, {false, 6}};
static const cp_turn second_past[] = {{true, 3}, {true, 5}};
static const cp_turn third_past[] = {{false, 1}, {false, 1}, {false, 2}};
static const cp_turn *const pasts[SEQUENCES] = {first_past, second_past,
                                                third_past, NULL};
static const int64_t turns[SEQUENCES] = {3, 2, 3, 0};
static const int64_t past_tokens[SEQUENCES] = {76, 8, 4, 0};

typedef struct {
    cp_attend_job job;
    cp_pieces query_pieces, key_pieces;
    int64_t queries, keys; /* rows */
    float *tensors[5];     /* q, k, v, output, lse */
    double *output, *lse;  /* expected */
} bench;

static void lay_out(bench *b, const int64_t *fresh) {
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const int64_t keys = past_tokens[s] + fresh[s];
        if (fresh[s] > 0)
            must(cp_pieces_append(
                &b->query_pieces,
                (cp_piece){{s, past_tokens[s], fresh[s], 1}, b->queries}));
        if (keys > 0)
            must(cp_pieces_append(&b->key_pieces,
                                  (cp_piece){{s, 0, keys, 1}, b->keys}));
        b->queries += fresh[s];
        b->keys += keys;
    }
}

static bench set_up(cp_shape shape, int ranks, const int64_t *fresh,
                    cp_variant variant) {
    bench b = {.queries = 0};
    lay_out(&b, fresh);
    const int64_t q = b.queries * shape.query_heads;
    const int64_t kv = b.keys * shape.kv_heads * shape.head_dim;
    const int64_t sizes[5] = {q * shape.head_dim, kv, kv, q * shape.head_dim,
                              q};
    uint64_t state = 77;
    for (int n = 0; n < 5; n++) {
        b.tensors[n] = calloc((size_t)sizes[n], sizeof(float));
        for (int64_t i = 0; i < sizes[n]; i++)
            b.tensors[n][i] = n < 3 ? 3.0f * harness_uniform(&state) : NAN;
    }
    b.output = calloc((size_t)sizes[0], sizeof(double));
    b.lse = calloc((size_t)q, sizeof(double));
    /* Fill in the job. */
    b.job = (cp_attend_job){.shape = shape,
                            .ranks = ranks,
                            .sequences = SEQUENCES,
                            .new_tokens = fresh,
                            .turns = turns,
                            .history = pasts,
                            .variant = variant,
                            .cores = 2,
                            .queries = b.tensors[0],
                            .keys = b.tensors[1],
                            .values = b.tensors[2],
                            .output = b.tensors[3],
                            .lse = b.tensors[4]};
    must(cp_oracle(&shape, &b.query_pieces, b.tensors[0], &b.key_pieces,
                   b.tensors[1], b.tensors[2], b.output, b.lse));
    return b;
}

static void compare(const bench *b) {
    const cp_shape *shape = &b->job.shape;
    const int64_t heads = b->queries * shape->query_heads;
    double difference = 0.0, norm = 0.0;
    for (int64_t i = 0; i < heads * shape->head_dim; i++) {
        const double d = (double)b->job.output[i] - b->output[i];
        difference += d * d;
        norm += b->output[i] * b->output[i];
    }
    ck_assert_double_le(sqrt(difference), 1e-6 * sqrt(norm));
    for (int64_t i = 0; i < heads; i++)
        ck_assert_double_eq_tol((double)b->job.lse[i], b->lse[i], 5e-6);
}

static void tear_down(bench *b) {
    cp_pieces_free(&b->query_pieces);
    cp_pieces_free(&b->key_pieces);
    for (int n = 0; n < 5; n++)
        free(b->tensors[n]);
    free(b->output);
    free(b->lse);
}

static int64_t row_of(const bench *b, int64_t sequence, int64_t position) {
    for (int64_t n = 0; n < b->query_pieces.count; n++) {
        const cp_piece piece = b->query_pieces.items[n];
        if (piece.span.sequence == sequence && position >= piece.span.start &&
            position <= cp_span_last(piece.span))
            return piece.row + position - piece.span.start;
    }
    ck_abort_msg("position %lld of sequence %lld is no query",
                 (long long)position, (long long)sequence);
}

typedef struct {
    const bench *b;
    cp_partial merged;
    int64_t calls, next[3]; /* of each rank */
} collected;

static void collect(void *context, int rank, int64_t op, int64_t hop,
                    const cp_pieces *query_pieces, const cp_pieces *key_pieces,
                    const float *output, const float *lse) {
    collected *all = context;
    const cp_shape *shape = &all->b->job.shape;
    const int64_t heads = shape->query_heads, dim = shape->head_dim;
    ck_assert(rank >= 0 && rank < 3 && hop >= 0 && hop < 3);
    ck_assert_int_eq(op, all->next[rank]++);
    ck_assert(cp_pieces_tokens(key_pieces) <= all->b->keys);
    all->calls++;
    for (int64_t n = 0; n < query_pieces->count; n++) {
        /* Merge the rows of this piece. */
        const cp_piece piece = query_pieces->items[n];
        for (int64_t t = 0; t < piece.span.count; t++) {
            const int64_t to = row_of(all->b, piece.span.sequence,
                                      piece.span.start + t * piece.span.step);
            const int64_t from = piece.row + t;
            cp_partial into = {1, heads, dim,
                               all->merged.output + to * heads * dim,
                               all->merged.lse + to * heads};
            const cp_partial add = {
                1, heads, dim, (float *)(uintptr_t)output + from * heads * dim,
                (float *)(uintptr_t)lse + from * heads};
            cp_partial_merge(&into, &add);
        }
    }
}

static const int rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 16};
static const cp_shape shapes[] = {
    {4, 4, 32}, {6, 2, 64}, {7, 1, 80}, {16, 1, 128}};

LOOP(test_prefill_after_a_past, 0, 9) {
    const int64_t fresh[SEQUENCES] = {11, 0, 1, 40};
    for (int v = 0; v < 4; v++) {
        static const cp_variant variants[] = {CP_AUTO, CP_PASS_KV, CP_PASS_Q,
                                              CP_ALL_GATHER};
        bench b =
            set_up(shapes[(v + _i) % 4], rank_counts[_i], fresh, variants[v]);
        must(cp_attend_run(&cp_place_threads, &b.job));
        compare(&b);
        ck_assert(v == 0 || b.job.chosen == variants[v]);
        tear_down(&b);
    }
}

LOOP(test_decode_after_a_past, 0, 9) {
    const int64_t all[SEQUENCES] = {1, 1, 1, 1}, some[SEQUENCES] = {0, 1, 0, 1};
    bench b = set_up(shapes[_i % 4], rank_counts[_i], all, CP_AUTO);
    must(cp_attend_run(&cp_place_threads, &b.job));
    ck_assert_int_eq(b.job.chosen, CP_DECODE);
    compare(&b);
    tear_down(&b);
    b = set_up(shapes[(_i + 1) % 4], rank_counts[_i], some, CP_DECODE);
    must(cp_attend_run(&cp_place_threads, &b.job));
    compare(&b);
    tear_down(&b);
}

LOOP(test_partials_are_seen, 0, 2) {
    const int64_t fresh[SEQUENCES] = {11, 1, 1, 40};
    const cp_variant variant = _i == 0 ? CP_PASS_KV : CP_PASS_Q;
    bench b = set_up(shapes[1], 3, fresh, variant);
    collected all = {.b = &b};
    const int64_t heads = b.queries * 6;
    all.merged = (cp_partial){b.queries, 6, 64,
                              calloc((size_t)heads * 64, sizeof(float)),
                              calloc((size_t)heads, sizeof(float))};
    cp_partial_clear(&all.merged);
    b.job.partial = collect;
    b.job.partial_context = &all;
    must(cp_attend_run(&cp_place_threads, &b.job));
    compare(&b);
    ck_assert_int_ge(all.calls, 9);
    memcpy(b.job.output, all.merged.output, (size_t)heads * 64 * sizeof(float));
    memcpy(b.job.lse, all.merged.lse, (size_t)heads * sizeof(float));
    compare(&b);
    free(all.merged.output);
    free(all.merged.lse);
    tear_down(&b);
}

TEST(test_bad_jobs) {
    const int64_t two[SEQUENCES] = {1, 2, 0, 1}, none[SEQUENCES] = {0};
    bench b = set_up(shapes[1], 3, two, CP_DECODE);
    ck_assert_int_eq(cp_attend_run(&cp_place_threads, &b.job), CP_INVALID);
    b.job.new_tokens = none;
    ck_assert_int_eq(cp_attend_run(&cp_place_threads, &b.job), CP_INVALID);
    b.job.variant = CP_AUTO;
    ck_assert_int_eq(cp_attend_run(&cp_place_threads, &b.job), CP_INVALID);
    tear_down(&b);
}
