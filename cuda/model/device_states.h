/* Tangled from book/16-state-gpu.nw; edit the chapter. */
/* Layers with a state on GPUs: what sequences keep between calls, and what the
 * ranks of this process enqueue for such a layer. */
#ifndef CP_DEVICE_STATES_H
#define CP_DEVICE_STATES_H

#include "cuda/model/token_runs.h"
#include "cuda/run/rank_messages.h"
#include "model/arena.h"
#include "model/state_cache.h"
#include "model/state_call.h"

/* What the ranks of this process need for such layers, beside what the cache
 * keeps. */
typedef struct cp_device_states cp_device_states;

/* ranks' events are made here. Fails with CP_MEMORY and as CUDA does; free even
 * then. */
cp_status cp_device_states_new(const cp_queued_ranks *ranks,
                               cp_device_states **out);
void cp_device_states_free(cp_device_states *states);

/* A rank is lost; only is then the rank of this process. states may be NULL. */
void cp_device_states_lose(cp_device_states *states, int only);

/* Claim a rank's buffers. */
void cp_state_buffers_claim(const cp_state_facts *facts, int64_t tokens,
                            int64_t sequences, cp_arena *from,
                            cp_state_buffers *out);

/* The layers of a call; cache, layout and buffers [ranks here] must outlive it. Fails as
 * plans and their walkers do; *out is then to be freed, too. Free when the
 * queues are idle. */
typedef struct cp_device_state_call cp_device_state_call;
cp_status cp_device_state_call_new(cp_device_states *states,
                                   const cp_state_cache *cache,
                                   const cp_layout *layout, const cp_link *link,
                                   const cp_state_buffers *buffers,
                                   cp_device_state_call **out);
void cp_device_state_call_free(cp_device_state_call *call);

/* cp_state_walk_layer (state_walk.h), enqueued; taps are on the device. */
cp_status cp_device_state_call_walk(cp_device_state_call *call, int64_t layer,
                                    const float *taps);

/* The bytes that the n-th rank here has sent in all walks. */
int64_t cp_device_state_call_sent(const cp_device_state_call *call, int n);

#endif
