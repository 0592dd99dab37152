/* Tangled from book/16-state.nw; edit the chapter. */
/* The layers with a state of a model: what a rank does in them. */
#ifndef CP_STATE_LAYERS_H
#define CP_STATE_LAYERS_H

#include "reference/model/state_cache.h"

/* A rank in a call. Before a walk, rows has a row for each of the rank's tokens,
 * in the order of cp_forward_list (pass.h): queries and keys [key heads][key_dim], values
 * [heads][value_dim], logarithms of decays [heads], rates [heads]. After it,
 * answers has [heads][value_dim] for each. */
typedef struct cp_state_call cp_state_call;
typedef struct {
    float *rows, *answers;
    int64_t stride, channels, answer_width; /* numbers of a row; convolved; of
                                               an answer */
} cp_state_rows;

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
