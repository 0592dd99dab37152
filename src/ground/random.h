/* One random number generator and one hash. Neither is cryptographic. */
#ifndef CP_RANDOM_H
#define CP_RANDOM_H

#include <stdint.h>

/* The next 64 bits after *state (splitmix64); any state is a valid seed. */
static inline uint64_t cp_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Uniform in [0, 1). */
static inline double cp_random_uniform(uint64_t *state) {
    return (double)(cp_random(state) >> 11) / (double)(UINT64_C(1) << 53);
}

/* Extend the hash `before` (0: of nothing) by these bytes (FNV-1a, 64 bits). */
static inline uint64_t cp_hash(uint64_t before, const void *data,
                               int64_t bytes) {
    const unsigned char *byte = (const unsigned char *)data;
    uint64_t hash = before ^ 0xCBF29CE484222325u;
    for (int64_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * 0x100000001B3u;
    return hash;
}

#endif
