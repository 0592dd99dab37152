/* Tangled from book/labs/07-pass-q.nw; the skeleton; write your answer here. */
/* Ring pass-Q in which a partial travels with its queries: a plan builder
 * (plan/build.h), and its cost. Rank k sends to k + 1 and receives from k - 1,
 * around the ring. */
#ifndef PASS_Q_H
#define PASS_Q_H

#include "plan/build.h"

/* The rank whose queries `rank` holds at a hop, hop from 0 to ranks. At hop
 * `ranks`, no rank attends any more: each receives its own partial. */
int pass_q_origin(int rank, int hop, int ranks);

/* The bytes that each rank sends, with `rows` rows in a block of queries and
 * element_bytes in a number of Q. Queries make ranks - 1 hops, partials make
 * ranks hops: [rows][query_heads] of head_dim numbers and an LSE, each of
 * CP_PARTIAL_BYTES. One rank sends nothing. */
int64_t pass_q_bytes(int ranks, int64_t rows, const cp_shape *shape,
                     int64_t element_bytes);

/* Build the plan, with exchanges only, no collective. It adds one slot for
 * queries and two for partials, whatever plan->spare is; with one rank it may
 * add fewer. Exchanges may be in flight while a rank attends: queries of the
 * next hop, and the partial that this hop's merge will need. */
cp_plan_builder pass_q_plan;

#endif
