/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Sparse attention: what chooses the keys that a query attends to, and what is
 * known of one of them. No tensor is touched here. */
#ifndef CP_INDEXER_H
#define CP_INDEXER_H

#include "ring/span.h"

/* An indexer scores key s for token t by the sum over its heads of
 *   weight[t][h] x max(0, query[t][h] . key[s])
 * and token t attends to the top_k visible keys whose scores are largest; of
 * equal scores the smaller position is first. All zero: there is none. */
typedef struct {
    int64_t heads, dim, top_k;
} cp_indexer;

/* A visible key, by its score and its position in the query's sequence; or
 * none, which comes after all that there are. */
typedef struct {
    float score; /* no NaN */
    int32_t position;
} cp_candidate;

#define CP_NO_CANDIDATE ((cp_candidate){-INFINITY, INT32_MAX})

/* Is a chosen before b? A total order of the keys of one query. */
static inline bool cp_candidate_before(cp_candidate a, cp_candidate b) {
    return a.score > b.score || (a.score == b.score && a.position < b.position);
}

/* How many keys so many chosen at most come to: the sum over the tokens of some
 * queries, each of which sees its own position and all before it. */
int64_t cp_indexer_chosen(const cp_pieces *queries, int64_t top_k);

/* Of the visible keys of some queries, what part they choose. */
double cp_indexer_share(const cp_indexer *indexer, const cp_pieces *queries);

#endif
