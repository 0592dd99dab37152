/* Tangled from book/17-exact.nw; edit the chapter. */
/* The merge of exact order: two partials of the same queries that are siblings
 * in a tree become their parent, with the same bits in a kernel's registers and
 * between ranks. Knows nothing about ranks. */
#ifndef CP_NODES_H
#define CP_NODES_H

#include "reference/attend/exp2.h"
#include "reference/attend/partial.h"
#include "tokens/leaves.h"

/* ln x, to 2 units in the last place or 6e-8; NaN for NaN. x is above 0. */
static inline float cp_node_log(float x) {
    const int32_t shifted = (int32_t)(cp_to_bits(x) - cp_to_bits(0.70710678f));
    const int32_t power = shifted >> 23;
    const float m = cp_from_bits(cp_to_bits(x) - ((uint32_t)power << 23));
    const float t = (m - 1.0f) / (m + 1.0f), square = t * t;
    float sum = 2.0f / 9.0f;
    sum = cp_fused(sum, square, 2.0f / 7.0f);
    sum = cp_fused(sum, square, 2.0f / 5.0f);
    sum = cp_fused(sum, square, 2.0f / 3.0f);
    sum = cp_fused(sum, square, 2.0f);
    return cp_fused((float)power, 0.69314718f, sum * t) + (x - x);
}

/* The weights of two siblings in their parent, and its LSE. Swapping them makes
 * no difference; an empty one has weight 0. */
typedef struct {
    float left, right, lse;
} cp_node_shares;

static inline cp_node_shares cp_node_weigh(float left, float right) {
    const bool left_larger = left > right;
    const float large = left_larger ? left : right,
                small = left_larger ? right : left;
    const float apart = small == large ? 0.0f : small - large;
    const float weight = cp_exp2(apart * 1.44269504f);
    const float large_share = 1.0f / (1.0f + weight),
                small_share = weight * large_share;
    return (cp_node_shares){left_larger ? large_share : small_share,
                            left_larger ? small_share : large_share,
                            large + cp_node_log(1.0f + weight)};
}

/* Mix a number of each side; an empty side is ignored. */
static inline float cp_node_mix(cp_node_shares of, float left, float right,
                                bool only_left, bool only_right) {
    const float both = of.left * left + of.right * right;
    return only_left ? left : only_right ? right : both;
}

/* Merge one row of one head with that of its sibling. */
void cp_node_merge_row(float *output, float *lse, const float *add,
                       float add_lse, int64_t dim);

/* A slot holds the nodes of its leaves one after another (cp_leaves_nodes),
 * each laid out like a partial, output and then LSE; out and add are the first
 * nodes. Merge the nodes of add into those of out; they share no leaf. */
void cp_nodes_merge(cp_partial *out, uint32_t held, const cp_partial *add,
                    uint32_t added);

/* Numbers from one node to the next. */
static inline int64_t cp_node_size(const cp_partial *first) {
    return first->rows * first->heads * (first->dim + 1);
}

#endif
