/* Tangled from book/17-exact.nw; edit the chapter. */
/* The merge of exact order: bound by memory. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/merge_nodes.h"
#include "cuda/kernels/device_numbers.h"
#include "cuda/kernels/tensor.h"

typedef struct {
    float number, lse;
} node_number;

/* Ordered by size, not by side: the same bits whichever comes first. */
static __device__ node_number join_siblings(node_number a, node_number b) {
    const node_number large = b.lse > a.lse ? b : a;
    const node_number small = b.lse > a.lse ? a : b;
    if (small.lse == -INFINITY)
        return large;
    const float weight = cp_exp2((small.lse - large.lse) * 1.44269504f);
    const float share = 1.0f / (1.0f + weight);
    node_number both;
    both.number =
        fmaf(weight * share, small.number, __fmul_rn(share, large.number));
    both.lse = large.lse + logf(1.0f + weight);
    return both;
}

CP_KERNEL(merge_node_rows, cp_device_merge_nodes_args) {
    CP_SHARED(float, lse, [CP_LEAVES]);
    const int64_t at = blockIdx.x, behind = a.rows * a.dim;
    if ((int)threadIdx.x < a.count)
        lse[threadIdx.x] = a.from[threadIdx.x][behind + at];
    __syncthreads();
    for (int64_t d = threadIdx.x; d < a.dim; d += blockDim.x) {
        node_number nodes[CP_NODES_MAX + 1];
        int top = 0;
        for (int n = 0; n < a.count; n++) {
            nodes[top].number = a.from[n][at * a.dim + d];
            nodes[top++].lse = lse[n];
            for (int m = a.merges[n]; m > 0; m--, top--)
                nodes[top - 2] = join_siblings(nodes[top - 2], nodes[top - 1]);
        }
        for (int n = 0; n < top; n++) {
            float *to = a.to + n * (behind + a.rows);
            to[at * a.dim + d] = nodes[n].number;
            if (d == 0)
                to[behind + at] = nodes[n].lse;
        }
    }
}

cudaError_t cp_device_merge_nodes(const cp_device_merge_nodes_args *call,
                                  cudaStream_t stream) {
    return CP_LAUNCH_GRID(merge_node_rows, call->count > 0 ? call->rows : 0, 1,
                          1, 128, stream, *call);
}
