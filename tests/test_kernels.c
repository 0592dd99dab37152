/* The plain kernels, on what stands in for a GPU. */
#include "harness/suite.h"

#include <math.h>
#include <string.h>

#include "harness/stand-in/stand_in.h"
#include "formats.h"
#include "reference/attend/oracle.h"

static void *upload(const void *from, int64_t bytes) {
    void *to = NULL;
    ck_assert_int_eq(cudaMalloc(&to, (size_t)bytes + 1), cudaSuccess);
    if (bytes > 0)
        ck_assert_int_eq(
            cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyHostToDevice),
            cudaSuccess);
    return to;
}

static void *upload_numbers(const float *from, int64_t count,
                            cp_element element) {
    const int64_t size = cp_element_bytes(element);
    char *bytes;
    cp_allocate(&bytes, count, size, "numbers");
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = encode_any(element, from[i]);
        memcpy(bytes + i * size, &bits, (size_t)size);
    }
    void *to = upload(bytes, count * size);
    free(bytes);
    return to;
}

typedef struct {
    cp_shape shape;
    cp_element element;
    cp_pieces queries_of, keys_of;
    int64_t query_rows, key_rows;
    int splits;
    bool merge;
    float *queries, *keys, *values;
    float *output, *lse; /* what lies there before, then the answer */
} problem;

static float *numbers_in(const cp_pieces *pieces, int64_t rows, int64_t width,
                         uint64_t *state) {
    float *tensor;
    cp_allocate(&tensor, rows * width, 4, "numbers");
    for (int64_t i = 0; i < rows * width; i++)
        tensor[i] = NAN;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        for (int64_t i = 0; i < piece.span.count * width; i++)
            tensor[piece.row * width + i] = draw(state);
    }
    return tensor;
}

static void prepare(problem *p, uint64_t seed) {
    uint64_t state = seed * 77 + 1;
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    const int64_t width = p->shape.kv_heads * dim;
    p->queries = numbers_in(&p->queries_of, p->query_rows, heads * dim, &state);
    p->keys = numbers_in(&p->keys_of, p->key_rows, width, &state);
    p->values = numbers_in(&p->keys_of, p->key_rows, width, &state);
    cp_allocate(&p->output, p->query_rows * heads * dim, 4, "output");
    cp_allocate(&p->lse, p->query_rows * heads, 4, "lse");
    for (int64_t i = 0; i < p->query_rows * heads; i++) {
        const bool empty = harness_random(&state) % 3 == 0;
        p->lse[i] = empty ? -INFINITY : 3.0f * draw(&state);
        for (int64_t d = 0; d < dim; d++)
            p->output[i * dim + d] = empty ? NAN : draw(&state);
    }
}

static void discard(problem *p) {
    cp_pieces_free(&p->queries_of);
    cp_pieces_free(&p->keys_of);
    free(p->queries);
    free(p->keys);
    free(p->values);
    free(p->output);
    free(p->lse);
}

static cp_device_tiles tiles_of(const cp_pieces *pieces, int64_t longest) {
    cp_pieces tiles = {0};
    ck_assert_int_eq(cp_pieces_cut(pieces, longest, &tiles), CP_OK);
    const cp_device_tiles out = {
        upload(tiles.items, tiles.count * (int64_t)sizeof(cp_piece)),
        upload(&tiles.count, 8), tiles.count};
    cp_pieces_free(&tiles);
    return out;
}

static void free_tiles(cp_device_tiles tiles) {
    cudaFree((void *)(uintptr_t)tiles.items);
    cudaFree((void *)(uintptr_t)tiles.count);
}

static void run(problem *p) {
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    const int64_t width = p->shape.kv_heads * dim;
    const int64_t rows = p->query_rows * heads;
    void *q = upload_numbers(p->queries, rows * dim, p->element);
    void *k = upload_numbers(p->keys, p->key_rows * width, p->element);
    void *v = upload_numbers(p->values, p->key_rows * width, p->element);
    float *output = upload(p->output, rows * dim * 4);
    float *lse = upload(p->lse, rows * 4);
    float *unfinished = NULL;
    cudaMalloc((void **)&unfinished,
               (size_t)(p->splits * rows * (dim + 1)) * 4 + 4);
    cp_device_attention call = {
        p->shape,
        p->element,
        tiles_of(&p->queries_of, cp_device_query_tile(&p->shape)),
        tiles_of(&p->keys_of, CP_DEVICE_KEY_TILE),
        q,
        k,
        v,
        p->merge,
        p->splits,
        unfinished,
        p->query_rows,
        output,
        lse};
    ck_assert_int_eq(cp_device_attend(&call, NULL), cudaSuccess);
    /* Fetch the answer, and free what is on the device. */
    ck_assert_msg(cudaMemcpy(p->output, output, (size_t)(rows * dim) * 4,
                             cudaMemcpyDeviceToHost) == cudaSuccess,
                  "%s", stand_in_error());
    cudaMemcpy(p->lse, lse, (size_t)rows * 4, cudaMemcpyDeviceToHost);
    void *all[] = {q, k, v, output, lse, unfinished};
    for (int i = 0; i < 6; i++)
        cudaFree(all[i]);
    free_tiles(call.queries_of);
    free_tiles(call.keys_of);
}

static void expect(const problem *p, const float *before, const float *lse,
                   double *truth, double *truth_lse) {
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    ck_assert_int_eq(cp_oracle(&p->shape, &p->queries_of, p->queries,
                               &p->keys_of, p->keys, p->values, truth,
                               truth_lse),
                     CP_OK);
    for (int64_t i = 0; p->merge && i < p->query_rows * heads; i++) {
        if (lse[i] == -INFINITY)
            continue;
        const double larger = fmax((double)lse[i], truth_lse[i]);
        const double old = exp(lse[i] - larger);
        const double add = exp(truth_lse[i] - larger);
        for (int64_t d = 0; d < dim; d++)
            truth[i * dim + d] =
                (old * before[i * dim + d] + add * truth[i * dim + d]) /
                (old + add);
        truth_lse[i] = larger + log(old + add);
    }
}

static void check(problem *p, uint64_t seed) {
    prepare(p, seed);
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    const int64_t rows = p->query_rows * heads;
    float *before, *lse;
    double *truth, *truth_lse;
    cp_allocate(&before, rows * dim, 4, "before");
    cp_allocate(&lse, rows, 4, "before");
    cp_allocate(&truth, rows * dim, 8, "truth");
    cp_allocate(&truth_lse, rows, 8, "truth");
    memcpy(before, p->output, (size_t)(rows * dim) * 4);
    memcpy(lse, p->lse, (size_t)rows * 4);
    expect(p, before, lse, truth, truth_lse);
    run(p);
    double difference = 0.0, norm = 0.0;
    for (int64_t n = 0; n < p->queries_of.count; n++) {
        const cp_piece piece = p->queries_of.items[n];
        for (int64_t i = piece.row * heads;
             i < (piece.row + piece.span.count) * heads; i++) {
            /* Compare one row of a kernel. */
            if (truth_lse[i] == (double)-INFINITY)
                ck_assert(p->lse[i] == -INFINITY);
            else
                ck_assert_double_le(fabs(p->lse[i] - truth_lse[i]), 5e-6);
            for (int64_t d = 0; d < dim; d++) {
                const double want = truth[i * dim + d];
                difference += pow(p->output[i * dim + d] - want, 2);
                norm += want * want;
            }
        }
    }
    ck_assert_double_le(sqrt(difference), 1e-6 * sqrt(norm) + 1e-12);
    free(before);
    free(lse);
    free(truth);
    free(truth_lse);
    discard(p);
}

static const cp_shape shapes[] = {
    {1, 1, 1},  {4, 2, 16},  {6, 2, 33},  {3, 3, 80},
    {8, 1, 64}, {40, 1, 24}, {5, 1, 128}, {2, 1, 256},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static problem follow_up(int which, int64_t cached, int64_t fresh) {
    problem p = {.shape = shapes[which], .splits = 1};
    p.query_rows = fresh + 2;
    p.key_rows = cached + fresh + 7;
    cp_pieces_append(&p.queries_of, (cp_piece){{3, cached, fresh, 1}, 1});
    const int64_t even = (cached + fresh + 1) / 2;
    cp_pieces_append(&p.keys_of, (cp_piece){{3, 0, even, 2}, 2});
    if (cached + fresh > even)
        cp_pieces_append(
            &p.keys_of, (cp_piece){{3, 1, cached + fresh - even, 2}, even + 4});
    return p;
}

START_TEST(attention_is_that_of_the_oracle) {
    stand_in_begin(NULL);
    for (int variation = 0; variation < 6; variation++) {
        problem p = follow_up(_i, variation * 17, 1 + variation * 9);
        p.element = (cp_element)(variation % 3);
        p.merge = variation % 2;
        p.splits = variation < 3 ? 1 : variation;
        check(&p, (uint64_t)(1 + _i * 6 + variation));
    }
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(sequences_do_not_see_each_other) {
    stand_in_begin(NULL);
    for (int splits = 1; splits < 4; splits++) {
        problem p = {.shape = {4, 2, 20}, .splits = splits, .merge = _i % 2};
        for (int64_t s = 0; s < 6; s++)
            cp_pieces_append(&p.queries_of,
                             (cp_piece){{s, 10 * s, 1 + s, 3}, p.query_rows}),
                p.query_rows += s + 3;
        for (int64_t s = 5; s > 0; s -= 2)
            cp_pieces_append(&p.keys_of,
                             (cp_piece){{s, 7, 5 + 8 * s, 2}, p.key_rows + 1}),
                p.key_rows += 5 + 8 * s + 1;
        check(&p, (uint64_t)(100 + _i * 3 + splits));
    }
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(what_lies_ahead_is_not_seen) {
    stand_in_begin(NULL);
    problem p = follow_up(_i, 21, 12), other = follow_up(_i, 21, 12);
    prepare(&p, 5);
    prepare(&other, 5);
    const int64_t width = p.shape.kv_heads * p.shape.head_dim;
    const int64_t last = 2 + 32 / 2; /* the row of position 32 */
    for (int64_t i = last * width; i < (last + 1) * width; i++)
        other.keys[i] = other.values[i] = NAN;
    run(&p);
    run(&other);
    const int64_t heads = p.shape.query_heads;
    const size_t rows = (size_t)((1 + 11) * heads);
    const size_t first = (size_t)heads, dim = (size_t)p.shape.head_dim;
    ck_assert_mem_eq(p.lse + first, other.lse + first, (rows - first) * 4);
    ck_assert_mem_eq(p.output + first * dim, other.output + first * dim,
                     (rows - first) * dim * 4);
    ck_assert(isnan(other.lse[rows]));
    discard(&p);
    discard(&other);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

static float half_value(uint32_t half) {
    const int exponent = (int)(half >> 10 & 31);
    const double mantissa = half & 1023;
    const double value = exponent == 0   ? ldexp(mantissa, -24)
                         : exponent < 31 ? ldexp(1024 + mantissa, exponent - 25)
                         : mantissa == 0 ? (double)INFINITY
                                         : (double)NAN;
    return (float)(half & 0x8000u ? -value : value);
}

START_TEST(every_half_is_read) {
    stand_in_begin(NULL);
    static uint16_t codes[65536], zeros[65536];
    static float got[65536], lse[1024];
    cp_pieces pieces = {0};
    for (int64_t s = 0; s < 1024; s++)
        cp_pieces_append(&pieces, (cp_piece){{s, 5, 1, 1}, s});
    for (int i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    cp_device_attention call = {{1, 1, 64},
                                CP_F16,
                                tiles_of(&pieces, 32),
                                tiles_of(&pieces, 32),
                                upload(zeros, 131072),
                                upload(zeros, 131072),
                                upload(codes, 131072),
                                false,
                                1,
                                NULL,
                                1024,
                                upload(got, 262144),
                                upload(lse, 4096)};
    ck_assert_int_eq(cp_device_attend(&call, NULL), cudaSuccess);
    ck_assert_int_eq(
        cudaMemcpy(got, call.output, 262144, cudaMemcpyDeviceToHost),
        cudaSuccess);
    for (uint32_t i = 0; i < 65536; i++) {
        const float want = half_value(i);
        ck_assert(isnan(want) ? isnan(got[i]) : got[i] == want);
    }
    cp_pieces_free(&pieces);
    stand_in_end(); /* it would complain that nothing was freed */
}
END_TEST

static Suite *kernels_suite(void) {
    Suite *suite = suite_create("kernels");
    TCase *tests = harness_case("kernels");
    tcase_add_loop_test(tests, attention_is_that_of_the_oracle, 0, SHAPES);
    tcase_add_loop_test(tests, sequences_do_not_see_each_other, 0, 2);
    tcase_add_loop_test(tests, what_lies_ahead_is_not_seen, 0, SHAPES);
    tcase_add_test(tests, every_half_is_read);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(kernels_suite)
