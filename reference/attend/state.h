/* Tangled from book/16-state.nw; edit the chapter. */
/* Layers with a state: how a run of tokens changes it, and how the run's
 * queries are answered. Gated DeltaNet on the CPU's cores in fp32, and its
 * oracle in fp64. Knows nothing of ranks. */
#ifndef CP_STATE_H
#define CP_STATE_H

#include "ground/ground.h"

enum { CP_STATE_KEYS = 512 }; /* the largest key_dim */

/* The heads of a layer, each with a state [key_dim][value_dim]. Head h has the
 * queries and keys of key head h mod key_heads; 0: there are as many as heads.
 */
typedef struct {
    int64_t heads, key_dim, value_dim, key_heads;
} cp_state_shape;

/* A run of tokens of one sequence, in their order. Owns nothing.
 *   queries, keys [tokens][key heads][key_dim]; keys of length 1 at most
 *   values [tokens][heads][value_dim]
 *   decay [tokens][heads], the logarithm of a: at most 0; -inf forgets all
 *   rate [tokens][heads], b: 0 to 2 */
typedef struct {
    cp_state_shape shape;
    int64_t tokens;
    const float *queries, *keys, *values, *decay, *rate;
    int64_t stride; /* from a row to the next, in all five; 0: as above */
    bool single;    /* token by token: bits do not depend on where runs end */
    const int64_t *order; /* the row of each token, with single; NULL: as above.
                             Outputs lie in these rows, too */
} cp_state_run;

/* Compute H_t = a H_(t-1) + k u', u = b (v - a H_(t-1)' k), o_t = H_t' q_t,
 * token by token. state [heads][key_dim][value_dim] is the one before the run,
 * and on return the one after it; output is [tokens][heads][value_dim]. */
void cp_state_oracle(const cp_state_run *run, double *state, double *output);

/* A pair [heads][key_dim][key_dim + value_dim] is the map H -> M H + U of a
 * run; each row is a row of M, then one of U. M = 0 is a known state. */
static inline int64_t cp_state_floats(const cp_state_shape *shape) {
    return shape->heads * shape->key_dim * shape->value_dim;
}

static inline int64_t cp_pair_floats(const cp_state_shape *shape) {
    return shape->heads * shape->key_dim * (shape->key_dim + shape->value_dim);
}

/* The pair of no tokens: (I, 0). */
void cp_pair_identity(const cp_state_shape *shape, float *pair);

/* Make the pair (0, H) of a known state [heads][key_dim][value_dim], NULL for 0;
 * and copy the state of a pair, its U. */
void cp_pair_know(const cp_state_shape *shape, const float *state, float *pair);
void cp_pair_state(const cp_state_shape *shape, const float *pair,
                   float *state);

/* Put an earlier run before pair's run: pair becomes (M M', M U' + U), where
 * earlier is (M', U'). Cannot fail. */
void cp_pair_combine(const cp_state_shape *shape, const float *earlier,
                     float *pair);

/* Append the run to pair. Fails with CP_INVALID for a shape that is not
 * positive or too wide, tokens < 0 or threads < 1, and with CP_MEMORY; pair is
 * then untouched. The result does not depend on threads. */
cp_status cp_state_pair(const cp_state_run *run, int threads, float *pair);

/* The same for the U of a pair only; also writes the answers of the queries,
 * output [tokens][heads][value_dim]. */
cp_status cp_state_answer(const cp_state_run *run, int threads, float *pair,
                          float *output);

/* The same from a known state: before and after are states, and may be one. */
cp_status cp_state_follow(const cp_state_run *run, int threads,
                          const float *before, float *after, float *output);

/* Before the state, each channel is convolved over its last width tokens, and
 * goes through SiLU. rows [tokens][channels], weights [channels][width]; the
 * last weight is for the token itself. */
typedef struct {
    int64_t width, channels, tokens;
    const float *rows, *weights;
    int64_t stride;       /* from a row to the next; 0: channels */
    int threads;          /* 0: 1 */
    const int64_t *order; /* the row of each token; NULL: in order */
} cp_convolution;

/* A tail is its number of rows, then width - 1 rows, of which the last ones are
 * filled. */
static inline int64_t cp_tail_floats(int64_t width, int64_t channels) {
    return 1 + (width - 1) * channels;
}

/* Convolve into out, which is laid out as rows and may be rows. tail is the
 * tail of all earlier tokens. */
void cp_convolve(const cp_convolution *call, const float *tail, float *out);

/* Take the tail of the call's rows only; and put the tail of an earlier run
 * before tail, both with room for `rows` rows. */
void cp_tail_take(const cp_convolution *call, float *tail);
void cp_tail_combine(int64_t rows, int64_t channels, const float *earlier,
                     float *tail);

#endif
