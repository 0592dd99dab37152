/* Tangled from book/labs/06-pass-kv.nw; the skeleton; write your answer here. */
/* Ring pass-KV at run time, with blocks of unequal length. */
#ifndef PASS_KV_H
#define PASS_KV_H

#include "reference/attend/partial.h"
#include "group/comm.h"
#include "tokens/span.h"

/* A block is what one rank has cached: its keys [length][N_KV][D_H], directly
 * followed by its values, in fp32. A length may be 0. */
typedef struct {
    cp_shape shape;           /* N_H, N_KV, D_H */
    const int64_t *lengths;   /* [ranks] tokens of each rank's block */
    const cp_pieces *cached;  /* [ranks] which tokens these are */
    const cp_pieces *queried; /* which tokens this rank's queries are */
    const float *queries;     /* [rows][N_H][D_H], rows may be 0 */
    const float *block;       /* this rank's own; read-only */
    float *buffers[2];        /* two buffers for arriving blocks, each with room
                                 for the longest */
    cp_partial *answer;       /* over all blocks; holds NaN at first */
    cp_partial *added;        /* room for one more such partial */
} ring_call;

/* The bytes of a rank's block. */
int64_t block_bytes(const ring_call *call, int origin);

/* Write the partial of this rank's queries over the block of rank origin,
 * stored at block. The tests provide it. */
cp_status attend_block(cp_comm *comm, const ring_call *call, int origin,
                       const float *block, cp_partial *partial);

/* Fill in the answer: attention of this rank's queries over the blocks of all
 * ranks. Every rank sends N-1 messages to the next rank, each exactly as long
 * as its block; an empty block is a message of no bytes. While a rank attends
 * to a block, except to the last, the next one is in flight. Nothing is
 * outstanding on return. */
cp_status ring_pass_kv(cp_comm *comm, const ring_call *call);

#endif
