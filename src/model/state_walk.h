/* Tangled from book/16-state.nw; edit the chapter. */
/* The walk of a call's layers with a state, on cores and on devices. */
#ifndef CP_STATE_WALK_H
#define CP_STATE_WALK_H

#include "model/state_call.h"

/* A call's first fields are set. Fails with CP_MEMORY and as its backend does;
 * close it even then. */
cp_status cp_state_walk_open(cp_state_call *call);
void cp_state_walk_close(cp_state_call *call);

/* Walk a layer, counted among those with a state; taps [channels][taps]. All
 * ranks or processes must call it. Fails as the backend does; what the layer
 * keeps after the call may then be anything. */
cp_status cp_state_walk_layer(cp_state_call *call, int64_t layer,
                              const float *taps);

#endif
