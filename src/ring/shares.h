/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Tokens in proportion to weights, for ranks of unequal speed or memory: how
 * many each gets, which, and whose turn it is. Weights are checked by
 * cp_shares_check; the other functions rely on it. */
#ifndef CP_SHARES_H
#define CP_SHARES_H

#include "ring/span.h"

enum { CP_SHARES_RANKS = 1024, CP_SHARES_SUM = 10000 };

/* Fails with CP_INVALID unless each weight is at least 1, and their sum at most
 * CP_SHARES_SUM. */
cp_status cp_shares_check(const int64_t *weights, int ranks);

/* How many of the next count tokens of a sequence each rank gets that holds so
 * many: shares [ranks], which add up to count. Thereby no rank gets ahead of
 * its part, weight / sum of all tokens, by a whole token. */
void cp_shares_deal(const int64_t *weights, int ranks, int64_t count,
                    const int64_t *held, int64_t *shares);

/* As cp_shard, by zigzag: part n is two chunks, mirror images, and has
 * weights[n] of every sum of weights tokens; run.count is a multiple of that
 * sum, and run.step 1. */
cp_status cp_shares_fold(const int64_t *weights, int ranks, int part,
                         cp_span run, int64_t row, cp_pieces *pieces);

/* Who gets the one new token of a sequence of which the ranks hold so many, at
 * that turn, from 0. scratch is [ranks]. */
int cp_shares_owner(const int64_t *weights, int ranks, int64_t turn,
                    const int64_t *held, int64_t *scratch);

/* The rows that no rank outgrows while a sequence has so many tokens. */
int64_t cp_shares_room(const int64_t *weights, int ranks, int64_t tokens);

#endif
