/* Tangled from book/16-state.nw; edit the chapter. */
/* A call's layers with a state, over ranks: what their walk (state_walk.h)
 * knows, and what it asks of cores or devices. */
#ifndef CP_STATE_CALL_H
#define CP_STATE_CALL_H

#include "group/rank_message.h"
#include "model/head_cuts.h"
#include "model/state_cache.h"

/* A rank's memory. Before a layer's walk, rows has a row (cp_state_row) for each
 * of its tokens, in the order of cp_forward_list (pass.h); after it, answers has
 * [heads][value_dim] for each. visitors has room for a row and an answer of each
 * sequence, for tokens of other ranks. */
typedef struct {
    float *rows, *answers, *visitors;
} cp_state_buffers;

/* Tokens of a sequence that one rank follows. before and after are what a layer
 * keeps (cp_state_numbers), not the same; before NULL: there is nothing. */
typedef struct {
    const cp_state_facts *facts;
    int64_t count;
    float *rows, *answers;
    const int64_t *order; /* the row of each; NULL: in order */
    const float *taps;    /* [channels][taps] */
    float *before, *after;
} cp_followed_tokens;

typedef struct cp_state_call cp_state_call;
typedef struct cp_state_heads cp_state_heads;

/* What cores and devices do, each for a rank that is here. */
typedef struct {
    /* Send the call's messages, all under way together. */
    cp_status (*pass)(const cp_state_call *call);
    /* Convolve, normalise and answer; in exact order one token at a time. */
    cp_status (*follow)(const cp_state_call *call, int rank,
                        const cp_followed_tokens *tokens);
    /* Copy a share's part of each row, or copy it back: full [rows][width], part
     * [rows][part_width]. */
    cp_status (*cut)(const cp_state_call *call, int rank,
                     const cp_head_cut *cut, int64_t rows, float *full,
                     float *part, bool back);
    /* Get memory until the call ends that begins with these bytes. Once for each
     * rank. */
    cp_status (*reserve)(cp_state_call *call, int rank, int64_t bytes,
                         const void *first, int64_t first_bytes, char **memory);
    /* Answer the n-th sequence by scans, of tails and of pairs. */
    cp_status (*scan)(cp_state_call *call, int64_t n, int64_t layer,
                      const float *taps);
} cp_state_ops;

struct cp_state_call {
    /* The backend sets these; they must outlive the call. */
    const cp_state_ops *on;
    const cp_state_cache *cache;
    const cp_layout *layout;
    const cp_state_buffers *buffers; /* [ranks here] */
    int only;                        /* the rank here; CP_NO_RANK: all */
    /* The walk sets these. */
    int64_t count, *sequences; /* [count] with new tokens */
    bool scans;
    cp_state_heads *heads; /* of a prompt in exact order, or NULL */
    cp_rank_message *messages;
    int64_t message_count;
};

/* Ranks here, and the n-th of them. */
static inline int cp_state_call_ranks(const cp_state_call *call) {
    return call->only == CP_NO_RANK ? call->layout->ranks : 1;
}
static inline int cp_state_call_rank(const cp_state_call *call, int n) {
    return call->only == CP_NO_RANK ? n : call->only;
}

/* What a layer keeps on a rank here (cp_state_cache_layer); NULL: elsewhere. */
float *cp_state_call_kept(const cp_state_call *call, int rank, int64_t sequence,
                          int copy, int64_t layer);

/* Add a message, unless it is empty or of a rank to itself. */
void cp_state_call_add(cp_state_call *call, cp_rank_message message);

#endif
