/* What a kernel file sees in place of CUDA C++ when gcc or clang compiles it as
 * C: `cc -x c -std=c11 -include kernel.h`. Blocks run one after another, in an
 * order that the seed decides; the threads of a block are fibers that run in a
 * seeded order from one barrier to the next. So a thread that reads what
 * another has not written yet finds NaN, or the old contents. Not a GPU: one
 * block at a time, no warps in lockstep, no speed. */
#ifndef EMULATOR_KERNEL_H
#define EMULATOR_KERNEL_H

#include <cuda_runtime_api.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __device__

/* The running thread's. Blocks have one dimension, grids up to three. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* CP_KERNEL(name, type) { ... a.member ... } defines a kernel whose arguments
 * are one structure of that type, called a; each thread has its own copy. */
#define CP_KERNEL(name, arguments_type)                                        \
    typedef arguments_type name##_arguments;                                   \
    static void name(name##_arguments a);                                      \
    static void name##_thread(const void *arguments) {                         \
        name(*(const name##_arguments *)arguments);                            \
    }                                                                          \
    static void name(name##_arguments a)

#define CP_KERNEL_FITS(name, type, threads, blocks) CP_KERNEL(name, type)

/* Enqueue that kernel, whose blocks also share `shared` bytes; `arguments` is
 * an lvalue of its type, copied now. */
#define CP_LAUNCH_SHARED(name, grid, block_threads, shared, stream, arguments) \
    emulator_launch(#name, name##_thread, grid, block_threads, shared, stream, \
                    true ? &(arguments) : (const name##_arguments *)NULL,      \
                    sizeof(name##_arguments))
#define CP_LAUNCH(name, grid, block_threads, stream, arguments)                \
    CP_LAUNCH_SHARED(name, grid, block_threads, 0, stream, arguments)

/* CP_SHARED(float, tile, [32][33]); declares an array of the block. It is
 * filled with NaN when the first thread of a block gets here. */
#define CP_SHARED(type, name, dimensions)                                      \
    static type name dimensions;                                               \
    static uint64_t name##_block;                                              \
    emulator_shared(name, sizeof name, #name, &name##_block)

/* CP_DYNAMIC(room); is an array of the launch's dynamic bytes, at a multiple of
 * 1,024, filled with NaN when a block begins. Accesses around it are
 * detected. */
#define CP_DYNAMIC(name) unsigned char *const name = emulator_dynamic()

cudaError_t emulator_launch(const char *name, void (*thread)(const void *),
                            dim3 grid, unsigned block_threads, size_t shared,
                            cudaStream_t stream, const void *arguments,
                            size_t bytes);
void emulator_shared(void *start, size_t bytes, const char *name,
                     uint64_t *block);
unsigned char *emulator_dynamic(void);

/* Barriers. One that a thread of the block (or a lane of the warp) does not
 * reach, or reaches on another line, is an error of the launch. */
#define EMULATOR_HERE __FILE__, __LINE__
#define __syncthreads() emulator_barrier(true, EMULATOR_HERE)
#define __syncwarp() emulator_barrier(false, EMULATOR_HERE)

void emulator_barrier(bool of_block, const char *file, int line);

/* The value of the lane whose number differs by `turn`. The mask must name the
 * whole warp. */
#define __shfl_xor_sync(mask, value, turn)                                     \
    ((void)sizeof(char[(mask) == 0xFFFFFFFFu ? 1 : -1]),                       \
     emulator_exchange(value, (int)(threadIdx.x % 32) ^ (turn),                \
                       EMULATOR_HERE))

/* The value of one lane. */
#define __shfl_sync(mask, value, lane)                                         \
    ((void)sizeof(char[(mask) == 0xFFFFFFFFu ? 1 : -1]),                       \
     emulator_exchange(value, lane, EMULATOR_HERE))

float emulator_exchange(float number, int lane, const char *file, int line);

/* All lanes of the warp, without an order of memory. */
void emulator_converge(const char *file, int line);

/* Makes this block's stores visible before an atomic that announces them. */
#define __threadfence() emulator_fence()
#define atomicAdd(to, addend) emulator_add(to, addend)

void emulator_fence(void);
int emulator_add(int *to, int addend);

static inline int take_ticket(int *ticket) {
    __threadfence();
    const int number = atomicAdd(ticket, 1);
    __threadfence();
    return number;
}

/* A number's bits, and the other way round. */
static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A product that no compiler fuses with a sum. */
static inline float __fmul_rn(float x, float y) {
    return x * y;
}

/* For loads of 8 and 16 bytes at once. */
typedef struct {
    float x, y;
} __attribute__((aligned(8))) float2;

typedef struct {
    float x, y, z, w;
} __attribute__((aligned(16))) float4;

/* An address that is no multiple of the size is an error of the launch. */
#define CP_WIDE(type, address)                                                 \
    (*(type *)emulator_aligned(address, sizeof(type)))

void *emulator_aligned(const void *at, size_t size);

#include "sm80.h"

#include "sm90.h"

#endif
