/* One attention on a GPU to be timed: queries over all keys of one sequence, by
 * a kernel that longring bench names. For C, and for C++ (figures/gpu/held.cu). */
#ifndef CP_ATTENTION_DEVICE_H
#define CP_ATTENTION_DEVICE_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel for any GPU, or one of the prompt kernels for Hopper. */
typedef struct {
    const char *name;
    cp_attend_kernel kernel;
    int prefill; /* which prompt kernel; 0: none */
} cp_timed_kernel;

enum { CP_TIMED_KERNELS = 6 };
extern const cp_timed_kernel cp_timed_kernels[CP_TIMED_KERNELS];

/* Queries in tiles, all keys in one piece of sequence 0. */
typedef struct {
    int64_t first[2], count;
    cp_piece keys, tiles[]; /* [queries] at most */
} cp_timed_lists;

/* Write the lists, and complete a call that has shape and element, but for its
 * tensors: its lists will be at sent, on the device, which should run that many
 * blocks. Returns the bytes of the lists. */
int64_t cp_timed_call(const cp_timed_kernel *kernel, int blocks,
                      cp_span queries, int64_t keys, cp_timed_lists *lists,
                      const cp_timed_lists *sent, cp_device_attention *call);

/* Enqueue it. */
cudaError_t cp_timed_attend(const cp_timed_kernel *kernel,
                            const cp_device_attention *call,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
