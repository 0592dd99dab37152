/* Tangled from book/13-kernels.nw; edit the chapter. */
/* For kernel files: the parts of CUDA C++ that C lacks, and the calls of all
 * kernels. A kernel takes one structure, which it calls a. Where kernels are
 * emulated, another header comes first and defines the same macros. */
#ifndef CP_KERNEL_LAUNCH_H
#define CP_KERNEL_LAUNCH_H

#ifdef __CUDACC__
#include <cuda_runtime_api.h>

#define CP_KERNEL(name, type) static __global__ void name(const type a)
/* The same, so small that this many blocks fit on a multiprocessor. */
#define CP_KERNEL_FITS(name, type, threads, blocks)                            \
    static __global__ void __launch_bounds__(threads, blocks) name(const type a)
#define CP_SHARED(type, name, sizes) __shared__ type name sizes
#define CP_DYNAMIC(name) extern __shared__ __align__(1024) unsigned char name[]
/* Several numbers as one of a wider type, whose size divides the address. */
#define CP_WIDE(type, address) (*(type *)(address))
/* Returns the ticket's number, and increments it: the block sees all stores of
 * the blocks before it. */
static __device__ __forceinline__ int take_ticket(int32_t *ticket) {
    int number;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(number)
                 : "l"(ticket)
                 : "memory");
    return number;
}

#define CP_UNROLL _Pragma("unroll")
#define CP_NO_UNROLL _Pragma("unroll 1")

static inline cudaError_t launch(const void *kernel, dim3 grid,
                                 unsigned threads, size_t bytes,
                                 cudaStream_t stream, const void *arguments) {
    void *list[] = {(void *)arguments};
    const dim3 block = {threads, 1, 1};
    if (bytes > 0) {
        const cudaError_t error = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess)
            return error;
    }
    return cudaLaunchKernel(kernel, grid, block, list, bytes, stream);
}
#define CP_LAUNCH_SHARED(kernel, grid, threads, bytes, stream, arguments)      \
    launch((const void *)kernel, grid, threads, bytes, stream, &(arguments))
#define CP_LAUNCH(kernel, grid, threads, stream, arguments)                    \
    CP_LAUNCH_SHARED(kernel, grid, threads, 0, stream, arguments)
#endif

#ifndef CP_UNROLL
#define CP_UNROLL
#define CP_NO_UNROLL
#endif

/* For i from 0 to count - 1, a constant: the loop is unrolled. */
#define CP_EACH(i, count) CP_UNROLL for (int i = 0; i < (count); i++)

/* Is this the last of that many blocks to come here, so that it sees all that
 * they have stored? For all threads. The ticket, theirs alone, is 0 again. */
static inline __device__ bool is_last_block(int32_t *ticket, int blocks) {
    CP_SHARED(int, is_last, [1]);
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last[0] = take_ticket(ticket) == blocks - 1;
        if (is_last[0])
            *ticket = 0;
    }
    __syncthreads();
    return is_last[0];
}

#ifdef __cplusplus
extern "C" {
#endif
#include "cuda/kernels/model_kernels.h"
#include "model/gguf.h"
#ifdef __cplusplus
}
#endif

static inline cudaError_t grid_error(int64_t x, int64_t y, int64_t z) {
    if (x < 0 || y < 0 || z < 0)
        return cudaErrorInvalidValue;
    return x > INT32_MAX || y > 65535 || z > 65535
               ? cudaErrorInvalidConfiguration
               : cudaSuccess;
}

static inline dim3 grid_of(int64_t x, int64_t y, int64_t z) {
    const dim3 grid = {(unsigned)x, (unsigned)y, (unsigned)z};
    return grid;
}

/* Launch a block of threads, with bytes for CP_DYNAMIC, for each of x by y by
 * z; or return why that is impossible. */
#define CP_LAUNCH_GRID_SHARED(kernel, x, y, z, threads, bytes, stream, args)   \
    (grid_error(x, y, z) != cudaSuccess || (x) * (y) * (z) == 0                \
         ? grid_error(x, y, z)                                                 \
         : CP_LAUNCH_SHARED(kernel, grid_of(x, y, z), threads, bytes, stream,  \
                            args))

#define CP_LAUNCH_GRID(kernel, x, y, z, threads, stream, arguments)            \
    CP_LAUNCH_GRID_SHARED(kernel, x, y, z, threads, 0, stream, arguments)

#endif
