/* Tangled from book/02-partials.nw; edit the chapter. */
/* Half an answer: attention over some of the keys, and the merge of two such
 * halves. Knows nothing about positions or ranks. */
#ifndef CP_PARTIAL_H
#define CP_PARTIAL_H

#include <stdint.h>

/* Attention of some queries over some keys. Does not own its memory.
 *   output     [rows][heads][dim]
 *   lse        [rows][heads], natural log, -inf = attended to nothing
 *   remainder  [rows][heads], what lse lacks of the logarithm; NULL: not kept.
 *              A running answer has it, a partial in a message does not. */
typedef struct {
    int64_t rows, heads, dim;
    float *output, *lse, *remainder;
} cp_partial;

/* Make the partial empty: output 0, lse -inf. It is the identity of the
 * merge. */
void cp_partial_clear(cp_partial *partial);

/* Merge two partials of the same queries over disjoint keys into out
 * (paper, eq. 4, for two). An empty side leaves the other untouched,
 * whatever its output holds; two empty sides give output 0, lse -inf. NaN
 * in a side that is not empty gives NaN. Without a remainder, merging a with b
 * or b with a gives the same bits. out may be add. Cannot fail. */
void cp_partial_merge(cp_partial *out, const cp_partial *add);

/* The same for one row of one head; lse and remainder are ours, add_lse the
 * other's. */
void cp_partial_merge_row(float *output, float *lse, float *remainder,
                          const float *add, float add_lse, int64_t dim);

#endif
