/* Tangled from book/16-state.nw; edit the chapter. */
/* Tokens of a sequence in a layer with a state, which one rank follows from
 * state to state. Knows nothing of ranks. */
#ifndef CP_STATE_TOKENS_H
#define CP_STATE_TOKENS_H

#include "reference/run/states.h"

/* A row has the queries, keys and values of a token, as its convolution's
 * channels, then logarithms of decays, and rates (state.h); an answer has
 * [heads][value_dim]. Owns nothing. */
typedef struct {
    cp_state_shape shape;
    cp_tail_shape tail;
    int threads;
    bool single; /* as in cp_state_run */
    int64_t count, stride;
    float *rows, *answers;
    const int64_t *order; /* the row of each; NULL: in order. Needs single */
    const float *taps;    /* [channels][taps] */
} cp_state_tokens;

/* They as channels, before the convolution; and as a run, after it. */
cp_convolution cp_state_tokens_channels(const cp_state_tokens *tokens);
cp_state_run cp_state_tokens_run(const cp_state_tokens *tokens);

/* Bring keys to length 1, and queries to what attention would divide scores
 * by. */
void cp_state_tokens_normalise(const cp_state_tokens *tokens);

/* Convolve, normalise and answer. before and after are states, each followed by
 * its tail, and not the same; before may be NULL: there is nothing. Fails as
 * cp_state_follow does. */
cp_status cp_state_tokens_follow(const cp_state_tokens *tokens,
                                 const float *before, float *after);

#endif
