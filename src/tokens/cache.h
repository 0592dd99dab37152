/* Tangled from book/08-conversations.nw; edit the chapter. */
/* Which rank holds which cached tokens: the persistent KV cache without its
 * tensors. A call is laid out, run, and only then committed. */
#ifndef CP_CACHE_H
#define CP_CACHE_H

#include "tokens/indexer.h"
#include "tokens/layout.h"
#include "tokens/wire.h"

/* Which rank holds which tokens of which sequence, between calls. */
typedef struct {
    int ranks;
    int64_t sequences;
    int64_t room;       /* cache rows of one sequence on one rank */
    cp_pieces *held;    /* [ranks][sequences], rows of the rank's cache */
    int64_t *length;    /* [sequences] tokens so far, P_i */
    int64_t step;       /* decode steps so far, t of Algorithm 4 */
    cp_dealing dealing; /* of prompts: zigzag, unless it is changed */
    /* What later chapters add to a cache. */
    cp_pages **pages;   /* [ranks], or NULL: held gives the row as if each
                           sequence had its room, and these the real row */
    cp_wire wire;       /* how numbers are encoded for sending */
    cp_indexer indexer; /* of sparse attention, or all zero */
    cp_pieces *lost;    /* [2][sequences] tokens that no rank holds any more,
                           and those that the next call brings back
                           (repair.h); NULL: none */
} cp_cache;

/* An empty cache. Fails with CP_INVALID for no ranks, sequences or room. */
cp_status cp_cache_new(int ranks, int64_t sequences, int64_t room,
                       cp_cache **out);

void cp_cache_free(cp_cache *cache);

/* The layout of the next call: new_tokens[i] tokens for sequence i, dealt out
 * in chunks, or in turns if decode is set (few tokens each). The cache is not
 * touched. Fails as cp_layout_new does, before any work. */
cp_status cp_cache_lay_out(const cp_cache *cache, bool decode,
                           const int64_t *new_tokens, cp_layout **out);

/* Make the new tokens of a call that succeeded part of the cache: all of them,
 * or none if it fails, with CP_MEMORY. */
cp_status cp_cache_commit(cp_cache *cache, const cp_layout *layout);

/* Keep the first length tokens of a sequence; the others are forgotten, and
 * their rows are free. Fails with CP_INVALID, the cache untouched, for more
 * tokens than there are, and if it would cut into a call whose rows are not in
 * the order of its tokens: a long prompt by interleave. */
cp_status cp_cache_truncate(cp_cache *cache, int64_t sequence, int64_t length);

/* Put the rows of an empty cache in pages of block rows, blocks pages on each
 * rank, shared by all sequences (pages.h). Fails with CP_INVALID, and with
 * CP_MEMORY, the cache untouched. A call then fails with CP_CAPACITY, before
 * any work, if a rank has too few free pages. */
cp_status cp_cache_page(cp_cache *cache, int64_t block, int64_t blocks);

/* Let an empty sequence begin with the first `tokens` tokens of another, in the
 * same rows. A row is copied only when one of the two is about to write it.
 * Fails with CP_INVALID, the cache untouched: without pages, for more tokens
 * than there are, and if it would cut into a call whose rows are not in the
 * order of its tokens: a long prompt by interleave. */
cp_status cp_cache_fork(cp_cache *cache, int64_t from, int64_t to,
                        int64_t tokens);

/* The pieces of a sequence that a rank holds. */
cp_pieces *cp_cache_held(const cp_cache *cache, int rank, int64_t sequence);

#endif
