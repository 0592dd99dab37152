/* Tangled from book/17-wire.nw; edit the chapter. */
/* Rows in the writings in which they are sent, a warp for each. */
#include "cuda/kernels/launch.h"

#include "cuda/kernels/numbers.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "cuda/kernels/writing.h"
#include "ring/writing.h"
#ifdef __cplusplus
}
#endif

enum { WARPS = 4 };

typedef struct {
    cp_device_rewriting of;
    int64_t bytes, before; /* of a row that is sent, and of its scale */
} rewriting;

static __device__ int64_t row_of_warp(void) {
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

CP_KERNEL(write_rows, rewriting) {
    const int64_t row = row_of_warp(), dim = a.of.dim;
    const int lane = (int)threadIdx.x % 32;
    char *to = (char *)a.of.sent + row * a.bytes;
    float most = 0.0f;
    if (row >= a.of.rows)
        return;
    for (int64_t d = lane; d < dim; d += 32)
        most = cp_larger(most, cp_get(a.of.held, a.of.element, row * dim + d));
    for (int turn = 16; turn > 0; turn /= 2)
        most = cp_larger(most, __shfl_xor_sync(0xffffffffu, most, turn));
    const float scale =
        a.before > 0 ? cp_writing_scale(a.of.writing, most) : 1.0f;
    if (a.before > 0 && lane == 0)
        *(float *)to = scale;
    to += a.before;
    /* A row is filled up to a multiple of 4 bytes. */
    const int64_t room =
        (a.bytes - a.before) / (cp_writing_is_wide(a.of.writing) ? 2 : 1);
    for (int64_t d = lane; d < room; d += 32)
        cp_row_put(to, a.of.writing, scale, d,
                   d < dim ? cp_get(a.of.held, a.of.element, row * dim + d)
                           : 0.0f);
}

CP_KERNEL(read_rows, rewriting) {
    const int64_t row = row_of_warp(), dim = a.of.dim;
    const char *from = (const char *)a.of.sent + row * a.bytes;
    if (row >= a.of.rows)
        return;
    const float scale = a.before > 0 ? *(const float *)from : 1.0f;
    for (int64_t d = threadIdx.x % 32; d < dim; d += 32)
        cp_put(a.of.held, a.of.element, row * dim + d,
               cp_row_get(from + a.before, a.of.writing, scale, d));
}

static rewriting rewriting_of(const cp_device_rewriting *call) {
    const rewriting it = {
        *call, cp_writing_bytes(call->writing, call->dim, 4),
        call->writing == CP_WRITING_BF16 ? 0 : (int64_t)sizeof(float)};
    return it;
}

static int64_t blocks_of(const cp_device_rewriting *call) {
    return call->dim > 0 ? cp_ceil_divide(call->rows, WARPS) : 0;
}

cudaError_t cp_device_rows_write(const cp_device_rewriting *call,
                                 cudaStream_t stream) {
    const rewriting it = rewriting_of(call);
    return CP_LAUNCH_GRID(write_rows, blocks_of(call), 1, 1, 32 * WARPS, stream,
                          it);
}

cudaError_t cp_device_rows_read(const cp_device_rewriting *call,
                                cudaStream_t stream) {
    const rewriting it = rewriting_of(call);
    return CP_LAUNCH_GRID(read_rows, blocks_of(call), 1, 1, 32 * WARPS, stream,
                          it);
}
