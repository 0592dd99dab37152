/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding and decoding a number of a row, one small function for each step,
 * shared by C and by GPU kernels, so that both write the same bytes. */
#ifndef CP_ENCODING_H
#define CP_ENCODING_H

#include <float.h>
#include <math.h>

#include "ground/bits.h"
#include "tokens/wire.h"

/* The larger of two magnitudes; INFINITY if one is not finite. */
CP_INLINE float cp_larger(float most, float number) {
    const float size = number != number ? INFINITY : fabsf(number);
    return size > most ? size : most;
}

/* The scale of the numbers of a head, from their largest magnitude; NaN if one
 * of them is not finite. For encodings that have a scale. */
CP_INLINE float cp_encoding_scale(cp_encoding encoding, float most) {
    int exponent;
    if (most == INFINITY)
        return cp_from_bits(0x7FC00000); /* NaN */
    if (encoding != CP_ENCODING_BLOCK)
        return fmaxf(most / (encoding == CP_ENCODING_INT8 ? 127 : 448),
                     FLT_MIN);
    frexpf(most, &exponent); /* 2^exponent is above it */
    if (most >= ldexpf(32767.5f, exponent - 15))
        exponent++; /* it would be rounded to 32,768 */
    return fmaxf(ldexpf(1, exponent - 15), FLT_MIN);
}

/* Exponents of e4m3 begin 120 below those of a float. */
CP_INLINE uint32_t cp_e4m3_of(float number) {
    return cp_upper_bits(fabsf(number) * ldexpf(1, -120), 20) |
           (number < 0 ? 0x80 : 0);
}

CP_INLINE float cp_e4m3_value(uint32_t code) {
    const float size = cp_from_bits((code & 0x7F) << 20) * ldexpf(1, 120);
    return code & 0x80 ? -size : size;
}

/* Does a number take two bytes? Otherwise it takes one. */
CP_INLINE int cp_encoding_is_wide(cp_encoding encoding) {
    return encoding == CP_ENCODING_BF16 || encoding == CP_ENCODING_BLOCK;
}

/* A number divided by the scale of its row, which is 1 if there is none. If it
 * is NaN, all numbers of the row are. */
CP_INLINE float cp_row_steps(float scale, float number) {
    return scale != scale ? 0 : number / scale;
}

/* The code of that many steps, in the lower bits. */
CP_INLINE uint32_t cp_steps_code(cp_encoding encoding, float steps) {
    if (encoding == CP_ENCODING_BF16)
        return cp_bf16_of(steps);
    return encoding == CP_ENCODING_FP8 ? cp_e4m3_of(steps)
                                       : (uint32_t)(int32_t)rintf(steps);
}

/* Write the d-th number after the scale. */
CP_INLINE void cp_row_put(char *row, cp_encoding encoding, float scale,
                          int64_t d, float number) {
    const uint32_t code = cp_steps_code(encoding, cp_row_steps(scale, number));
    if (cp_encoding_is_wide(encoding))
        ((uint16_t *)(void *)row)[d] = (uint16_t)code;
    else
        ((uint8_t *)row)[d] = (uint8_t)code;
}

CP_INLINE float cp_row_get(const char *row, cp_encoding encoding, float scale,
                           int64_t d) {
    const int16_t *words = (const int16_t *)(const void *)row;
    switch (encoding) {
    case CP_ENCODING_BF16:
        return cp_from_bits((uint32_t)(uint16_t)words[d] << 16);
    case CP_ENCODING_BLOCK:
        return scale * (float)words[d];
    case CP_ENCODING_FP8:
        return scale * cp_e4m3_value((uint8_t)row[d]);
    default:
        return scale * (float)(int8_t)row[d];
    }
}

#endif
