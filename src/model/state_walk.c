/* Tangled from book/16-state.nw; edit the chapter. */
/* The walk of layers with a state. */
#include "model/state_walk.h"

#include <stdlib.h>

#include "model/state_heads.h"

cp_status cp_state_walk_open(cp_state_call *call) {
    const cp_layout *layout = call->layout;
    const int64_t all = layout->sequences, ranks = layout->ranks;
    const bool parts = ranks > 1 && layout->placement != CP_ROUND_ROBIN;
    call->scans = parts && !layout->leaves;
    CP_TRY(
        cp_allocate(&call->sequences, all, sizeof(int64_t), "new sequences"));
    CP_TRY(cp_allocate(&call->messages, ranks * (ranks + all),
                       sizeof(cp_rank_message), "messages"));
    for (int64_t s = 0; s < all; s++)
        if (layout->fresh[s] > 0)
            call->sequences[call->count++] = s;
    return parts && layout->leaves ? cp_state_heads_new(call, &call->heads)
                                   : CP_OK;
}

void cp_state_walk_close(cp_state_call *call) {
    cp_state_heads_free(call->heads);
    free(call->sequences);
    free(call->messages);
}

static cp_status pass(cp_state_call *call) {
    const cp_status status = call->on->pass(call);
    call->message_count = 0;
    return status;
}

/* The row, or the answer, of a sequence's token on a rank; NULL: it is
 * elsewhere. */
static float *row_on(const cp_state_call *call, int64_t sequence, int rank,
                     bool answer) {
    const int n = cp_rank_index(call->only, rank);
    const int64_t row = cp_state_row(&call->cache->facts),
                  other = cp_state_answer_row(&call->cache->facts);
    const int64_t first = cp_state_span_of(call->layout, rank, sequence).first;
    if (n < 0)
        return NULL;
    const cp_state_buffers *at = &call->buffers[n];
    if (call->cache->kept[sequence].owner != rank)
        return at->visitors + sequence * (row + other) + (answer ? row : 0);
    return answer ? at->answers + first * other : at->rows + first * row;
}

/* Rows go to the keepers, or answers come back to the owners. */
static cp_status pass_rows(cp_state_call *call, bool answers) {
    const cp_state_facts *f = &call->cache->facts;
    for (int64_t n = 0; n < call->count; n++) {
        const int64_t s = call->sequences[n];
        const cp_kept_state *kept = &call->cache->kept[s];
        const int from = answers ? kept->next : kept->owner;
        const int to = answers ? kept->owner : kept->next;
        cp_state_call_add(
            call, (cp_rank_message){from, to, row_on(call, s, from, answers),
                                    row_on(call, s, to, answers),
                                    4 * (answers ? cp_state_answer_row(f)
                                                 : cp_state_row(f))});
    }
    return pass(call);
}

static cp_status follow_with_keeper(const cp_state_call *call, int64_t sequence,
                                    int64_t layer, const float *taps) {
    const cp_kept_state *kept = &call->cache->kept[sequence];
    const int rank = kept->next;
    const cp_followed_tokens tokens = {
        &call->cache->facts,
        call->layout->fresh[sequence],
        row_on(call, sequence, rank, false),
        row_on(call, sequence, rank, true),
        NULL,
        taps,
        cp_state_call_kept(call, rank, sequence, kept->from, layer),
        cp_state_call_kept(call, rank, sequence, kept->to, layer)};
    return cp_rank_index(call->only, rank) >= 0
               ? call->on->follow(call, rank, &tokens)
               : CP_OK;
}

static cp_status follow_all(cp_state_call *call, int64_t layer,
                            const float *taps) {
    CP_TRY(pass_rows(call, false));
    for (int64_t n = 0; n < call->count; n++)
        CP_TRY(follow_with_keeper(call, call->sequences[n], layer, taps));
    return pass_rows(call, true);
}

/* All layers' states go to the rank that is to keep them. */
static cp_status hand_over(cp_state_call *call) {
    for (int64_t n = 0; n < call->count; n++) {
        const int64_t s = call->sequences[n];
        const cp_kept_state *kept = &call->cache->kept[s];
        if (kept->from != CP_NO_COPY)
            cp_state_call_add(
                call,
                (cp_rank_message){
                    kept->keeper, kept->next,
                    cp_state_call_kept(call, kept->keeper, s, kept->from, 0),
                    cp_state_call_kept(call, kept->next, s, kept->from, 0),
                    4 * call->cache->layers *
                        cp_state_numbers(&call->cache->facts)});
    }
    return pass(call);
}

cp_status cp_state_walk_layer(cp_state_call *call, int64_t layer,
                              const float *taps) {
    if (layer == 0)
        CP_TRY(hand_over(call));
    if (call->heads != NULL)
        return cp_state_heads_walk(call->heads, layer, taps);
    if (!call->scans)
        return follow_all(call, layer, taps);
    for (int64_t n = 0; n < call->count; n++)
        CP_TRY(call->on->scan(call, n, layer, taps));
    return CP_OK;
}
