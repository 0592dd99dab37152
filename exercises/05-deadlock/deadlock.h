/* Tangled from book/labs/05-deadlock.nw; the skeleton; write your answer here. */
/* A ring shift without buffers, in two ways, and an all-gather of
 * shifts. All sizes are bytes, and may be 0. */
#ifndef DEADLOCK_H
#define DEADLOCK_H

#include "ring/comm.h"

/* Send to one rank, or receive from one; return when the message is
 * there. A send thus lasts until its receive is posted. */
cp_status blocking_send(cp_comm *comm, int to, const void *data, int64_t bytes);
cp_status blocking_receive(cp_comm *comm, int from, void *data, int64_t bytes);

/* Give send to the next rank and take receive from the one before;
 * rank N-1 gives to rank 0. The two do not overlap; what comes may
 * be longer or shorter than what goes, and an empty block is a
 * message too. Nothing is outstanding on return. One rank alone gets
 * a copy of what it sends. */
typedef cp_status ring_shift(cp_comm *comm, const void *send,
                             int64_t send_bytes, void *receive,
                             int64_t receive_bytes);

/* A shift of blocking_send and blocking_receive only. One rank alone
 * sends no message. */
ring_shift shift_ordered;

/* A shift of one exchange with two halves. */
ring_shift shift_exchanged;

/* The fewest rounds that an order can take; shift_ordered takes no
 * more. A message lasts one round from when both of its sides are
 * there. One rank needs none. */
int shift_rounds(int ranks);

/* blocks[r] gets the block of rank r, bytes[r] long; the own one is
 * there already, and is not written. A rank gives away N-1 blocks,
 * empty ones too, by shift and by nothing else. */
cp_status gather(cp_comm *comm, ring_shift *shift, const int64_t *bytes,
                 void *const *blocks);

#endif
