/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Deals out tokens in proportion to weights. */
#include "tokens/weighted.h"

static int64_t total(const int64_t *counts, int ranks) {
    int64_t sum = 0;
    for (int n = 0; n < ranks; n++)
        sum += counts[n];
    return sum;
}

cp_status cp_weighted_check(const int64_t *weights, int ranks) {
    int64_t sum = 0;
    if (ranks > CP_WEIGHTED_RANKS)
        return cp_refuse("weights for %d ranks; at most %d ranks are possible",
                         ranks, CP_WEIGHTED_RANKS);
    for (int n = 0; n < ranks; n++) {
        if (weights[n] < 1 || weights[n] > CP_WEIGHTED_SUM - sum)
            return cp_refuse("rank %d has weight %ld; a weight must be >= 1, "
                             "and their sum <= %d",
                             n, weights[n], CP_WEIGHTED_SUM);
        sum += weights[n];
    }
    return CP_OK;
}

static int neediest(const int64_t *weights, int64_t sum, int ranks,
                    const int64_t *held, const int64_t *shares,
                    int64_t tokens) {
    int64_t most = INT64_MIN;
    int rank = 0;
    for (int n = 0; n < ranks; n++) {
        const int64_t lacks = weights[n] * tokens - sum * (held[n] + shares[n]);
        if (lacks > most)
            rank = n;
        most = cp_max(most, lacks);
    }
    return rank;
}

void cp_weighted_deal(const int64_t *weights, int ranks, int64_t count,
                      const int64_t *held, int64_t *shares) {
    const int64_t sum = total(weights, ranks);
    int64_t tokens = total(held, ranks) + count - count % sum;
    for (int n = 0; n < ranks; n++)
        shares[n] = weights[n] * (count / sum);
    for (int64_t n = 0; n < count % sum; n++)
        shares[neediest(weights, sum, ranks, held, shares, ++tokens)]++;
}

cp_status cp_weighted_fold(const int64_t *weights, int ranks, int part,
                           cp_span run, int64_t row, cp_pieces *pieces) {
    const int64_t scale = run.count / total(weights, ranks);
    int64_t low = run.start, high = run.start + run.count;
    for (int n = 0; n < part; n++) {
        low += cp_ceil_divide(scale * weights[n], 2);
        high -= scale * weights[n] / 2;
    }
    const int64_t own_count = scale * weights[part], second = own_count / 2;
    const cp_span spans[] = {{run.sequence, low, own_count - second, 1},
                             {run.sequence, high - second, second, 1}};
    for (int n = 0; n < 2; row += spans[n++].count)
        if (spans[n].count > 0)
            CP_TRY(cp_pieces_append(pieces, (cp_piece){spans[n], row}));
    return CP_OK;
}

int cp_weighted_owner(const int64_t *weights, int ranks, int64_t turn,
                      const int64_t *held, int64_t *scratch) {
    static const int64_t nothing[CP_WEIGHTED_RANKS];
    const int64_t sum = total(weights, ranks), last = turn % sum;
    const int64_t tokens = total(held, ranks);
    cp_weighted_deal(weights, ranks, last, nothing, scratch);
    const int rank = neediest(weights, sum, ranks, nothing, scratch, last + 1);
    const int64_t ahead = sum * held[rank] - weights[rank] * tokens;
    return ahead < ranks * sum
               ? rank
               : neediest(weights, sum, ranks, held, nothing, tokens + 1);
}

int64_t cp_weighted_room(const int64_t *weights, int ranks, int64_t tokens) {
    const int64_t sum = total(weights, ranks);
    int64_t most = 1;
    for (int n = 0; n < ranks; n++)
        most = cp_max(most, weights[n]);
    return cp_min(tokens, cp_ceil_divide(most * tokens, sum) + ranks);
}
