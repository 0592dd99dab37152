/* Tangled from book/labs/02-stream.nw; the skeleton; write your answer here. */
/* The answer of one row and head, from a stream of partials over disjoint keys.
 * A partial is output [dim] and s, the logarithm to BASE 2 of its weight: it
 * weighs 2^s. s = -inf: empty, whatever its output holds. */
#ifndef STREAM_H
#define STREAM_H

#include <stdint.h>

/* Fields and types are fixed. The second float of each pair holds what rounding
 * dropped from the first. */
typedef struct {
    float level; /* weights are relative to 2^level; -inf: nothing yet */
    float weight, weight_lost;
    float *sums, *sums_lost; /* [dim] of weight times output, not divided */
    int64_t dim;
} stream;

/* Add term to the number sum + lost. Afterwards sum is that number, rounded,
 * and lost is what the rounding dropped. Double is allowed inside. */
void pair_add(float *sum, float *lost, float term);

/* Begin an empty stream. room [2 * dim] may hold anything; the stream uses it
 * from now on, and the caller frees it after the last use. */
void stream_begin(stream *to, float *room, int64_t dim);

/* Add a partial. NaN in s, or in the output of a partial that is not empty,
 * stays NaN. */
void stream_add(stream *to, const float *output, float s);

/* The answer so far. w are the weights of all partials, and e^sink is that of
 * the sink; sink is a NATURAL logarithm, as in the model's file (-inf: no
 * sink).
 *   output [dim] = sum(w * output) / (sum(w) + e^sink)
 *   lse          = ln(sum(w) + e^sink), natural
 * Without partials, output is 0 and lse = sink. The stream is unchanged:
 * partials may still be added, and it may be ended again. No avoidable
 * overflow. */
void stream_end(const stream *from, float sink, float *output, float *lse);

#endif
