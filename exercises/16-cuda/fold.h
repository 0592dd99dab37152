/* Tangled from book/labs/16-cuda.nw; the skeleton; write your answer here. */
/* One launch that folds the splits of a decode step into one partial. All
 * pointers but the call's own are the device's. */
#ifndef FOLD_H
#define FOLD_H

#include <cuda_runtime_api.h>
#include <stdint.h>

enum { FOLD_SPLITS = 64 }; /* at most */

/*   split_output, split_lse   [splits][rows][heads][dim],
 *                             [splits][rows][heads]: partials over
 *                             disjoint keys, LSE natural
 *   output, lse               [rows][heads][dim], [rows][heads]: written
 * A split with LSE -inf has no keys for that row and head: whatever its
 * output holds, NaN too, is not for use. Where no split has keys, output
 * is 0 and LSE -inf. */
typedef struct {
    int splits;
    int64_t rows, heads, dim;
    const float *split_output, *split_lse;
    float *output, *lse;
} fold;

#ifdef __cplusplus
extern "C" {
#endif

/* Put one kernel on the stream; wait for nothing, allocate nothing. Any
 * dim; more rows times heads than 65535. One split comes out as it is.
 * At most two exponentials for each split of a row and head. Without rows
 * or heads nothing is launched, and that is a success. Splits below 1 or
 * above FOLD_SPLITS and negative sizes are cudaErrorInvalidValue; nothing
 * is launched then. */
cudaError_t fold_launch(const fold *call, cudaStream_t stream);

/* Where kernels are emulated, exponentials are counted. */
#ifdef STAND_IN_KERNEL_H
float fold_counted(float x);
#define expf(x) fold_counted(x)
#define exp2f(x) fold_counted((x)*0.6931472f)
#define exp(x) ((double)fold_counted((float)(x)))
#endif

#ifdef __cplusplus
}
#endif
#endif
