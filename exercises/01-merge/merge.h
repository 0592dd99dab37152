/* Tangled from book/labs/01-merge.nw; the skeleton; write your answer here. */
/* Half an answer before the division: what a kernel holds for one row while it
 * goes over keys. For scores s_j and values v_j of the keys so far,
 *   level   a number that no s_j exceeds; -inf: no keys yet
 *   weight  sum of exp(s_j - level)
 *   sums    [dim] sum of exp(s_j - level) * v_j
 * Without keys, weight and sums may hold anything, NaN too. */
#ifndef MERGE_H
#define MERGE_H

#include <stdint.h>

typedef struct {
    float level, weight;
    float *sums;
} softmax_row;

/* Merge add into to: the same row over other keys. An empty side leaves the
 * other unchanged; merging two empty sides gives an empty one. NaN in a side
 * that is not empty stays NaN. add is not changed, and to->sums stays to's own
 * memory. No avoidable overflow. */
void softmax_merge(softmax_row *to, const softmax_row *add, int64_t dim);

/* Divide: output [dim] and LSE = level + ln weight. No keys give output 0 and
 * LSE -inf. */
void softmax_finish(const softmax_row *from, float *output, float *lse,
                    int64_t dim);

/* Merge a finished partial of the same row over other keys, output [dim] and
 * lse (-inf: empty, whatever output holds). */
void softmax_take(softmax_row *to, const float *output, float lse, int64_t dim);

#endif
