/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Caches that get all their tokens at once, from another cache or a file. */
#ifndef CP_ASSIGN_H
#define CP_ASSIGN_H

#include "tokens/cache.h"
#include "tokens/migrate.h"

/* Give the sequences of an empty cache these numbers of tokens, laid out like
 * prompts of that length; their rows hold no numbers yet. Fails as
 * cp_cache_lay_out and cp_cache_commit do, and if the cache is not empty; it is
 * then untouched. */
cp_status cp_cache_assign(cp_cache *cache, const int64_t *lengths);

/* The same, for the tokens of another cache: with zigzag and pages, each rank
 * takes a part of which it already holds much. If finding those parts fails,
 * with CP_MEMORY, the tokens are assigned nevertheless. */
cp_status cp_cache_assign_near(cp_cache *cache, const cp_cache *from);

/* The migration of all tokens of a cache to another, of any number of ranks,
 * that has the same tokens assigned; not matched yet. From a cache to itself it
 * says where the tokens are. Fails as cp_migration_new does. */
cp_status cp_cache_migration(const cp_cache *from, const cp_cache *to,
                             cp_migration **out);

#endif
