/* What timing on a GPU needs: queues, events, and the memory of one attention
 * over numbers of both signs. */
#ifndef CP_TIMED_DEVICE_H
#define CP_TIMED_DEVICE_H

#include "cuda/kernels/device.h"
#include "cuda/kernels/multiply.h"
#include "measure/attention_device.h"

/* Tensors on the device: inputs, then the rest. */
enum {
    CP_TIMED_QUERIES,
    CP_TIMED_KEYS,
    CP_TIMED_VALUES,
    CP_TIMED_WEIGHTS,
    CP_TIMED_SCALES,
    CP_TIMED_FROM, /* messages */
    CP_TIMED_TO,
    CP_TIMED_INPUTS,
    CP_TIMED_OUTPUT = CP_TIMED_INPUTS,
    CP_TIMED_LSE,
    CP_TIMED_UNFINISHED,
    CP_TIMED_TICKETS,
    CP_TIMED_LISTS,
    CP_TIMED_TENSORS
};

typedef struct {
    cp_shape shape;
    cp_element element;
    int blocks; /* that should be running */
    int64_t bytes[CP_TIMED_TENSORS];
    char *memory[CP_TIMED_TENSORS];
    cp_timed_lists *lists; /* on the host */
    cp_queues queues;
    cudaEvent_t begun, over;
    cp_multiplier *multiplier;
} cp_timed_device;

/* Raise the bytes to those of an attention of that many rows and keys,
 * by any kernel. Shape, element and blocks are set. */
void cp_timed_device_count(cp_timed_device *device, int64_t rows, int64_t keys);

/* Fill device memory with numbers of both signs, valid in any format: a GPU
 * that multiplies zeros runs cooler, and so faster. */
cp_status cp_device_numbers(char *memory, int64_t bytes, cudaStream_t stream);

/* Allocate, and fill the inputs. Fails with CP_MEMORY, naming the bytes; clear
 * it even then. */
cp_status cp_timed_device_set(cp_timed_device *device);
void cp_timed_device_clear(cp_timed_device *device);

/* An attention of these queries over `keys` keys. Enqueues its lists, which the
 * next one overwrites. */
cp_status cp_timed_device_attention(const cp_timed_device *device,
                                    const cp_timed_kernel *kernel,
                                    cp_span queries, int64_t keys,
                                    cp_device_attention *call);

#endif
