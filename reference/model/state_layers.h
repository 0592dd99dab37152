/* Tangled from book/16-state.nw; edit the chapter. */
/* The layers with a state of a model: what its sequences keep between calls,
 * and what a rank does in such a layer. */
#ifndef CP_STATE_LAYERS_H
#define CP_STATE_LAYERS_H

#include "group/comm.h"
#include "group/process_group.h"
#include "model/backend.h"
#include "reference/run/states.h"

/* The states and tails of all sequences, in all such layers, each on the rank
 * that keeps it. */
typedef struct cp_state_cache cp_state_cache;

/* For the one rank of this process, or CP_NO_RANK: for all. Memory that is never
 * written costs nothing. Fails with CP_INVALID for a layer whose states overflow
 * and with CP_MEMORY. */
cp_status cp_state_cache_new(int ranks, int only, int64_t sequences,
                             const cp_model_facts *facts, cp_state_cache **out);
void cp_state_cache_free(cp_state_cache *cache);

/* Before the ranks run a call, and after it succeeded: without end, the states
 * are those before the call. begin fails with CP_INVALID if a sequence was cut
 * to a length after which no state is left. In these and the next two, the cache
 * may be NULL: the model has no such layers. */
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

/* A rank in a call. Before a walk, rows has a row for each of the rank's tokens,
 * in the order of cp_forward_list: queries and keys [key heads][key_dim], values
 * [heads][value_dim], logarithms of decays [heads], rates [heads]. After it,
 * answers has [heads][value_dim] for each. */
typedef struct cp_state_call cp_state_call;
typedef struct {
    float *rows, *answers;
    int64_t stride, channels, answer_width; /* numbers of a row; convolved; of
                                               an answer */
} cp_state_rows;

/* The cache, the call and comm must outlive it. Fails with CP_MEMORY. */
cp_status cp_state_call_new(cp_state_cache *cache, const cp_forward *forward,
                            cp_comm *comm, int threads, cp_state_call **out);
void cp_state_call_free(cp_state_call *call);
const cp_state_rows *cp_state_call_rows(const cp_state_call *call);

/* Walk a layer, counted among those with a state; taps [channels][taps]. All
 * ranks must call it. */
cp_status cp_state_call_walk(cp_state_call *call, int64_t layer,
                             const float *taps);

#endif
