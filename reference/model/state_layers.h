/* Tangled from book/16-state.nw; edit the chapter. */
/* The layers with a state of a model: what a rank does in them. */
#ifndef CP_STATE_LAYERS_H
#define CP_STATE_LAYERS_H

#include "reference/model/state_cache.h"
#include "reference/model/state_tokens.h"

/* A rank in a call. Before a walk, rows has a row for each of the rank's tokens;
 * after it, answers has their answers. */
typedef struct cp_state_call cp_state_call;

/* The cache, the call's layout and comm must outlive it. Fails with CP_MEMORY. */
cp_status cp_state_call_new(cp_state_cache *cache, const cp_layout *layout,
                            cp_comm *comm, int threads, cp_state_call **out);
void cp_state_call_free(cp_state_call *call);
const cp_state_rows *cp_state_call_rows(const cp_state_call *call);

/* Walk a layer, counted among those with a state; taps [channels][taps]. All
 * ranks must call it. */
cp_status cp_state_call_walk(cp_state_call *call, int64_t layer,
                             const float *taps);

#endif
