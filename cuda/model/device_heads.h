/* Tangled from book/17-exact.nw; edit the chapter. */
/* A prompt in exact order, in the layers with a state, on GPUs: each rank
 * follows all tokens, for some of the heads. */
#ifndef CP_DEVICE_HEADS_H
#define CP_DEVICE_HEADS_H

#include "cuda/model/token_runs.h"
#include "cuda/run/rank_messages.h"
#include "model/arena.h"
#include "model/kept_states.h"

typedef struct cp_device_heads cp_device_heads;

/* All arguments must outlive it. rooms [ranks->count] are used until it is
 * freed. Fails as cp_device_room_grow does, and with CP_MEMORY; free even then,
 * when the queues are idle. */
cp_status cp_device_heads_new(const cp_queued_ranks *ranks,
                              const cp_state_facts *facts,
                              const cp_layout *layout,
                              const cp_kept_state *kept, cp_device_room *rooms,
                              cp_device_heads **out);
void cp_device_heads_free(cp_device_heads *heads);

/* What a layer keeps of a sequence, on the rank that keeps it after the call;
 * NULL: there is nothing before the call, or that rank is elsewhere. */
typedef struct {
    float *before, *after;
} cp_head_states;

/* Enqueue a layer: buffers and sent [ranks here], states [sequences with new
 * tokens]. sent grows by the bytes that a rank sends. All processes call it.
 * Fails as launches and messages do. */
cp_status cp_device_heads_walk(cp_device_heads *heads,
                               const cp_state_buffers *buffers,
                               const cp_head_states *states, const float *taps,
                               int64_t *sent);

#endif
