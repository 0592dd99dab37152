/* Tangled from book/labs/03-zigzag.nw; the skeleton; write your answer here. */
/* The cut of a prompt, and the resulting work. */
#include "zigzag.h"

#include "ground/ground.h"

int64_t chunk_size(const cut *how) {
    /* Divide and round up, then round up to whole tiles. */
    return 0;
}

int token_owner(const cut *how, int64_t position) {
    /* Find the chunk, and the rank that has it. */
    return -1;
}

int rank_spans(const cut *how, int rank, range spans[2]) {
    /* List the rank's chunks that have tokens. */
    return -1;
}

int64_t pairs_of(range queries, range keys) {
    /* Count the queries that see a part, and those that see all. */
    return -1;
}

int64_t work_of(const cut *how, int rank) {
    /* Add up the pairs of the rank's queries. */
    return -1;
}

double balance(const cut *how) {
    /* Divide the largest by the mean. */
    return 0;
}
