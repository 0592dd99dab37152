/* Tangled from book/13-layers.nw; edit the chapter. */
/* Numbers of both formats, read and written by a thread of a kernel, and
 * rounded to nearest, ties to even. For kernel files only. */
#ifndef CP_DEVICE_NUMBERS_H
#define CP_DEVICE_NUMBERS_H

#define CP_INLINE static inline __device__

#include "cuda/kernels/kernels.h"
#include "model/blocks.h"

CP_INLINE float cp_get(const void *tensor, cp_element element, int64_t index) {
    if (element == CP_F32)
        return ((const float *)tensor)[index];
    return cp_value_bf16((const unsigned char *)tensor + 2 * index, 0);
}

CP_INLINE uint32_t cp_f8_bits(float x) {
    const uint32_t sign = __float_as_uint(x) >> 24 & 0x80u;
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    if (bits > 0x7f800000u)
        return sign | 0x7fu;
    if (bits >= 0x43e00000u) /* 448 */
        return sign | 0x7eu;
    if (bits < 0x3c800000u)
        return sign |
               (__float_as_uint(__uint_as_float(bits) + 0x1p14f) - 0x46800000u);
    return sign | (bits - 0x3c000000u + 0x7ffffu + (bits >> 20 & 1u)) >> 20;
}

/* Two numbers, low in the lower byte. The device's instruction gives the same
 * codes, except for the sign of a NaN. */
CP_INLINE uint32_t cp_f8_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(pair)
        : "f"(high), "f"(low));
    return pair;
#else
    return cp_f8_bits(low) | cp_f8_bits(high) << 8;
#endif
}

CP_INLINE void cp_put(void *tensor, cp_element element, int64_t index,
                      float x) {
    if (element == CP_F32)
        ((float *)tensor)[index] = x;
    else
        ((uint16_t *)tensor)[index] = (uint16_t)cp_bf16_of(x);
}

#endif
