/* Tangled from book/08-conversations.nw; edit the chapter. */
/* Who holds which cached tokens: the persistent KV cache without its tensors.
 * A call is laid out, run, and only then committed. */
#ifndef CP_CACHE_H
#define CP_CACHE_H

#include "ring/indexer.h"
#include "ring/layout.h"
#include "ring/wire.h"

/* Who holds which tokens of which sequence, between calls. */
typedef struct {
    int ranks;
    int64_t sequences;
    int64_t room;       /* cache rows of one sequence on one rank */
    cp_pieces *held;    /* [ranks][sequences], rows of the rank's cache */
    cp_pages **pages;   /* [ranks], or NULL: held says what row it would be if
                           each sequence had its room, and these what it is */
    int64_t *length;    /* [sequences] tokens so far, P_i */
    int64_t step;       /* decode steps so far, t of Algorithm 4 */
    cp_dealing dealing; /* of prompts: zigzag, until somebody sets another */
    cp_wire wire;       /* how numbers are written to be sent */
    cp_indexer indexer; /* of sparse attention, or all zero */
    cp_pieces *lost;    /* [2][sequences] tokens that no rank holds any more,
                           and those of them that the next call brings back
                           (repair.h); NULL: none */
} cp_cache;

/* An empty cache. Fails with CP_INVALID for no ranks, sequences or room. */
cp_status cp_cache_new(int ranks, int64_t sequences, int64_t room,
                       cp_cache **out);

void cp_cache_free(cp_cache *cache);

/* The layout of the next call: new_tokens[i] tokens for each sequence, dealt
 * out by chunks, or in a decode step, of few each, by turns. The cache is not
 * touched. Fails as cp_layout_new does, before any work. */
cp_status cp_cache_lay_out(const cp_cache *cache, bool decode,
                           const int64_t *new_tokens, cp_layout **out);

/* Make the new tokens of a call that succeeded part of the cache. Either all
 * of them or, for want of memory, none. */
cp_status cp_cache_commit(cp_cache *cache, const cp_layout *layout);

/* Keep the first length tokens of a sequence; the others were never there, and
 * their rows are free. Fails with CP_INVALID, the cache untouched, for more
 * than there are, and where a call is cut that did not put its tokens in rows
 * in their order: a long prompt by interleave. */
cp_status cp_cache_truncate(cp_cache *cache, int64_t sequence, int64_t length);

/* Have the rows of an empty cache in blocks of so many, blocks of them on each
 * rank, for all sequences together (pages.h). Fails with CP_INVALID, and with
 * CP_MEMORY, the cache as it was. A call fails with CP_CAPACITY, before any
 * work, where a rank has too few that are free. */
cp_status cp_cache_page(cp_cache *cache, int64_t block, int64_t blocks);

/* Let a sequence that is empty begin as the first so many tokens of another,
 * in the same rows. No row is copied, until one of them is to be written.
 * Fails with CP_INVALID, the cache untouched: without pages, for more tokens
 * than there are, and where a call is cut that did not put its tokens in rows
 * in their order: a long prompt by interleave. */
cp_status cp_cache_fork(cp_cache *cache, int64_t from, int64_t to,
                        int64_t tokens);

/* Bring the rows of each sequence together again: moves[ranks] get what rows
 * must be moved, in that order, before the next call. Fails with CP_CAPACITY if
 * a rank has not one free block, the cache untouched; and with CP_MEMORY, when
 * the moves so far must be made all the same. */
cp_status cp_cache_compact(cp_cache *cache, cp_moves *moves);

/* What a rank holds of a sequence. */
cp_pieces *cp_cache_held(const cp_cache *cache, int rank, int64_t sequence);

#endif
