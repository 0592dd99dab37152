/* Tangled from book/13-kernels.nw; edit the chapter. */
/* The three words of CUDA C++ that C has not. A kernel takes one structure,
 * which it calls a. Where kernels are emulated, another header comes first
 * and says what the words mean there. */
#ifndef CP_KERNEL_LAUNCH_H
#define CP_KERNEL_LAUNCH_H

#ifdef __CUDACC__
#include <cuda_runtime_api.h>

#define CP_KERNEL(name, type) static __global__ void name(const type a)
#define CP_SHARED(type, name, sizes) __shared__ type name sizes
#define CP_UNROLL _Pragma("unroll")

static inline cudaError_t launch(const void *kernel, dim3 grid,
                                 unsigned threads, cudaStream_t stream,
                                 const void *arguments) {
    void *list[] = {(void *)arguments};
    const dim3 block = {threads, 1, 1};
    return cudaLaunchKernel(kernel, grid, block, list, 0, stream);
}
#define CP_LAUNCH(kernel, grid, threads, stream, arguments)                    \
    launch((const void *)kernel, grid, threads, stream, &(arguments))
#endif

#ifndef CP_UNROLL
#define CP_UNROLL
#endif

#endif
