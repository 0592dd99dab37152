/* Tangled from book/16-state.nw; edit the chapter. */
/* What sequences keep between calls in layers with a state. */
#ifndef CP_STATE_CACHE_H
#define CP_STATE_CACHE_H

#include "group/process_group.h"
#include "model/facts.h"
#include "model/kept_states.h"
#include "reference/run/states.h"

/* The states and tails of all sequences, in all such layers, each on the rank
 * that keeps it. */
typedef struct cp_state_cache {
    int ranks;
    int64_t sequences, layers;
    cp_state_facts facts;
    cp_state_shape shape;
    cp_tail_shape tail;
    int64_t state_floats, layer_floats; /* a state; and its tail */
    float **memory;      /* [ranks], of those here: [sequences][2][layers] */
    cp_kept_state *kept; /* [sequences] */
} cp_state_cache;

/* The states of a layer, and the tail behind them; NULL for CP_NO_COPY. */
float *cp_state_cache_layer(const cp_state_cache *cache, int rank,
                            int64_t sequence, int copy, int64_t layer);

/* For the one rank of this process, or CP_NO_RANK: for all. Memory that is never
 * written costs nothing. Fails with CP_INVALID for a layer whose states overflow
 * and with CP_MEMORY. */
cp_status cp_state_cache_new(int ranks, int only, int64_t sequences,
                             const cp_model_facts *facts, cp_state_cache **out);
void cp_state_cache_free(cp_state_cache *cache);

/* cp_kept_states_begin and end. In these and the next two, the cache may be
 * NULL: the model has no such layers. */
cp_status cp_state_cache_begin(cp_state_cache *cache, const cp_layout *layout);
void cp_state_cache_end(cp_state_cache *cache, const cp_layout *layout);

/* Copy all states of another cache for this model, with all ranks in this
 * process. */
void cp_state_cache_take(cp_state_cache *cache, const cp_state_cache *from);

/* Read the states of a sequence after `length` tokens, or make them those of an
 * empty one: [layers][cp_state_numbers]. group may be NULL: all ranks are here.
 * All processes call it. Fails with CP_MEMORY, and as the group does. */
cp_status cp_state_cache_read(const cp_state_cache *cache,
                              const cp_process_group *group, int64_t sequence,
                              int64_t length, float *numbers);
void cp_state_cache_write(cp_state_cache *cache, int64_t sequence,
                          int64_t length, const float *numbers);

/* A rank is lost; those above it are renumbered, and all states are gone. */
void cp_state_cache_lose(cp_state_cache *cache, int rank);

#endif
