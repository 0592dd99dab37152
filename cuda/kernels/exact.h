/* Tangled from book/17-exact.nw; edit the chapter. */
/* Exact order on a GPU: nodes of a tree become their parents. */
#ifndef CP_DEVICE_EXACT_H
#define CP_DEVICE_EXACT_H

#include "cuda/kernels/kernels.h"

/* Unite nodes, which are disjoint and in order. Each is an output [rows][dim],
 * then an LSE [rows], where rows counts tokens times heads; behind the n-th the
 * last two become one, merges[n] times. What is left in the end is written to
 * `to`, one behind the other: it may lie where nodes lie that were read. */
typedef struct {
    int64_t rows, dim;
    int count;
    const float *from[CP_LEAVES];
    uint8_t merges[CP_LEAVES];
    float *to;
} cp_device_uniting;

#ifdef __cplusplus
extern "C" {
#endif
/* Put it on a stream, as those of kernels.h. */
cudaError_t cp_device_unite(const cp_device_uniting *, cudaStream_t);
#ifdef __cplusplus
}
#endif

#endif
