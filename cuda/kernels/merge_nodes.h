/* Tangled from book/17-exact.nw; edit the chapter. */
/* Exact order on a GPU: nodes of a tree are merged into their parents. */
#ifndef CP_MERGE_NODES_H
#define CP_MERGE_NODES_H

#include "cuda/kernels/kernels.h"

/* Merge nodes, which are disjoint and in order. Each is an output [rows][dim],
 * then an LSE [rows]; rows counts tokens times heads. After the n-th node the
 * last two on the stack are merged, merges[n] times. The nodes left in the end
 * are written to `to`, one after another; `to` may overlap nodes that were
 * read. */
typedef struct {
    int64_t rows, dim;
    int count;
    const float *from[CP_LEAVES];
    uint8_t merges[CP_LEAVES];
    float *to;
} cp_device_merge_nodes_args;

#ifdef __cplusplus
extern "C" {
#endif
/* Launch it on a stream, like the kernels of kernels.h. */
cudaError_t cp_device_merge_nodes(const cp_device_merge_nodes_args *,
                                  cudaStream_t);
#ifdef __cplusplus
}
#endif

#endif
