/* Tangled from book/13-tiles.nw; edit the chapter. */
/* Rows for which several warps of a block have attended to some keys each: how
 * their sums become one. For kernel files only. */
#ifndef CP_SHARED_ROWS_H
#define CP_SHARED_ROWS_H

#include "cuda/kernels/block_rows.h"
#include "cuda/kernels/tensor.h"

enum { MOST_WARPS = 8 };

CP_INLINED void leave_sums(int dim, float *sums, float output[][4],
                           const float level[2], const float total[2]) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    CP_EACH(half, 2) {
        const int row = 16 * warp + 8 * half + lane / 4;
        float *to = sums + row * (dim + 8);
        CP_EACH(n, dim / 8) {
            to[8 * n + lane % 4 * 2] = output[n][2 * half];
            to[8 * n + lane % 4 * 2 + 1] = output[n][2 * half + 1];
        }
        if (lane % 4 == 0) {
            to[dim] = level[half];
            to[dim + 1] = total[half];
        }
    }
}

CP_INLINED void write_shared(const cp_device_attention *a, int dim, int warps,
                             const rows_of_block *block_rows, const float *sums,
                             int row) {
    const int lane = (int)threadIdx.x % 32;
    const int next = 16 * (dim + 8); /* warp's */
    const float *from = sums + row * (dim + 8), *levels = from + dim;
    float level = -INFINITY, total = 0.0f, share[MOST_WARPS];
    CP_EACH(w, warps)
        level = fmaxf(level, levels[w * next]);
    CP_EACH(w, warps) {
        share[w] =
            level == -INFINITY ? 0.0f : cp_exp2(levels[w * next] - level);
        total = fmaf(share[w], levels[w * next + 1], total);
    }
    const row_weights weigh = weigh_row(a, block_rows, row, level, total);
    for (int d = 4 * lane; d < dim; d += 128) {
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
        CP_EACH(w, warps)
            add_some(&sum, share[w], load_some(from + w * next + d, true, 4));
        put_numbers(&weigh, d, sum);
    }
}

#endif
