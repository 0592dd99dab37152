/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Sparse attention: the sizes of the indexer, which chooses the keys that a
 * query attends to, and the order of candidates. No tensor is touched here. */
#ifndef CP_INDEXER_H
#define CP_INDEXER_H

#include "tokens/span.h"

/* An indexer scores key s for token t by the sum over its heads of
 *   weight[t][h] x max(0, query[t][h] . key[s])
 * and token t attends to the top_k visible keys with the largest scores. Among
 * equal scores the smaller position comes first. All zero: no indexer. */
typedef struct {
    int64_t heads, dim, top_k;
} cp_indexer;

/* A visible key: its score, and its position in the query's sequence.
 * CP_NO_CANDIDATE stands for no key and comes after all keys. */
typedef struct {
    float score; /* never NaN */
    int32_t position;
} cp_candidate;

#define CP_NO_CANDIDATE ((cp_candidate){-INFINITY, INT32_MAX})

/* Whether a is chosen before b. A total order of the keys of one query. */
static inline bool cp_candidate_before(cp_candidate a, cp_candidate b) {
    return a.score > b.score || (a.score == b.score && a.position < b.position);
}

/* How many keys the queries choose in all, at most top_k each. Each token sees
 * its own position and all before it. */
int64_t cp_indexer_chosen(const cp_pieces *queries, int64_t top_k);

/* The share of their visible keys that the queries choose, 1 if they see none.
 */
double cp_indexer_share(const cp_indexer *indexer, const cp_pieces *queries);

#endif
