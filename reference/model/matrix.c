/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Weights in tiles: laid out once, taken apart in registers. */
#include "reference/model/matrix.h"

#include <string.h>

#include "reference/model/dequantise.h"
#include "reference/attend/exp2.h"

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
    void (*add)(const void *tile, int64_t depth, const float *x,
                float (*sums)[CP_LANES]);
};

static inline float nibble(int32_t word, int place, float scale,
                           float minimum) {
    return cp_fused((float)(word >> 4 * place & 15), scale, minimum);
}

static inline float byte(int32_t word, int place, float scale) {
    const uint32_t high = (uint32_t)word << (24 - 8 * place);
    return (float)((int32_t)high >> 24) * scale;
}

static void add_nibbles(const void *from, int64_t depth, const float *x,
                        float (*sums)[CP_LANES]) {
    const nibbles *tile = from;
    (void)depth; /* blocks are whole */
#pragma omp simd
    for (int i = 0; i < CP_LANES; i++) {
        const float d = tile->scale[i], m = tile->minimum[i];
        /* Load the four sums of a lane. */
        float a = sums[0][i], b = sums[1][i];
        float c = sums[2][i], e = sums[3][i];
#pragma GCC unroll 4
        for (int w = 0; w < 4; w++) {
            const int32_t word = tile->words[w][i];
            const float *low = x + 4 * w, *high = low + 16;
            /* Add eight products. */
            a = cp_fused(nibble(word, 0, d, m), low[0], a);
            b = cp_fused(nibble(word, 1, d, m), high[0], b);
            c = cp_fused(nibble(word, 2, d, m), low[1], c);
            e = cp_fused(nibble(word, 3, d, m), high[1], e);
            a = cp_fused(nibble(word, 4, d, m), low[2], a);
            b = cp_fused(nibble(word, 5, d, m), high[2], b);
            c = cp_fused(nibble(word, 6, d, m), low[3], c);
            e = cp_fused(nibble(word, 7, d, m), high[3], e);
        }
        /* Store the four sums of a lane. */
        sums[0][i] = a;
        sums[1][i] = b;
        sums[2][i] = c;
        sums[3][i] = e;
    }
}

static void add_bytes(const void *from, int64_t depth, const float *x,
                      float (*sums)[CP_LANES]) {
    const bytes *tile = from;
    (void)depth; /* blocks are whole */
#pragma omp simd
    for (int i = 0; i < CP_LANES; i++) {
        const float d = tile->scale[i];
        /* Load the four sums of a lane. */
        float a = sums[0][i], b = sums[1][i];
        float c = sums[2][i], e = sums[3][i];
#pragma GCC unroll 8
        for (int w = 0; w < 8; w++) {
            const int32_t word = tile->words[w][i];
            a = cp_fused(byte(word, 0, d), x[4 * w], a);
            b = cp_fused(byte(word, 1, d), x[4 * w + 1], b);
            c = cp_fused(byte(word, 2, d), x[4 * w + 2], c);
            e = cp_fused(byte(word, 3, d), x[4 * w + 3], e);
        }
        /* Store the four sums of a lane. */
        sums[0][i] = a;
        sums[1][i] = b;
        sums[2][i] = c;
        sums[3][i] = e;
    }
}

static void add_few(const float *tile, int64_t depth, const float *x,
                    float *sums) {
    for (int64_t k = 0; k < depth; k++)
        for (int i = 0; i < CP_LANES; i++)
            sums[i] = cp_fused(tile[k * CP_LANES + i], x[k], sums[i]);
}

static void add_floats(const void *from, int64_t depth, const float *x,
                       float (*sums)[CP_LANES]) {
    const float *tile = from;
    if (depth < CP_DEPTH) {
        add_few(tile, depth, x, sums[0]);
        return;
    }
#pragma omp simd
    for (int i = 0; i < CP_LANES; i++) {
        /* Load the four sums of a lane. */
        float a = sums[0][i], b = sums[1][i];
        float c = sums[2][i], e = sums[3][i];
#pragma GCC unroll 8
        for (int k = 0; k < CP_DEPTH; k += 4) {
            const float *four = tile + k * CP_LANES + i;
            a = cp_fused(four[0], x[k], a);
            b = cp_fused(four[CP_LANES], x[k + 1], b);
            c = cp_fused(four[2 * CP_LANES], x[k + 2], c);
            e = cp_fused(four[3 * CP_LANES], x[k + 3], e);
        }
        /* Store the four sums of a lane. */
        sums[0][i] = a;
        sums[1][i] = b;
        sums[2][i] = c;
        sums[3][i] = e;
    }
}

static void expand_nibbles(const void *from, float *values) {
    const nibbles *tile = from;
    for (int n = 0; n < CP_DEPTH; n++) {
        const int byte = n % 16, place = byte % 4 * 2 + n / 16;
#pragma omp simd
        for (int i = 0; i < CP_LANES; i++)
            values[n * CP_LANES + i] = nibble(tile->words[byte / 4][i], place,
                                              tile->scale[i], tile->minimum[i]);
    }
}

static void expand_bytes(const void *from, float *values) {
    const bytes *tile = from;
    for (int n = 0; n < CP_DEPTH; n++) {
#pragma omp simd
        for (int i = 0; i < CP_LANES; i++)
            values[n * CP_LANES + i] =
                byte(tile->words[n / 4][i], n % 4, tile->scale[i]);
    }
}

static void expand_floats(const void *from, float *values) {
    memcpy(values, from, CP_DEPTH * CP_LANES * sizeof(float));
}

static const cp_tile_kind as_nibbles = {sizeof(nibbles), expand_nibbles,
                                        add_nibbles};
static const cp_tile_kind as_bytes = {sizeof(bytes), expand_bytes, add_bytes};
static const cp_tile_kind as_floats = {CP_DEPTH * CP_LANES * sizeof(float),
                                       expand_floats, add_floats};

static const cp_tile_kind *kind_of(int type) {
    switch (type) {
    case CP_GGUF_Q4_0:
    case CP_GGUF_Q4_1:
        return &as_nibbles;
    case CP_GGUF_Q8_0:
        return &as_bytes;
    default:
        return &as_floats;
    }
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
    float four[4][CP_LANES] = {{0}};
    const char *tile = tile_at(matrix, group, 0);
    for (int64_t k = 0; k < matrix->in; k += CP_DEPTH) {
        matrix->kind->add(tile, cp_min(CP_DEPTH, matrix->in - k), x + k, four);
        tile += matrix->kind->bytes;
    }
    for (int i = 0; i < CP_LANES; i++)
        sums[i] = (four[0][i] + four[1][i]) + (four[2][i] + four[3][i]);
}

cp_status cp_matrix_bytes(int type, int64_t in, int64_t out, int64_t *size) {
    int64_t values, bytes, tiles;
    const cp_status status = cp_dequantise(type, NULL, 0, NULL);
    if (status != CP_OK || !cp_gguf_type_block(type, &values, &bytes))
        return status;
    if (in < 1 || out < 1 || in % values != 0)
        return cp_fail(CP_INVALID, "%s cannot hold %lld x %lld values",
                       cp_gguf_type_name(type), (long long)in, (long long)out);
    if (!cp_multiply(groups_of(out), tiles_of(in), &tiles) ||
        !cp_multiply(tiles, kind_of(type)->bytes, size))
        return cp_fail(CP_INVALID, "%lld x %lld weights overflow",
                       (long long)in, (long long)out);
    return CP_OK;
}

static int32_t little_endian(const unsigned char *from) {
    const uint32_t word = (uint32_t)from[0] | (uint32_t)from[1] << 8 |
                          (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
    return (int32_t)word;
}

static void lay_nibbles(int type, const unsigned char *block, int lane,
                        nibbles *tile) {
    const bool given = type == CP_GGUF_Q4_1;
    const float scale = cp_half_value(block);
    tile->scale[lane] = scale;
    tile->minimum[lane] = given ? cp_half_value(block + 2) : -8.0f * scale;
    for (int w = 0; w < 4; w++)
        tile->words[w][lane] = little_endian(block + (given ? 4 : 2) + 4 * w);
}

static void lay_bytes(const unsigned char *block, int lane, bytes *tile) {
    tile->scale[lane] = cp_half_value(block);
    for (int w = 0; w < 8; w++)
        tile->words[w][lane] = little_endian(block + 2 + 4 * w);
}

static void lay_values(int type, int64_t in, const unsigned char *row, int lane,
                       float (*group)[CP_LANES]) {
    enum { PART = 256 }; /* whole blocks of any type */
    float values[PART];
    int64_t each, bytes;
    cp_gguf_type_block(type, &each, &bytes);
    for (int64_t first = 0; first < in; first += PART) {
        const int64_t count = cp_min(PART, in - first);
        cp_dequantise(type, row + first / each * bytes, count, values);
        for (int64_t k = 0; k < count; k++)
            group[first + k][lane] = values[k];
    }
}

static void lay_row(int type, int64_t in, const unsigned char *row, int lane,
                    char *group) {
    const cp_tile_kind *kind = kind_of(type);
    if (kind == &as_floats) {
        lay_values(type, in, row, lane, (float(*)[CP_LANES])(void *)group);
        return;
    }
    int64_t each, size;
    cp_gguf_type_block(type, &each, &size);
    for (int64_t t = 0; t < in / each; t++) {
        void *tile = group + t * kind->bytes;
        if (kind == &as_bytes)
            lay_bytes(row + t * size, lane, tile);
        else
            lay_nibbles(type, row + t * size, lane, tile);
    }
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
            lay_row(type, in, (const unsigned char *)blocks + o * row,
                    (int)(o - first), group);
    }
}
