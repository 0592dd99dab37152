/* Tangled from book/labs/10-bytes.nw; the skeleton; write your answer here. */
/* Pass-KV without forwarding: in step h = 1 .. N-1 rank k sends its own block
 * of keys and values to rank k + h, and receives that of rank k - h. */
#ifndef BYTES_H
#define BYTES_H

#include "plan/build.h"

/* The builder. plan->spare blocks may be in flight while another is attended
 * to: 1 + plan->spare buffers, and one slot for the rank's own block. */
void direct_plan(cp_plan *plan);

/* All bytes that one rank sends in that plan. rows: of a rank's block of keys,
 * padding included; a number takes element_bytes. */
int64_t direct_bytes(int ranks, int64_t rows, const cp_shape *shape,
                     int64_t element_bytes);

/* For ranks in a circle of cables, each from r to r + 1, on which every message
 * goes in the direction of rising ranks: bytes that cross one cable in that
 * plan, from all ranks... */
int64_t direct_cable_bytes(int ranks, int64_t rows, const cp_shape *shape,
                           int64_t element_bytes);

/* ...and in the ring of Chapter 6. */
int64_t ring_cable_bytes(int ranks, int64_t rows, const cp_shape *shape,
                         int64_t element_bytes);

#endif
