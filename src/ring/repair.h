/* Tangled from book/17-repair.nw; edit the chapter. */
/* A rank is gone, and with it the tokens that it held: who is left, what is
 * missing, and which call brings it back. Only numbers. */
#ifndef CP_REPAIR_H
#define CP_REPAIR_H

#include "ring/cache.h"

/* Take a rank out, and number those above it anew: what it held of each
 * sequence is lost, the lengths stay. From now on a rank may hold so many rows
 * of a sequence, no fewer than before. Fails with CP_INVALID for the only rank,
 * and with CP_MEMORY, the cache untouched. */
cp_status cp_cache_lose(cp_cache *cache, int rank, int64_t room);

/* Let the next call bring back lost tokens, the first of each sequence,
 * *count of them and at most so many; 0: nothing is lost. lengths[sequences]
 * are its new tokens. It is laid out, run and committed as others are, and
 * until all is back no other call can be. Fails with CP_MEMORY. */
cp_status cp_cache_refill(cp_cache *cache, int64_t most, int64_t *lengths,
                          int64_t *count);

/* That call was committed: what it has brought is lost no more. */
void cp_cache_refilled(cp_cache *cache);

#endif
