/* Tangled from book/11-blocks.nw; edit the chapter. */
/* Compute a value of a GGUF tensor's blocks: one small function for each
 * layout, for C and for kernels. Not a quantiser.
 *   block   the packed bytes, at any address
 *   i       which of the block's values */
#ifndef CP_BLOCKS_H
#define CP_BLOCKS_H

#include "ground/bits.h"

CP_INLINE uint32_t cp_u16(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
}

/* The half-precision number in two bytes. */
CP_INLINE float cp_half_value(const unsigned char *bytes) {
    const uint32_t bits = cp_u16(bytes), fraction = bits & 0x3FF;
    const uint32_t exponent = bits >> 10 & 0x1F;
    const uint32_t sign = (bits & 0x8000) << 16;
    const float smallest = 1.0f / (1 << 24);
    if (exponent == 0)
        return (sign ? -smallest : smallest) * (float)fraction;
    const uint32_t bias = exponent == 31 ? 255 - 31 : 127 - 15;
    return cp_from_bits(sign | (exponent + bias) << 23 | fraction << 13);
}

CP_INLINE float cp_value_f32(const unsigned char *block, int i) {
    (void)i;
    return cp_from_bits(cp_u16(block) | cp_u16(block + 2) << 16);
}

CP_INLINE float cp_value_f16(const unsigned char *block, int i) {
    (void)i;
    return cp_half_value(block);
}

CP_INLINE float cp_value_bf16(const unsigned char *block, int i) {
    (void)i;
    return cp_from_bits(cp_u16(block) << 16);
}

CP_INLINE float cp_value_q8_0(const unsigned char *block, int i) {
    return cp_half_value(block) * (float)(int8_t)block[2 + i];
}

CP_INLINE int cp_four_of_32(const unsigned char *bytes, int i) {
    return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
}

CP_INLINE int cp_five_of_32(const unsigned char *bytes, int i) {
    const int high = bytes[i / 8] >> i % 8 & 1;
    return cp_four_of_32(bytes + 4, i) | high << 4;
}

CP_INLINE float cp_value_q4_0(const unsigned char *block, int i) {
    return cp_half_value(block) * (float)(cp_four_of_32(block + 2, i) - 8);
}

CP_INLINE float cp_value_q4_1(const unsigned char *block, int i) {
    return cp_half_value(block) * (float)cp_four_of_32(block + 4, i) +
           cp_half_value(block + 2);
}

CP_INLINE float cp_value_q5_0(const unsigned char *block, int i) {
    return cp_half_value(block) * (float)(cp_five_of_32(block + 2, i) - 16);
}

CP_INLINE float cp_value_q5_1(const unsigned char *block, int i) {
    return cp_half_value(block) * (float)cp_five_of_32(block + 4, i) +
           cp_half_value(block + 2);
}

/* A part of bits bits, a divisor of 8. */
CP_INLINE int cp_in_lanes(const unsigned char *bytes, int i, int bits) {
    const int lanes = 8 / bits, byte = i / (32 * lanes) * 32 + i % 32;
    return bytes[byte] >> bits * (i / 32 % lanes) & ((1 << bits) - 1);
}

CP_INLINE float cp_value_q2_k(const unsigned char *block, int i) {
    const int group = block[i / 16], quant = cp_in_lanes(block + 16, i, 2);
    return cp_half_value(block + 80) * (float)((group & 15) * quant) -
           cp_half_value(block + 82) * (float)(group >> 4);
}

CP_INLINE int cp_six_bits(const unsigned char *scales, int group) {
    const int low = scales[group % 8] >> (group < 8 ? 0 : 4) & 15;
    const int high = scales[8 + group % 4] >> 2 * (group / 4) & 3;
    return low | high << 4;
}

CP_INLINE float cp_value_q3_k(const unsigned char *block, int i) {
    const int high = block[i % 32] >> i / 32 & 1;
    const int quant = cp_in_lanes(block + 32, i, 2) | high << 2;
    const int group = cp_six_bits(block + 96, i / 16) - 32;
    return cp_half_value(block + 108) * (float)(group * (quant - 4));
}

/* A group's scale, or its minimum if minimum is 1. */
CP_INLINE int cp_scale_of(const unsigned char *bytes, int group, int minimum) {
    const unsigned char *six = bytes + group + 4 * minimum;
    return group < 4
               ? *six & 63
               : (bytes[group + 4] >> 4 * minimum & 15) | six[-4] >> 6 << 4;
}

CP_INLINE float cp_in_group(const unsigned char *block, int i, int quant) {
    const int scale = cp_scale_of(block + 4, i / 32, 0);
    const int minimum = cp_scale_of(block + 4, i / 32, 1);
    return cp_half_value(block) * (float)(scale * quant) -
           cp_half_value(block + 2) * (float)minimum;
}

CP_INLINE float cp_value_q4_k(const unsigned char *block, int i) {
    return cp_in_group(block, i, cp_in_lanes(block + 16, i, 4));
}

CP_INLINE int cp_quant_q5_k(const unsigned char *block, int i) {
    const int high = block[16 + i % 32] >> i / 32 & 1;
    return cp_in_lanes(block + 48, i, 4) | high << 4;
}

CP_INLINE float cp_value_q5_k(const unsigned char *block, int i) {
    return cp_in_group(block, i, cp_quant_q5_k(block, i));
}

CP_INLINE int cp_quant_q6_k(const unsigned char *block, int i) {
    const int pair = block[64 * (i / 128) + i % 64];
    const int low = pair >> 4 * (i / 64 % 2) & 15;
    return low | cp_in_lanes(block + 128, i, 2) << 4;
}

CP_INLINE float cp_value_q6_k(const unsigned char *block, int i) {
    const int group = (int8_t)block[192 + i / 16];
    return cp_half_value(block + 208) *
           (float)(group * (cp_quant_q6_k(block, i) - 32));
}

#define CP_LEVELS                                                              \
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

CP_INLINE int cp_level(int quant) {
    const int8_t levels[] = {CP_LEVELS};
    return levels[quant];
}

CP_INLINE float cp_value_iq4_nl(const unsigned char *block, int i) {
    return cp_half_value(block) * (float)cp_level(cp_four_of_32(block + 2, i));
}

CP_INLINE int cp_scale_iq4_xs(const unsigned char *block, int group) {
    const int low = block[4 + group / 2] >> 4 * (group % 2) & 15;
    return (low | (int)(cp_u16(block + 2) >> 2 * group & 3) << 4) - 32;
}

CP_INLINE int cp_quant_iq4_xs(const unsigned char *block, int i) {
    return cp_four_of_32(block + 8 + i / 32 * 16, i % 32);
}

CP_INLINE float cp_value_iq4_xs(const unsigned char *block, int i) {
    return cp_half_value(block) * (float)(cp_scale_iq4_xs(block, i / 32) *
                                          cp_level(cp_quant_iq4_xs(block, i)));
}

/* each(TYPE, type, values, bytes): CP_GGUF_TYPE has cp_value_type, and blocks
 * of values values in bytes bytes. */
#define CP_BLOCK_TYPES(each)                                                   \
    each(F32, f32, 1, 4) each(F16, f16, 1, 2) each(BF16, bf16, 1, 2)           \
        each(Q8_0, q8_0, 32, 34) each(Q4_0, q4_0, 32, 18)                      \
            each(Q4_1, q4_1, 32, 20) each(Q5_0, q5_0, 32, 22)                  \
                each(Q5_1, q5_1, 32, 24) each(Q2_K, q2_k, 256, 84)             \
                    each(Q3_K, q3_k, 256, 110) each(Q4_K, q4_k, 256, 144)      \
                        each(Q5_K, q5_k, 256, 176) each(Q6_K, q6_k, 256, 210)  \
                            each(IQ4_NL, iq4_nl, 32, 18)                       \
                                each(IQ4_XS, iq4_xs, 256, 136)

#endif
