/* What timing on a GPU needs. */
#include "measure/timed_device.h"

#include <stdlib.h>

#include "ground/random.h"

static int most_splits(const cp_timed_device *device, int64_t rows) {
    int64_t splits = 1;
    for (int k = 0; k < CP_ATTEND_KERNELS; k++)
        splits = cp_max(splits, cp_device_most_splits((cp_attend_kernel)k,
                                                      &device->shape,
                                                      device->blocks, rows));
    return (int)splits;
}

void cp_timed_device_count(cp_timed_device *device, int64_t rows,
                           int64_t keys) {
    const cp_shape *shape = &device->shape;
    const int64_t heads = rows * shape->query_heads;
    const int64_t width = heads * shape->head_dim;
    const int64_t element = cp_element_bytes(device->element);
    const int64_t key_bytes =
        keys * shape->kv_heads * shape->head_dim * element;
    const int64_t bytes[CP_TIMED_TENSORS] = {
        [CP_TIMED_QUERIES] = width * element,
        [CP_TIMED_KEYS] = key_bytes,
        [CP_TIMED_VALUES] = key_bytes,
        [CP_TIMED_OUTPUT] = width * 4,
        [CP_TIMED_LSE] = heads * 4,
        [CP_TIMED_UNFINISHED] = most_splits(device, rows) * (width + heads) * 4,
        [CP_TIMED_TICKETS] = heads * 4,
        [CP_TIMED_LISTS] =
            (int64_t)sizeof(cp_timed_lists) + rows * (int64_t)sizeof(cp_piece)};
    for (int n = 0; n < CP_TIMED_TENSORS; n++)
        device->bytes[n] = cp_max(device->bytes[n], bytes[n]);
}

enum { PATTERN = 1 << 15 };

/* The upper byte of each two or four gives magnitudes of 0.5 to 2, and no single
 * byte is a NaN. */
cp_status cp_device_numbers(char *memory, int64_t bytes, cudaStream_t stream) {
    uint64_t pattern[PATTERN], state = 1;
    for (int n = 0; n < PATTERN; n++)
        pattern[n] =
            (cp_random(&state) & 0x80BF80BF80BF80BF) | 0x3F003F003F003F00;
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof(pattern))
        CP_TRY(cp_bytes_copy(memory + at, pattern,
                             cp_min(sizeof(pattern), bytes - at), stream,
                             "numbers"));
    return CP_OK;
}

cp_status cp_timed_device_set(cp_timed_device *device) {
    CP_TRY(cp_queues_new(&device->queues));
    CP_TRY(cp_cuda(cudaEventCreate(&device->begun), "an event"));
    CP_TRY(cp_cuda(cudaEventCreate(&device->over), "an event"));
    CP_TRY(cp_multiplier_new(&device->multiplier));
    CP_TRY(
        cp_allocate(&device->lists, 1, device->bytes[CP_TIMED_LISTS], "tiles"));
    for (int n = 0; n < CP_TIMED_TENSORS; n++)
        if (device->bytes[n] > 0)
            CP_TRY(cp_device_reserve(device->bytes[n], "what is measured",
                                     &device->memory[n]));
    for (int n = 0; n < CP_TIMED_INPUTS; n++)
        CP_TRY(cp_device_numbers(device->memory[n], device->bytes[n],
                                 device->queues.compute));
    return cp_cuda(cudaMemsetAsync(device->memory[CP_TIMED_TICKETS], 0,
                                   (size_t)device->bytes[CP_TIMED_TICKETS],
                                   device->queues.compute),
                   "tickets");
}

void cp_timed_device_clear(cp_timed_device *device) {
    if (device->queues.compute != NULL)
        cudaStreamSynchronize(device->queues.compute);
    cp_multiplier_free(device->multiplier);
    for (int n = 0; n < CP_TIMED_TENSORS; n++)
        cudaFree(device->memory[n]);
    cp_event_free(device->begun);
    cp_event_free(device->over);
    cp_queues_free(&device->queues);
    free(device->lists);
}

cp_status cp_timed_device_attention(const cp_timed_device *device,
                                    const cp_timed_kernel *kernel,
                                    cp_span queries, int64_t keys,
                                    cp_device_attention *call) {
    *call = (cp_device_attention){
        .shape = device->shape,
        .element = device->element,
        .queries = device->memory[CP_TIMED_QUERIES],
        .keys = device->memory[CP_TIMED_KEYS],
        .values = device->memory[CP_TIMED_VALUES],
        .unfinished = (float *)device->memory[CP_TIMED_UNFINISHED],
        .tickets = (int32_t *)device->memory[CP_TIMED_TICKETS],
        .output = (float *)device->memory[CP_TIMED_OUTPUT],
        .lse = (float *)device->memory[CP_TIMED_LSE],
    };
    const int64_t bytes = cp_timed_call(
        kernel, device->blocks, queries, keys, device->lists,
        (const cp_timed_lists *)device->memory[CP_TIMED_LISTS], call);
    return cp_bytes_copy(device->memory[CP_TIMED_LISTS], device->lists, bytes,
                         device->queues.compute, "tiles");
}
