/* Weights in tiles: every value exact, every product as accurate as a sum. */
#include "reference/model/dequantise.h"
#include "reference/attend/exp2.h"
#include "reference/attend/micro.h"
#include "reference/model/linear.h"
#include "expect.h"
#include "harness/gguf_blocks.h"

#include <math.h>
#include <string.h>

typedef struct {
    int type;
    int64_t in, out;
    unsigned char *blocks;
    float *values; /* [out][in], by cp_dequantise */
    cp_matrix matrix;
} sample;

static void tame(int type, unsigned char *block, int64_t bytes) {
    if (type == CP_GGUF_F32 || type == CP_GGUF_BF16)
        block[bytes - 1] &= 0xBF; /* less than 2 */
    else if (type == CP_GGUF_Q6_K)
        block[209] &= 0xBF;
    else
        block[1] &= 0xBF;
    if (type == CP_GGUF_Q4_1 || type == CP_GGUF_Q5_1 || type == CP_GGUF_Q4_K ||
        type == CP_GGUF_Q5_K)
        block[3] &= 0xBF;
}

static sample draw(int type, int64_t in, int64_t out, uint64_t *state) {
    sample s = {.type = type, .in = in, .out = out};
    int64_t each, bytes, size;
    ck_assert(cp_gguf_type_block(type, &each, &bytes));
    const int64_t blocks = in / each * out;
    s.blocks = room_for(blocks, (size_t)bytes);
    for (int64_t n = 0; n < blocks * bytes; n++)
        s.blocks[n] = (unsigned char)(harness_random(state) >> 40);
    for (int64_t n = 0; n < blocks; n++)
        tame(type, s.blocks + n * bytes, bytes);
    s.values = room_for(in * out, sizeof(float));
    must(cp_dequantise(type, s.blocks, in * out, s.values));
    must(cp_matrix_bytes(type, in, out, &size));
    ck_assert_int_eq(size % 64, 0);
    void *memory = memset(room_for(size, 1), 0xFF, (size_t)size);
    cp_matrix_fill(type, in, out, s.blocks, memory, &s.matrix);
    return s;
}

static bool same(float a, float b) {
    return a == b || (isnan(a) && isnan(b));
}

static void compare_rows(const sample *s) {
    float *row = room_for(s->in, sizeof(float));
    for (int64_t o = 0; o < s->out; o++) {
        cp_matrix_row(&s->matrix, o, row);
        for (int64_t k = 0; k < s->in; k++)
            ck_assert_msg(same(row[k], s->values[o * s->in + k]),
                          "output %ld input %ld is %.9g, not %.9g", o, k,
                          (double)row[k], (double)s->values[o * s->in + k]);
    }
}

static void compare_tiles(const sample *s) {
    float tile[CP_DEPTH * CP_LANES];
    for (int64_t g = 0; g < cp_ceil_divide(s->out, CP_LANES); g++)
        for (int64_t t = 0; t < cp_ceil_divide(s->in, CP_DEPTH); t++) {
            cp_matrix_expand(&s->matrix, g, t, tile);
            for (int64_t n = 0; n < CP_DEPTH * CP_LANES; n++) {
                const int64_t o = g * CP_LANES + n % CP_LANES;
                const int64_t k = t * CP_DEPTH + n / CP_LANES;
                const bool inside = o < s->out && k < s->in;
                const float expected = inside ? s->values[o * s->in + k] : 0.0f;
                ck_assert(same(tile[n], expected));
            }
        }
}

LOOP(test_every_value_is_exact, 0, COUNT_OF(block_types)) {
    static const int64_t outs[] = {1, 15, 16, 17, 50};
    uint64_t state = 1 + (uint64_t)_i;
    int64_t each, bytes;
    cp_gguf_type_block(block_types[_i], &each, &bytes);
    for (int n = 0; n < 5; n++) {
        const int64_t in = each == 1 ? 37 + 9 * n : each * (1 + n % 3);
        sample s = draw(block_types[_i], in, outs[n], &state);
        compare_rows(&s);
        compare_tiles(&s);
    }
}

TEST(test_impossible_matrices) {
    int64_t bytes;
    refuses(cp_matrix_bytes(16, 256, 1, &bytes), CP_INVALID, "IQ2_XXS (16)");
    refuses_with(cp_matrix_bytes(CP_GGUF_Q4_1, 33, 1, &bytes), CP_INVALID,
                 "Q4_1 cannot hold 33 x 1 values");
    refuses(cp_matrix_bytes(CP_GGUF_F32, INT64_MAX, 64, &bytes), CP_INVALID,
            "overflow");
    ck_assert_int_eq(cp_linear_scratch(INT64_MAX / 8, 4096, 1), -1);
    must(cp_matrix_bytes(CP_GGUF_Q4_1, 64, 17, &bytes));
    ck_assert_int_eq(bytes, 2 * 640);
}

static void check_output(const sample *s, const float *x, int64_t o, bool add,
                         float got) {
    double sum = add ? 3.0 : 0.0, size = fabs(sum);
    for (int64_t k = 0; k < s->in; k++) {
        const double term = (double)x[k] * (double)s->values[o * s->in + k];
        sum += term;
        size += fabs(term);
    }
    ck_assert_msg(fabs((double)got - sum) <=
                      0x1p-24 * (double)(s->in + 2) * size,
                  "output %ld is %.9g, not %.9g", o, (double)got, sum);
}

static void check_product(const sample *s, int64_t rows, int threads, bool add,
                          uint64_t *state) {
    const int64_t count = rows * s->out;
    float *x = room_for(rows * s->in, sizeof(float));
    float *y = room_for(count + 1, sizeof(float));
    const int64_t floats = cp_linear_scratch(rows, s->in, threads);
    float *scratch = room_for(floats, sizeof(float));
    memset(scratch, 0xFF, (size_t)floats * sizeof(float));
    for (int64_t n = 0; n < rows * s->in; n++)
        x[n] = harness_uniform(state);
    for (int64_t n = 0; n <= count; n++)
        y[n] = add || n == count ? 3.0f : NAN;
    const cp_product product = {&s->matrix, add, y};
    cp_linear_rows(rows, s->in, x, &product, 1, threads, scratch);
    for (int64_t n = 0; n < count; n++)
        check_output(s, x + n / s->out * s->in, n % s->out, add, y[n]);
    ck_assert(y[count] == 3.0f);
}

LOOP(test_products, 0, 9) {
    static const int kinds[] = {CP_GGUF_F32, CP_GGUF_Q4_0, CP_GGUF_Q4_1,
                                CP_GGUF_Q8_0, CP_GGUF_F16};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 13, 61};
    static const int64_t ins[] = {32, 96, 576, 2112}, outs[] = {5, 48, 77, 17};
    uint64_t state = 99 + (uint64_t)_i;
    for (int n = 0; n < 4; n++) {
        const int type = kinds[(n + _i) % 5];
        const bool plain = type == CP_GGUF_F32 || type == CP_GGUF_F16;
        const int64_t in = ins[n] - (plain ? 5 : 0);
        sample s = draw(type, in, outs[n], &state);
        for (int threads = 1; threads <= 3; threads++)
            check_product(&s, rows[_i], threads, (threads + n) % 2 == 0,
                          &state);
    }
}

TEST(test_no_worse_than_a_loop) {
    uint64_t state = 7;
    double product_error = 0.0, loop_error = 0.0;
    sample s = draw(CP_GGUF_Q4_1, 1536, 256, &state);
    float x[1536], y[256];
    for (int k = 0; k < 1536; k++)
        x[k] = harness_uniform(&state);
    const cp_product product = {&s.matrix, false, y};
    cp_linear_rows(1, 1536, x, &product, 1, 1, NULL);
    for (int o = 0; o < 256; o++) {
        float loop = 0.0f;
        double truth = 0.0;
        for (int k = 0; k < 1536; k++) {
            loop += x[k] * s.values[o * 1536 + k];
            truth += (double)x[k] * (double)s.values[o * 1536 + k];
        }
        product_error += pow((double)y[o] - truth, 2.0);
        loop_error += pow((double)loop - truth, 2.0);
    }
    ck_assert_msg(product_error <= 1.1 * loop_error, "%g > %g", product_error,
                  loop_error);
}

/* Each sum is a chain of cp_fused, whatever the compiler would do with a product
 * and a sum: exact order compares these bits with a micro-kernel's. */
LOOP(sums_are_chains_of_fused_products, 0, COUNT_OF(block_types)) {
    uint64_t state = 5 + (uint64_t)_i;
    int64_t each, bytes;
    cp_gguf_type_block(block_types[_i], &each, &bytes);
    const int64_t in = each == 1 ? 300 : each * (1 + 300 / each);
    const sample s = draw(block_types[_i], in, 50, &state);
    float *x = room_for(in, sizeof(float)), sums[2][CP_LANES];
    for (int64_t k = 0; k < in; k++)
        x[k] = harness_uniform(&state);
    for (int64_t o = 0; o < s.out; o++) {
        const int64_t group = o / CP_LANES, side = group % 2;
        float sum = 0.0f;
        for (int64_t k = 0; k < in; k++)
            sum = cp_fused(s.values[o * in + k], x[k], sum);
        cp_matrix_pair(&s.matrix, group - side, 0, in, x, sums);
        ck_assert_msg(same(sums[side][o % CP_LANES], sum), "output %ld", o);
    }
}

/* Few rows use chains of sums, many use BLIS: the bits are the same. */
LOOP(a_rows_bits_do_not_depend_on_the_batch, 0, 10) {
    enum { ROWS = 19, IN = 2304, OUT = 77 };
    static const int kinds[] = {CP_GGUF_F32,   CP_GGUF_Q4_1, CP_GGUF_Q8_0,
                                CP_GGUF_BF16,  CP_GGUF_Q5_0, CP_GGUF_Q4_K,
                                CP_GGUF_Q5_K,  CP_GGUF_Q6_K, CP_GGUF_IQ4_NL,
                                CP_GGUF_IQ4_XS};
    uint64_t state = 3 + (uint64_t)_i;
    const sample s = draw(kinds[_i], IN, OUT, &state);
    float *x = room_for(ROWS * IN, 4), *scratch;
    float *together = room_for(ROWS * OUT, 4), *alone = room_for(OUT, 4);
    scratch = room_for(cp_linear_scratch(ROWS, IN, 2), 4);
    for (int n = 0; n < ROWS * IN; n++)
        x[n] = harness_uniform(&state);
    if (!cp_micro_get()->in_order)
        return;
    for (int add = 0; add < 2; add++) {
        cp_product product = {&s.matrix, add == 1, together};
        cp_linear_rows(ROWS, IN, x, &product, 1, 2, scratch);
        product.y = alone;
        for (int r = 0; r < ROWS; r++) {
            memset(alone, 0, OUT * 4);
            for (int again = 0; again <= add; again++) {
                product.add = again == 1;
                cp_linear_rows(1, IN, x + r * IN, &product, 1, 1, scratch);
            }
            ck_assert_mem_eq(alone, together + r * OUT, OUT * 4);
        }
    }
}
