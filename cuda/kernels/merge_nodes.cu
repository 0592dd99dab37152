/* Tangled from book/17-exact.nw; edit the chapter. */
/* The merge of exact order: bound by memory. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/merge_nodes.h"
#include "cuda/kernels/block_rows.h"
#include "cuda/kernels/tensor.h"

enum { WARPS = 4 }; /* of a block */

typedef struct {
    float4 numbers;
    float lse;
} node_part;

/* Ordered by size, not by side: the same bits whichever comes first. */
CP_INLINE node_part join_siblings(node_part a, node_part b) {
    const bool later = b.lse > a.lse;
    const node_part small = later ? a : b;
    node_part both = later ? b : a;
    if (small.lse == -INFINITY)
        return both;
    const float weight = cp_exp2((small.lse - both.lse) * 1.44269504f);
    const float share = 1.0f / (1.0f + weight);
    both.numbers.x = __fmul_rn(share, both.numbers.x);
    both.numbers.y = __fmul_rn(share, both.numbers.y);
    both.numbers.z = __fmul_rn(share, both.numbers.z);
    both.numbers.w = __fmul_rn(share, both.numbers.w);
    add_some(&both.numbers, weight * share, small.numbers);
    both.lse += logf(1.0f + weight);
    return both;
}

/* wide numbers of a row, from number d on; lane n has the n-th node's LSE. All
 * lanes of a warp call it. */
CP_INLINE void merge_nodes(const cp_device_merge_nodes_args *a, int64_t at,
                           float lse, int64_t d, int wide) {
    const int64_t behind = a->rows * a->dim;
    const bool exist = d < a->dim;
    node_part stack[CP_NODES_MAX + 1];
    int top = 0;
    for (int n = 0; n < a->count; n++) {
        node_part last = {load_some(a->from[n] + at * a->dim + d, exist, wide),
                          __shfl_sync(0xffffffffu, lse, n)};
        for (int m = a->merges[n]; m > 0; m--)
            last = join_siblings(stack[--top], last);
        stack[top++] = last;
    }
    for (int n = 0; n < top; n++) {
        float *to = a->to + n * (behind + a->rows);
        store_some(to + at * a->dim + d, exist, wide, stack[n].numbers);
        if (d == 0)
            to[behind + at] = stack[n].lse;
    }
}

typedef struct {
    cp_device_merge_nodes_args of;
    int wide; /* numbers of a lane: 4 where all addresses allow that, or 1 */
} merge_call;

CP_KERNEL(merge_node_rows, merge_call) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (at >= a.of.rows)
        return;
    const float lse = lane < a.of.count
                          ? a.of.from[lane][a.of.rows * a.of.dim + at]
                          : -INFINITY;
    for (int64_t d = 0; d < a.of.dim; d += 32 * a.wide)
        if (a.wide == 4)
            merge_nodes(&a.of, at, lse, d + 4 * lane, 4);
        else
            merge_nodes(&a.of, at, lse, d + lane, 1);
}

cudaError_t cp_device_merge_nodes(const cp_device_merge_nodes_args *call,
                                  cudaStream_t stream) {
    const int64_t rows = call->count > 0 ? call->rows : 0;
    uintptr_t bits = (uintptr_t)call->to |
                     (uintptr_t)(4 * call->rows * (call->dim + 1)) |
                     (uintptr_t)(4 * call->dim);
    for (int n = 0; n < call->count; n++)
        bits |= (uintptr_t)call->from[n];
    const merge_call a = {*call, bits % 16 == 0 ? 4 : 1};
    return CP_LAUNCH_GRID(merge_node_rows, cp_ceil_divide(rows, WARPS), 1, 1,
                          32 * WARPS, stream, a);
}
