/* What a kernel file sees in place of CUDA C++ when gcc or clang compiles it as
 * C: `cc -x c -std=c11 -include kernel.h`. Blocks run one after another, in an
 * order that the seed decides; the threads of a block are fibers that run in a
 * seeded order from one barrier to the next. So a thread that reads what
 * another has not yet written finds NaN, or what was there before.
 * Not a GPU: one block at a time, no warps in lockstep, no speed. */
#ifndef STAND_IN_KERNEL_H
#define STAND_IN_KERNEL_H

#include <cuda_runtime_api.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* The running thread's. Blocks have one dimension, grids up to three. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
#define warpSize 32

/* CP_KERNEL(name, type) { ... a.member ... } defines a kernel whose arguments
 * are one structure of that type, called a; each thread has its own copy. */
#define CP_KERNEL(name, arguments_type)                                        \
    typedef arguments_type name##_arguments;                                   \
    static void name(name##_arguments a);                                      \
    static void name##_thread(const void *arguments) {                         \
        name(*(const name##_arguments *)arguments);                            \
    }                                                                          \
    static void name(name##_arguments a)

/* Enqueue that kernel; `arguments` is an lvalue of its type, copied now. */
#define CP_LAUNCH(name, grid, block_threads, stream, arguments)                \
    stand_in_launch(#name, name##_thread, grid, block_threads, stream,         \
                    true ? &(arguments) : (const name##_arguments *)NULL,      \
                    sizeof(name##_arguments))

/* CP_SHARED(float, tile, [32][33]); declares an array of the block. It is full
 * of NaN when the first thread of a block gets here. */
#define CP_SHARED(type, name, dimensions)                                      \
    static type name dimensions;                                               \
    static uint64_t name##_block;                                              \
    stand_in_shared(#name, name, sizeof name, &name##_block)

cudaError_t stand_in_launch(const char *name, void (*thread)(const void *),
                            dim3 grid, unsigned block_threads,
                            cudaStream_t stream, const void *arguments,
                            size_t bytes);
void stand_in_shared(const char *name, void *start, size_t bytes,
                     uint64_t *block);

/* Barriers. A barrier that one thread of the block (or one lane of the mask)
 * does not reach, or reaches on another line, is an error of the launch. */
#define STAND_IN_HERE __FILE__, __LINE__
#define __syncthreads() stand_in_block_barrier(0, STAND_IN_HERE)
#define __syncthreads_count(p) stand_in_block_barrier((p) != 0, STAND_IN_HERE)
#define __syncthreads_or(p)                                                    \
    (stand_in_block_barrier((p) != 0, STAND_IN_HERE) != 0)
#define __syncthreads_and(p)                                                   \
    (stand_in_block_barrier((p) != 0, STAND_IN_HERE) == (int)blockDim.x)
/* Without a mask, and with mask 0: the whole warp. */
#define __syncwarp(...)                                                        \
    ((void)stand_in_ballot((__VA_ARGS__ + 0u) == 0 ? ~0u : (__VA_ARGS__ + 0u), \
                           false, STAND_IN_HERE))

int stand_in_block_barrier(int predicate, const char *file, int line);
uint32_t stand_in_ballot(uint32_t mask, bool predicate, const char *file,
                         int line);
uint64_t stand_in_exchange(uint32_t mask, uint64_t bits, int64_t lane,
                           const char *file, int line);

#define __ballot_sync(mask, p) stand_in_ballot(mask, (p) != 0, STAND_IN_HERE)
#define __any_sync(mask, p) (__ballot_sync(mask, p) != 0)
#define __all_sync(mask, p)                                                    \
    (stand_in_ballot(mask, (p) == 0, STAND_IN_HERE) == 0)

/* The lane to ask: this thread's own if there is no such lane. */
static inline int64_t stand_in_inside(int64_t lane) {
    return lane < 0 || lane > 31 ? (int64_t)(threadIdx.x % 32) : lane;
}

/* Shuffles of 4- and 8-byte values over whole warps (no fourth argument). A
 * lane that is asked for outside the mask gives NaN, as all bits set. */
#define STAND_IN_SHUFFLE(mask, value, lane)                                    \
    _Generic((value), float                                                    \
             : stand_in_shuffle_float, double                                  \
             : stand_in_shuffle_double, int                                    \
             : stand_in_shuffle_int, unsigned                                  \
             : stand_in_shuffle_unsigned, long                                 \
             : stand_in_shuffle_long, unsigned long                            \
             : stand_in_shuffle_unsigned_long)(mask, value, lane,              \
                                               STAND_IN_HERE)
#define STAND_IN_LANE ((int64_t)(threadIdx.x % 32))
#define __shfl_sync(mask, value, lane)                                         \
    STAND_IN_SHUFFLE(mask, value, (int64_t)(lane)&31)
#define __shfl_xor_sync(mask, value, turn)                                     \
    STAND_IN_SHUFFLE(mask, value, stand_in_inside(STAND_IN_LANE ^ (turn)))
#define __shfl_up_sync(mask, value, step)                                      \
    STAND_IN_SHUFFLE(mask, value,                                              \
                     stand_in_inside(STAND_IN_LANE - (int64_t)(step)))
#define __shfl_down_sync(mask, value, step)                                    \
    STAND_IN_SHUFFLE(mask, value,                                              \
                     stand_in_inside(STAND_IN_LANE + (int64_t)(step)))

#define STAND_IN_SHUFFLE_OF(name, type)                                        \
    static inline type stand_in_shuffle_##name(                                \
        uint32_t mask, type value, int64_t lane, const char *file, int line) { \
        uint64_t bits = 0;                                                     \
        memcpy(&bits, &value, sizeof value);                                   \
        bits = stand_in_exchange(mask, bits, lane, file, line);                \
        memcpy(&value, &bits, sizeof value);                                   \
        return value;                                                          \
    }
STAND_IN_SHUFFLE_OF(float, float)
STAND_IN_SHUFFLE_OF(double, double)
STAND_IN_SHUFFLE_OF(int, int)
STAND_IN_SHUFFLE_OF(unsigned, unsigned)
STAND_IN_SHUFFLE_OF(long, long)
STAND_IN_SHUFFLE_OF(unsigned_long, unsigned long)

/* Fences: one thread runs at a time, so there is nothing to order. */
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __threadfence_system() ((void)0)

/* Atomics, each giving the old value; a fiber is never interrupted. */
#define STAND_IN_ATOMIC(verb, name, type, result)                              \
    static inline type stand_in_##verb##_##name(type *at, type value) {        \
        const type old = *at;                                                  \
        *at = result;                                                          \
        return old;                                                            \
    }
STAND_IN_ATOMIC(add, int, int, (int)((unsigned)old + (unsigned)value))
STAND_IN_ATOMIC(add, unsigned, unsigned, old + value)
STAND_IN_ATOMIC(add, long, unsigned long long, old + value)
STAND_IN_ATOMIC(add, float, float, old + value)
STAND_IN_ATOMIC(add, double, double, old + value)
STAND_IN_ATOMIC(max, int, int, old > value ? old : value)
STAND_IN_ATOMIC(max, unsigned, unsigned, old > value ? old : value)
STAND_IN_ATOMIC(exchange, int, int, value)
STAND_IN_ATOMIC(exchange, unsigned, unsigned, value)
STAND_IN_ATOMIC(exchange, float, float, value)
#define atomicAdd(at, value)                                                   \
    _Generic((at), int *                                                       \
             : stand_in_add_int, unsigned *                                    \
             : stand_in_add_unsigned, unsigned long long *                     \
             : stand_in_add_long, float *                                      \
             : stand_in_add_float, double *                                    \
             : stand_in_add_double)(at, value)
#define atomicMax(at, value)                                                   \
    _Generic((at), int *                                                       \
             : stand_in_max_int, unsigned *                                    \
             : stand_in_max_unsigned)(at, value)
#define atomicExch(at, value)                                                  \
    _Generic((at), int *                                                       \
             : stand_in_exchange_int, unsigned *                               \
             : stand_in_exchange_unsigned, float *                             \
             : stand_in_exchange_float)(at, value)
static inline unsigned stand_in_compare(unsigned *at, unsigned is,
                                        unsigned then) {
    const unsigned old = *at;
    if (old == is)
        *at = then;
    return old;
}
#define atomicCAS(at, is, then) stand_in_compare(at, is, then)

/* Arithmetic that CUDA names and C does not, or names otherwise. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __fdividef(x, y) ((float)(x) / (float)(y))
#define __frcp_rn(x) (1.0f / (float)(x))
#define __fsqrt_rn(x) sqrtf(x)
#define __frsqrt_rn(x) (1.0f / sqrtf(x))
#define rsqrtf(x) (1.0f / sqrtf(x))
#define __fmaf_rn(x, y, z) fmaf(x, y, z)
#define __fadd_rn(x, y) ((float)(x) + (float)(y))
#define __fmul_rn(x, y) ((float)(x) * (float)(y))
#define __ldg(at) (*(at))
#define __popc(x) __builtin_popcount(x)
#define __clz(x) ((x) == 0 ? 32 : __builtin_clz((unsigned)(x)))
#define __ffs(x) __builtin_ffs((int)(x))

#define STAND_IN_BITS(name, to, from)                                          \
    static inline to name(from value) {                                        \
        to bits;                                                               \
        memcpy(&bits, &value, sizeof bits);                                    \
        return bits;                                                           \
    }
STAND_IN_BITS(__float_as_uint, unsigned, float)
STAND_IN_BITS(__float_as_int, int, float)
STAND_IN_BITS(__uint_as_float, float, unsigned)
STAND_IN_BITS(__int_as_float, float, int)

/* Vectors, for loads of 8 and 16 bytes at once. */
#define STAND_IN_VECTOR(type, name)                                            \
    typedef struct {                                                           \
        type x, y;                                                             \
    } __attribute__((aligned(2 * sizeof(type)))) name##2;                      \
    typedef struct {                                                           \
        type x, y, z, w;                                                       \
    } __attribute__((aligned(4 * sizeof(type)))) name##4;                      \
    static inline name##2 make_##name##2(type x, type y) {                     \
        return (name##2){x, y};                                                \
    }                                                                          \
    static inline name##4 make_##name##4(type x, type y, type z, type w) {     \
        return (name##4){x, y, z, w};                                          \
    }
STAND_IN_VECTOR(float, float)
STAND_IN_VECTOR(int, int)
STAND_IN_VECTOR(unsigned, uint)

#endif
