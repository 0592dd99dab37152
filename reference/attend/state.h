/* Tangled from book/16-state.nw; edit the chapter. */
/* Layers with a state: what a run of tokens does to it, and what it answers.
 * Gated DeltaNet on the CPU's cores in fp32, and its oracle in fp64. Knows
 * nothing of ranks. */
#ifndef CP_STATE_H
#define CP_STATE_H

#include "ground/ground.h"

enum { CP_STATE_KEYS = 512 }; /* key_dim is at most this */

/* So many heads, each with a state [key_dim][value_dim]. */
typedef struct {
    int64_t heads, key_dim, value_dim;
} cp_state_shape;

/* A run of tokens of one sequence, in their order. Owns nothing.
 *   queries, keys [tokens][heads][key_dim]; keys of length 1 at most
 *   values [tokens][heads][value_dim]
 *   decay [tokens][heads], the logarithm of a: at most 0; -inf forgets all
 *   rate [tokens][heads], b: 0 to 2 */
typedef struct {
    cp_state_shape shape;
    int64_t tokens;
    const float *queries, *keys, *values, *decay, *rate;
} cp_state_run;

/* H_t = a H_(t-1) + k u', u = b (v - a H_(t-1)' k), o_t = H_t' q_t, token by
 * token: state [heads][key_dim][value_dim] from before the run to after it,
 * output [tokens][heads][value_dim]. */
void cp_state_oracle(const cp_state_run *run, double *state, double *output);

/* A pair [heads][key_dim][key_dim + value_dim], each row that of M, then that
 * of U, is the map H -> M H + U of a run. M = 0: a state that is known. */
static inline int64_t cp_state_floats(const cp_state_shape *shape) {
    return shape->heads * shape->key_dim * shape->value_dim;
}

static inline int64_t cp_pair_floats(const cp_state_shape *shape) {
    return shape->heads * shape->key_dim * (shape->key_dim + shape->value_dim);
}

/* The pair of no tokens: (I, 0). */
void cp_pair_identity(const cp_state_shape *shape, float *pair);

/* The pair (0, H) of a state [heads][key_dim][value_dim] that is known, and the
 * state of a pair: its U. */
void cp_pair_know(const cp_state_shape *shape, const float *state, float *pair);
void cp_pair_state(const cp_state_shape *shape, const float *pair,
                   float *state);

/* pair becomes that of an earlier run and its own: (M M', M U' + U). Cannot
 * fail. */
void cp_pair_combine(const cp_state_shape *shape, const float *earlier,
                     float *pair);

/* pair becomes its own and then that of the run. Fails with CP_INVALID for a
 * shape that is not positive or too wide, tokens < 0 or threads < 1,
 * and with CP_MEMORY; pair is then untouched. The result does not depend on
 * threads. */
cp_status cp_state_pair(const cp_state_run *run, int threads, float *pair);

/* The same for the U of a pair alone, with what each query is answered:
 * output [tokens][heads][value_dim]. */
cp_status cp_state_answer(const cp_state_run *run, int threads, float *pair,
                          float *output);

/* Before the state, each channel is convolved with its last width tokens, and
 * goes through SiLU. rows [tokens][channels], weights [channels][width], the
 * last for the token itself. */
typedef struct {
    int64_t width, channels, tokens;
    const float *rows, *weights;
} cp_convolution;

/* A tail: how many rows it has, then width - 1 rows, the last ones filled. */
static inline int64_t cp_tail_floats(int64_t width, int64_t channels) {
    return 1 + (width - 1) * channels;
}

/* out [tokens][channels], not rows; tail is that of all before. */
void cp_convolve(const cp_convolution *call, const float *tail, float *out);

/* The tail of these rows alone; and a tail of rows [rows][channels] becomes
 * that of an earlier run and its own. */
void cp_tail_take(const cp_convolution *call, float *tail);
void cp_tail_combine(int64_t rows, int64_t channels, const float *earlier,
                     float *tail);

#endif
