/* Tangled from book/13-layers.nw; edit the chapter. */
/* Unpacks the blocks of a GGUF tensor, with a thread for each value. */
#include "cuda/kernels/kernel_launch.h"

#include <stdint.h>

#include "cuda/kernels/device_numbers.h"

enum { THREADS = 256 };

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
            cp_put(a.out, a.element, i,                                        \
                   cp_value_##type(a.blocks + i / (values) * (bytes),          \
                                   (int)(i % (values))));                      \
    }

CP_BLOCK_TYPES(KERNEL_OF)

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
        CP_BLOCK_TYPES(LAUNCH_OF)
    default:
        return cudaErrorInvalidValue;
    }
}
