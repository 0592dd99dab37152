/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Which rank holds which tokens during one attention call, and in which rows.
 * Only the ledger: the tensors themselves belong to the walkers. */
#ifndef CP_LAYOUT_H
#define CP_LAYOUT_H

#include "tokens/pages.h"
#include "tokens/shard.h"

/* One attention call: its new tokens, and which tokens lie where before it. */
typedef struct {
    int ranks;
    int64_t sequences;          /* B, all that the cache knows */
    const int64_t *new_tokens;  /* [sequences], T_i; 0 = takes no part */
    const cp_pieces *held;      /* [ranks][sequences], rows of the cache;
                                   NULL = nothing is cached */
    int64_t room;               /* cache rows of one sequence on a rank */
    cp_dealing dealing;         /* how new tokens are dealt out... */
    int64_t step;               /* ...round-robin is a decode step: owners
                                  turn by one each step */
    const cp_pieces *positions; /* [sequences] of the new tokens, none of them
                                  held; NULL: those after the cached ones.
                                  Not for round-robin */
} cp_call;

/* Some tokens of a rank, as the rows of a tensor. */
typedef struct {
    cp_pieces pieces; /* which token lies in which row; by sequence */
    int64_t tokens;   /* rows that hold a token */
    int64_t rows;     /* all rows; the others are padding */
} cp_block;

/* Which rank holds what during one call: [ranks] of each block. */
typedef struct {
    int ranks;
    int64_t sequences;
    int64_t new_tokens;    /* sum of T_i */
    int64_t cached_tokens; /* sum of P_i over sequences that take part */
    int64_t *past, *fresh; /* [sequences] P_i, then T_i; 0 = takes no part */
    cp_block *queries;     /* the rank's new tokens; then, in order: */
    cp_block *keys;        /* cached and new, each sequence padded to L^i */
    cp_block *cache;       /* the same keys where they lie in the cache */
    cp_block *appended;    /* the new tokens where they go in the cache */
    cp_block all_queries;  /* the new tokens of all ranks, without padding */
    cp_placement placement;
    int64_t room; /* cache rows of one sequence on a rank */
    /* Leaves and pages. */
    bool leaves; /* a rank has the keys of its leaves (leaves.h): */
    cp_owners owners;
    int64_t pool;      /* rows of all, if the cache is in pages; else 0, and: */
    cp_growth *growth; /* [ranks][sequences] of their tables, or NULL */
    cp_moves *copies;  /* [ranks] rows to copy before the call, or NULL */
} cp_layout;

/* Compute the layout of a call. Fails, with *out = NULL, if the call makes no
 * sense (CP_INVALID: no ranks, T_i < 0, nothing new at all), if a rank's cache
 * has no room for its new tokens (CP_CAPACITY, before any work), or with
 * CP_MEMORY. The call is not kept. */
cp_status cp_layout_new(const cp_call *call, cp_layout **out);

void cp_layout_free(cp_layout *layout);

/* The number of (query, key) pairs of two blocks that causality and a window
 * (or 0) allow, in closed form: the work of an attention between them, per
 * head. */
int64_t cp_block_pairs(const cp_block *queries, const cp_block *keys,
                       int64_t window);

#endif
