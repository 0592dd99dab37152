/* Tangled from book/labs/14-both-ways.nw; the skeleton; write your answer here. */
/* Pass-KV on a ring that runs both ways at once. Blocks of keys and values go
 * to the next rank and to the previous one; queries and partials stay. For N
 * ranks a rank has N / 2 steps, rounded down, and N attentions. */
#ifndef BOTH_WAYS_H
#define BOTH_WAYS_H

#include "plan/build.h"

/* A builder, as cp_plan_pass_kv is one.
 *   messages  to the neighbours only, at most N / 2 to each; N (N - 1) of
 *             all ranks together; one rank alone sends and packs nothing
 *   slots     at most 2 (1 + spare) for keys, one partial to merge
 *   in time   what step j + spare needs flies while a rank attends to what
 *             step j brought */
cp_plan_builder plan_both_ways;

#endif
