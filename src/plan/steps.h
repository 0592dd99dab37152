/* Tangled from book/05-steps.nw; edit the chapter. */
/* A rank's program, lowered for a device: rows to copy, to attend to, to merge
 * and to send, as columns of numbered buffers. Knows no memory. */
#ifndef CP_STEPS_H
#define CP_STEPS_H

#include "plan/messages.h"
#include "plan/plan.h"

/* Columns of the rows of a tensor, in bytes. Row r begins at first + r * stride
 * of the buffer. Width 0: there is no such tensor. */
typedef struct {
    int64_t buffer, first, stride, width;
} cp_columns;

typedef enum {
    CP_STEP_COPY,   /* rows of in[t] become rows of out[t], for t = 0 and 1 */
    CP_STEP_ATTEND, /* in: queries, keys, values; out: output, LSE */
    /* A kind of step of sparse attention. */
    CP_STEP_SELECT,  /* in: index queries, weights, index keys; out: lists */
    CP_STEP_COMBINE, /* in is merged into out */
    CP_STEP_START,   /* messages may leave and arrive from now on */
    CP_STEP_FINISH,  /* they have */
    CP_STEP_KINDS
} cp_step_kind;

typedef struct {
    cp_step_kind kind;
    cp_op_kind how; /* the operation that it is part of, */
    int32_t op;     /* and its number in the rank's program */
    int hop;
    cp_slot_kind of;       /* COMBINE: what is merged */
    bool merges;           /* ATTEND: into what out holds */
    int32_t rows;          /* COPY: the list of moves */
    int32_t queries, keys; /* ATTEND: lists of pieces */
    int32_t half, halves;  /* START: the first of its messages, and how many */
    int32_t after; /* START: the last computation that touched their bytes, or
                      -1 if an earlier START waits for it; FINISH: its START */
    int64_t out_rows;
    cp_shape shape; /* ATTEND: the heads of the queries */
    cp_columns in[4], out[2];
    /* What later chapters add to a step. */
    bool begins, ends; /* ATTEND: a chain; a step alone does both */
    uint32_t leaves;   /* in exact order: those of keys or in, */
    uint32_t held;     /* and those that out holds before */
} cp_step;

typedef struct {
    int32_t step; /* the START that it belongs to */
    int peer;
    bool receive;
    bool encodes;            /* before it is sent, or when it has arrived */
    bool read_back;          /* the sender decodes it, too */
    int64_t turn;            /* how many of this rank and its peer, in this
                                direction, come before */
    int64_t buffer, bytes;   /* the message, from the buffer's first byte */
    int64_t held;            /* the buffer to encode from or decode to, */
    cp_slot_tensors tensors; /* and what it holds */
} cp_step_half;

/* Rows: pieces of queries or keys, or moves of a copy. A later call may have
 * more pieces of keys, and moves of them; of the rest it has as many. */
typedef enum {
    CP_ROWS_QUERIES,
    CP_ROWS_KEYS,
    CP_ROWS_MOVED,
    CP_ROWS_ALL /* a move: all rows of a slot */
} cp_row_kind;

typedef struct {
    cp_row_kind kind;
    const cp_pieces *of; /* while steps are made: whose pieces; then NULL */
    cp_pieces pieces;
    cp_moves moves;
    int64_t most; /* pieces or moves that such a list has on any rank */
} cp_row_list;

/* The two tensors of slot s are buffers 2s and 2s + 1. They lie one after the
 * other, so that both can be sent at once. Those of the cache, and in a
 * migration those of the result, are the caller's. Then come messages that are
 * encoded, one for each slot. */
typedef struct {
    cp_step *items;
    int64_t count, room;
    cp_row_list *lists;
    int64_t list_count, list_room;
    cp_step_half *halves;
    int64_t half_count, half_room;
    int slot_count, buffer_count;
    int64_t *buffers; /* [buffer_count] bytes; 0: not needed, or the caller's */
    bool *given;      /* [buffer_count] full before the first step */
    int cache, next;  /* slots that are caches; next: of a migration, or 0 */
    int64_t sequences;
    bool leaves; /* in exact order */
    cp_indexer indexer;
} cp_steps;

/* A device: what it does for each kind of step, [CP_STEP_KINDS]. */
typedef cp_status (*cp_step_function)(void *rank, const cp_step *step);

/* fused: an attend or a select and the merge behind it are one step. Pieces of
 * queries, or of keys, are cut so that none is longer than their tile; 0: they
 * are not cut. Tiles of queries cover padding, too, with pieces of sequence -1,
 * up to a row query_rows or more; in a decode step each row is one. */
typedef struct {
    bool fused;
    int64_t query_tile, query_rows, key_tile;
} cp_steps_options;

/* Lower the program of a rank. Neither the plan nor its layout is kept. Fails
 * with CP_MEMORY, and steps are then empty. */
cp_status cp_steps_new(const cp_plan *plan, int rank,
                       const cp_steps_options *options, cp_steps *steps);
void cp_steps_free(cp_steps *steps);

/* Do they differ only in what their lists hold, and in the sizes of slots? */
bool cp_steps_alike(const cp_steps *a, const cp_steps *b);

/* The t-th tensor of a slot, from 0: keys, then values; output, then LSE;
 * queries, then the keys that they have chosen; index queries, then weights. */
cp_columns cp_slot_columns(const cp_plan *plan, int slot, int t);

/* The buffer of a slot's message: its own if it is sent as held. */
static inline int cp_steps_message(const cp_steps *steps, int slot) {
    const int encoded = 2 * steps->slot_count + slot;
    return steps->buffers[encoded] > 0 ? encoded : 2 * slot;
}

#endif
