/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Weights in tiles: taken apart in registers. */
#include "reference/model/matrix.h"

#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "model/blocks.h"
#include "reference/attend/exp2.h"
#include "reference/model/dequantise.h"
#include "reference/model/matrix_own.h"

/* As many lanes as a register has. */
#if defined(__AVX512F__)
enum { TOGETHER = 16 };
#elif defined(__AVX__)
enum { TOGETHER = 8 };
#else
enum { TOGETHER = 4 };
#endif
typedef float lanes __attribute__((vector_size(4 * TOGETHER)));
typedef int32_t words __attribute__((vector_size(4 * TOGETHER)));

static inline words words_at(const int32_t *from) {
    words loaded;
    return *(words *)memcpy(&loaded, from, sizeof(loaded));
}

/* a * b + c, rounded in each lane as cp_fused rounds. */
static inline lanes fused(lanes a, lanes b, lanes c) {
#if defined(__AVX512F__)
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < TOGETHER; i++)
        c[i] = cp_fused(a[i], b[i], c[i]);
    return c;
#endif
}

typedef struct {
    lanes scale[2], shift[2]; /* of 16 inputs, and 16 */
} factors;

/* In each lane, an input's lowest four bits, below others. */
static inline words low_at(const nibbles *from, int lane, int input) {
    const int byte = input % 16, nibble = byte % 4 * 2 + input / 16;
    return words_at(from->words[byte / 4] + lane) >> 4 * nibble;
}

/* The bits above the lowest four, of four inputs: in the upper half of each
 * byte, below others. */
static inline words high_at(const int32_t (*high)[CP_LANES], int bits, int lane,
                            int input) {
    const int at = input / 4 * bits;
    const words found = words_at(high[at / 8] + lane);
    if (at % 8 < 4)
        return found << (4 - at % 8);
    return found >> (at % 8 - 4);
}

/* Four inputs, a byte each. */
static inline words bytes_at(const nibbles *low,
                             const int32_t (*high)[CP_LANES], int bits,
                             int lane, int input) {
    const words below = low_at(low, lane, input / 4 * 4);
    return (below & 0x0F0F0F0F) |
           (high_at(high, bits, lane, input) & ~0x0F0F0F0F);
}

static inline lanes float_of(words quants) {
    return __builtin_convertvector(quants, lanes);
}

/* The lowest six or eight bits of a byte as a float, 2^bits too large: they
 * become the first digits after its leading one. */
static inline lanes raised(words bytes, int byte, int bits) {
    const int up = 23 - bits - 8 * byte;
    const int mask = ((1 << bits) - 1) << (23 - bits);
    if (up > 0)
        bytes = bytes << up;
    else
        bytes = bytes >> -up;
    return (lanes)((bytes & mask) | (127 + bits) << 23);
}

/* The lowest four bits as a float: of sixteen lanes, one permutation. */
static inline lanes four_bits(words quants) {
#if defined(__AVX512F__) && !defined(__clang__)
    const lanes all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return __builtin_shuffle(all, quants);
#else
    return float_of(quants & 15);
#endif
}

static inline words halves_at(const uint16_t *from) {
    uint16_t halves __attribute__((vector_size(2 * TOGETHER)));
    memcpy(&halves, from, sizeof(halves));
    return __builtin_convertvector(halves, words);
}

static inline lanes floats_at(const float *from) {
    lanes loaded;
    return *(lanes *)memcpy(&loaded, from, sizeof(loaded));
}

/* The lowest five bits as a float. */
static inline lanes five_bits(words quants) {
#if defined(__AVX512F__) && !defined(__clang__)
    const lanes first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return __builtin_shuffle(first, first + 16.0f, quants);
#else
    return float_of(quants & 31);
#endif
}

/* The number that the lowest four bits stand for in a table. */
static inline lanes level_of(words quants) {
    const float levels[CP_LANES] = {CP_LEVELS};
#if defined(__AVX512F__) && !defined(__clang__)
    return __builtin_shuffle(floats_at(levels), quants);
#elif defined(__AVX__) && !defined(__clang__)
    return __builtin_shuffle(floats_at(levels), floats_at(levels + TOGETHER),
                             quants);
#else
    lanes found;
    for (int i = 0; i < TOGETHER; i++)
        found[i] = levels[quants[i] & 15];
    return found;
#endif
}

static inline lanes widen(const uint16_t *from) {
#if defined(__AVX512F__)
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif defined(__F16C__)
    return (lanes)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#else
    const words half = halves_at(from), bits = half & 0x7FFF;
    const words small =
        (words)(__builtin_convertvector(bits, lanes) * 0x1p-24f);
    const words normal =
        (bits << 13) + (112 << 23) + ((bits >= 0x7C00) & 112 << 23);
    const words is_small = bits < 0x400, sign = (half & 0x8000) != 0;
    return (lanes)((small & is_small) | (normal & ~is_small) |
                   (sign & INT32_MIN));
#endif
}

/* Eight-bit scales as floats, for which a type needs its own instruction. */
#define SCALES_AT(name, type, wide, narrow)                                    \
    static inline lanes name(const type *from) {                               \
        type bytes __attribute__((vector_size(TOGETHER)));                     \
        memcpy(&bytes, from, sizeof(bytes));                                   \
        return float_of(WIDEN(bytes, wide, narrow));                           \
    }
#if defined(__AVX512F__)
#define WIDEN(bytes, wide, narrow) (words) wide((__m128i)bytes)
#elif defined(__AVX2__)
#define WIDEN(bytes, wide, narrow)                                             \
    (words) narrow(_mm_loadl_epi64((const void *)&bytes))
#else
#define WIDEN(bytes, wide, narrow) __builtin_convertvector(bytes, words)
#endif
SCALES_AT(scales_at, uint8_t, _mm512_cvtepu8_epi32, _mm256_cvtepu8_epi32)
SCALES_AT(signed_scales_at, int8_t, _mm512_cvtepi8_epi32, _mm256_cvtepi8_epi32)

/* Where to read: some lanes of a part of a group. */
typedef struct {
    int part, group, lane;
} cursor;

#define FACTORS(type, scale_, shift_)                                          \
    static inline factors factors_##type(const void *from, cursor at) {        \
        const type##_tile *tile = from;                                        \
        const lanes scale = scale_;                                            \
        return (factors){{scale}, {shift_}};                                   \
    }
#define SCALE widen(&tile->scale[at.group][at.lane])
#define MINIMUM widen(&tile->minimum[at.group][at.lane])
#define OF_PART(what) scales_at(&tile->part[at.part].what[at.group][at.lane])
FACTORS(q4_0, SCALE, -8.0f * scale)
FACTORS(q4_1, SCALE, MINIMUM)
FACTORS(q5_0, SCALE, -16.0f * scale)
FACTORS(q5_1, SCALE, MINIMUM)
FACTORS(q8_0, SCALE, -(256.0f + 128.0f) * scale)
FACTORS(q4_k, SCALE *OF_PART(scale), -MINIMUM *OF_PART(minimum))
FACTORS(q5_k, SCALE *OF_PART(scale), -MINIMUM *OF_PART(minimum))
FACTORS(iq4_nl, SCALE, 0.0f * scale)
FACTORS(iq4_xs,
        SCALE *signed_scales_at(&tile->part[at.part].scale[at.group][at.lane]),
        0.0f * scale)

static inline factors factors_q6_k(const void *from, cursor at) {
    const q6_k_tile *tile = from;
    const int8_t(*scales)[CP_LANES] = tile->part[at.part].scale[at.group];
    const lanes one = SCALE * signed_scales_at(&scales[0][at.lane]);
    const lanes two = SCALE * signed_scales_at(&scales[1][at.lane]);
    return (factors){{one, two},
                     {-(64.0f + 32.0f) * one, -(64.0f + 32.0f) * two}};
}

static inline factors no_factors(const void *from, cursor at) {
    (void)from, (void)at;
    return (factors){0};
}

#define NUMBER(type, number)                                                   \
    static inline lanes number_##type(const void *from, cursor at,             \
                                      int input) {                             \
        const type##_tile *tile = from;                                        \
        return number;                                                         \
    }
#define LOW(of) low_at(&(of).low[at.group], at.lane, input)
#define BYTES(of, bits)                                                        \
    bytes_at(&(of).low[at.group], (of).high[at.group], bits, at.lane, input)
#define FIVE(of) five_bits(BYTES(of, 1) >> 8 * (input % 4))
NUMBER(q4_0, four_bits(LOW(*tile)))
NUMBER(q4_1, four_bits(LOW(*tile)))
NUMBER(q4_k, four_bits(LOW(tile->part[at.part])))
NUMBER(iq4_nl, level_of(LOW(*tile)))
NUMBER(iq4_xs, level_of(LOW(tile->part[at.part])))
NUMBER(q5_0, FIVE(*tile))
NUMBER(q5_1, FIVE(*tile))
NUMBER(q5_k, FIVE(tile->part[at.part]))
NUMBER(q6_k, raised(BYTES(tile->part[at.part], 2), input % 4, 6))
NUMBER(q8_0, raised(words_at(&tile->words[at.group][input / 4][at.lane]),
                    input % 4, 8))
NUMBER(f16, widen(&tile->numbers[at.group][input][at.lane]))
NUMBER(bf16, (lanes)(halves_at(&tile->numbers[at.group][input][at.lane]) << 16))
NUMBER(f32, floats_at(&tile->numbers[at.group][input][at.lane]))

/* How a kind is read; sides is 2 if each 16 inputs have their own factors, and
 * 0 if there are none. */
typedef struct {
    int64_t bytes;
    int parts, sides;
    factors (*factors)(const void *tile, cursor at);
    lanes (*number)(const void *tile, cursor at, int input);
} tile_reader;

enum { LINE = 64, NEAR = 1024, FAR = 16384 };

static inline __attribute__((always_inline)) lanes
weight_at(tile_reader r, const void *tile, cursor at, const factors *f,
          int input) {
    const lanes number = r.number(tile, at, input);
    const int side = r.sides == 2 ? input / 16 : 0;
    return r.sides == 0 ? number
                        : fused(number, f->scale[side], f->shift[side]);
}

/* Ask for as many lines as begin among these bytes: some way ahead into the
 * first cache, further ahead into the second. */
static inline __attribute__((always_inline)) void
fetch(const char *memory, int64_t first, int64_t end) {
    for (int64_t at = (first + LINE - 1) / LINE * LINE; at < end; at += LINE) {
        __builtin_prefetch(memory + at + NEAR);
        __builtin_prefetch(memory + at + FAR, 0, 2);
    }
}

static inline __attribute__((always_inline)) void
add_part(tile_reader r, const void *tile, int part, const float *x,
         float (*sums)[CP_LANES]) {
    const int64_t bytes = r.bytes / r.parts;
    const char *from = (const char *)tile + bytes * part;
#pragma GCC unroll 4
    for (int i = 0; i < CP_LANES; i += TOGETHER) {
        const cursor left = {part, 0, i}, right = {part, 1, i};
        const factors f[] = {r.factors(tile, left), r.factors(tile, right)};
        lanes one = floats_at(&sums[0][i]), two = floats_at(&sums[1][i]);
#pragma GCC unroll 32
        for (int k = 0; k < CP_DEPTH; k++) {
            if (i == 0)
                fetch(from, bytes * k / CP_DEPTH, bytes * (k + 1) / CP_DEPTH);
            const lanes input = x[k] - (lanes){0};
            one = fused(weight_at(r, tile, left, &f[0], k), input, one);
            two = fused(weight_at(r, tile, right, &f[1], k), input, two);
        }
        memcpy(&sums[0][i], &one, sizeof(one));
        memcpy(&sums[1][i], &two, sizeof(two));
    }
}

static inline __attribute__((always_inline)) void
expand_part(tile_reader r, const void *tile, int part, int group,
            float *values) {
#pragma GCC unroll 4
    for (int i = 0; i < CP_LANES; i += TOGETHER) {
        const cursor at = {part, group, i};
        const factors f = r.factors(tile, at);
#pragma GCC unroll 32
        for (int k = 0; k < CP_DEPTH; k++) {
            const lanes weights = weight_at(r, tile, at, &f, k);
            memcpy(values + k * CP_LANES + i, &weights, sizeof(weights));
        }
    }
}

/* A kind, with functions compiled for it. */
#define KIND(name, parts, sides, factors)                                      \
    static const tile_reader read_##name = {sizeof(name##_tile), parts, sides, \
                                            factors, number_##name};           \
    static void add_##name(const void *tile, int part, const float *x,         \
                           float(*sums)[CP_LANES]) {                           \
        add_part(read_##name, tile, part, x, sums);                            \
    }                                                                          \
    static void expand_##name(const void *tile, int part, int group,           \
                              float *values) {                                 \
        expand_part(read_##name, tile, part, group, values);                   \
    }                                                                          \
    static const cp_tile_kind as_##name = {                                    \
        sizeof(name##_tile), parts, expand_##name, add_##name, cp_lay_##name};

KIND(q4_0, 1, 1, factors_q4_0)
KIND(q4_1, 1, 1, factors_q4_1)
KIND(q5_0, 1, 1, factors_q5_0)
KIND(q5_1, 1, 1, factors_q5_1)
KIND(q8_0, 1, 1, factors_q8_0)
KIND(q4_k, 8, 1, factors_q4_k)
KIND(q5_k, 8, 1, factors_q5_k)
KIND(q6_k, 8, 2, factors_q6_k)
KIND(iq4_nl, 1, 1, factors_iq4_nl)
KIND(iq4_xs, 8, 1, factors_iq4_xs)
KIND(f16, 1, 0, no_factors)
KIND(bf16, 1, 0, no_factors)
KIND(f32, 1, 0, no_factors)

static const cp_tile_kind *kind_of(int type) {
    static const cp_tile_kind *const kinds[] = {
        [CP_GGUF_Q4_0] = &as_q4_0,     [CP_GGUF_Q4_1] = &as_q4_1,
        [CP_GGUF_Q5_0] = &as_q5_0,     [CP_GGUF_Q5_1] = &as_q5_1,
        [CP_GGUF_Q8_0] = &as_q8_0,     [CP_GGUF_Q4_K] = &as_q4_k,
        [CP_GGUF_Q5_K] = &as_q5_k,     [CP_GGUF_Q6_K] = &as_q6_k,
        [CP_GGUF_IQ4_NL] = &as_iq4_nl, [CP_GGUF_IQ4_XS] = &as_iq4_xs,
        [CP_GGUF_F16] = &as_f16,       [CP_GGUF_BF16] = &as_bf16,
        [CP_GGUF_F32] = &as_f32};
    return kinds[type] != NULL ? kinds[type] : &as_f32;
}

static int64_t pairs_of(int64_t out) {
    return cp_ceil_divide(out, 2 * CP_LANES);
}

static int64_t tiles_of(const cp_tile_kind *kind, int64_t in) {
    return cp_ceil_divide(in, kind->parts * CP_DEPTH);
}

/* The tile of a group that has this part. */
static const char *tile_at(const cp_matrix *matrix, int64_t group,
                           int64_t part) {
    const cp_tile_kind *kind = matrix->kind;
    const int64_t pair =
        group / 2 * tiles_of(kind, matrix->in) + part / kind->parts;
    return matrix->tiles + pair * kind->bytes;
}

void cp_matrix_expand(const cp_matrix *matrix, int64_t group, int64_t part,
                      float *values) {
    matrix->kind->expand(tile_at(matrix, group, part),
                         (int)(part % matrix->kind->parts), (int)(group % 2),
                         values);
}

void cp_matrix_row(const cp_matrix *matrix, int64_t row, float *values) {
    float tile[CP_DEPTH * CP_LANES];
    for (int64_t k = 0; k < matrix->in; k++) {
        if (k % CP_DEPTH == 0)
            cp_matrix_expand(matrix, row / CP_LANES, k / CP_DEPTH, tile);
        values[k] = tile[k % CP_DEPTH * CP_LANES + row % CP_LANES];
    }
}

void cp_matrix_pair(const cp_matrix *matrix, int64_t group, int64_t from,
                    int64_t depth, const float *x, float (*sums)[CP_LANES]) {
    const cp_tile_kind *kind = matrix->kind;
    const char *tiles = tile_at(matrix, group, from / CP_DEPTH);
    int part = (int)(from / CP_DEPTH % kind->parts);
    float last[CP_DEPTH] = {0};
    memset(sums, 0, 2 * CP_LANES * sizeof(float));
    for (int64_t k = 0; k < depth; k += CP_DEPTH) {
        const float *inputs = x + from + k;
        if (depth - k < CP_DEPTH)
            inputs = memcpy(last, inputs, (size_t)(depth - k) * sizeof(float));
        kind->add(tiles, part, inputs, sums);
        if (++part == kind->parts) {
            part = 0;
            tiles += kind->bytes;
        }
    }
}

cp_status cp_matrix_bytes(int type, int64_t in, int64_t out, int64_t *size) {
    int64_t values, bytes, tiles;
    if (!cp_gguf_type_block(type, &values, &bytes))
        return cp_dequantise(type, NULL, 0, NULL); /* says so */
    if (in < 1 || out < 1 || in % values != 0)
        return cp_refuse("%s cannot hold %ld x %ld values",
                         cp_gguf_type_name(type), in, out);
    const cp_tile_kind *kind = kind_of(type);
    if (!cp_multiply(pairs_of(out), tiles_of(kind, in), &tiles) ||
        !cp_multiply(tiles, kind->bytes, size))
        return cp_refuse("%ld x %ld weights overflow", in, out);
    return CP_OK;
}

void cp_matrix_fill(int type, int64_t in, int64_t out, const void *blocks,
                    void *memory, cp_matrix *matrix) {
    int64_t each, size;
    cp_gguf_type_block(type, &each, &size);
    const int64_t row = in / each * size;
    *matrix = (cp_matrix){in, out, kind_of(type), memory};
    const int64_t bytes = tiles_of(matrix->kind, in) * matrix->kind->bytes;
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pairs_of(out); p++) {
        char *pair = (char *)memory + p * bytes;
        memset(pair, 0, (size_t)bytes);
        const int64_t first = p * 2 * CP_LANES;
        for (int64_t o = first; o < cp_min(out, first + 2 * CP_LANES); o++)
            matrix->kind->lay(type, in, (const unsigned char *)blocks + o * row,
                              (int)(o / CP_LANES % 2), (int)(o % CP_LANES),
                              pair);
    }
}
