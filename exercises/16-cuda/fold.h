/* Tangled from book/labs/16-cuda.nw; the skeleton; write your answer here. */
/* One launch that folds the splits of a decode step into one partial. All
 * pointers except call point to device memory. */
#ifndef FOLD_H
#define FOLD_H

#include <cuda_runtime_api.h>
#include <stdint.h>

enum { FOLD_SPLITS = 64 }; /* at most */

/*   split_output, split_lse   [splits][rows][heads][dim],
 *                             [splits][rows][heads]: partials over
 *                             disjoint keys, LSE natural
 *   output, lse               [rows][heads][dim], [rows][heads]: written
 * A split with LSE -inf has no keys for that row and head: its output may hold
 * anything, NaN too, and must not be used. Where no split has keys, output is 0
 * and LSE -inf. */
typedef struct {
    int splits;
    int64_t rows, heads, dim;
    const float *split_output, *split_lse;
    float *output, *lse;
} fold;

#ifdef __cplusplus
extern "C" {
#endif

/* Put one kernel on the stream, without waiting or allocating. Any dim from 1
 * on; rows, heads and rows times heads may exceed 65535. A single split with
 * keys comes out unchanged, bit for bit, and so does its LSE. At most two
 * exponentials or powers for each split of a row and head, and no more than two
 * of them by the same thread; blocks have 64 threads or more. Without rows or
 * heads nothing is launched, and that is a success. Splits below 1 or above
 * FOLD_SPLITS, a dim below 1, and negative rows or heads give
 * cudaErrorInvalidValue; nothing is launched then. */
cudaError_t fold_launch(const fold *call, cudaStream_t stream);

/* Where kernels are emulated, exponentials are counted for each thread. */
#ifdef EMULATOR_KERNEL_H
void fold_count(unsigned thread, unsigned threads);
#define FOLD_COUNT fold_count(threadIdx.x, blockDim.x)
#define expf(x) (FOLD_COUNT, expf(x))
#define exp2f(x) (FOLD_COUNT, exp2f(x))
#define powf(x, y) (FOLD_COUNT, powf(x, y))
#define exp(x) (FOLD_COUNT, exp(x))
#define exp2(x) (FOLD_COUNT, exp2(x))
#define pow(x, y) (FOLD_COUNT, pow(x, y))
#endif

#ifdef __cplusplus
}
#endif
#endif
