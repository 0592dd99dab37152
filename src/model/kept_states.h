/* Tangled from book/16-state.nw; edit the chapter. */
/* Which rank keeps the states of a sequence, in which of two copies, and which
 * part of its new tokens each rank has. Knows no memory. */
#ifndef CP_KEPT_STATES_H
#define CP_KEPT_STATES_H

#include "tokens/layout.h"

enum { CP_NO_COPY = -1 };

/* A sequence's two copies, on any rank: how many tokens they are the states
 * after, which of them the call reads and writes, which rank keeps them before
 * and after it, and which has the first new token. */
typedef struct {
    int64_t length[2];
    int from, to, keeper, next, owner;
} cp_kept_state;

/* Before the ranks run a call, and after it succeeded: without end, the states
 * are those before the call. kept [layout->sequences]. begin fails with
 * CP_INVALID if a sequence was cut to a length after which no state is left. */
cp_status cp_kept_states_begin(cp_kept_state *kept, const cp_layout *layout);
void cp_kept_states_end(cp_kept_state *kept, const cp_layout *layout);

/* All states are gone. */
void cp_kept_states_lose(cp_kept_state *kept, int64_t sequences);

/* Which rank has which part of a sequence's new tokens in a prompt: peers
 * [ranks]. */
void cp_state_parts(const cp_layout *layout, int64_t sequence, int *peers);

/* A rank's new tokens of a sequence, which are neighbours among all that it has
 * (cp_forward_list in pass.h). */
typedef struct {
    int64_t first, count;
} cp_state_span;
cp_state_span cp_state_span_of(const cp_layout *layout, int rank,
                               int64_t sequence);

/* Those in one of the two chunks of a part. */
cp_state_span cp_state_chunk_of(const cp_layout *layout, int rank,
                                int64_t sequence, int half);

#endif
