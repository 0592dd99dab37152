/* A float as its bits, and rounded to fewer of them: for C and for kernels. */
#ifndef CP_BITS_H
#define CP_BITS_H

#include <stdint.h>
#include <string.h>

/* How functions are declared; kernel files define it differently first. */
#ifndef CP_INLINE
#define CP_INLINE static inline
#endif

CP_INLINE uint32_t cp_to_bits(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

CP_INLINE float cp_from_bits(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof(number));
    return number;
}

/* Round to the nearest float whose lower bits are zero, ties to even, and drop
 * these bits. */
CP_INLINE uint32_t cp_upper_bits(float number, int lower) {
    const uint32_t bits = cp_to_bits(number), half = 1u << (lower - 1);
    return (bits + half - 1 + (bits >> lower & 1)) >> lower;
}

/* The nearest bf16; a NaN stays one. */
CP_INLINE uint32_t cp_bf16_of(float number) {
    return number != number ? 0x7FC0 : cp_upper_bits(number, 16);
}

#endif
