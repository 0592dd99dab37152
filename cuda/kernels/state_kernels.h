/* Tangled from book/16-state-gpu.nw; edit the chapter. */
/* Layers with a state as kernels: the recurrence, its pairs, the convolution
 * before it, and the gates behind it. Correct, not fast: no tensor cores. Rows,
 * pairs and tails are those of reference/attend/state.h, in fp32. All pointers
 * are to device memory. */
#ifndef CP_STATE_KERNELS_H
#define CP_STATE_KERNELS_H

#include <cuda_runtime_api.h>

#include "model/head_cuts.h"

/* Rows of products become rows of states. A row of `from` has channels, then
 * gates, then the decays and the rates of all heads before their functions;
 * stride is from one to the next. Without heads and channels only gates are
 * copied.
 *   factor, bias   [heads] decay = factor * softplus(x + bias)
 *   to             [rows][channels + 2 heads]
 *   kept           [rows][gates] */
typedef struct {
    int64_t rows, stride, channels, gates, heads;
    const float *from, *factor, *bias;
    float *to, *kept;
} cp_device_split_args;

/* The channels of consecutive tokens of a sequence: rows [tokens][stride]. A
 * tail has a count, then room for rows, of which the last ones are filled. */
typedef struct {
    int64_t tokens, stride, channels, room;
    float *rows;
    const int64_t *order; /* [tokens] the row of each; NULL: in order */
} cp_device_channels;

/* Take the tail of these rows only. */
typedef struct {
    cp_device_channels of;
    float *tail;
} cp_device_take_args;

/* Put the tail of an earlier run before another. */
typedef struct {
    int64_t channels, room;
    const float *earlier;
    float *tail;
} cp_device_tails_args;

/* Convolve rows in place, over the last room + 1 tokens, then SiLU.
 *   taps   [channels][room + 1]
 *   tail   of all earlier tokens; NULL: there are none */
typedef struct {
    cp_device_channels of;
    const float *taps, *tail;
} cp_device_convolve_args;

/* Bring keys to length 1, and queries to 1 / sqrt(key_dim): the first
 * 2 * key_heads * key_dim numbers of each row. */
typedef struct {
    int64_t tokens, stride, key_heads, key_dim;
    float *rows;
    const int64_t *order; /* as above */
} cp_device_normalise_args;

/* States in memory: row d of head h begins at
 * at + (h * key_dim + d) * stride. */
typedef struct {
    float *at;
    int64_t stride;
} cp_device_state_rows;

/* Follow the tokens of rows, normalised, from the states before to those after;
 * they may be the same.
 *   pairs     states are [M | U], key_dim + value_dim columns; otherwise they
 *             have value_dim, those of U
 *   before    at NULL: the pair (I, 0), or the state 0
 *   after     at NULL: not needed
 *   answers   [tokens][heads][value_dim], or NULL
 *   order     [tokens] the row of each, and of its answer; NULL: in order */
typedef struct {
    cp_state_facts facts;
    int64_t tokens, stride;
    const float *rows;
    const int64_t *order;
    bool pairs;
    cp_device_state_rows before, after;
    float *answers;
} cp_device_follow_args;

/* Put an earlier pair before another (cp_pair_combine). */
typedef struct {
    cp_state_facts facts;
    const float *earlier;
    float *pair;
} cp_device_pairs_args;

/* What a walk left, gated: gates become answers * sigmoid(gates) or, with
 * weights of a norm [dim], norm(answers) * silu(gates), norm by head.
 *   indices   [rows]; -1: zeros
 *   placed    answers lie at indices; otherwise in the order of rows
 *   answers   [index or row][heads][dim]
 *   gates     [rows][heads][dim] */
typedef struct {
    int64_t rows, heads, dim;
    const int64_t *indices;
    bool placed;
    const float *answers, *weight;
    float epsilon;
    float *gates;
} cp_device_open_args;

/* Copy a share's part of each row, or copy it back: full [rows][width], part
 * [rows][part_width]. */
typedef struct {
    cp_head_cut cut;
    int64_t rows;
    float *full, *part;
    bool back;
} cp_device_cut_args;

/* Enqueue a call. Fails only if the launch is impossible: more than 2^31 - 1
 * blocks, or keys of more than CP_DEVICE_DIM_MAX numbers. */
cudaError_t cp_device_split(const cp_device_split_args *, cudaStream_t);
cudaError_t cp_device_take(const cp_device_take_args *, cudaStream_t);
cudaError_t cp_device_tails(const cp_device_tails_args *, cudaStream_t);
cudaError_t cp_device_convolve(const cp_device_convolve_args *, cudaStream_t);
cudaError_t cp_device_normalise(const cp_device_normalise_args *, cudaStream_t);
cudaError_t cp_device_follow(const cp_device_follow_args *, cudaStream_t);
cudaError_t cp_device_pairs(const cp_device_pairs_args *, cudaStream_t);
cudaError_t cp_device_open(const cp_device_open_args *, cudaStream_t);
cudaError_t cp_device_cut(const cp_device_cut_args *, cudaStream_t);

#endif
