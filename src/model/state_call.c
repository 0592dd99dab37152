/* Tangled from book/16-state.nw; edit the chapter. */
/* What a walk of layers with a state knows of its call. */
#include "model/state_call.h"

float *cp_state_call_kept(const cp_state_call *call, int rank, int64_t sequence,
                          int copy, int64_t layer) {
    return cp_rank_index(call->only, rank) < 0
               ? NULL
               : cp_state_cache_layer(call->cache, rank, sequence, copy, layer);
}

void cp_state_call_add(cp_state_call *call, cp_rank_message message) {
    if (message.bytes > 0 && message.from != message.to)
        call->messages[call->message_count++] = message;
}
