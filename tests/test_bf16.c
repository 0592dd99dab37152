/* Products in bf16: tiles, the kernel, rings, linear layers and a model, by each
 * means that this processor has. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "reference/attend/bf16.h"
#include "problem.h"

#include "harness/tiny_gguf.h"
#include "model/session.h"
#include "reference/attend/fast.h"
#include "reference/model/linear.h"

static const char *const means[] = {"AMX", "AVX512-BF16", "loops"};
enum { MEANS = 3 };

/* Before anything is multiplied; false if the processor lacks them. */
static bool use(int which) {
    setenv("LONGRING_BF16", means[which], 1);
    return strcmp(cp_bf16_about(), means[which]) == 0;
}

static float rounded(float number) {
    return cp_from_bits(cp_bf16_of(number) << 16);
}

/* Tiles. */

/* One of left rows, and of right columns, at a time is not there. */
static void multiply_tile(int64_t rows, int64_t columns, int64_t dim, bool add,
                          uint64_t *state) {
    enum { SIDE = CP_BF16_SIDE, WIDE = 40 };
    const int64_t steps = cp_ceil_divide(dim, CP_BF16_STEP);
    float *a = room_for(SIDE * dim, 4), *b = room_for(SIDE * dim, 4);
    float *c = room_for(SIDE * WIDE, 4);
    uint16_t *left = room_for(steps * CP_BF16_TILE, 2);
    uint16_t *right = room_for(steps * CP_BF16_TILE, 2);
    for (int64_t n = 0; n < SIDE * dim; n++) {
        a[n] = harness_uniform(state);
        b[n] = harness_uniform(state);
    }
    for (int64_t n = 0; n < SIDE * WIDE; n++)
        c[n] = 3.0f;
    cp_bf16_rows(a, dim, SIDE - 1, dim, left);
    for (int h = 0; h < 2; h++) {
        const float *from[16];
        for (int i = 0; i < 16; i++)
            from[i] = 16 * h + i == 7 ? NULL : b + (16 * h + i) * dim;
        cp_bf16_turn(from, dim, 0.5f, right + h * CP_BF16_TILE / 2);
    }
    cp_bf16_begin();
    cp_bf16_multiply(rows, columns, steps, left, right, add, c, WIDE);
    cp_bf16_end();
    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t j = 0; j < WIDE; j++) {
            const bool inside = i < rows && j < columns;
            double sum = add || !inside ? 3.0 : 0.0;
            for (int64_t k = 0; k < dim && inside; k++)
                if (i < SIDE - 1 && j != 7)
                    sum += (double)rounded(a[i * dim + k]) *
                           (double)rounded(0.5f * b[j * dim + k]);
            hold(fabs((double)c[i * WIDE + j] - sum) < 1e-5);
        }
}

LOOP(tiles_are_multiplied, 0, MEANS) {
    static const int64_t dims[] = {1, 31, 32, 33, 64, 80, 128, 192};
    uint64_t state = 3;
    if (!use(_i))
        return;
    for (int n = 0; n < COUNT_OF(dims); n++)
        for (int add = 0; add < 2; add++) {
            multiply_tile(32, 32, dims[n], add, &state);
            multiply_tile(20, 32, dims[n], add, &state);
            multiply_tile(32, 9, dims[n], add, &state);
        }
}

/* The kernel. */

static void run_kernel(problem *p) {
    const cp_attention call = call_of(p, 2);
    must(cp_attend_bf16(&call));
}

/* An integer of at most three bits. */
static float small(uint64_t *state) {
    return (float)(int)(harness_random(state) % 17) - 8.0f;
}

static problem *problem_of(cp_shape shape, int64_t cached, int64_t fresh,
                           float scale, float (*draw)(uint64_t *),
                           uint64_t *state) {
    problem *p = new_problem(shape);
    must(cp_pieces_append(&p->query_pieces,
                          (cp_piece){{0, cached, fresh, 1}, 2}));
    must(cp_pieces_append(&p->key_pieces,
                          (cp_piece){{0, 0, cached / 2, 1}, 100}));
    must(cp_pieces_append(&p->key_pieces,
                          (cp_piece){{0, cached / 2, cached + fresh, 1}, 700}));
    prepare(p, scale, draw, state);
    return p;
}

static const cp_shape shapes[] = {
    {8, 2, 128},    {6, 1, 80},
    {3, 3, 64},     {4, 2, 32, .window = 50},
    {5, 1, 20, 12}, {16, 1, 72, 64, true},
    {7, 1, 250},    {2, 1, 33, .window = 200},
};

/* With scores of 0 all weights are 1, so the answer is the mean of the integers
 * that a query sees, and any key too many or too few shows. */
LOOP(each_key_is_seen_once, 0, MEANS *COUNT_OF(shapes)) {
    static const int64_t lengths[] = {13, 40, 64, 129, 333};
    uint64_t state = 9 + (uint64_t)_i;
    const cp_shape shape = shapes[_i / MEANS];
    if (!use(_i % MEANS))
        return;
    for (int n = 0; n < COUNT_OF(lengths); n++)
        check(problem_of(shape, 10 + 61 * n, lengths[n], 0.0f, small, &state),
              run_kernel, 1.0);
}

/* Queries, keys, weights and values are each rounded to 8 bits. */
LOOP(rounding_explains_the_error, 0, MEANS *COUNT_OF(shapes)) {
    uint64_t state = 5 + (uint64_t)_i;
    if (!use(_i % MEANS))
        return;
    check(
        problem_of(shapes[_i / MEANS], 210, 300, 1.0f, harness_uniform, &state),
        run_kernel, 4000.0);
}

LOOP(scores_far_below_weigh_nothing, 0, MEANS) {
    uint64_t state = 1;
    if (!use(_i))
        return;
    problem *p = new_problem((cp_shape){20, 1, 1});
    must(cp_pieces_append(&p->query_pieces, (cp_piece){{0, 299, 1, 1}, 0}));
    must(cp_pieces_append(&p->key_pieces, (cp_piece){{0, 0, 300, 1}, 0}));
    prepare(p, 1.0f, small, &state);
    for (int64_t i = 0; i < 20; i++)
        p->queries[i] = 1.0f;
    for (int64_t i = 0; i < 300; i++)
        p->keys[i] = i == 200 ? 512.0f : -16.0f * (float)i;
    run_kernel(p);
    for (int64_t i = 0; i < 20; i++) {
        ck_assert_float_eq(p->output[i], p->values[200]);
        ck_assert_float_eq_tol(p->lse[i], 512.0f, 2.0f);
    }
}

LOOP(what_a_query_does_not_see_has_no_effect, 0, MEANS) {
    const poisoning calls[] = {{{4, 2, 64}, 150, 24, 1},
                               {{4, 1, 32}, 100, 15, 3},
                               {{6, 1, 80, .window = 70}, 200, 20, 1}};
    if (!use(_i))
        return;
    for (int n = 0; n < COUNT_OF(calls); n++)
        poison_the_future(&calls[n], harness_uniform, run_kernel);
}

LOOP(threads_do_not_change_bits, 0, MEANS) {
    uint64_t state = 1;
    if (!use(_i))
        return;
    problem *p = problem_of((cp_shape){8, 2, 64}, 500, 700, 1.0f,
                            harness_uniform, &state);
    const int64_t count = p->query_rows * 8 * 64;
    run_kernel(p);
    const float *output = copied(p->output, count);
    for (int threads = 1; threads <= 5; threads++) {
        const cp_attention call = call_of(p, threads);
        must(cp_attend_bf16(&call));
        ck_assert_mem_eq(p->output, output, (size_t)count * 4);
    }
}

TEST(exact_order_is_refused) {
    uint64_t state = 1;
    problem *p =
        problem_of((cp_shape){1, 1, 8}, 4, 40, 1.0f, harness_uniform, &state);
    cp_attention call = call_of(p, 1);
    call.leaves = 1;
    refuses(cp_attend_bf16(&call), CP_INVALID, "exact order adds in fp32");
}

/* Rings: as many ranks as there are, the answer is the mean. */

LOOP(rings_answer_as_one_rank, 0, 12) {
    enum { CACHED = 90, NEW = 331, ALL = CACHED + NEW, WIDTH = 4 * 32 };
    static const int ranks[] = {1, 3, 4, 5};
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER};
    static const cp_turn past[] = {{false, 80}, {true, 10}};
    static const cp_turn *const history[] = {past};
    static const int64_t turns[] = {2}, fresh[] = {NEW};
    uint64_t state = 3;
    float *values = room_for(ALL * WIDTH / 2, 4);
    for (int64_t n = 0; n < ALL * WIDTH / 2; n++)
        values[n] = small(&state);
    cp_attend_job job = {.shape = {4, 2, 32, .window = _i % 2 * 100},
                         .ranks = ranks[_i / 3],
                         .sequences = 1,
                         .new_tokens = fresh,
                         .turns = turns,
                         .history = history,
                         .variant = variants[_i % 3],
                         .queries = room_for(NEW * WIDTH, 4),
                         .keys = room_for(ALL * WIDTH / 2, 4),
                         .values = values,
                         .output = room_for(NEW * WIDTH, 4),
                         .lse = room_for(NEW * 4, 4)};
    must(cp_backend_threads_bf16.attend(&job));
    for (int64_t t = 0; t < NEW; t++)
        for (int64_t i = 0; i < WIDTH; i++) {
            const int64_t last = CACHED + t, head = i / 64, d = i % 32;
            const int64_t first = _i % 2 == 0 ? 0 : cp_max(0, last + 1 - 100);
            double sum = 0;
            for (int64_t k = first; k <= last; k++)
                sum += (double)values[k * WIDTH / 2 + head * 32 + d];
            const double mean = sum / (double)(last + 1 - first);
            hold(fabs((double)job.output[t * WIDTH + i] - mean) < 1e-5);
        }
}

/* Linear layers. */

static void check_layer(int64_t rows, int64_t in, int64_t out, bool add,
                        uint64_t *state) {
    int64_t bytes;
    float *x = room_for(rows * in, 4), *w = room_for(out * in, 4);
    float *y = room_for(rows * out + 1, 4);
    for (int64_t n = 0; n < rows * in; n++)
        x[n] = harness_uniform(state);
    for (int64_t n = 0; n < out * in; n++)
        w[n] = harness_uniform(state);
    for (int64_t n = 0; n <= rows * out; n++)
        y[n] = 3.0f;
    must(cp_matrix_bytes(CP_GGUF_F32, in, out, &bytes));
    cp_matrix matrix;
    cp_matrix_fill(CP_GGUF_F32, in, out, w, room_for(bytes, 1), &matrix);
    const int64_t floats = cp_linear_scratch(rows, in, 2);
    float *scratch = memset(room_for(floats, 4), 0xFF, (size_t)floats * 4);
    const cp_product product = {&matrix, add, y};
    cp_linear_bf16(rows, in, x, &product, 1, 2, scratch);
    for (int64_t n = 0; n < rows * out; n++) {
        double sum = add ? 3.0 : 0.0;
        for (int64_t k = 0; k < in; k++)
            sum += (double)rounded(x[n / out * in + k]) *
                   (double)rounded(w[n % out * in + k]);
        hold(fabs((double)y[n] - sum) < 1e-6 * (double)in);
    }
    ck_assert(y[rows * out] == 3.0f);
}

LOOP(layers_round_rows_and_weights, 0, MEANS) {
    static const int64_t rows[] = {9, 32, 33, 70};
    static const int64_t ins[] = {32, 75, 576, 1100}, outs[] = {5, 48, 77, 17};
    uint64_t state = 2;
    if (!use(_i))
        return;
    for (int n = 0; n < 4; n++)
        for (int add = 0; add < 2; add++)
            check_layer(rows[n], ins[n], outs[n], add, &state);
}

/* A model. */

/* What is rounded: both, only linear layers, and only attention, because the
 * other one has few rows. */
static const struct {
    int64_t sequences, tokens;
} prompts[] = {{1, 70}, {4, 5}, {1, 7}};

static float *listen(const cp_backend *backend, const cp_gguf *file, int ranks,
                     int which, int64_t *numbers) {
    const int64_t sequences = prompts[which].sequences;
    const int64_t each = prompts[which].tokens, all = sequences * each;
    const cp_session_options options = {
        .ranks = ranks, .sequences = sequences, .capacity = 100, .cores = 2};
    const int64_t lengths[] = {each, each, each, each};
    int32_t tokens[100];
    cp_model *model;
    cp_session *session;
    for (int64_t n = 0; n < all; n++)
        tokens[n] = (int32_t)(n * 7 % 50);
    must(cp_model_open(backend, file, &model));
    must(cp_session_open(model, &options, &session));
    must(cp_session_prefill(session, lengths, tokens, NULL));
    *numbers = all * model->facts.vocabulary;
    float *logits = room_for(*numbers, 4);
    must(cp_session_logits(session, 0, all, logits));
    cp_session_close(session);
    cp_model_close(model);
    return logits;
}

LOOP(a_model_differs_by_rounding, 0, MEANS *COUNT_OF(prompts)) {
    static tiny_bytes bytes;
    const tiny_gguf_options tiny = {.seed = 4, .query = CP_GGUF_Q8_0};
    const int which = _i / MEANS;
    cp_gguf *file;
    int64_t numbers;
    if (!use(_i % MEANS))
        return;
    tiny_gguf_build(&tiny, &bytes);
    must(cp_gguf_parse(bytes.bytes, bytes.length, &file));
    const float *expected =
        listen(&cp_backend_threads, file, 1, which, &numbers);
    for (int ranks = 1; ranks <= (which == 0 ? 3 : 1); ranks += 2) {
        const float *got =
            listen(&cp_backend_threads_bf16, file, ranks, which, &numbers);
        double largest = 0, apart = 0;
        for (int64_t i = 0; i < numbers; i++) {
            largest = fmax(largest, fabs((double)expected[i]));
            apart = fmax(apart, fabs((double)expected[i] - (double)got[i]));
        }
        /* It rounds, and by no more than that. */
        ck_assert_msg(apart > 1e-5 * largest && apart < 0.03 * largest,
                      "%g of %g", apart, largest);
    }
    cp_gguf_close(file);
}
