/* Tangled from book/labs/15-ladder.nw; the skeleton; write your answer here. */
/* Four kernels for one head of causal attention, on a machine that counts
 * what they load and how many exponentials they take. No clock. */
#ifndef LADDER_H
#define LADDER_H

#include "ground/ground.h"

#include <math.h>

/* Exponentials that would not be counted. */
#pragma GCC poison exp expf expl exp2 exp2f exp2l exp10 exp10f exp10l
#pragma GCC poison expm1 expm1f expm1l pow powf powl cp_exp2 cexp cexpf
#pragma GCC poison sinh sinhf sinhl cosh coshf coshl tanh tanhf tanhl

enum {
    ROWS = 8,     /* queries that share a load, from rung 2 on */
    COLUMNS = 16, /* keys that share a rescale, in rung 3 */
    DIM_MAX = 64,
};

/* Rows of floats that only load_row can read. */
typedef struct tensor tensor;

/* One head. Query i sees the first (first + i + 1) keys, or all if there are
 * fewer; none if that is not positive. A score is the product of a query and a
 * key, without scaling. Visible scores are finite, and so are their values.
 * Keys and values that a query does not see may hold anything, NaN too. */
typedef struct {
    const tensor *queries, *keys, *values; /* [..][dim] */
    int64_t query_count, key_count, dim;   /* may be 0, 0, not 0 */
    int64_t first;                         /* may be negative */
} problem;

/* What is counted: one load, one exponential. Use no others. */
void load_row(const tensor *from, int64_t row, float *to); /* [dim] */
float exp_of(float x);

/* A row of the answer before the division. The keys so far have scores s_j;
 * level is the largest, weight the sum of exp(s_j - level), and sums the sum of
 * exp(s_j - level) v_j. No keys: -inf, and zeros. */
typedef struct {
    float level, weight, sums[DIM_MAX];
} softmax_row;

/* Add a key with its value [dim] to a row. Takes exactly one exponential, and
 * one more if the score is larger than the level, as the first always is. */
void softmax_add(softmax_row *row, float score, const float *value,
                 int64_t dim);

/* Add count keys at once: scores [count], values [count][DIM_MAX]. Takes
 * exactly one exponential for each key, and one more if any score is larger
 * than the level. count may be 0 or negative: then nothing happens. */
void softmax_add_block(softmax_row *row, const float *scores, int64_t count,
                       const float (*values)[DIM_MAX], int64_t dim);

/* All rungs: output [query_count][dim] and lse [query_count]; 0 and -inf for
 * a query that sees no key. With T queries, K keys and n visible pairs:
 *            rung 0  rung 1  rung 2         rung 3
 * queries    T       T       T              T
 * keys       3 n     n       K per tile     those that its last row sees
 * values     n       n       K per tile     those that its last row sees
 * exp        2 n     n + number of rises    n + rises by block
 * Up to rung 2 exactly this many keys and values are loaded, visible or not.
 * The other counts are maxima, but no rung takes fewer than n exponentials.
 * A tile is ROWS queries from a multiple of ROWS on, or what remains. A rise
 * is a key whose score is larger than all that its query saw before; by block,
 * a block of COLUMNS keys with such a key, from a multiple of COLUMNS on. */
void rung0(const problem *head, float *output, float *lse);
void rung1(const problem *head, float *output, float *lse);
void rung2(const problem *head, float *output, float *lse);
void rung3(const problem *head, float *output, float *lse);

/* How many keys query i sees. */
static inline int64_t seen(const problem *head, int64_t i) {
    return cp_max(0, cp_min(head->first + i + 1, head->key_count));
}

#endif
