/* Tangled from book/labs/12-window.nw; the skeleton; write your answer here. */
/* Attention with a sliding window, by counting alone: a query at position p
 * sees the keys at p - window + 1 .. p, window >= 1. All positions are in one
 * sequence; runs are of consecutive positions, count >= 0. */
#ifndef WINDOW_H
#define WINDOW_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t first, count;
} run;

/* The number of pairs of a query and a key that it sees, without a loop over
 * positions. All positions are below 2^31, windows below 2^32. */
int64_t window_pairs(run queries, run keys, int64_t window);

/* Contiguous sharding: rank r of N has the run that begins at r * chunk, of
 * chunk = ceil(tokens / N) positions, or of what remains, perhaps nothing. */
run contiguous_run(int rank, int ranks, int64_t tokens);

/* Does any query of this rank see a key of origin? */
bool contiguous_needs(int rank, int origin, int ranks, int64_t tokens,
                      int64_t window);

/* Hops until every rank has all blocks that it needs, if blocks go from each
 * rank to the next one: 0 if no rank needs another's block, at most ranks -
 * 1. */
int contiguous_hops(int ranks, int64_t tokens, int64_t window);

/* The same for zigzag, where rank r has chunks r and 2N-1-r of 2N, each of
 * ceil(tokens / 2N) positions or what remains; blocks go round the circle. */
int zigzag_hops(int ranks, int64_t tokens, int64_t window);

#endif
