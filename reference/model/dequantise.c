/* Tangled from book/12-weights.nw; edit the chapter. */
/* Turning the blocks of a GGUF tensor into floats, one small function for
 * each layout. Written to be read; it runs once, when a model is loaded. */
#include "reference/model/dequantise.h"

#include <string.h>

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t u16(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
}

float cp_half_value(const unsigned char *bytes) {
    const uint32_t bits = u16(bytes), fraction = bits & 0x3FF;
    const uint32_t exponent = bits >> 10 & 0x1F;
    const uint32_t sign = (bits & 0x8000) << 16;
    if (exponent == 0)
        return (sign ? -0x1p-24f : 0x1p-24f) * (float)fraction;
    const uint32_t bias = exponent == 31 ? 255 - 31 : 127 - 15;
    return from_bits(sign | (exponent + bias) << 23 | fraction << 13);
}

static void f32(const unsigned char *block, float *out) {
    memcpy(out, block, sizeof(*out));
}

static void f16(const unsigned char *block, float *out) {
    *out = cp_half_value(block);
}

static void bf16(const unsigned char *block, float *out) {
    *out = from_bits(u16(block) << 16);
}

static void q8_0(const unsigned char *block, float *out) {
    const float scale = cp_half_value(block);
    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)(int8_t)block[2 + i];
}

static int bits_of(const unsigned char *fifth, const unsigned char *four,
                   int i) {
    const int low = i < 16 ? four[i] & 15 : four[i - 16] >> 4;
    return fifth == NULL ? low : low | (fifth[i / 8] >> i % 8 & 1) << 4;
}

static void q4_0(const unsigned char *block, float *out) {
    const float scale = cp_half_value(block);
    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)(bits_of(NULL, block + 2, i) - 8);
}

static void q4_1(const unsigned char *block, float *out) {
    const float scale = cp_half_value(block),
                minimum = cp_half_value(block + 2);
    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)bits_of(NULL, block + 4, i) + minimum;
}

static void q5_0(const unsigned char *block, float *out) {
    const float scale = cp_half_value(block);
    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)(bits_of(block + 2, block + 6, i) - 16);
}

static void q5_1(const unsigned char *block, float *out) {
    const float scale = cp_half_value(block),
                minimum = cp_half_value(block + 2);
    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)bits_of(block + 4, block + 8, i) + minimum;
}

typedef struct {
    int half, quarter, lane;
} place;

static place place_of(int i) {
    return (place){i / 128, i / 32 % 4, i % 32};
}

static int two_bits(const unsigned char *bytes, place at) {
    return bytes[32 * at.half + at.lane] >> 2 * at.quarter & 3;
}

static void q2_k(const unsigned char *block, float *out) {
    const float scale = cp_half_value(block + 80),
                minimum = cp_half_value(block + 82);
    for (int i = 0; i < 256; i++) {
        const int group = block[i / 16];
        const int quant = two_bits(block + 16, place_of(i));
        out[i] = scale * (float)((group & 15) * quant) -
                 minimum * (float)(group >> 4);
    }
}

static int six_bits(const unsigned char *scales, int group) {
    const int low = scales[group % 8] >> (group < 8 ? 0 : 4) & 15;
    const int high = scales[8 + group % 4] >> 2 * (group / 4) & 3;
    return low | high << 4;
}

static void q3_k(const unsigned char *block, float *out) {
    const float scale = cp_half_value(block + 108);
    for (int i = 0; i < 256; i++) {
        const int high = block[i % 32] >> i / 32 & 1;
        const int quant = two_bits(block + 32, place_of(i)) | high << 2;
        const int group = six_bits(block + 96, i / 16) - 32;
        out[i] = scale * (float)(group * (quant - 4));
    }
}

typedef struct {
    int scale, minimum;
} group;

static group group_of(const unsigned char *bytes, int index) {
    if (index < 4)
        return (group){bytes[index] & 63, bytes[index + 4] & 63};
    const int low = bytes[index + 4];
    return (group){(low & 15) | bytes[index - 4] >> 6 << 4,
                   low >> 4 | bytes[index] >> 6 << 4};
}

static int four_bits(const unsigned char *bytes, int i) {
    return bytes[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
}

/* fifth: the upper bits, or NULL. */
static void unpack_groups(const unsigned char *block,
                          const unsigned char *fifth, const unsigned char *four,
                          float *out) {
    const float scale = cp_half_value(block),
                minimum = cp_half_value(block + 2);
    for (int i = 0; i < 256; i++) {
        const group group = group_of(block + 4, i / 32);
        const int high = fifth != NULL ? fifth[i % 32] >> i / 32 & 1 : 0;
        const int quant = four_bits(four, i) | high << 4;
        out[i] = scale * (float)(group.scale * quant) -
                 minimum * (float)group.minimum;
    }
}

static void q4_k(const unsigned char *block, float *out) {
    unpack_groups(block, NULL, block + 16, out);
}

static void q5_k(const unsigned char *block, float *out) {
    unpack_groups(block, block + 16, block + 48, out);
}

static void q6_k(const unsigned char *block, float *out) {
    const float scale = cp_half_value(block + 208);
    for (int i = 0; i < 256; i++) {
        const place at = place_of(i);
        const int pair = block[64 * at.half + i % 64];
        const int low = pair >> at.quarter / 2 * 4 & 15;
        const int quant = low | two_bits(block + 128, at) << 4;
        const int group = (int8_t)block[192 + i / 16];
        out[i] = scale * (float)(group * (quant - 32));
    }
}

static void (*const unpackers[])(const unsigned char *block, float *out) = {
    [CP_GGUF_F32] = f32,   [CP_GGUF_F16] = f16,   [CP_GGUF_BF16] = bf16,
    [CP_GGUF_Q8_0] = q8_0, [CP_GGUF_Q4_0] = q4_0, [CP_GGUF_Q4_1] = q4_1,
    [CP_GGUF_Q5_0] = q5_0, [CP_GGUF_Q5_1] = q5_1, [CP_GGUF_Q2_K] = q2_k,
    [CP_GGUF_Q3_K] = q3_k, [CP_GGUF_Q4_K] = q4_k, [CP_GGUF_Q5_K] = q5_k,
    [CP_GGUF_Q6_K] = q6_k,
};

cp_status cp_dequantise(int type, const void *blocks, int64_t count,
                        float *out) {
    int64_t values, bytes;
    if (!cp_gguf_type_block(type, &values, &bytes))
        return cp_refuse("cannot compute values of type %s (%d)",
                         cp_gguf_type_name(type), type);
    /* Check that the count fills whole blocks. */
    if (count < 0 || count % values != 0)
        return cp_refuse("%ld values do not fill %s blocks of %ld", count,
                         cp_gguf_type_name(type), values);
    const unsigned char *block = blocks;
    for (int64_t i = 0; i < count; i += values, block += bytes)
        unpackers[type](block, out + i);
    return CP_OK;
}
