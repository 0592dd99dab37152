/* Tangled from book/16-state.nw; edit the chapter. */
/* Where states are, and the parts of a prompt. */
#include "model/kept_states.h"

/* Where a rank's new tokens of a sequence begin; -1: it has none. */
static int64_t begin_of(const cp_layout *layout, int rank, int64_t sequence) {
    const cp_pieces *pieces = &layout->queries[rank].pieces;
    for (int64_t n = 0; n < pieces->count; n++)
        if (pieces->items[n].span.sequence == sequence)
            return pieces->items[n].span.start;
    return -1;
}

/* The position of a sequence's first new token, and the rank that has it. */
static int64_t past_of(const cp_layout *layout, int64_t sequence) {
    int64_t past = INT64_MAX;
    for (int r = 0; r < layout->ranks; r++)
        if (begin_of(layout, r, sequence) >= 0)
            past = cp_min(past, begin_of(layout, r, sequence));
    return past;
}

static int owner_of(const cp_layout *layout, int64_t sequence) {
    const int64_t past = past_of(layout, sequence);
    int rank = 0;
    while (begin_of(layout, rank, sequence) != past)
        rank++;
    return rank;
}

/* The n-th part begins with the n-th chunk. Ranks without tokens have the parts
 * that are left. */
void cp_state_parts(const cp_layout *layout, int64_t sequence, int *peers) {
    const int ranks = layout->ranks;
    const int64_t past = past_of(layout, sequence);
    const int64_t chunk = cp_ceil_divide(layout->fresh[sequence], 2 * ranks);
    for (int part = 0; part < ranks; part++)
        peers[part] = CP_NO_RANK;
    for (int r = 0; r < ranks; r++)
        if (begin_of(layout, r, sequence) >= 0)
            peers[(begin_of(layout, r, sequence) - past) / chunk] = r;
    for (int part = 0, r = 0; part < ranks; part++) {
        while (r < ranks && begin_of(layout, r, sequence) >= 0)
            r++;
        if (peers[part] == CP_NO_RANK)
            peers[part] = r++;
    }
}

cp_state_span cp_state_span_of(const cp_layout *layout, int rank,
                               int64_t sequence) {
    const cp_pieces *pieces = &layout->queries[rank].pieces;
    cp_state_span found = {0};
    int64_t row = 0;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        if (span.sequence == sequence && found.count == 0)
            found.first = row;
        if (span.sequence == sequence)
            found.count += span.count;
        row += span.count;
    }
    return found;
}

cp_state_span cp_state_chunk_of(const cp_layout *layout, int rank,
                                int64_t sequence, int half) {
    const cp_state_span all = cp_state_span_of(layout, rank, sequence);
    const int64_t first = cp_min(
        all.count, cp_ceil_divide(layout->fresh[sequence], 2 * layout->ranks));
    return half == 0 ? (cp_state_span){all.first, first}
                     : (cp_state_span){all.first + first, all.count - first};
}

cp_status cp_kept_states_begin(cp_kept_state *states, const cp_layout *layout) {
    for (int64_t s = 0; s < layout->sequences; s++) {
        cp_kept_state *kept = &states[s];
        if (layout->fresh[s] == 0)
            continue;
        const int64_t past = past_of(layout, s);
        kept->from = CP_NO_COPY;
        for (int copy = 0; copy < 2; copy++)
            if (past == 0)
                kept->length[copy] = CP_NO_COPY;
            else if (kept->length[copy] == past)
                kept->from = copy;
        if (past > 0 && kept->from == CP_NO_COPY)
            return cp_refuse("sequence %ld: its states after %ld tokens are "
                             "gone",
                             s, past);
        kept->to = kept->from == 0;
        kept->length[kept->to] = CP_NO_COPY;
        kept->owner = owner_of(layout, s);
        kept->next = past > 0 && layout->placement == CP_ROUND_ROBIN
                         ? kept->keeper
                         : kept->owner;
    }
    return CP_OK;
}

void cp_kept_states_end(cp_kept_state *states, const cp_layout *layout) {
    for (int64_t s = 0; s < layout->sequences; s++) {
        cp_kept_state *kept = &states[s];
        if (layout->fresh[s] == 0)
            continue;
        kept->keeper = kept->next;
        kept->length[kept->to] = past_of(layout, s) + layout->fresh[s];
    }
}

void cp_kept_states_lose(cp_kept_state *states, int64_t sequences) {
    for (int64_t s = 0; s < sequences; s++)
        states[s] = (cp_kept_state){.length = {CP_NO_COPY, CP_NO_COPY}};
}
