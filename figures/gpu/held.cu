/* The kernels of attention for figures/gpu/held.py, which has the tensors: what
 * a call needs besides, and a clock. Compiled with nvcc, and as C with the
 * emulator. */
#include "cuda/kernels/kernel_launch.h"

#include <stdlib.h>
#include <string.h>

#include "measure/attention_device.h"

#ifdef __cplusplus
#define SEEN extern "C"
#else
#define SEEN
#endif

/* A call of one size; its memory stays as long as the process. */
typedef struct {
    const cp_timed_kernel *kernel;
    cp_device_attention call;
} held_case;

typedef struct {
    int64_t heads, kv_heads, dim, rows, start, keys; /* rows: from start on */
    int64_t window;                                  /* or 0 */
} held_size;

static cudaError_t reserve(int64_t bytes, void **memory) {
    const cudaError_t error = cudaMalloc(memory, (size_t)bytes);
    return error == cudaSuccess ? cudaMemset(*memory, 0, (size_t)bytes) : error;
}

/* The call, but for what a caller has, and its lists on the device. */
static cudaError_t make_call(held_case *held, const held_size *size) {
    const cp_span queries = {0, size->start, size->rows, 1};
    const int64_t most = (int64_t)sizeof(cp_timed_lists) +
                         size->rows * (int64_t)sizeof(cp_piece);
    cp_timed_lists *lists = (cp_timed_lists *)calloc(1, (size_t)most);
    void *sent = NULL;
    int blocks = 0;
    cudaError_t error = cp_device_blocks(&blocks);
    if (lists == NULL)
        return cudaErrorMemoryAllocation;
    if (error == cudaSuccess)
        error = reserve(most, &sent);
    if (error == cudaSuccess) {
        const int64_t bytes =
            cp_timed_call(held->kernel, blocks, queries, size->keys, lists,
                          (const cp_timed_lists *)sent, &held->call);
        error = cudaMemcpy(sent, lists, (size_t)bytes, cudaMemcpyHostToDevice);
    }
    free(lists);
    return error;
}

/* Tickets, and room for what splits leave unfinished. */
static cudaError_t give_room(cp_device_attention *call) {
    const int64_t heads = call->rows * call->shape.query_heads;
    const int64_t partial = heads * (call->shape.head_dim + 1) * 4;
    void *tickets = NULL, *unfinished = NULL;
    cudaError_t error = reserve(4 * heads + 8, &tickets);
    if (error == cudaSuccess && call->splits > 1)
        error = reserve(call->splits * partial, &unfinished);
    call->tickets = (int32_t *)tickets;
    call->unfinished = (float *)unfinished;
    return error;
}

/* For calls of one size in bf16, on the current device; NULL where there is no
 * memory or no such kernel. It stays. */
SEEN held_case *held_new(const char *name, const held_size *size) {
    held_case *held = (held_case *)calloc(1, sizeof(*held));
    int n = 0;
    while (n < CP_TIMED_KERNELS && strcmp(name, cp_timed_kernels[n].name) != 0)
        n++;
    if (held == NULL || n == CP_TIMED_KERNELS) {
        free(held);
        return NULL;
    }
    held->kernel = &cp_timed_kernels[n];
    held->call.shape.query_heads = size->heads;
    held->call.shape.kv_heads = size->kv_heads;
    held->call.shape.head_dim = size->dim;
    held->call.shape.window = size->window;
    held->call.element = CP_BF16;
    cudaError_t error = make_call(held, size);
    if (error == cudaSuccess)
        error = give_room(&held->call);
    return error == cudaSuccess ? held : NULL;
}

/* Enqueue one, merged into what output and lse hold or not; CUDA's error. */
SEEN int held_run(const held_case *held, bool merge, const void *queries,
                  const void *keys, const void *values, float *output,
                  float *lse, cudaStream_t stream) {
    cp_device_attention call = held->call;
    call.merge = merge;
    call.queries = queries;
    call.keys = keys;
    call.values = values;
    call.output = output;
    call.lse = lse;
    return (int)cp_timed_attend(held->kernel, &call, stream);
}

typedef struct {
    int64_t *to;
} clock_call;

/* Each multiprocessor's cycles, and nanoseconds: [processor][2]. */
CP_KERNEL(read_clocks, clock_call) {
#ifdef __CUDACC__
    unsigned processor;
    int64_t now;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(processor));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    const int64_t cycles = clock64();
#else
    const unsigned processor = blockIdx.x;
    const int64_t now = (int64_t)(1e9 * cp_clock()), cycles = now;
#endif
    a.to[2 * processor] = cycles;
    a.to[2 * processor + 1] = now;
}

SEEN int held_clocks(int64_t *to, int blocks, cudaStream_t stream) {
    const clock_call call = {to};
    return (int)CP_LAUNCH_GRID(read_clocks, blocks, 1, 1, 1, stream, call);
}
