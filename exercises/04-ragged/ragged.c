/* Tangled from book/labs/04-ragged.nw; the skeleton; write your answer here. */
/* Packed sequences, and their padded shards. */
#include "ragged.h"

#include <string.h>

#include "ground/ground.h"

int64_t shard_rows(const batch *how) {
    /* Add up the rows of all sequences. */
    return -1;
}

token_position token_at(const batch *how, int rank, int64_t row) {
    /* Find the sequence, the chunk and the position. */
    return (token_position){-1, -1};
}

void positions_of(const batch *how, int rank, int32_t *positions) {
    /* Write the position of each row. */
}

void scatter_rows(const batch *how, int rank, const float *packed, float *shard,
                  int64_t dim) {
    /* Copy each token to its row, and clear the padding. */
}

void gather_back(const batch *how, const float *const *shards, float *packed,
                 int64_t dim) {
    /* Copy back each row that is a token. */
}
