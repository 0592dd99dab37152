/* Tangled from book/17-exact.nw; edit the chapter. */
/* A prompt in exact order, in the layers with a state: each rank follows all
 * tokens, for some of the heads. */
#ifndef CP_STATE_HEADS_H
#define CP_STATE_HEADS_H

#include "reference/model/state_cache.h"
#include "reference/model/state_tokens.h"

typedef struct cp_state_heads cp_state_heads;

/* The cache, the call's layout and comm must outlive it. Fails with CP_MEMORY;
 * free even then. */
cp_status cp_state_heads_new(const cp_state_cache *cache,
                             const cp_layout *layout, cp_comm *comm,
                             int threads, cp_state_heads **out);
void cp_state_heads_free(cp_state_heads *heads);

/* Answer a rank's rows in a layer, whose states are where the cache keeps them
 * after the call. All ranks must call it. Fails as an exchange does; the states
 * after the call may then be anything. */
cp_status cp_state_heads_walk(cp_state_heads *heads, const cp_state_rows *rows,
                              int64_t layer, const float *taps);

#endif
