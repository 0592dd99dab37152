/* Tangled from book/13-layers.nw; edit the chapter. */
/* Blocks of a GGUF tensor, unpacked by a thread for each value. The layouts
 * are those of reference/model/dequantise.c. */
#include "cuda/kernels/launch.h"

#include <stdint.h>

#include "cuda/kernels/numbers.h"

enum { THREADS = 256 };

static __device__ uint32_t u16(const unsigned char *at) {
    return *(const uint16_t *)at;
}

static __device__ float half_at(const unsigned char *at) {
    return cp_half_number(u16(at));
}

static __device__ float f32(const unsigned char *block, int i) {
    (void)i;
    return __uint_as_float(u16(block) | u16(block + 2) << 16);
}

static __device__ float f16(const unsigned char *block, int i) {
    (void)i;
    return half_at(block);
}

static __device__ float bf16(const unsigned char *block, int i) {
    (void)i;
    return __uint_as_float(u16(block) << 16);
}

static __device__ float q8_0(const unsigned char *block, int i) {
    return half_at(block) * (float)(int8_t)block[2 + i];
}

static __device__ int four_of_32(const unsigned char *bytes, int i) {
    return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
}

static __device__ float q4_0(const unsigned char *block, int i) {
    return half_at(block) * (float)(four_of_32(block + 2, i) - 8);
}

static __device__ float q4_1(const unsigned char *block, int i) {
    return half_at(block) * (float)four_of_32(block + 4, i) +
           half_at(block + 2);
}

static __device__ int five_of_32(const unsigned char *bytes, int i) {
    const int high = bytes[i / 8] >> i % 8 & 1;
    return four_of_32(bytes + 4, i) | high << 4;
}

static __device__ float q5_0(const unsigned char *block, int i) {
    return half_at(block) * (float)(five_of_32(block + 2, i) - 16);
}

static __device__ float q5_1(const unsigned char *block, int i) {
    return half_at(block) * (float)five_of_32(block + 4, i) +
           half_at(block + 2);
}

/* So many bits, a divisor of 8. */
static __device__ int in_lanes(const unsigned char *bytes, int i, int bits) {
    const int lanes = 8 / bits, byte = i / (32 * lanes) * 32 + i % 32;
    return bytes[byte] >> bits * (i / 32 % lanes) & ((1 << bits) - 1);
}

static __device__ float q2_k(const unsigned char *block, int i) {
    const int group = block[i / 16], quant = in_lanes(block + 16, i, 2);
    return half_at(block + 80) * (float)((group & 15) * quant) -
           half_at(block + 82) * (float)(group >> 4);
}

static __device__ int six_bits(const unsigned char *scales, int group) {
    const int low = scales[group % 8] >> (group < 8 ? 0 : 4) & 15;
    const int high = scales[8 + group % 4] >> 2 * (group / 4) & 3;
    return low | high << 4;
}

static __device__ float q3_k(const unsigned char *block, int i) {
    const int high = block[i % 32] >> i / 32 & 1;
    const int quant = in_lanes(block + 32, i, 2) | high << 2;
    const int group = six_bits(block + 96, i / 16) - 32;
    return half_at(block + 108) * (float)(group * (quant - 4));
}

/* A group's scale, or with 1 its minimum. */
static __device__ int scale_of(const unsigned char *bytes, int group,
                               int minimum) {
    const unsigned char *six = bytes + group + 4 * minimum;
    return group < 4
               ? *six & 63
               : (bytes[group + 4] >> 4 * minimum & 15) | six[-4] >> 6 << 4;
}

static __device__ float in_group(const unsigned char *block, int i, int quant) {
    const int scale = scale_of(block + 4, i / 32, 0);
    const int minimum = scale_of(block + 4, i / 32, 1);
    return half_at(block) * (float)(scale * quant) -
           half_at(block + 2) * (float)minimum;
}

static __device__ float q4_k(const unsigned char *block, int i) {
    return in_group(block, i, in_lanes(block + 16, i, 4));
}

static __device__ float q5_k(const unsigned char *block, int i) {
    const int high = block[16 + i % 32] >> i / 32 & 1;
    return in_group(block, i, in_lanes(block + 48, i, 4) | high << 4);
}

static __device__ float q6_k(const unsigned char *block, int i) {
    const int pair = block[64 * (i / 128) + i % 64];
    const int low = pair >> 4 * (i / 64 % 2) & 15;
    const int quant = low | in_lanes(block + 128, i, 2) << 4;
    const int group = (int8_t)block[192 + i / 16];
    return half_at(block + 208) * (float)(group * (quant - 32));
}

typedef struct {
    const unsigned char *blocks;
    int64_t count;
    cp_element element;
    void *out;
} expansion;

#define KERNEL_OF(TYPE, type, values, bytes)                                   \
    CP_KERNEL(expand_##type, expansion) {                                      \
        const int64_t step = (int64_t)gridDim.x * THREADS;                     \
        for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;          \
             i < a.count; i += step)                                           \
            cp_put(                                                            \
                a.out, a.element, i,                                           \
                type(a.blocks + i / (values) * (bytes), (int)(i % (values)))); \
    }

#define TYPES(each)                                                            \
    each(F32, f32, 1, 4) each(F16, f16, 1, 2) each(BF16, bf16, 1, 2)           \
        each(Q8_0, q8_0, 32, 34) each(Q4_0, q4_0, 32, 18)                      \
            each(Q4_1, q4_1, 32, 20) each(Q5_0, q5_0, 32, 22)                  \
                each(Q5_1, q5_1, 32, 24) each(Q2_K, q2_k, 256, 84)             \
                    each(Q3_K, q3_k, 256, 110) each(Q4_K, q4_k, 256, 144)      \
                        each(Q5_K, q5_k, 256, 176) each(Q6_K, q6_k, 256, 210)

TYPES(KERNEL_OF)

#define LAUNCH_OF(TYPE, type, values, bytes)                                   \
    case CP_GGUF_##TYPE:                                                       \
        return CP_LAUNCH_GRID(expand_##type, blocks, 1, 1, THREADS, stream,    \
                              call);

cudaError_t cp_device_expand(int gguf_type, const void *from, int64_t count,
                             cp_element element, void *out,
                             cudaStream_t stream) {
    const expansion call = {(const unsigned char *)from, count, element, out};
    const int64_t blocks = cp_min(cp_ceil_divide(count, 4 * THREADS), 65535);
    int64_t values, bytes;
    if (!cp_gguf_type_block(gguf_type, &values, &bytes) || count < 0 ||
        count % values != 0 || (uintptr_t)from % 2 != 0)
        return cudaErrorInvalidValue;
    switch (gguf_type) {
        TYPES(LAUNCH_OF)
    default:
        return cudaErrorInvalidValue;
    }
}
