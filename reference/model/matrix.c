/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Weights in tiles: laid out once, taken apart in registers. */
#include "reference/model/matrix.h"

#include <string.h>

#include "model/blocks.h"
#include "reference/attend/exp2.h"
#include "reference/model/dequantise.h"

typedef struct {
    float scale[CP_LANES], minimum[CP_LANES];
    int32_t words[4][CP_LANES]; /* eight nibbles each */
} nibbles;

typedef struct {
    float scale[CP_LANES];
    int32_t words[8][CP_LANES]; /* four bytes each */
} bytes;

struct cp_tile_kind {
    int64_t bytes;
    void (*expand)(const void *tile, float *values);
    void (*add)(const void *tile, const float *x, float (*sums)[CP_LANES]);
    /* Make a row of blocks a lane of a group, [tiles]. */
    void (*lay)(int type, int64_t in, const unsigned char *row, int lane,
                void *group);
};

typedef float weight_at(const void *tile, int lane, int input);

static inline float nibble_at(const void *from, int lane, int input) {
    const nibbles *tile = from;
    const int byte = input % 16, place = byte % 4 * 2 + input / 16;
    const int32_t word = tile->words[byte / 4][lane];
    return cp_fused((float)(word >> 4 * place & 15), tile->scale[lane],
                    tile->minimum[lane]);
}

static inline float byte_at(const void *from, int lane, int input) {
    const bytes *tile = from;
    const uint32_t word = (uint32_t)tile->words[input / 4][lane];
    const uint32_t high = word << (24 - 8 * (input % 4));
    return (float)((int32_t)high >> 24) * tile->scale[lane];
}

static inline float float_at(const void *from, int lane, int input) {
    return ((const float *)from)[input * CP_LANES + lane];
}

static inline __attribute__((always_inline)) void
add_tile(weight_at *weight, const void *tile, const float *x,
         float (*sums)[CP_LANES]) {
#pragma omp simd
    for (int i = 0; i < CP_LANES; i++) {
        float a = sums[0][i], b = sums[1][i];
        float c = sums[2][i], d = sums[3][i];
#pragma GCC unroll 8
        for (int k = 0; k < CP_DEPTH; k += 4) {
            a = cp_fused(weight(tile, i, k), x[k], a);
            b = cp_fused(weight(tile, i, k + 1), x[k + 1], b);
            c = cp_fused(weight(tile, i, k + 2), x[k + 2], c);
            d = cp_fused(weight(tile, i, k + 3), x[k + 3], d);
        }
        sums[0][i] = a;
        sums[1][i] = b;
        sums[2][i] = c;
        sums[3][i] = d;
    }
}

static inline __attribute__((always_inline)) void
expand_tile(weight_at *weight, const void *tile, float *values) {
#pragma GCC unroll 32
    for (int k = 0; k < CP_DEPTH; k++) {
#pragma omp simd
        for (int i = 0; i < CP_LANES; i++)
            values[k * CP_LANES + i] = weight(tile, i, k);
    }
}

static int32_t little_endian(const unsigned char *from) {
    const uint32_t word = (uint32_t)from[0] | (uint32_t)from[1] << 8 |
                          (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
    return (int32_t)word;
}

static void lay_nibbles(int type, int64_t in, const unsigned char *row,
                        int lane, void *group) {
    const bool given = type == CP_GGUF_Q4_1;
    const int first = given ? 4 : 2;
    nibbles *tile = group;
    for (int64_t k = 0; k < in; k += CP_DEPTH, tile++) {
        const float scale = cp_half_value(row);
        tile->scale[lane] = scale;
        tile->minimum[lane] = given ? cp_half_value(row + 2) : -8.0f * scale;
        for (int w = 0; w < 4; w++)
            tile->words[w][lane] = little_endian(row + first + 4 * w);
        row += first + 16;
    }
}

static void lay_bytes(int type, int64_t in, const unsigned char *row, int lane,
                      void *group) {
    bytes *tile = group;
    (void)type;
    for (int64_t k = 0; k < in; k += CP_DEPTH, tile++) {
        tile->scale[lane] = cp_half_value(row);
        for (int w = 0; w < 8; w++)
            tile->words[w][lane] = little_endian(row + 2 + 4 * w);
        row += 34;
    }
}

static void lay_floats(int type, int64_t in, const unsigned char *row, int lane,
                       void *group) {
    enum { PART = 256 }; /* whole blocks of any type */
    float values[PART], *out = group;
    int64_t each, bytes;
    cp_gguf_type_block(type, &each, &bytes);
    for (int64_t first = 0; first < in; first += PART) {
        const int64_t count = cp_min(PART, in - first);
        cp_dequantise(type, row + first / each * bytes, count, values);
        for (int64_t k = 0; k < count; k++)
            out[(first + k) * CP_LANES + lane] = values[k];
    }
}

/* A kind whose weights are read so, its functions compiled for that. */
#define KIND(name, weight, size)                                               \
    static void add_##name(const void *tile, const float *x,                   \
                           float(*sums)[CP_LANES]) {                           \
        add_tile(weight, tile, x, sums);                                       \
    }                                                                          \
    static void expand_##name(const void *tile, float *values) {               \
        expand_tile(weight, tile, values);                                     \
    }                                                                          \
    static const cp_tile_kind as_##name = {size, expand_##name, add_##name,    \
                                           lay_##name};

KIND(nibbles, nibble_at, sizeof(nibbles))
KIND(bytes, byte_at, sizeof(bytes))
KIND(floats, float_at, CP_DEPTH *CP_LANES * sizeof(float))

static const cp_tile_kind *kind_of(int type) {
    if (type == CP_GGUF_Q4_0 || type == CP_GGUF_Q4_1)
        return &as_nibbles;
    return type == CP_GGUF_Q8_0 ? &as_bytes : &as_floats;
}

static int64_t groups_of(int64_t out) {
    return cp_ceil_divide(out, CP_LANES);
}

static int64_t tiles_of(int64_t in) {
    return cp_ceil_divide(in, CP_DEPTH);
}

static const char *tile_at(const cp_matrix *matrix, int64_t group,
                           int64_t tile) {
    return matrix->tiles +
           (group * tiles_of(matrix->in) + tile) * matrix->kind->bytes;
}

void cp_matrix_expand(const cp_matrix *matrix, int64_t group, int64_t tile,
                      float *values) {
    matrix->kind->expand(tile_at(matrix, group, tile), values);
}

void cp_matrix_row(const cp_matrix *matrix, int64_t row, float *values) {
    float tile[CP_DEPTH * CP_LANES];
    for (int64_t k = 0; k < matrix->in; k++) {
        if (k % CP_DEPTH == 0)
            cp_matrix_expand(matrix, row / CP_LANES, k / CP_DEPTH, tile);
        values[k] = tile[k % CP_DEPTH * CP_LANES + row % CP_LANES];
    }
}

void cp_matrix_group(const cp_matrix *matrix, int64_t group, const float *x,
                     float *sums) {
    float four[4][CP_LANES] = {{0}}, last[CP_DEPTH] = {0};
    const char *tile = tile_at(matrix, group, 0);
    for (int64_t left = matrix->in; left > 0; left -= CP_DEPTH) {
        if (left < CP_DEPTH)
            memcpy(last, x, (size_t)left * sizeof(float));
        matrix->kind->add(tile, left < CP_DEPTH ? last : x, four);
        tile += matrix->kind->bytes;
        x += CP_DEPTH;
    }
    for (int i = 0; i < CP_LANES; i++)
        sums[i] = (four[0][i] + four[1][i]) + (four[2][i] + four[3][i]);
}

cp_status cp_matrix_bytes(int type, int64_t in, int64_t out, int64_t *size) {
    int64_t values, bytes, tiles;
    if (!cp_gguf_type_block(type, &values, &bytes))
        return cp_dequantise(type, NULL, 0, NULL); /* says that */
    if (in < 1 || out < 1 || in % values != 0)
        return cp_refuse("%s cannot hold %ld x %ld values",
                         cp_gguf_type_name(type), in, out);
    if (!cp_multiply(groups_of(out), tiles_of(in), &tiles) ||
        !cp_multiply(tiles, kind_of(type)->bytes, size))
        return cp_refuse("%ld x %ld weights overflow", in, out);
    return CP_OK;
}

void cp_matrix_fill(int type, int64_t in, int64_t out, const void *blocks,
                    void *memory, cp_matrix *matrix) {
    int64_t each, size;
    cp_gguf_type_block(type, &each, &size);
    const int64_t row = in / each * size;
    *matrix = (cp_matrix){in, out, kind_of(type), memory};
    const int64_t bytes = tiles_of(in) * matrix->kind->bytes;
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < groups_of(out); g++) {
        char *group = (char *)memory + g * bytes;
        memset(group, 0, (size_t)bytes);
        const int64_t first = g * CP_LANES;
        for (int64_t o = first; o < cp_min(out, first + CP_LANES); o++)
            matrix->kind->lay(type, in, (const unsigned char *)blocks + o * row,
                              (int)(o - first), group);
    }
}
