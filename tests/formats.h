/* The number formats of a device, from their definition. For suites only. */
#ifndef TESTS_FORMATS_H
#define TESTS_FORMATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "harness/suite.h"
#include "cuda/kernels/kernels.h"

/* A random number that all formats hold exactly. */
static inline float draw(uint64_t *state) {
    return (float)((int)(harness_random(state) >> 40) % 129 - 64) / 32.0f;
}

/* A format's fraction bits, its bias, and the largest code that it rounds
 * to. */
typedef struct {
    int fraction, bias;
    uint32_t largest;
} format_case;

static const format_case bf16 = {7, 127, 0x7f80};

/* The code of the magnitude nearest to that of x, ties to even. */
static inline uint32_t nearest(format_case f, double x) {
    int exponent;
    const double magnitude = fabs(x);
    if (magnitude == 0.0)
        return 0;
    if (isinf(magnitude))
        return f.largest;
    frexp(magnitude, &exponent);
    exponent = exponent - 1 > 1 - f.bias ? exponent - 1 : 1 - f.bias;
    const double steps = nearbyint(ldexp(magnitude, f.fraction - exponent));
    const double code = ldexp(exponent + f.bias - 1, f.fraction) + steps;
    return code < f.largest ? (uint32_t)code : f.largest;
}

static inline double value_of(format_case f, uint32_t code) {
    const int exponent = (int)(code >> f.fraction);
    const uint32_t fraction = code & ((1u << f.fraction) - 1);
    if (exponent == 0)
        return ldexp(fraction, 1 - f.bias - f.fraction);
    return ldexp((1u << f.fraction) + fraction, exponent - f.bias - f.fraction);
}

/* Decode an element's bits, and encode a number. */
static inline double decode(cp_element element, uint32_t bits) {
    float number;
    if (element == CP_F32) {
        memcpy(&number, &bits, 4);
        return number;
    }
    const format_case f = bf16;
    const uint32_t code = bits & 0x7fff;
    const double magnitude = code < f.largest    ? value_of(f, code)
                             : code == f.largest ? (double)INFINITY
                                                 : (double)NAN;
    return bits & 0x8000 ? -magnitude : magnitude;
}

static inline uint32_t encode(cp_element element, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (isnan(x))
        return 0xFFFFFFFFu;
    if (element == CP_F32)
        return bits;
    return (bits >> 16 & 0x8000) | nearest(bf16, x);
}

#endif
