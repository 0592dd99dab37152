/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Deals out tokens in proportion to weights, for ranks of unequal speed or
 * memory: how many each rank gets, which ones, and whose turn it is. The other
 * functions rely on weights that cp_weighted_check accepts. */
#ifndef CP_WEIGHTED_H
#define CP_WEIGHTED_H

#include "tokens/span.h"

enum { CP_WEIGHTED_RANKS = 1024, CP_WEIGHTED_SUM = 10000 };

/* Fails with CP_INVALID unless each weight is at least 1, and their sum at most
 * CP_WEIGHTED_SUM. */
cp_status cp_weighted_check(const int64_t *weights, int ranks);

/* Deal out the next count tokens of a sequence of which rank n holds held[n]:
 * shares [ranks], which add up to count. A token never puts its rank a whole
 * token ahead of its part of all tokens, weight / sum. */
void cp_weighted_deal(const int64_t *weights, int ranks, int64_t count,
                      const int64_t *held, int64_t *shares);

/* Append the pieces of one part of a run, as cp_shard does by zigzag: part n is
 * two chunks, mirror images, with weights[n] of every sum(weights) tokens.
 * run.count must be a multiple of that sum, and run.step 1. */
cp_status cp_weighted_fold(const int64_t *weights, int ranks, int part,
                           cp_span run, int64_t row, cp_pieces *pieces);

/* The rank that gets the one new token of a sequence of which rank n holds
 * held[n]. turn counts from 0; scratch is [ranks]. */
int cp_weighted_owner(const int64_t *weights, int ranks, int64_t turn,
                      const int64_t *held, int64_t *scratch);

/* How many rows suffice on any rank for a sequence of up to `tokens` tokens. */
int64_t cp_weighted_room(const int64_t *weights, int ranks, int64_t tokens);

#endif
