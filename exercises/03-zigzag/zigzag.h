/* Tangled from book/labs/03-zigzag.nw; the skeleton; write your answer here. */
/* Which rank gets which positions of a prompt, and how much work that is. All
 * in plain integers; nothing here loops over positions. Do not call the
 * library's count of pairs: include only ground.h. */
#ifndef ZIGZAG_H
#define ZIGZAG_H

#include <stdint.h>

#pragma GCC poison cp_span_pairs

typedef enum {
    NAIVE,  /* N chunks in order: rank i has chunk i */
    ZIGZAG, /* 2N chunks: rank i has chunks i and 2N-1-i */
} placement;

/* 0 <= tokens < 2^31, ranks >= 1, 1 <= tile < 2^31. */
typedef struct {
    placement placement;
    int64_t tokens, tile;
    int ranks;
} cut;

/* Positions first .. first + count - 1. */
typedef struct {
    int64_t first, count;
} range;

/* Positions in a chunk: the least multiple of tile for which N or 2N chunks
 * hold all tokens. The last chunks may be shorter, or empty. */
int64_t chunk_size(const cut *how);

/* The rank that holds a position, 0 <= position < tokens. */
int token_owner(const cut *how, int64_t position);

/* What a rank holds: its chunks in order of positions, without empty ones.
 * Unlike in the book, neighbouring chunks are not joined. Returns how many it
 * wrote: 0, 1 or 2. */
int rank_spans(const cut *how, int rank, range spans[2]);

/* The visible pairs: a query sees all keys up to and including its own
 * position. Either range may be empty; all positions are below 2^31. */
int64_t pairs_of(range queries, range keys);

/* The visible pairs of a rank's queries, with the keys of all ranks. */
int64_t work_of(const cut *how, int rank);

/* The largest work of a rank over the mean of all N; 1 without tokens. */
double balance(const cut *how);

#endif
