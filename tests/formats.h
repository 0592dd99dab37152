/* Numbers that all formats of a device hold exactly. For suites only. */
#ifndef TESTS_FORMATS_H
#define TESTS_FORMATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "harness/suite.h"
#include "cuda/kernels/kernels.h"

static inline float draw(uint64_t *state) {
    return (float)((int)(harness_random(state) >> 40) % 129 - 64) / 32.0f;
}

/* x must be a number that the format has. */
static inline uint32_t encode(cp_element element, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (element == CP_F32)
        return bits;
    if (element == CP_BF16 || x == 0.0f)
        return bits >> 16;
    return (bits >> 16 & 0x8000u) | ((bits >> 13 & 0x3ffffu) - (112u << 10));
}

static inline uint32_t encode_any(cp_element element, float x) {
    return isnan(x) ? 0xFFFFFFFFu : encode(element, x);
}

#endif
