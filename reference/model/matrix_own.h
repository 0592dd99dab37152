/* Tangled from book/11-blocks.nw; edit the chapter. */
/* How tiles of each type lie in memory: for lay.c, which fills them, and for
 * matrix.c, which multiplies by them. */
#ifndef CP_MATRIX_OWN_H
#define CP_MATRIX_OWN_H

#include "reference/model/matrix.h"

/* The lowest four bits of 32 quants in each lane, eight to a word. */
typedef struct {
    int32_t words[4][CP_LANES];
} nibbles;

typedef struct {
    uint16_t scale[2][CP_LANES]; /* halves, as in the file */
    nibbles low[2];
} q4_0_tile, iq4_nl_tile;

typedef struct {
    uint16_t scale[2][CP_LANES], minimum[2][CP_LANES];
    nibbles low[2];
} q4_1_tile;

typedef struct {
    uint16_t scale[2][CP_LANES], minimum[2][CP_LANES];
    struct {
        uint8_t scale[2][CP_LANES], minimum[2][CP_LANES];
        nibbles low[2];
    } part[8];
} q4_k_tile;

typedef struct {
    uint16_t scale[2][CP_LANES];
    nibbles low[2];
    int32_t high[2][1][CP_LANES];
} q5_0_tile;

typedef struct {
    uint16_t scale[2][CP_LANES], minimum[2][CP_LANES];
    nibbles low[2];
    int32_t high[2][1][CP_LANES];
} q5_1_tile;

typedef struct {
    uint16_t scale[2][CP_LANES];
    int32_t words[2][8][CP_LANES]; /* four bytes each, 128 higher */
} q8_0_tile;

typedef struct {
    uint16_t scale[2][CP_LANES], minimum[2][CP_LANES];
    struct {
        uint8_t scale[2][CP_LANES], minimum[2][CP_LANES];
        nibbles low[2];
        int32_t high[2][1][CP_LANES];
    } part[8];
} q5_k_tile;

typedef struct {
    uint16_t scale[2][CP_LANES];
    struct {
        int8_t scale[2][2][CP_LANES]; /* of 16 inputs each */
        nibbles low[2];
        int32_t high[2][2][CP_LANES];
    } part[8];
} q6_k_tile;

typedef struct {
    uint16_t scale[2][CP_LANES];
    struct {
        int8_t scale[2][CP_LANES];
        nibbles low[2];
    } part[8];
} iq4_xs_tile;

typedef struct {
    uint16_t numbers[2][CP_DEPTH][CP_LANES];
} f16_tile, bf16_tile;

typedef struct {
    float numbers[2][CP_DEPTH][CP_LANES];
} f32_tile;

/* Make a row of blocks of a type a lane of a group in a row of tiles. */
typedef void cp_lay(int type, int64_t in, const unsigned char *row, int group,
                    int lane, void *tiles);

struct cp_tile_kind {
    int64_t bytes;
    int parts; /* of CP_DEPTH inputs each */
    /* A part of one of the two groups. */
    void (*expand)(const void *tile, int part, int group, float *values);
    /* A part of both. */
    void (*add)(const void *tile, int part, const float *x,
                float (*sums)[CP_LANES]);
    cp_lay *lay;
};

cp_lay cp_lay_q4_0, cp_lay_q4_1, cp_lay_q5_0, cp_lay_q5_1, cp_lay_q8_0,
    cp_lay_q4_k, cp_lay_q5_k, cp_lay_q6_k, cp_lay_iq4_nl, cp_lay_iq4_xs,
    cp_lay_f16, cp_lay_f32;
#define cp_lay_bf16 cp_lay_f16

#endif
