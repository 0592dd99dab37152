/* Tangled from book/13-layers.nw; edit the chapter. */
/* The small layers of a transformer as kernels, and the unpacking of weights.
 * Rows are tokens, and no row depends on another. All pointers are to device
 * memory. Nothing here waits, allocates, or reads what a kernel computed. */
#ifndef CP_MODEL_KERNELS_H
#define CP_MODEL_KERNELS_H

#include "cuda/kernels/kernels.h"

/* y[t] = x[t] / rms(x[t]) * weight, with epsilon under the root. The mean
 * square is right to 1e-6. Here and below, y's type is element if scales is
 * NULL. Otherwise it is e4m3 with a scale for each row, as cp_device_quantise
 * writes it. */
typedef struct {
    int64_t rows, width;
    const float *x, *weight;
    float epsilon;
    cp_element element; /* of y */
    void *y;
    float *scales; /* [rows] or NULL */
} cp_device_norm_args;

/* Add the bias, norm each head of the queries and keys, if there are norms,
 * rotate their pairs (2i, 2i + 1), i < pairs, by position * frequencies[i],
 * round, and store queries, keys and values at indices. Sines and cosines are
 * right to 5e-7 up to position 2^30.
 *   bias            [N_H + 2 N_KV][D_H], or NULL
 *   query_norm, key_norm   [D_H] weights, both or neither; as cp_device_norm's
 *   positions       [rows]
 *   frequencies     [pairs] radians per position
 *   projected       [rows][N_H + 2 N_KV][D_H]: queries, keys, values; and
 *                   `behind` other numbers at the end of each row
 *   queries, keys, values   [index][heads][D_H]
 * A row whose index is -1 is neither read nor written. */
typedef struct {
    int64_t rows;
    cp_shape shape;
    const float *bias, *query_norm, *key_norm;
    float epsilon;
    int64_t pairs;
    const int64_t *positions;
    const double *frequencies;
    const int64_t *indices;
    const float *projected;
    int64_t behind;
    cp_element element; /* of queries, keys and values */
    void *queries, *keys, *values;
} cp_device_rotate_args;

/* to[t] = from[indices[t]], zeros for -1; to [rows][width]. If indices is NULL,
 * to[t] = from[t]. */
typedef struct {
    int64_t rows, width;
    const int64_t *indices;
    const void *from;
    cp_element stored, element; /* of from, and of to */
    void *to;
    float *scales; /* [rows] or NULL */
} cp_device_gather_args;

/* y[t] = silu(gate) * up. A row of both holds its gate and then its up:
 * [rows][2 * inner]. */
typedef struct {
    int64_t rows, inner;
    const float *both;
    cp_element element; /* of y */
    void *y;
    float *scales; /* [rows] or NULL */
} cp_device_gate_args;

/* x[i] += addends[i]; addends are bf16. */
typedef struct {
    int64_t count;
    const void *addends;
    float *x;
} cp_device_add_args;

/* best[t] = the index of the largest score of row t, the first if several are
 * equal; -1 if a score is NaN or infinite. scores [rows][width]. Fails with
 * cudaErrorInvalidValue if width is above 2^24. */
typedef struct {
    int64_t rows, width;
    const float *scores;
    int32_t *best;
} cp_device_argmax_args;

/* y[t] = x[t] / scales[t] in e4m3, where scales[t] is the row's largest
 * magnitude over 448: at least 2^-126, and 1 for a row of zeros. NaN stays
 * NaN. x and y [rows][width], scales [rows]. */
typedef struct {
    int64_t rows, width;
    const float *x;
    void *y;
    float *scales;
} cp_device_quantise_args;

/* Enqueue a call on a stream. Fails only if the launch is impossible: more rows
 * than a grid has blocks (2^31 - 1), or more pairs than a head has. */
cudaError_t cp_device_norm(const cp_device_norm_args *, cudaStream_t);
cudaError_t cp_device_rotate(const cp_device_rotate_args *, cudaStream_t);
cudaError_t cp_device_gather(const cp_device_gather_args *, cudaStream_t);
cudaError_t cp_device_gate(const cp_device_gate_args *, cudaStream_t);
cudaError_t cp_device_quantise(const cp_device_quantise_args *, cudaStream_t);
cudaError_t cp_device_add(const cp_device_add_args *, cudaStream_t);
cudaError_t cp_device_argmax(const cp_device_argmax_args *, cudaStream_t);

/* out[i] = the i-th of the count values in blocks of a CP_GGUF_ type: exactly
 * what cp_dequantise computes (dequantise.h), then rounded to element.
 *   blocks   on the device, aligned to 2 bytes
 *   out      [count], on the device
 * Fails with cudaErrorInvalidValue if the type is unknown, or if count values
 * are not whole blocks. */
cudaError_t cp_device_expand(int gguf_type, const void *blocks, int64_t count,
                             cp_element element, void *out,
                             cudaStream_t stream);

/* y = x w^T, or y += x w^T with add, in e4m3 with scales (multiply.h): up to
 * CP_FEW_ROWS rows of x, and at least CP_FEW_HEIGHT of w. in and the addresses
 * of w and x are multiples of 16. Needs compute capability 8.9 or later. */
enum { CP_FEW_ROWS = 24, CP_FEW_HEIGHT = 64 };
typedef struct {
    int64_t in, out, rows;
    const void *w, *x;
    const float *w_scales, *x_scales;
    bool add;
    cp_element element; /* of y; CP_F32 with add */
    void *y;
    int splits;       /* of in, by cp_few_splits */
    float *parts;     /* [splits][rows][out] */
    int32_t *tickets; /* one per CP_FEW_HEIGHT rows of w; 0 before and after */
} cp_few_rows;
cudaError_t cp_device_multiply_few(const cp_few_rows *, cudaStream_t);

/* The splits for any number of rows. blocks: from cp_device_blocks; room: how
 * many floats the parts may take. */
int cp_few_splits(int64_t in, int64_t out, int blocks, int64_t room);

#endif
