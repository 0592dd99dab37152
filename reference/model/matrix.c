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
    /* For two groups, whose tiles lie side by side. */
    void (*add)(const char *tiles, const float *x, float (*sums)[CP_LANES]);
    /* Make a row of blocks a lane of a group: every other tile from group. */
    void (*lay)(int type, int64_t in, const unsigned char *row, int lane,
                void *group);
};

typedef float weight_at(const void *tile, int lane, int input);

static inline float nibble_at(const void *from, int lane, int input) {
    const nibbles *tile = from;
    const int byte = input % 16, nibble = byte % 4 * 2 + input / 16;
    const int32_t word = tile->words[byte / 4][lane];
    return cp_fused((float)(word >> 4 * nibble & 15), tile->scale[lane],
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
add_pair(weight_at *weight, int64_t bytes, const char *tiles, const float *x,
         float (*sums)[CP_LANES]) {
#pragma GCC unroll 2
    for (int g = 0; g < 2; g++) {
#pragma omp simd
        for (int i = 0; i < CP_LANES; i++) {
            float sum = sums[g][i];
#pragma GCC unroll 32
            for (int k = 0; k < CP_DEPTH; k++)
                sum = cp_fused(weight(tiles + g * bytes, i, k), x[k], sum);
            sums[g][i] = sum;
        }
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
    for (int64_t k = 0; k < in; k += CP_DEPTH, tile += 2) {
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
    for (int64_t k = 0; k < in; k += CP_DEPTH, tile += 2) {
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
        for (int64_t k = first; k < first + count; k++)
            out[(k + k / CP_DEPTH * CP_DEPTH) * CP_LANES + lane] =
                values[k - first];
    }
}

/* A kind, with functions compiled for it; weight() reads one of its weights. */
#define KIND(name, weight, size)                                               \
    static void add_##name(const char *tiles, const float *x,                  \
                           float(*sums)[CP_LANES]) {                           \
        add_pair(weight, size, tiles, x, sums);                                \
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

static int64_t pairs_of(int64_t out) {
    return cp_ceil_divide(out, 2 * CP_LANES);
}

static int64_t tiles_of(int64_t in) {
    return cp_ceil_divide(in, CP_DEPTH);
}

static const char *tile_at(const cp_matrix *matrix, int64_t group,
                           int64_t tile) {
    const int64_t pair = group / 2 * tiles_of(matrix->in) + tile;
    return matrix->tiles + (2 * pair + group % 2) * matrix->kind->bytes;
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

void cp_matrix_pair(const cp_matrix *matrix, int64_t group, int64_t from,
                    int64_t depth, const float *x, float (*sums)[CP_LANES]) {
    float last[CP_DEPTH] = {0};
    const char *tiles = tile_at(matrix, group, from / CP_DEPTH);
    memset(sums, 0, 2 * CP_LANES * sizeof(float));
    for (int64_t k = 0; k < depth; k += CP_DEPTH) {
        const float *part = x + from + k;
        if (depth - k < CP_DEPTH)
            part = memcpy(last, part, (size_t)(depth - k) * sizeof(float));
        matrix->kind->add(tiles, part, sums);
        tiles += 2 * matrix->kind->bytes;
    }
}

cp_status cp_matrix_bytes(int type, int64_t in, int64_t out, int64_t *size) {
    int64_t values, bytes, tiles;
    if (!cp_gguf_type_block(type, &values, &bytes))
        return cp_dequantise(type, NULL, 0, NULL); /* says so */
    if (in < 1 || out < 1 || in % values != 0)
        return cp_refuse("%s cannot hold %ld x %ld values",
                         cp_gguf_type_name(type), in, out);
    if (!cp_multiply(2 * pairs_of(out), tiles_of(in), &tiles) ||
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
    const int64_t bytes = 2 * tiles_of(in) * matrix->kind->bytes;
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pairs_of(out); p++) {
        char *pair = (char *)memory + p * bytes;
        char *other = pair + matrix->kind->bytes;
        memset(pair, 0, (size_t)bytes);
        const int64_t first = p * 2 * CP_LANES;
        for (int64_t o = first; o < cp_min(out, first + 2 * CP_LANES); o++)
            matrix->kind->lay(type, in, (const unsigned char *)blocks + o * row,
                              (int)(o % CP_LANES),
                              o < first + CP_LANES ? pair : other);
    }
}
