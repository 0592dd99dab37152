/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Lay the blocks of a file out in tiles. */
#include "model/blocks.h"
#include "reference/model/dequantise.h"
#include "reference/model/matrix_own.h"

typedef int quant_at(const unsigned char *block, int i);

static inline __attribute__((always_inline)) void
lay_quants(quant_at *quant, const unsigned char *block, int first, int lane,
           nibbles *low, int bits, int32_t (*high)[CP_LANES]) {
    uint32_t words[4] = {0}, above[2] = {0};
#pragma GCC unroll 32
    for (int k = 0; k < CP_DEPTH; k++) {
        const uint32_t q = (uint32_t)quant(block, first + k);
        words[k % 16 / 4] |= (q & 15) << (8 * (k % 4) + 4 * (k / 16));
        above[k / 4 * bits / 8] |= (q >> 4) << (8 * (k % 4) + k / 4 * bits % 8);
    }
    for (int w = 0; w < 4; w++)
        low->words[w][lane] = (int32_t)words[w];
    for (int h = 0; h < bits; h++)
        high[h][lane] = (int32_t)above[h];
}

#define ROW(type, parts, size)                                                 \
    void cp_lay_##type(int of, int64_t in, const unsigned char *row,           \
                       int group, int lane, void *tiles) {                     \
        type##_tile *tile = tiles;                                             \
        (void)of;                                                              \
        for (int64_t k = 0; k < in; k += (parts)*CP_DEPTH, tile++) {           \
            block_##type(row, group, lane, tile);                              \
            row += size;                                                       \
        }                                                                      \
    }

#define PLAIN(type, begins, quant, bits, size, least, above)                   \
    static int quant_##type(const unsigned char *block, int i) {               \
        return quant(block + (begins), i);                                     \
    }                                                                          \
    static void block_##type(const unsigned char *block, int group, int lane,  \
                             type##_tile *tile) {                              \
        tile->scale[group][lane] = (uint16_t)cp_u16(block);                    \
        least;                                                                 \
        lay_quants(quant_##type, block, 0, lane, &tile->low[group], bits,      \
                   above);                                                     \
    }                                                                          \
    ROW(type, 1, size)
#define LEAST tile->minimum[group][lane] = (uint16_t)cp_u16(block + 2)
PLAIN(q4_0, 2, cp_four_of_32, 0, 18, , NULL)
PLAIN(iq4_nl, 2, cp_four_of_32, 0, 18, , NULL)
PLAIN(q4_1, 4, cp_four_of_32, 0, 20, LEAST, NULL)
PLAIN(q5_0, 2, cp_five_of_32, 1, 22, , tile->high[group])
PLAIN(q5_1, 4, cp_five_of_32, 1, 24, LEAST, tile->high[group])

static void block_q8_0(const unsigned char *block, int group, int lane,
                       q8_0_tile *tile) {
    tile->scale[group][lane] = (uint16_t)cp_u16(block);
    for (int w = 0; w < 8; w++)
        tile->words[group][w][lane] =
            (int32_t)((cp_u16(block + 2 + 4 * w) | cp_u16(block + 4 + 4 * w)
                                                       << 16) ^
                      0x80808080);
}
ROW(q8_0, 1, 34)

static int quant_q4_k(const unsigned char *block, int i) {
    return cp_in_lanes(block + 16, i, 4);
}

#define LARGE(type, quant, bits, size, above)                                  \
    static void block_##type(const unsigned char *block, int group, int lane,  \
                             type##_tile *tile) {                              \
        tile->scale[group][lane] = (uint16_t)cp_u16(block);                    \
        LEAST;                                                                 \
        for (int p = 0; p < 8; p++) {                                          \
            tile->part[p].scale[group][lane] =                                 \
                (uint8_t)cp_scale_of(block + 4, p, 0);                         \
            tile->part[p].minimum[group][lane] =                               \
                (uint8_t)cp_scale_of(block + 4, p, 1);                         \
            lay_quants(quant, block, CP_DEPTH *p, lane,                        \
                       &tile->part[p].low[group], bits, above);                \
        }                                                                      \
    }                                                                          \
    ROW(type, 8, size)
LARGE(q4_k, quant_q4_k, 0, 144, NULL)
LARGE(q5_k, cp_quant_q5_k, 1, 176, tile->part[p].high[group])

static void block_q6_k(const unsigned char *block, int group, int lane,
                       q6_k_tile *tile) {
    tile->scale[group][lane] = (uint16_t)cp_u16(block + 208);
    for (int p = 0; p < 8; p++) {
        tile->part[p].scale[group][0][lane] = (int8_t)block[192 + 2 * p];
        tile->part[p].scale[group][1][lane] = (int8_t)block[193 + 2 * p];
        lay_quants(cp_quant_q6_k, block, CP_DEPTH * p, lane,
                   &tile->part[p].low[group], 2, tile->part[p].high[group]);
    }
}
ROW(q6_k, 8, 210)

static void block_iq4_xs(const unsigned char *block, int group, int lane,
                         iq4_xs_tile *tile) {
    tile->scale[group][lane] = (uint16_t)cp_u16(block);
    for (int p = 0; p < 8; p++) {
        tile->part[p].scale[group][lane] = (int8_t)cp_scale_iq4_xs(block, p);
        lay_quants(cp_quant_iq4_xs, block, CP_DEPTH * p, lane,
                   &tile->part[p].low[group], 0, NULL);
    }
}
ROW(iq4_xs, 8, 136)

void cp_lay_f16(int type, int64_t in, const unsigned char *row, int group,
                int lane, void *tiles) {
    f16_tile *tile = tiles;
    (void)type;
    for (int64_t k = 0; k < in; k++)
        tile[k / CP_DEPTH].numbers[group][k % CP_DEPTH][lane] =
            (uint16_t)cp_u16(row + 2 * k);
}

void cp_lay_f32(int type, int64_t in, const unsigned char *row, int group,
                int lane, void *tiles) {
    enum { PART = 256 }; /* whole blocks of any type */
    float values[PART];
    f32_tile *tile = tiles;
    int64_t each, bytes;
    cp_gguf_type_block(type, &each, &bytes);
    for (int64_t first = 0; first < in; first += PART) {
        const int64_t count = cp_min(PART, in - first);
        cp_dequantise(type, row + first / each * bytes, count, values);
        for (int64_t k = first; k < first + count; k++)
            tile[k / CP_DEPTH].numbers[group][k % CP_DEPTH][lane] =
                values[k - first];
    }
}
