/* Tangled from book/16-state.nw; edit the chapter. */
/* The layers with a state of a model on cores: what a rank does in them. */
#ifndef CP_STATE_LAYERS_H
#define CP_STATE_LAYERS_H

#include "model/state_call.h"
#include "model/state_cache.h"
#include "reference/run/states.h"

/* A rank in a call. */
typedef struct cp_state_layers cp_state_layers;

/* The cache, the call's layout and comm must outlive it. Fails with CP_MEMORY. */
cp_status cp_state_layers_new(const cp_state_cache *cache,
                              const cp_layout *layout, cp_comm *comm,
                              int threads, cp_state_layers **out);
void cp_state_layers_free(cp_state_layers *layers);
const cp_state_buffers *cp_state_layers_buffers(const cp_state_layers *layers);

/* cp_state_walk_layer (state_walk.h) on this rank; if it fails, so do all. */
cp_status cp_state_layers_walk(cp_state_layers *layers, int64_t layer,
                               const float *taps);

#endif
