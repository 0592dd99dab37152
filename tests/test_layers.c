/* The layers of a model on a device: roundings, small layers, blocks, and
 * products; on what stands in for a GPU and its library, or on them. */
#include "harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cublasLt.h>

#include "harness/blocks.h"
#include "harness/stand-in/cublas.h"
#include "harness/stand-in/stand_in.h"
#include "reference/model/dequantise.h"
#include "formats.h"
#include "model/facts.h"
#include "reference/model/layers.h"
#include "cuda/kernels/model_kernels.h"
#include "cuda/kernels/multiply.h"
#include "cuda/kernels/weights.h"

/* A format's bits of fraction, its bias, and the largest code it rounds to. */
typedef struct {
    int fraction, bias;
    uint32_t largest;
} format;

static const format half = {10, 15, 0x7c00}, bf16 = {7, 127, 0x7f80};
static const format f8 = {3, 7, 0x7e};

static uint32_t nearest(format f, double x) {
    int exponent;
    const double magnitude = fabs(x);
    if (magnitude == 0.0)
        return 0;
    if (isinf(magnitude))
        return f.largest;
    frexp(magnitude, &exponent);
    exponent = exponent - 1 > 1 - f.bias ? exponent - 1 : 1 - f.bias;
    const double steps = nearbyint(ldexp(magnitude, f.fraction - exponent));
    const double code = ldexp(exponent + f.bias - 1, f.fraction) + steps;
    return code < f.largest ? (uint32_t)code : f.largest;
}

static double value_of(format f, uint32_t code) {
    const int exponent = (int)(code >> f.fraction);
    const uint32_t fraction = code & ((1u << f.fraction) - 1);
    if (exponent == 0)
        return ldexp(fraction, 1 - f.bias - f.fraction);
    return ldexp((1u << f.fraction) + fraction, exponent - f.bias - f.fraction);
}

/* What an element's bits say, and the bits that a number should have. */
static double decode(cp_element element, uint32_t bits) {
    float number;
    if (element == CP_F32) {
        memcpy(&number, &bits, 4);
        return number;
    }
    const format f = element == CP_F16 ? half : bf16;
    const double value = value_of(f, bits & 0x7fff);
    const double finite = (bits & 0x7fff) < f.largest    ? value
                          : (bits & 0x7fff) == f.largest ? (double)INFINITY
                                                         : (double)NAN;
    return bits & 0x8000 ? -finite : finite;
}

static uint32_t rounded(cp_element element, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (element == CP_F32)
        return bits;
    return (bits >> 16 & 0x8000) | nearest(element == CP_F16 ? half : bf16, x);
}

static void *owned[64];
static int owned_count;

static void *fresh(int64_t bytes) {
    void *to = NULL;
    ck_assert_int_eq(cudaMalloc(&to, (size_t)bytes + 1), cudaSuccess);
    ck_assert_int_eq(cudaMemset(to, 0xFF, (size_t)bytes + 1), cudaSuccess);
    ck_assert_int_lt(owned_count, 64);
    owned[owned_count++] = to;
    return to;
}

static void *upload(const void *from, int64_t bytes) {
    void *to = fresh(bytes);
    ck_assert_int_eq(
        cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyHostToDevice),
        cudaSuccess);
    return to;
}

static void *fetch(const void *from, int64_t bytes) {
    void *to = malloc((size_t)bytes + 1);
    ck_assert_ptr_nonnull(to);
    ck_assert_msg(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyDeviceToHost) ==
                      cudaSuccess,
                  "%s", stand_in_error());
    return to;
}

static void release(void) {
    while (owned_count > 0)
        cudaFree(owned[--owned_count]);
}

static void begin(int seed) {
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)seed + 1;
    stand_in_begin(&options);
}

static void end(void) {
    release();
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}

static float *numbers(int64_t count, uint64_t *state) {
    float *x = malloc((size_t)count * 4 + 4);
    ck_assert_ptr_nonnull(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = harness_uniform(state) *
               ldexpf(1.0f, (int)(harness_random(state) >> 60) - 8);
    return x;
}

static void *stored(cp_element element, float *x, int64_t count) {
    const int64_t size = cp_element_bytes(element);
    char *bytes = malloc((size_t)(count * size) + 1);
    ck_assert_ptr_nonnull(bytes);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = rounded(element, x[i]);
        memcpy(bytes + i * size, &bits, (size_t)size);
        x[i] = (float)decode(element, bits);
    }
    void *to = upload(bytes, count * size);
    free(bytes);
    return to;
}

static uint32_t bits_at(const void *tensor, cp_element element, int64_t i) {
    uint32_t bits = 0;
    const int64_t size = cp_element_bytes(element);
    memcpy(&bits, (const char *)tensor + i * size, (size_t)size);
    return bits;
}

static bool near(cp_element element, uint32_t bits, double want, double size) {
    const double got = decode(element, bits);
    const double step = element == CP_F32   ? 0.0
                        : element == CP_F16 ? 0x1p-11
                                            : 0x1p-8;
    const double smallest = element == CP_F16 ? 0x1p-25 : 0x1p-100;
    return fabs(got - want) <= step * fabs(want) + 1e-6 * size + smallest;
}

static int64_t around(format f, uint32_t codes, float *out) {
    int64_t count = 0;
    for (uint32_t code = 0; code < codes; code++) {
        const double low = value_of(f, code), high = value_of(f, code + 1);
        const float middle = (float)(0.5 * (low + high));
        const float all[] = {(float)low, middle, nextafterf(middle, 0.0f),
                             nextafterf(middle, INFINITY)};
        for (int i = 0; i < 4; i++) {
            out[count++] = all[i];
            out[count++] = -all[i];
        }
    }
    return count;
}

START_TEST(every_rounding_to_16_bits_is_to_nearest_even) {
    begin(_i);
    const cp_element element = _i == 0 ? CP_F16 : CP_BF16;
    const format f = _i == 0 ? half : bf16;
    float *x = malloc((size_t)f.largest * 32 + 64);
    int64_t count = around(f, f.largest, x);
    x[count++] = INFINITY;
    x[count++] = -INFINITY;
    x[count++] = NAN;
    const int64_t place = 0;
    const cp_device_gathering call = {
        1,       count,           upload(&place, 8), upload(x, count * 4),
        element, fresh(count * 2)};
    ck_assert_int_eq(cp_device_gather(&call, NULL), cudaSuccess);
    void *got = fetch(call.to, count * 2);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count - 1; i++)
        wrong += bits_at(got, element, i) != rounded(element, x[i]);
    ck_assert_int_eq(wrong, 0);
    ck_assert(isnan(decode(element, bits_at(got, element, count - 1))));
    free(got);
    free(x);
    end();
}
END_TEST

START_TEST(every_code_of_16_bits_is_read) {
    begin(_i);
    static uint16_t codes[65536];
    const cp_element element = _i == 0 ? CP_F16 : CP_BF16;
    for (int i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    const int32_t token = 0;
    const cp_device_embedding call = {
        1,       65536,        upload(&token, 4), upload(codes, 131072),
        element, fresh(262144)};
    ck_assert_int_eq(cp_device_embed(&call, NULL), cudaSuccess);
    float *got = fetch(call.x, 262144);
    int wrong = 0;
    for (uint32_t i = 0; i < 65536; i++) {
        const double want = decode(element, i);
        wrong += isnan(want) ? !isnan(got[i])
                             : got[i] != (float)want ||
                                   !signbit(got[i]) != !signbit(want);
    }
    ck_assert_int_eq(wrong, 0);
    free(got);
    end();
}
END_TEST

START_TEST(every_rounding_to_8_bits_is_to_nearest_even) {
    float x[1100];
    begin(_i);
    int64_t count = around(f8, 126, x);
    x[count++] = 448.0f;
    x[count++] = NAN;
    while (count % 4 != _i % 4)
        x[count++] = -0.0f;
    const float power = ldexpf(1.0f, 3 * (_i / 4) - 110 * (_i / 8));
    for (int64_t i = 0; i < count; i++)
        x[i] *= power;
    const cp_device_quantising call = {1, count, upload(x, count * 4),
                                       fresh(count), fresh(4)};
    ck_assert_int_eq(cp_device_quantise(&call, NULL), cudaSuccess);
    unsigned char *got = fetch(call.y, count + 1);
    float *scale = fetch(call.scales, 4);
    ck_assert_float_eq(*scale, power);
    /* Each number has its code. */
    int64_t wrong = got[count] != 0xFF;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t sign = signbit(x[i]) ? 0x80 : 0;
        const uint32_t want = nearest(f8, (double)x[i] / power) | sign;
        wrong += isnan(x[i]) ? (got[i] & 0x7f) != 0x7f : got[i] != want;
    }
    ck_assert_int_eq(wrong, 0);
    free(got);
    free(scale);
    end();
}
END_TEST

START_TEST(rows_of_8_bits_stand_for_their_numbers) {
    static const int64_t widths[] = {1, 3, 16, 64, 255, 257, 1024, 2052};
    const int64_t rows = 5, width = widths[_i];
    uint64_t state = (uint64_t)_i + 7;
    begin(_i);
    float *x = numbers(rows * width, &state);
    for (int64_t i = 0; i < width; i++) {
        x[width + i] = 0.0f;
        x[2 * width + i] = ldexpf(x[2 * width + i], -135);
        x[3 * width + i] = ldexpf(x[3 * width + i], 118);
    }
    const cp_device_quantising call = {rows, width, upload(x, rows * width * 4),
                                       fresh(rows * width), fresh(rows * 4)};
    ck_assert_int_eq(cp_device_quantise(&call, NULL), cudaSuccess);
    unsigned char *got = fetch(call.y, rows * width);
    float *scales = fetch(call.scales, rows * 4);
    /* Each code stands for its number. */
    ck_assert_float_eq(scales[1], 1.0f);
    ck_assert_float_eq(scales[2], 0x1p-126f);
    for (int64_t row = 0; row < rows; row++) {
        double most = 0.0, off = 0.0;
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            const double value = value_of(f8, got[i] & 0x7f) * scales[row];
            const double error =
                fabs((got[i] & 0x80 ? -value : value) - (double)x[i]);
            most = fmax(most, fabs((double)x[i]));
            off = fmax(off, error - 0x1p-4 * 1.00001 * fabs((double)x[i]) -
                                0x1p-10 * scales[row]);
        }
        ck_assert_double_le(off, 0.0);
        if (row != 1 && row != 2)
            ck_assert_double_le(fabs(scales[row] * 448.0 - most), 1e-7 * most);
    }
    free(x);
    free(got);
    free(scales);
    end();
}
END_TEST

static const int64_t widths[] = {1, 2, 31, 64, 100, 257, 576, 1025, 4100};
enum { WIDTHS = sizeof(widths) / sizeof(widths[0]) };

START_TEST(tokens_are_embedded) {
    static const int32_t tokens[] = {2, -1, 0, 6, 6, -1, 3};
    const int64_t width = widths[_i % WIDTHS], rows = 7, count = _i % 8;
    const cp_element element = (cp_element)(_i % 3);
    uint64_t state = (uint64_t)_i + 1;
    begin(_i);
    float *table = numbers(rows * width, &state);
    for (int64_t i = 0; i < width; i++)
        table[5 * width + i] = NAN; /* nobody asks for it */
    const cp_device_embedding call = {count,
                                      width,
                                      upload(tokens, sizeof(tokens)),
                                      stored(element, table, rows * width),
                                      element,
                                      fresh(8 * width * 4)};
    ck_assert_int_eq(cp_device_embed(&call, NULL), cudaSuccess);
    float *got = fetch(call.x, (count + 1) * width * 4);
    int64_t wrong = !isnan(got[count * width]);
    for (int64_t i = 0; i < count * width; i++) {
        const int32_t token = tokens[i / width];
        wrong +=
            got[i] != (token < 0 ? 0.0f : table[token * width + i % width]);
    }
    ck_assert_int_eq(wrong, 0);
    free(table);
    free(got);
    end();
}
END_TEST

static double mean_square(const float *x, int64_t width) {
    double sum = 0.0;
    for (int64_t i = 0; i < width; i++)
        sum += (double)x[i] * x[i];
    return sum / (double)width;
}

START_TEST(rows_are_normed) {
    const int64_t width = _i < 27 ? widths[_i % WIDTHS] : 16384, rows = 4;
    const cp_element element = (cp_element)(_i / WIDTHS % 3);
    uint64_t state = (uint64_t)_i + 1;
    begin(_i);
    float *x = numbers(rows * width, &state), *weight = numbers(width, &state);
    for (int64_t i = 0; i < width; i++) {
        x[i] = i < 256 ? 1.0f : 0x1p-13f;
        x[width + i] = ldexpf(x[width + i], -40); /* epsilon decides */
    }
    cp_device_norming call = {
        rows,  width,   upload(x, rows * width * 4),  NULL,
        1e-5f, element, fresh((rows + 1) * width * 4)};
    call.weight = upload(weight, width * 4);
    ck_assert_int_eq(cp_device_norm(&call, NULL), cudaSuccess);
    void *got = fetch(call.y, (rows + 1) * width * 4);
    /* Compare normed rows with both oracles. */
    float *other = malloc((size_t)(rows * width) * 4);
    cp_norm_rows(rows, width, x, weight, (double)1e-5f, 1, other);
    int64_t wrong = 0;
    for (int64_t row = 0; row < rows; row++) {
        const double square = mean_square(x + row * width, width);
        const double scale = 1.0 / sqrt(square + (double)1e-5f);
        for (int64_t i = 0; i < width; i++) {
            const int64_t at = row * width + i;
            const uint32_t bits = bits_at(got, element, at);
            const double want = (double)x[at] * scale * weight[i];
            wrong += !near(element, bits, want, fabs(want));
            wrong += !near(element, bits, (double)other[at], fabs(want));
        }
    }
    wrong += bits_at(got, element, rows * width) !=
             (element == CP_F32 ? 0xFFFFFFFFu : 0xFFFFu);
    ck_assert_int_eq(wrong, 0);
    free(other);
    free(x);
    free(weight);
    free(got);
    end();
}
END_TEST

static const struct {
    cp_shape shape;
    int64_t pairs;
} turns[] = {
    {{1, 1, 1}, 0},   {{4, 2, 16}, 8},  {{6, 2, 33}, 16}, {{3, 3, 80}, 32},
    {{8, 1, 64}, 32}, {{9, 3, 64}, 32}, {{5, 1, 7}, 2},   {{2, 1, 256}, 128},
};
enum { TURNS = sizeof(turns) / sizeof(turns[0]) };
enum { TURNED = 7, PLACES = 11 };
static const int64_t places[TURNED] = {3, -1, 10, 0, -1, 7, 2};

/* Two numbers and the angle, as they should be after the turn. */
static void turn(double *even, double *odd, double cosine, double sine) {
    const double turned = *even * cosine - *odd * sine;
    *odd = *even * sine + *odd * cosine;
    *even = turned;
}

static double *turned(int which, const float *projected, const float *cosines,
                      const float *sines) {
    const cp_shape shape = turns[which].shape;
    const int64_t heads = shape.query_heads + 2 * shape.kv_heads;
    const int64_t dim = shape.head_dim, pairs = turns[which].pairs;
    double *out = malloc((size_t)(TURNED * heads * dim) * 8);
    for (int64_t i = 0; i < TURNED * heads * dim; i++)
        out[i] = projected[i];
    for (int64_t t = 0; t < TURNED; t++)
        for (int64_t h = 0; h < shape.query_heads + shape.kv_heads; h++)
            for (int64_t i = 0; i < pairs; i++) {
                double *pair = out + (t * heads + h) * dim + 2 * i;
                turn(pair, pair + 1, cosines[t * pairs + i],
                     sines[t * pairs + i]);
            }
    return out;
}

static int64_t misplaced(const void *device, cp_element element,
                         const cp_shape *shape, int64_t first, int64_t count,
                         const double *want) {
    const int64_t heads = shape->query_heads + 2 * shape->kv_heads;
    const int64_t width = count * shape->head_dim;
    void *got = fetch(device, PLACES * width * cp_element_bytes(element));
    int64_t wrong = 0;
    for (int64_t i = 0; i < PLACES * width; i++) {
        const uint32_t bits = bits_at(got, element, i);
        int64_t row = 0;
        while (row < TURNED && places[row] != i / width)
            row++;
        if (row == TURNED)
            wrong += bits != (element == CP_F32 ? 0xFFFFFFFFu : 0xFFFFu);
        else
            wrong += !near(
                element, bits,
                want[(row * heads + first) * shape->head_dim + i % width], 1.0);
    }
    free(got);
    return wrong;
}

START_TEST(rows_are_turned_and_placed) {
    const int which = _i % TURNS;
    const cp_element element = (cp_element)(_i / TURNS);
    const cp_shape shape = turns[which].shape;
    const int64_t pairs = turns[which].pairs, dim = shape.head_dim;
    const int64_t heads = shape.query_heads + 2 * shape.kv_heads;
    const int64_t size = cp_element_bytes(element) * PLACES * dim;
    uint64_t state = (uint64_t)_i + 1;
    double frequencies[128];
    float cosines[TURNED * 128], sines[TURNED * 128];
    begin(_i);
    for (int64_t i = 0; i < pairs; i++)
        frequencies[i] = pow(1e4, -(double)i / (double)pairs);
    for (int64_t t = 0; t < TURNED; t++)
        cp_angles_at(1000 * t + 17, pairs, frequencies, cosines + t * pairs,
                     sines + t * pairs);
    float *projected = malloc((size_t)(TURNED * heads * dim) * 4);
    for (int64_t i = 0; i < TURNED * heads * dim; i++)
        projected[i] = harness_uniform(&state);
    /* Make NaN of who is nobody. */
    for (int64_t t = 0; t < TURNED; t++) {
        if (places[t] >= 0)
            continue;
        for (int64_t i = 0; i < heads * dim; i++)
            projected[t * heads * dim + i] = NAN;
        for (int64_t i = 0; i < pairs; i++)
            cosines[t * pairs + i] = sines[t * pairs + i] = NAN;
    }
    /* Turn and place. */
    const cp_device_rotating call = {
        TURNED,
        shape,
        pairs,
        upload(cosines, TURNED * pairs * 4),
        upload(sines, TURNED * pairs * 4),
        upload(places, sizeof(places)),
        upload(projected, TURNED * heads * dim * 4),
        element,
        fresh(size * shape.query_heads),
        fresh(size * shape.kv_heads),
        fresh(size * shape.kv_heads)};
    ck_assert_int_eq(cp_device_rotate(&call, NULL), cudaSuccess);
    /* Compare the three tensors with both oracles. */
    double *want = turned(which, projected, cosines, sines);
    const int64_t turning = shape.query_heads + shape.kv_heads;
    const cp_angles angles = {pairs, cosines, sines};
    cp_rotate_rows(TURNED, heads, dim, angles, 1, projected);
    double off = 0.0;
    for (int64_t i = 0; i < TURNED * heads * dim; i++)
        if (i / dim % heads < turning && !isnan(want[i]))
            off = fmax(off, fabs(projected[i] - want[i]));
    ck_assert_double_le(off, 1e-6);
    const int64_t q = shape.query_heads, kv = shape.kv_heads;
    ck_assert_int_eq(misplaced(call.queries, element, &shape, 0, q, want), 0);
    ck_assert_int_eq(misplaced(call.keys, element, &shape, q, kv, want), 0);
    ck_assert_int_eq(misplaced(call.values, element, &shape, q + kv, kv, want),
                     0);
    free(want);
    free(projected);
    end();
}
END_TEST

START_TEST(rows_are_gated) {
    const int64_t inner = widths[_i % WIDTHS], rows = 3;
    const cp_element element = (cp_element)(_i / WIDTHS);
    uint64_t state = (uint64_t)_i + 1;
    begin(_i);
    float *both = numbers(rows * 2 * inner, &state);
    for (int64_t i = 0; i < inner; i++)
        both[2 * inner + i] = (float)(i % 41 - 20) * 5.0f;
    const cp_device_gating call = {rows, inner,
                                   upload(both, rows * 2 * inner * 4), element,
                                   fresh((rows + 1) * inner * 4)};
    ck_assert_int_eq(cp_device_gate(&call, NULL), cudaSuccess);
    void *got = fetch(call.y, (rows + 1) * inner * 4);
    int64_t wrong = bits_at(got, element, rows * inner) !=
                    (element == CP_F32 ? 0xFFFFFFFFu : 0xFFFFu);
    for (int64_t row = 0; row < rows; row++) {
        float *gate = both + 2 * row * inner, *up = gate + inner;
        /* Compare a gated row with both oracles. */
        for (int64_t i = 0; i < inner; i++) {
            const double silu = gate[i] / (1.0 + exp(-(double)gate[i]));
            wrong += !near(element, bits_at(got, element, row * inner + i),
                           silu * up[i], fabs(silu * up[i]));
        }
        cp_gate_values(inner, up, 1, gate);
        for (int64_t i = 0; i < inner; i++) {
            const double there =
                decode(element, bits_at(got, element, row * inner + i));
            wrong += !(fabs(there - gate[i]) <=
                       0x1.01p-8 * fabs((double)gate[i]) + 1e-7);
        }
    }
    ck_assert_int_eq(wrong, 0);
    free(both);
    free(got);
    end();
}
END_TEST

START_TEST(rows_are_gathered) {
    const int64_t width = widths[_i % WIDTHS];
    const cp_element element = (cp_element)(_i / WIDTHS);
    uint64_t state = (uint64_t)_i + 1;
    begin(_i);
    float *from = numbers(PLACES * width, &state);
    for (int64_t i = 0; i < width; i++)
        from[width + i] = NAN; /* place 1 is nobody's */
    const cp_device_gathering call = {TURNED,
                                      width,
                                      upload(places, sizeof(places)),
                                      upload(from, PLACES * width * 4),
                                      element,
                                      fresh((TURNED + 1) * width * 4)};
    ck_assert_int_eq(cp_device_gather(&call, NULL), cudaSuccess);
    void *got = fetch(call.to, (TURNED + 1) * width * 4);
    int64_t wrong = bits_at(got, element, TURNED * width) !=
                    (element == CP_F32 ? 0xFFFFFFFFu : 0xFFFFu);
    for (int64_t i = 0; i < TURNED * width; i++) {
        const int64_t place = places[i / width];
        const float want = place < 0 ? 0.0f : from[place * width + i % width];
        wrong += bits_at(got, element, i) != rounded(element, want);
    }
    ck_assert_int_eq(wrong, 0);
    free(from);
    free(got);
    end();
}
END_TEST

START_TEST(indices_have_64_bits) {
    enum { FAR = 99999, WIDE = 32768 };
    const int32_t token = FAR;
    const int64_t place = FAR, shift = (int64_t)FAR * WIDE * 4;
    uint64_t state = 5;
    begin(1);
    float *x = numbers(WIDE, &state);
    void *row = upload(x, WIDE * 4);
    const void *table = (const void *)((uintptr_t)row - (uintptr_t)shift);
    const cp_device_embedding embedding = {1,     WIDE,   upload(&token, 4),
                                           table, CP_F32, fresh(WIDE * 4)};
    const cp_device_gathering gathering = {1,     WIDE,   upload(&place, 8),
                                           table, CP_F32, fresh(WIDE * 4)};
    ck_assert_int_eq(cp_device_embed(&embedding, NULL), cudaSuccess);
    ck_assert_int_eq(cp_device_gather(&gathering, NULL), cudaSuccess);
    float *one = fetch(embedding.x, WIDE * 4);
    float *two = fetch(gathering.to, WIDE * 4);
    ck_assert_mem_eq(one, x, WIDE * 4);
    ck_assert_mem_eq(two, x, WIDE * 4);
    free(x);
    free(one);
    free(two);
    end();
}
END_TEST

START_TEST(far_places_are_written) {
    enum { FAR = 40000000 };
    const int64_t place = FAR, shift = (int64_t)FAR * 64 * 4;
    uint64_t state = 6;
    begin(1);
    float *x = numbers(3 * 64, &state);
    char *three = fresh(3 * 256);
    void *to[3];
    for (int i = 0; i < 3; i++)
        to[i] =
            (void *)((uintptr_t)three + 256u * (unsigned)i - (uintptr_t)shift);
    const cp_device_rotating call = {1,
                                     {1, 1, 64},
                                     0,
                                     NULL,
                                     NULL,
                                     upload(&place, 8),
                                     upload(x, 768),
                                     CP_F32,
                                     to[0],
                                     to[1],
                                     to[2]};
    ck_assert_int_eq(cp_device_rotate(&call, NULL), cudaSuccess);
    float *got = fetch(three, 768);
    ck_assert_mem_eq(got, x, 768);
    free(x);
    free(got);
    end();
}
END_TEST

START_TEST(what_cannot_be_launched_is_refused) {
    const int64_t many = INT64_C(1) << 31;
    begin(1);
    const cp_device_norming norm = {.rows = many, .width = 1};
    const cp_device_gating gate = {.rows = 1, .inner = many};
    const cp_device_embedding none = {.count = 0, .width = 5};
    const cp_device_gathering less = {.rows = -1, .width = 5};
    const cp_device_rotating pairs = {
        .rows = 1, .shape = {1, 1, 33}, .pairs = 17};
    const cp_device_quantising odd = {1, 4, (const float *)(uintptr_t)8, NULL,
                                      NULL};
    ck_assert_int_eq(cp_device_norm(&norm, NULL),
                     cudaErrorInvalidConfiguration);
    ck_assert_int_eq(cp_device_gate(&gate, NULL),
                     cudaErrorInvalidConfiguration);
    ck_assert_int_eq(cp_device_embed(&none, NULL), cudaSuccess);
    ck_assert_int_eq(cp_device_gather(&less, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cp_device_rotate(&pairs, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cp_device_quantise(&odd, NULL), cudaErrorInvalidValue);
    end();
}
END_TEST

static const int types[] = {
    CP_GGUF_F32,  CP_GGUF_F16,  CP_GGUF_BF16, CP_GGUF_Q8_0, CP_GGUF_Q4_0,
    CP_GGUF_Q4_1, CP_GGUF_Q5_0, CP_GGUF_Q5_1, CP_GGUF_Q2_K, CP_GGUF_Q3_K,
    CP_GGUF_Q4_K, CP_GGUF_Q5_K, CP_GGUF_Q6_K};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

START_TEST(blocks_are_unpacked_as_on_the_host) {
    const int type = types[_i % TYPES];
    const cp_element element = (cp_element)(_i / TYPES);
    int64_t values, bytes;
    uint64_t state = (uint64_t)_i + 1;
    begin(_i);
    ck_assert(cp_gguf_type_block(type, &values, &bytes));
    const int64_t blocks = values == 1 ? 3001 : 7, count = blocks * values;
    unsigned char *packed = malloc((size_t)(blocks * bytes) + 2);
    for (int64_t i = 0; i < blocks * bytes + 2; i++)
        packed[i] = (unsigned char)(harness_random(&state) >> 40);
    const char *there = upload(packed, blocks * bytes + 2);
    void *out = fresh((count + 1) * 4);
    ck_assert_int_eq(
        cp_device_expand(type, there + 2, count, element, out, NULL),
        cudaSuccess);
    /* Compare with what the host unpacks. */
    float *want = malloc((size_t)count * 4);
    void *got = fetch(out, (count + 1) * 4);
    ck_assert_int_eq(cp_dequantise(type, packed + 2, count, want), CP_OK);
    int64_t wrong = bits_at(got, element, count) !=
                    (element == CP_F32 ? 0xFFFFFFFFu : 0xFFFFu);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = bits_at(got, element, i);
        wrong += isnan(want[i]) ? !isnan(decode(element, bits))
                                : bits != rounded(element, want[i]);
    }
    ck_assert_int_eq(wrong, 0);
    free(want);
    free(got);
    free(packed);
    end();
}
END_TEST

START_TEST(blocks_are_unpacked_as_their_authors_do) {
    const golden_block *golden = &golden_blocks[_i];
    unsigned char bytes[1024];
    unsigned byte;
    int64_t length = 0;
    begin(_i);
    while (sscanf(golden->hex + 2 * length, "%2x", &byte) == 1)
        bytes[length++] = (unsigned char)byte;
    void *out = fresh(golden->count * 4);
    ck_assert_int_eq(cp_device_expand(golden->type, upload(bytes, length),
                                      golden->count, CP_F32, out, NULL),
                     cudaSuccess);
    float *got = fetch(out, golden->count * 4);
    int wrong = 0;
    for (int i = 0; i < golden->count; i++)
        wrong += got[i] != golden->values[i];
    ck_assert_int_eq(wrong, 0);
    free(got);
    end();
}
END_TEST

START_TEST(what_fills_no_blocks_is_refused) {
    begin(1);
    void *out = fresh(4096);
    const char *in = upload("0123456789abcdef", 16);
    const cudaError_t bad = cudaErrorInvalidValue;
    ck_assert_int_eq(cp_device_expand(9, in, 0, CP_F32, out, NULL), bad);
    ck_assert_int_eq(cp_device_expand(-1, in, 32, CP_F32, out, NULL), bad);
    ck_assert_int_eq(cp_device_expand(CP_GGUF_Q4_K, in, 255, CP_F32, out, NULL),
                     bad);
    ck_assert_int_eq(cp_device_expand(CP_GGUF_F32, in, -1, CP_F32, out, NULL),
                     bad);
    ck_assert_int_eq(
        cp_device_expand(CP_GGUF_F16, in + 1, 1, CP_F32, out, NULL), bad);
    ck_assert_int_eq(cp_device_expand(CP_GGUF_Q4_K, in, 0, CP_F32, out, NULL),
                     cudaSuccess);
    end();
}
END_TEST

typedef struct {
    int64_t in, out, rows;
    cp_numbers numbers;
    cp_device_matrix w;
    float *w_values, *x_values, *before; /* as the oracle sees them */
    float *w_scales, *x_scales;          /* NULL unless FP8 */
    const void *x;
    const float *x_scales_there;
    float *y;
} problem;

/* Numbers and where they lie on the device. */
static float *operand(cp_numbers numbers, int64_t count, uint64_t *state,
                      const void **there) {
    float *values = malloc((size_t)count * 4 + 4);
    unsigned char *codes = malloc((size_t)count + 1);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t code = (uint32_t)(harness_random(state) >> 40) & 0xff;
        const double magnitude = value_of(f8, code % 0x7f);
        codes[i] = (unsigned char)(code % 0x7f | (code & 0x80));
        values[i] = (float)(code & 0x80 ? -magnitude : magnitude);
        if (numbers != CP_NUMBERS_F8)
            values[i] = draw(state);
    }
    *there = numbers == CP_NUMBERS_F8    ? upload(codes, count)
             : numbers == CP_NUMBERS_F32 ? upload(values, count * 4)
                                         : stored(CP_BF16, values, count);
    free(codes);
    return values;
}

static float *scales_of(cp_numbers kind, int64_t rows, uint64_t *state,
                        const float **there) {
    *there = NULL;
    if (kind != CP_NUMBERS_F8)
        return NULL;
    float *scales = malloc((size_t)rows * 4);
    for (int64_t i = 0; i < rows; i++)
        scales[i] = 0.25f + 0.01f * (float)(harness_random(state) >> 58);
    *there = upload(scales, rows * 4);
    return scales;
}

static problem make_problem(int64_t in, int64_t out, int64_t rows,
                            cp_numbers kind, uint64_t seed) {
    uint64_t state = seed * 13 + 1;
    problem p = {.in = in, .out = out, .rows = rows, .numbers = kind};
    p.w = (cp_device_matrix){.in = in, .out = out, .numbers = kind};
    p.w_values = operand(kind, in * out, &state, &p.w.values);
    p.x_values = operand(kind, in * rows, &state, &p.x);
    p.w_scales = scales_of(kind, out, &state, &p.w.scales);
    p.x_scales = scales_of(kind, rows, &state, &p.x_scales_there);
    p.before = numbers(rows * out, &state);
    return p;
}

static void discard(problem *p) {
    free(p->w_values);
    free(p->x_values);
    free(p->w_scales);
    free(p->x_scales);
    free(p->before);
}

static double expected(const problem *p, int64_t row, int64_t o, double *size) {
    double sum = 0.0;
    *size = 0.0;
    for (int64_t i = 0; i < p->in; i++) {
        const double product =
            (double)p->x_values[row * p->in + i] * p->w_values[o * p->in + i];
        sum += product;
        *size += fabs(product);
    }
    if (p->numbers != CP_NUMBERS_F8)
        return sum;
    const double scale = (double)p->x_scales[row] * p->w_scales[o];
    *size *= scale;
    return sum * scale;
}

static void check_product(const problem *p, int added) {
    float *got = fetch(p->y, (p->rows * p->out + 1) * 4);
    const double part =
        p->numbers == CP_NUMBERS_F8 && !stand_in_pretends() ? 1e-3 : 1e-6;
    int64_t wrong = !isnan(got[p->rows * p->out]);
    for (int64_t i = 0; i < p->rows * p->out; i++) {
        double size;
        const double one = expected(p, i / p->out, i % p->out, &size);
        const double want = added == 0 ? one : p->before[i] + added * one;
        const double off = fabs(got[i] - want);
        wrong += !(off <= part * (size + fabs(want)));
    }
    ck_assert_int_eq(wrong, 0);
    free(got);
}

static cp_status product(cp_multiplier *multiplier, const problem *p, bool add,
                         cudaStream_t stream) {
    return cp_device_multiply(multiplier, &p->w, p->rows, p->x,
                              p->x_scales_there, add, p->y, stream);
}

static const struct {
    int64_t in, out, rows;
} products[] = {
    {1, 1, 1},   {3, 5, 7},    {33, 17, 2},    {64, 48, 1},
    {100, 3, 9}, {16, 16, 1},  {48, 112, 5},   {160, 48, 33},
    {64, 64, 0}, {576, 64, 3}, {1040, 32, 17},
};
enum { PRODUCTS = sizeof(products) / sizeof(products[0]) };

/* Whether this device multiplies FP8 rows; if it does not, that was said. */
static bool can(cp_multiplier *multiplier, cp_numbers kind) {
    const cp_status status = cp_multiplier_check(multiplier, kind);
    ck_assert(status == CP_OK ||
              (kind == CP_NUMBERS_F8 && !stand_in_pretends()));
    return status == CP_OK;
}

START_TEST(products_are_those_of_the_definition) {
    const int64_t in = products[_i % PRODUCTS].in;
    const int64_t out = products[_i % PRODUCTS].out;
    const int64_t rows = products[_i % PRODUCTS].rows;
    const cp_numbers kind = (cp_numbers)(_i / PRODUCTS);
    cp_multiplier *multiplier = NULL;
    if (kind == CP_NUMBERS_F8 && (in % 16 != 0 || out % 16 != 0))
        return;
    begin(_i);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
    if (can(multiplier, kind)) {
        problem p = make_problem(in, out, rows, kind, (uint64_t)_i + 1);
        p.y = fresh((rows * out + 1) * 4);
        ck_assert_int_eq(product(multiplier, &p, false, NULL), CP_OK);
        check_product(&p, 0);
        /* Add to what is there. */
        ck_assert_int_eq(cudaMemcpy(p.y, p.before, (size_t)(rows * out) * 4,
                                    cudaMemcpyHostToDevice),
                         cudaSuccess);
        ck_assert_int_eq(product(multiplier, &p, true, NULL), CP_OK);
        ck_assert_int_eq(product(multiplier, &p, true, NULL), CP_OK);
        check_product(&p, 2);
        discard(&p);
    }
    cp_multiplier_free(multiplier);
    end();
}
END_TEST

START_TEST(more_sizes_than_are_remembered) {
    cp_multiplier *multiplier = NULL;
    begin(1);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
    problem p = make_problem(20, 12, 300, CP_NUMBERS_BF16, 3);
    p.y = fresh((300 * 12 + 1) * 4);
    for (int turn = 0; turn < 2; turn++)
        for (p.rows = 1; p.rows <= 300; p.rows++)
            ck_assert_int_eq(product(multiplier, &p, false, NULL), CP_OK);
    p.rows = 300;
    check_product(&p, 0);
    cp_multiplier_free(multiplier);
    discard(&p);
    end();
}
END_TEST

START_TEST(operands_may_begin_anywhere) {
    cp_multiplier *multiplier = NULL;
    begin(_i);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
    problem p = make_problem(24, 10, 4, CP_NUMBERS_BF16, 4);
    p.w.values = (const char *)p.w.values + 3 * 24 * 2 * _i;
    p.w.out = p.out = 10 - 3 * _i;
    p.x = (const char *)p.x + 24 * 2;
    p.rows = 3;
    memmove(p.w_values, p.w_values + 3 * 24 * _i, (size_t)(p.out * 24) * 4);
    memmove(p.x_values, p.x_values + 24, 3 * 24 * 4);
    for (int further = 0; further < 2; further++) {
        p.y = (float *)fresh((3 * 10 + 2) * 4) + further;
        ck_assert_int_eq(product(multiplier, &p, false, NULL), CP_OK);
        check_product(&p, 0);
    }
    cp_multiplier_free(multiplier);
    discard(&p);
    end();
}
END_TEST

START_TEST(a_product_can_be_captured) {
    const cp_numbers kind = (cp_numbers)(_i % 3);
    cp_multiplier *multiplier = NULL;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    begin(_i);
    ck_assert_int_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                     cudaSuccess);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
    problem p = make_problem(32, 48, 3, can(multiplier, kind) ? kind : 0, 9);
    p.y = fresh((p.rows * p.out + 1) * 4);
    ck_assert_int_eq(product(multiplier, &p, false, stream), CP_OK);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
    check_product(&p, 0);
    cudaMemcpy(p.y, p.before, (size_t)(p.rows * p.out) * 4,
               cudaMemcpyHostToDevice);
    /* Capture an addition, and launch it three times. */
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    ck_assert_int_eq(product(multiplier, &p, true, stream), CP_OK);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(cudaGraphLaunch(replay, stream), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    check_product(&p, 3);
    cp_multiplier_free(multiplier);
    discard(&p);
    cudaStreamDestroy(stream);
    end();
}
END_TEST

START_TEST(a_capture_without_a_call_before_it_is_found) {
    cp_multiplier *multiplier = NULL;
    cudaStream_t stream;
    cudaGraph_t graph;
    if (!stand_in_pretends())
        return;
    begin(1);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
    problem p = make_problem(32, 20, 3, CP_NUMBERS_BF16, 9);
    p.y = fresh((p.rows * p.out + 1) * 4);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    ck_assert_int_eq(product(multiplier, &p, true, stream), CP_BROKEN);
    ck_assert_ptr_nonnull(strstr(
        stand_in_report(), "the first cublasLtMatmul of its kind on stream"));
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph),
                     cudaErrorStreamCaptureInvalidated);
    cp_multiplier_free(multiplier);
    discard(&p);
    cudaStreamDestroy(stream);
    end();
}
END_TEST

static bool multiply_across_streams(const problem *p, cp_multiplier *multiplier,
                                    bool wait) {
    cudaStream_t maker, user;
    cudaEvent_t made;
    cudaStreamCreateWithFlags(&maker, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&user, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    problem mine = *p;
    void *x = fresh(p->rows * p->in * 4);
    mine.x = x;
    cudaMemcpyAsync(x, p->x, (size_t)(p->rows * p->in) * 4,
                    cudaMemcpyDeviceToDevice, maker);
    cudaEventRecord(made, maker);
    if (wait)
        cudaStreamWaitEvent(user, made, 0);
    ck_assert_int_eq(product(multiplier, &mine, false, user), CP_OK);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    float *got = fetch(p->y, p->rows * p->out * 4);
    const bool right = !isnan(got[0]);
    free(got);
    cudaEventDestroy(made);
    cudaStreamDestroy(maker);
    cudaStreamDestroy(user);
    return right;
}

START_TEST(a_missing_event_shows) {
    int misses = 0;
    if (!stand_in_pretends())
        return;
    for (int seed = 0; seed < 20; seed++) {
        cp_multiplier *multiplier = NULL;
        begin(seed);
        ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
        problem p = make_problem(8, 8, 2, CP_NUMBERS_F32, 2);
        p.y = fresh((p.rows * p.out + 1) * 4);
        ck_assert(multiply_across_streams(&p, multiplier, true));
        check_product(&p, 0);
        misses += !multiply_across_streams(&p, multiplier, false);
        cp_multiplier_free(multiplier);
        discard(&p);
        release();
        stand_in_end(); /* it may have seen the race */
    }
    ck_assert_int_ge(misses, 5);
}
END_TEST

static void refused(cp_multiplier *multiplier, const problem *p,
                    const char *because) {
    ck_assert_int_eq(product(multiplier, p, false, NULL), CP_INVALID);
    ck_assert_msg(strstr(cp_message(), because) != NULL, "%s", cp_message());
}

START_TEST(bad_products_are_refused) {
    cp_multiplier *multiplier = NULL;
    begin(1);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
    problem p = make_problem(32, 48, 3, CP_NUMBERS_F8, 1), q = p;
    p.y = fresh(3 * 48 * 4);
    refused(multiplier, &q, "without its operands");
    q = p;
    q.w.scales = NULL;
    refused(multiplier, &q, "without its operands");
    q = p;
    q.w.in = 33;
    refused(multiplier, &q, "an FP8 matrix of 48 x 33: both must be multip");
    q.w.in = 32;
    q.w.out = 24;
    refused(multiplier, &q, "an FP8 matrix of 24 x 32");
    /* Other products that are refused. */
    q = p;
    q.x = (const char *)q.x + 4;
    refused(multiplier, &q,
            "at multiples of 4 bytes, which must be multiples of "
            "16");
    q = p;
    q.rows = INT64_C(1) << 31;
    refused(multiplier, &q,
            "cannot multiply 2147483648 rows of 32 numbers by 48");
    q = p;
    q.w.in = 0;
    refused(multiplier, &q, "cannot multiply");
    if (stand_in_pretends()) {
        stand_in_pretend_f8(false);
        refused(multiplier, &p, "compute capability 9.0; device 0 has 8.0");
        ck_assert_int_eq(cp_multiplier_check(multiplier, CP_NUMBERS_F8),
                         CP_INVALID);
        stand_in_pretend_f8(true);
        ck_assert_int_eq(cp_multiplier_check(multiplier, CP_NUMBERS_F8), CP_OK);
    }
    cp_multiplier_free(multiplier);
    discard(&p);
    end();
}
END_TEST

START_TEST(failures_of_the_device_are_told) {
    cp_multiplier *multiplier = NULL;
    if (!stand_in_pretends())
        return;
    begin(1);
    stand_in_fail_allocation(1);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_MEMORY);
    ck_assert_ptr_null(multiplier);
    ck_assert_ptr_nonnull(strstr(cp_message(), "4194304 bytes to multiply in"));
    stand_in_fail_allocation(2);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_MEMORY);
    ck_assert_ptr_null(multiplier);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
    problem p = make_problem(32, 20, 3, CP_NUMBERS_BF16, 1);
    p.y = fresh((3 * 20 + 1) * 4);
    stand_in_fail_launch(1);
    ck_assert_int_eq(product(multiplier, &p, false, NULL), CP_BROKEN);
    ck_assert_str_eq(cp_message(),
                     "multiplying 3 x 32 by 32 x 20 in bf16: the function "
                     "failed to launch on the GPU");
    ck_assert_int_eq(product(multiplier, &p, false, NULL), CP_OK);
    check_product(&p, 0);
    cp_multiplier_free(multiplier);
    cp_multiplier_free(NULL);
    discard(&p);
    end();
}
END_TEST

typedef struct {
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasLtMatmulPreferenceOpaque_t wish;
    char *a_at, *b_at, *d_at, *workspace;
    uint64_t bytes; /* of the workspace */
} library_call;

enum { K = 32, M = 20, N = 3, ROOM = 1024 };

static library_call sound_call(void) {
    const int32_t transposed = CUBLAS_OP_T;
    library_call c = {.bytes = ROOM};
    c.a_at = fresh(M * K * 2);
    c.b_at = fresh(N * K * 2);
    c.d_at = fresh(N * M * 4);
    c.workspace = fresh(ROOM);
    cublasLtMatmulDescInit(&c.how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&c.how, CUBLASLT_MATMUL_DESC_TRANSA,
                                   &transposed, 4);
    cublasLtMatrixLayoutInit(&c.a, CUDA_R_16BF, K, M, K);
    cublasLtMatrixLayoutInit(&c.b, CUDA_R_16BF, K, N, K);
    cublasLtMatrixLayoutInit(&c.d, CUDA_R_32F, M, N, M);
    cublasLtMatmulPreferenceInit(&c.wish);
    cublasLtMatmulPreferenceSetAttribute(
        &c.wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &c.bytes, 8);
    return c;
}

static const struct {
    cublasStatus_t status;
    const char *says;
} faults[] = {
    {CUBLAS_STATUS_SUCCESS, ""},
    {CUBLAS_STATUS_INVALID_VALUE, "A of 32 rows and 20 columns, 31 apart"},
    {CUBLAS_STATUS_INVALID_VALUE, "by 31 x 3, is not 20 x 3"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "types 14, 0, 0 and 0"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "types 14, 14, 14 and 14"},
    {CUBLAS_STATUS_INVALID_VALUE, "scales for numbers that have none"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "B at multiples of 1 bytes"},
    {CUBLAS_STATUS_INVALID_VALUE, "A is not at a multiple of 256 bytes"},
    {CUBLAS_STATUS_INVALID_VALUE, "B is not on the device"},
    {CUBLAS_STATUS_INVALID_VALUE, "A of 1280 bytes from byte 256"},
    {CUBLAS_STATUS_INVALID_VALUE, "A and D overlap"},
    {CUBLAS_STATUS_INVALID_VALUE, "an algorithm that was found for another"},
    {CUBLAS_STATUS_INVALID_VALUE, "a workspace of 100 bytes"},
    {CUBLAS_STATUS_INVALID_VALUE, "a workspace of 1024 bytes"},
};
enum { FAULTS = sizeof(faults) / sizeof(faults[0]), AFTER = 7 };

static void spoil_description(library_call *c, int fault) {
    const uint32_t one = 1;
    const void *scales = c->workspace;
    if (fault == 1)
        cublasLtMatrixLayoutInit(&c->a, CUDA_R_16BF, K, M, K - 1);
    if (fault == 2)
        cublasLtMatrixLayoutInit(&c->b, CUDA_R_16BF, K - 1, N, K);
    if (fault == 3)
        cublasLtMatrixLayoutInit(&c->b, CUDA_R_32F, K, N, K);
    if (fault == 4)
        cublasLtMatrixLayoutInit(&c->d, CUDA_R_16BF, M, N, M);
    if (fault == 5)
        cublasLtMatmulDescSetAttribute(&c->how,
                                       CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                       &scales, sizeof(scales));
    if (fault == 6)
        cublasLtMatmulPreferenceSetAttribute(
            &c->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &one, 4);
}

static void spoil_operands(library_call *c, int fault) {
    static char host[N * K * 2 + 256];
    if (fault == 7)
        c->a_at += 2;
    if (fault == 8)
        c->b_at = host + (256 - (uintptr_t)host % 256) % 256;
    if (fault == 9)
        c->a_at += 256;
    if (fault == 10)
        c->d_at = c->a_at + 256;
    if (fault == 11) {
        cublasLtMatrixLayoutInit(&c->b, CUDA_R_16BF, K, N - 1, K);
        cublasLtMatrixLayoutInit(&c->d, CUDA_R_32F, M, N - 1, M);
    }
    if (fault == 12)
        c->bytes = 100;
    if (fault == 13)
        c->workspace += 8;
}

START_TEST(what_the_library_refuses) {
    cublasLtHandle_t library;
    cublasLtMatmulHeuristicResult_t found;
    const float one = 1.0f, zero = 0.0f;
    int count;
    if (!stand_in_pretends())
        return;
    begin(_i);
    ck_assert_int_eq(cublasLtCreate(&library), CUBLAS_STATUS_SUCCESS);
    library_call c = sound_call();
    spoil_description(&c, _i);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library, &c.how, &c.a, &c.b, &c.d, &c.d, &c.wish, 1, &found, &count);
    ck_assert_int_eq(status == CUBLAS_STATUS_SUCCESS, _i == 0 || _i >= AFTER);
    spoil_operands(&c, _i);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(library, &c.how, &one, c.a_at, &c.a, c.b_at,
                                &c.b, &zero, c.d_at, &c.d, c.d_at, &c.d,
                                &found.algo, c.workspace, c.bytes, NULL);
    ck_assert_int_eq(status, faults[_i].status);
    ck_assert_msg(strstr(stand_in_report(), faults[_i].says) != NULL, "%s",
                  stand_in_report());
    ck_assert_int_eq(cublasLtDestroy(library), CUBLAS_STATUS_SUCCESS);
    end();
}
END_TEST

START_TEST(rows_of_8_bits_are_multiplied) {
    enum { IN = 1024, OUT = 16, ROWS = 5 };
    cp_multiplier *multiplier = NULL;
    uint64_t state = 99;
    begin(1);
    ck_assert_int_eq(cp_multiplier_new(&multiplier), CP_OK);
    problem p = {.in = IN, .out = OUT, .rows = ROWS};
    p.w_values = numbers(IN * OUT, &state);
    p.x_values = numbers(IN * ROWS, &state);
    const cp_device_quantising w = {OUT, IN, upload(p.w_values, IN * OUT * 4),
                                    fresh(IN * OUT), fresh(OUT * 4)};
    const cp_device_quantising x = {ROWS, IN, upload(p.x_values, IN * ROWS * 4),
                                    fresh(IN * ROWS), fresh(ROWS * 4)};
    p.w = (cp_device_matrix){IN, OUT, CP_NUMBERS_F8, w.y, w.scales};
    p.x = x.y;
    p.x_scales_there = x.scales;
    p.y = fresh(ROWS * OUT * 4);
    if (can(multiplier, CP_NUMBERS_F8)) {
        /* Quantise, multiply, and see what it cost. */
        ck_assert_int_eq(cp_device_quantise(&w, NULL), cudaSuccess);
        ck_assert_int_eq(cp_device_quantise(&x, NULL), cudaSuccess);
        ck_assert_int_eq(product(multiplier, &p, false, NULL), CP_OK);
        float *got = fetch(p.y, ROWS * OUT * 4);
        double off = 0.0, norm = 0.0;
        for (int i = 0; i < ROWS * OUT; i++) {
            double size;
            const double want = expected(&p, i / OUT, i % OUT, &size);
            off += pow(got[i] - want, 2);
            norm += want * want;
        }
        ck_assert_double_le(sqrt(off / norm), 0.06);
        ck_assert_double_ge(sqrt(off / norm), 0.01);
        free(got);
    }
    cp_multiplier_free(multiplier);
    discard(&p);
    end();
}
END_TEST

static Suite *layers_suite(void) {
    Suite *suite = suite_create("layers");
    TCase *tests = harness_case("layers");
    /* The cases of the layers. */
    tcase_add_loop_test(tests, every_rounding_to_16_bits_is_to_nearest_even, 0,
                        2);
    tcase_add_loop_test(tests, every_code_of_16_bits_is_read, 0, 2);
    tcase_add_loop_test(tests, every_rounding_to_8_bits_is_to_nearest_even, 0,
                        12);
    tcase_add_loop_test(tests, rows_of_8_bits_stand_for_their_numbers, 0, 8);
    tcase_add_loop_test(tests, tokens_are_embedded, 0, 3 * WIDTHS);
    tcase_add_loop_test(tests, rows_are_normed, 0, 3 * WIDTHS + 1);
    tcase_add_loop_test(tests, rows_are_turned_and_placed, 0, 3 * TURNS);
    tcase_add_loop_test(tests, rows_are_gated, 0, 3 * WIDTHS);
    tcase_add_loop_test(tests, rows_are_gathered, 0, 3 * WIDTHS);
    tcase_add_test(tests, indices_have_64_bits);
    tcase_add_test(tests, far_places_are_written);
    tcase_add_test(tests, what_cannot_be_launched_is_refused);
    tcase_add_loop_test(tests, blocks_are_unpacked_as_on_the_host, 0,
                        3 * TYPES);
    tcase_add_loop_test(tests, blocks_are_unpacked_as_their_authors_do, 0,
                        GOLDEN_BLOCKS);
    tcase_add_test(tests, what_fills_no_blocks_is_refused);
    tcase_add_loop_test(tests, products_are_those_of_the_definition, 0,
                        3 * PRODUCTS);
    tcase_add_test(tests, more_sizes_than_are_remembered);
    tcase_add_loop_test(tests, operands_may_begin_anywhere, 0, 3);
    tcase_add_loop_test(tests, a_product_can_be_captured, 0, 6);
    tcase_add_test(tests, a_capture_without_a_call_before_it_is_found);
    tcase_add_test(tests, a_missing_event_shows);
    tcase_add_test(tests, bad_products_are_refused);
    tcase_add_test(tests, failures_of_the_device_are_told);
    tcase_add_loop_test(tests, what_the_library_refuses, 0, FAULTS);
    tcase_add_test(tests, rows_of_8_bits_are_multiplied);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(layers_suite)
