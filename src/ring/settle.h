/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Caches that get all their tokens at once: from another cache, or a file. */
#ifndef CP_SETTLE_H
#define CP_SETTLE_H

#include "ring/cache.h"
#include "ring/migrate.h"

/* Let the sequences of an empty cache have so many tokens, where a prompt of
 * them would lie, and no numbers yet. Fails as cp_cache_lay_out and commit do,
 * and if it is not empty; the cache is then untouched. */
cp_status cp_cache_settle(cp_cache *cache, const int64_t *lengths);

/* The same, for the tokens of another cache: by zigzag and in pages, ranks take
 * places in which much of what they are to hold is theirs already. If it fails
 * as it finds them, with CP_MEMORY, it has settled all the same. */
cp_status cp_cache_settle_near(cp_cache *cache, const cp_cache *from);

/* What it takes to move all tokens of a cache to another, of any number of
 * ranks, that has settled for as many; not matched yet. Of a cache and itself:
 * where its tokens are. Fails as cp_migration_new does. */
cp_status cp_cache_migration(const cp_cache *from, const cp_cache *to,
                             cp_migration **out);

#endif
