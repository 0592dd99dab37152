/* Tangled from book/labs/12-window.nw; the skeleton; write your answer here. */
/* Attention with a sliding window, by counting alone. */
#include "window.h"

/* Chunk i, of chunk positions each. */
static run chunk_of(int64_t i, int64_t chunk, int64_t tokens) {
    const int64_t first = i * chunk;
    const int64_t left = tokens > first ? tokens - first : 0;
    return (run){first, left < chunk ? left : chunk};
}

int64_t window_pairs(run queries, run keys, int64_t window) {
    /* Count pairs in closed form. */
    return -1;
}

run contiguous_run(int rank, int ranks, int64_t tokens) {
    return chunk_of(rank, (tokens + ranks - 1) / ranks, tokens);
}

bool contiguous_needs(int rank, int origin, int ranks, int64_t tokens,
                      int64_t window) {
    /* Check whether any pair is visible. */
    return rank == origin && tokens < 0;
}

int contiguous_hops(int ranks, int64_t tokens, int64_t window) {
    /* Find the block that comes the longest way. */
    return -1;
}

int zigzag_hops(int ranks, int64_t tokens, int64_t window) {
    (void)chunk_of;
    /* Do the same for two chunks a rank. */
    return -1;
}
