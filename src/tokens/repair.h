/* Tangled from book/17-repair.nw; edit the chapter. */
/* A rank is lost, and with it the tokens that it held: which ranks are left,
 * what is missing, and which call brings it back. Only the ledger, no rows. */
#ifndef CP_REPAIR_H
#define CP_REPAIR_H

#include "tokens/cache.h"

/* Remove a rank and renumber those above it: the tokens it held of each
 * sequence are lost; the lengths stay. From now on a rank may hold `room` rows
 * of a sequence, which must be no fewer than before. Fails with CP_INVALID for
 * the only rank, and with CP_MEMORY; the cache is then untouched. */
cp_status cp_cache_lose(cp_cache *cache, int rank, int64_t room);

/* Lose what the other ranks hold, too. Fails with CP_MEMORY. */
cp_status cp_cache_lose_all(cp_cache *cache);

/* Make the next call bring back lost tokens, the first of each sequence: *count
 * of them, at most `most`; 0: nothing is lost. lengths[sequences] receives the
 * call's new tokens. The call is laid out, run and committed like any other,
 * and no other call is possible until all tokens are back. Fails with
 * CP_MEMORY. */
cp_status cp_cache_refill(cp_cache *cache, int64_t most, int64_t *lengths,
                          int64_t *count);

/* That call was committed: its tokens are no longer lost. */
void cp_cache_refilled(cp_cache *cache);

#endif
