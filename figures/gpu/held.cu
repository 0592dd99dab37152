/* The kernels of attention for figures/gpu/held.py, which has the tensors: what
 * a call needs besides, and a clock. Compiled with nvcc, and as C with the
 * emulator. */
#include "cuda/kernels/kernel_launch.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/prefill.h"

#ifdef __cplusplus
#define SEEN extern "C"
#else
#define SEEN
#endif

/* On the device: queries in tiles, all keys in one piece of sequence 0. */
typedef struct {
    int64_t first[2], count;
    cp_piece keys, tiles[];
} held_lists;

/* A call of one size; its memory stays as long as the process. */
typedef struct {
    int prefill; /* which of Hopper's for prompts; 0: call.kernel */
    cp_device_attention call;
} held_case;

typedef struct {
    int64_t heads, kv_heads, dim, rows, start, keys; /* rows: from start on */
} held_size;

static cudaError_t reserve(int64_t bytes, void **memory) {
    const cudaError_t error = cudaMalloc(memory, (size_t)bytes);
    return error == cudaSuccess ? cudaMemset(*memory, 0, (size_t)bytes) : error;
}

/* Queries in tiles of at most that many rows, on the device. */
static cudaError_t send_lists(cp_device_attention *call, const held_size *size,
                              int64_t longest) {
    const cp_piece all = {{0, size->start, size->rows, 1}, 0};
    const size_t bytes =
        sizeof(held_lists) +
        (size_t)cp_ceil_divide(size->rows, longest) * sizeof(cp_piece);
    held_lists *lists = (held_lists *)calloc(1, bytes), *device_lists;
    void *memory = NULL;
    if (lists == NULL)
        return cudaErrorMemoryAllocation;
    lists->first[1] = 1;
    lists->keys.span.count = size->keys;
    lists->keys.span.step = 1;
    for (int64_t i = 0; i < size->rows; i += longest)
        lists->tiles[lists->count++] = cp_piece_part(all, i, longest);
    cudaError_t error = reserve((int64_t)bytes, &memory);
    if (error == cudaSuccess)
        error = cudaMemcpy(memory, lists, bytes, cudaMemcpyHostToDevice);
    device_lists = (held_lists *)memory;
    call->queries_of.items = device_lists->tiles;
    call->queries_of.count = &device_lists->count;
    call->queries_of.room = lists->count;
    call->keys_of.items = &device_lists->keys;
    call->keys_of.first = device_lists->first;
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

/* By the names that longring bench has for them. */
static const struct {
    const char *name;
    cp_attend_kernel kernel;
    int prefill;
} kernels[] = {{"few", CP_ATTEND_FEW, 0},
               {"hopper-few", CP_ATTEND_HOPPER_FEW, 0},
               {"hopper-plain", CP_ATTEND_TILES, CP_PREFILL_PLAIN},
               {"hopper", CP_ATTEND_TILES, CP_PREFILL_FAST}};
enum { KERNELS = sizeof(kernels) / sizeof(kernels[0]) };

/* For calls of one size in bf16, on the current device; NULL where there is no
 * memory or no such kernel. It stays. */
SEEN held_case *held_new(const char *name, const held_size *size) {
    held_case *held = (held_case *)calloc(1, sizeof(*held));
    int n = 0;
    while (n < KERNELS && strcmp(name, kernels[n].name) != 0)
        n++;
    if (held == NULL || n == KERNELS) {
        free(held);
        return NULL;
    }
    held->prefill = kernels[n].prefill;
    held->call.kernel = kernels[n].kernel;
    held->call.shape.query_heads = size->heads;
    held->call.shape.kv_heads = size->kv_heads;
    held->call.shape.head_dim = size->dim;
    held->call.element = CP_BF16;
    held->call.keys_of.sequences = 1;
    held->call.keys_of.longest = held->call.key_rows = size->keys;
    held->call.key_heads = size->kv_heads;
    held->call.rows = size->rows;
    const cp_shape *shape = &held->call.shape;
    const int64_t longest =
        held->prefill > 0 ? cp_device_prefill_tile(shape)
                          : cp_device_query_tile(held->call.kernel, shape);
    int blocks = 0;
    cudaError_t error = cp_device_blocks(&blocks);
    if (error == cudaSuccess)
        error = send_lists(&held->call, size, longest);
    held->call.splits =
        held->prefill > 0
            ? 1
            : cp_device_splits(&held->call, blocks,
                               cp_device_most_splits(held->call.kernel, shape,
                                                     blocks, size->rows));
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
    return (int)(held->prefill > 0
                     ? cp_device_prefill(&call, held->prefill, stream)
                     : cp_device_attend(&call, stream));
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
