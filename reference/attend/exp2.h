/* Tangled from book/01-attention.nw; edit the chapter. */
/* Two to a power, as a function that a compiler can put into a loop of
 * vectors; within 2 units in the last place. */
#ifndef CP_EXP2_H
#define CP_EXP2_H

#include <math.h>

#include "ground/bits.h"

/* a * b + c. */
static inline float cp_fused(float a, float b, float c) {
#if defined(FP_FAST_FMAF) || defined(__FMA__)
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* 2^x for x <= 127; exactly 0 below -126, NaN for NaN. */
static inline float cp_exp2(float x) {
    /* Split x into the nearest integer and a fraction f. */
    const float round = 1.5f * (1 << 23), shifted = x + round;
    const float f = x - (shifted - round);
    /* Evaluate a polynomial p for two to the fraction. */
    float p = 1.5453163e-4f;
    p = cp_fused(p, f, 1.3390863e-3f);
    p = cp_fused(p, f, 9.6180826e-3f);
    p = cp_fused(p, f, 5.5503571e-2f);
    p = cp_fused(p, f, 0.24022651f);
    p = cp_fused(p, f, 0.69314719f);
    p = cp_fused(p, f, 1.0f);
    const float scale = cp_from_bits((cp_to_bits(shifted) + 127) << 23);
    const uint32_t mask = x < -126.0f ? 0 : UINT32_MAX;
    return cp_from_bits(cp_to_bits(p * scale) & mask);
}

#endif
