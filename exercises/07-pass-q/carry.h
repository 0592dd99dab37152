/* Tangled from book/labs/07-pass-q.nw; the skeleton; write your answer here. */
/* Ring pass-Q in which a partial travels with its queries: a builder of plans
 * (ring/build.h), and its bill. Rank k sends to k + 1 and receives from k - 1,
 * around the ring. */
#ifndef CARRY_H
#define CARRY_H

#include "ring/build.h"

/* The rank whose queries rank holds at a hop, hop from 0 to ranks. At hop
 * ranks, nobody attends any more: what arrives then is the rank's own. */
int carry_origin(int rank, int hop, int ranks);

/* The bytes that each rank sends, where a block of queries has so many rows and
 * a number of Q has element_bytes. Queries make ranks - 1 hops, partials make
 * ranks: [rows][query_heads] of head_dim numbers and an LSE, each of
 * CP_PARTIAL_BYTES. One rank sends nothing. */
int64_t carry_bytes(int ranks, int64_t rows, const cp_shape *shape,
                    int64_t element_bytes);

/* Build the plan. Exchanges only, no collective. Of slots it adds one for
 * queries and two for partials, whatever plan->spare says; with one rank it may
 * add fewer. An exchange may be under way while a rank attends: queries of the
 * next hop, and the partial that this hop's merge will need. */
cp_plan_builder carry_plan;

#endif
