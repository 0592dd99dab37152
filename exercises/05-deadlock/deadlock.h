/* Tangled from book/labs/05-deadlock.nw; the skeleton; write your answer here. */
/* A ring shift without buffers, in two ways, and an all-gather made of shifts.
 * All sizes are in bytes, and may be 0. */
#ifndef DEADLOCK_H
#define DEADLOCK_H

#include "group/comm.h"

/* Send to one rank, or receive from one; return when the message has arrived. A
 * send thus waits until its receive is posted. */
cp_status blocking_send(cp_comm *comm, int to, const void *data, int64_t bytes);
cp_status blocking_receive(cp_comm *comm, int from, void *data, int64_t bytes);

/* Send `send` to the next rank and fill `receive` from the previous one; rank
 * N-1 sends to rank 0. The two do not overlap; their sizes may differ, and an
 * empty block is a message too. Nothing is outstanding on return. With one
 * rank, `receive` gets a copy of `send`. */
typedef cp_status ring_shift(cp_comm *comm, const void *send,
                             int64_t send_bytes, void *receive,
                             int64_t receive_bytes);

/* A shift of only blocking_send and blocking_receive. One rank alone sends no
 * message. */
ring_shift shift_ordered;

/* A shift by one exchange with two halves. */
ring_shift shift_exchanged;

/* The fewest rounds that any order needs; shift_ordered needs no more. A
 * message takes one round once both of its sides are there. One rank needs
 * none. */
int shift_rounds(int ranks);

/* blocks[r] gets the block of rank r, bytes[r] long; the rank's own block is
 * already there, and is not written. A rank sends N-1 blocks, empty ones too,
 * only by shift. */
cp_status gather(cp_comm *comm, ring_shift *shift, const int64_t *bytes,
                 void *const *blocks);

#endif
