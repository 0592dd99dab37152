/* Tangled from book/labs/02-stream.nw; the skeleton; write your answer here. */
/* The answer of a row, from a stream of partials. */
#include "stream.h"

#include <math.h>
#include <stdbool.h>

void pair_add(float *sum, float *lost, float term) {
    /* Add, and keep what rounding drops. */
}

void stream_begin(stream *to, float *room, int64_t dim) {
    /* Divide up the room, and clear it. */
}

void stream_add(stream *to, const float *output, float s) {
    /* Skip an empty partial. */
    /* Raise the level if the partial is above it. */
    /* Add the weight, and the weight times each channel. */
}

void stream_end(const stream *from, float sink, float *output, float *lse) {
    /* Find a level for the keys and the sink, and divide. */
}
