/* Tangled from book/17-exact.nw; edit the chapter. */
/* A prompt in exact order, in the layers with a state: each rank follows all
 * tokens, for some of the heads. */
#ifndef CP_STATE_HEADS_H
#define CP_STATE_HEADS_H

#include "model/state_call.h"

/* The call is open and must outlive it. Fails with CP_MEMORY and as the
 * backend's reserve does; free even then. */
cp_status cp_state_heads_new(cp_state_call *call, cp_state_heads **out);
void cp_state_heads_free(cp_state_heads *heads);

/* As cp_state_walk_layer does, whose states are on the ranks that keep them
 * after the call. */
cp_status cp_state_heads_walk(cp_state_heads *heads, int64_t layer,
                              const float *taps);

#endif
