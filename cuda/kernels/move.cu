/* Tangled from book/13-kernels.nw; edit the chapter. */
/* Kernels that move partials, keys and values: all are bound by memory. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

CP_KERNEL(merge_rows, cp_device_merge_args) {
    const int64_t at = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (at >= a.rows)
        return;
    float lse = a.lse[at];
    for (int first = 0; first < a.addends; first += 8) {
        /* Weigh these addends, one after the other. */
        const int batch = a.addends - first < 8 ? a.addends - first : 8;
        float add[8], old_share[8], add_share[8];
        CP_EACH(i, 8)
            add[i] =
                i < batch ? a.add_lse[(first + i) * a.stride + at] : -INFINITY;
        CP_EACH(i, 8) {
            const float larger = fmaxf(lse, add[i]);
            const float old_weight =
                lse == -INFINITY ? 0.0f : expf(lse - larger);
            const float add_weight = expf(add[i] - larger);
            const float sum = old_weight + add_weight;
            old_share[i] = old_weight / sum;
            add_share[i] = add_weight / sum;
            if (add[i] != -INFINITY)
                lse = old_weight == 0.0f ? add[i] : larger + logf(sum);
        }
        for (int64_t d = lane; d < a.dim; d += 32 * 4) {
            /* Add all these addends' numbers. */
            float *to = a.output + at * a.dim + d, loaded[8][4];
            const float *from =
                a.add_output + first * a.stride + at * a.dim + d;
            CP_EACH(i, 8)
                CP_EACH(c, 4)
                    loaded[i][c] = i < batch && d + 32 * c < a.dim
                                       ? from[i * a.stride + 32 * c]
                                       : 0.0f;
            CP_EACH(c, 4) {
                if (d + 32 * c >= a.dim)
                    break;
                float merged = to[32 * c];
                CP_EACH(i, 8) {
                    const float value = loaded[i][c] * add_share[i];
                    if (add[i] != -INFINITY)
                        merged = old_share[i] == 0.0f
                                     ? value
                                     : fmaf(merged, old_share[i], value);
                }
                to[32 * c] = merged;
            }
        }
    }
    /* Write the merged LSE, and zeros if all were empty. */
    __syncwarp();
    if (lane == 0)
        a.lse[at] = lse;
    for (int64_t d = lane; d < a.dim && lse == -INFINITY; d += 32)
        a.output[at * a.dim + d] = 0.0f;
}

cudaError_t cp_device_merge(const cp_device_merge_args *call,
                            cudaStream_t stream) {
    return CP_LAUNCH_GRID(merge_rows, cp_ceil_divide(call->rows, 4), 1, 1, 128,
                          stream, *call);
}

#define COPY_WORDS(word)                                                       \
    do {                                                                       \
        const int64_t words = width / (int64_t)sizeof(word);                   \
        int64_t at = threadIdx.x % words;                                      \
        for (int64_t row = threadIdx.x / words; row < rows;                    \
             row += blockDim.x / words) {                                      \
            ((word *)(to + row * of.to_stride))[at] =                          \
                ((const word *)(from + row * of.from_stride))[at];             \
            at += blockDim.x % words;                                          \
            row += at >= words;                                                \
            at -= at >= words ? words : 0;                                     \
        }                                                                      \
    } while (0)

CP_KERNEL(copy_rows, cp_device_copy_args) {
    if ((int64_t)blockIdx.x >= *a.moves.count)
        return;
    const cp_move move = a.moves.items[blockIdx.x];
    const cp_device_columns of = blockIdx.y == 0 ? a.of[0] : a.of[1];
    const int64_t part = (int64_t)blockIdx.z, parts = (int64_t)gridDim.z;
    const int64_t first = move.count * part / parts;
    const int64_t last = move.count * (part + 1) / parts;
    const bool packed =
        of.from_stride == of.width && of.to_stride == of.width && first < last;
    const int64_t rows = packed ? 1 : last - first;
    const int64_t width = packed ? (last - first) * of.width : of.width;
    const char *from =
        (const char *)of.from + (move.from + first) * of.from_stride;
    char *to = (char *)of.to + (move.to + first) * of.to_stride;
    const uintptr_t askew = (uintptr_t)from | (uintptr_t)to | (uintptr_t)width |
                            (uintptr_t)of.from_stride | (uintptr_t)of.to_stride;
    if (askew % 16 == 0)
        COPY_WORDS(float4);
    else if (askew % 8 == 0)
        COPY_WORDS(uint64_t);
    else if (askew % 4 == 0)
        COPY_WORDS(uint32_t);
    else
        COPY_WORDS(uint16_t);
}

cudaError_t cp_device_copy(const cp_device_copy_args *call,
                           cudaStream_t stream) {
    const int64_t moves = cp_max(1, call->moves.room);
    const int64_t parts = cp_ceil_divide(call->moves.rows, 32 * moves);
    return CP_LAUNCH_GRID(copy_rows, call->moves.room,
                          call->of[1].width > 0 ? 2 : 1,
                          cp_max(1, cp_min(parts, 65535)), 128, stream, *call);
}
