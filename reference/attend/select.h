/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Sparse attention on the CPU's cores: finds the best keys of each query, and
 * attends to those only. Plain loops. */
#ifndef CP_SELECT_H
#define CP_SELECT_H

#include "reference/attend/attend.h"
#include "tokens/indexer.h"

/* The queries and keys of a selection, and where the lists go. Owns nothing. */
typedef struct {
    const cp_indexer *indexer;
    const cp_pieces *query_pieces;
    const float *queries; /* [rows][heads][dim] */
    const float *weights; /* [rows][heads] */
    const cp_pieces *key_pieces;
    const float *keys; /* [rows][dim] */
    int threads;
    int64_t room; /* candidates of a query */
    cp_candidate *candidates;
} cp_selection;

/* Empty lists that hold count candidates in all. */
void cp_candidates_clear(cp_candidate *list, int64_t count);

/* Add the visible keys of each query to its list, candidates [rows][room], best
 * first. Only rows that the pieces name are read or written. Scores are summed
 * by dimension, then by head, in fp32 (cp_fused), and have the same bits
 * whatever else is in the call; NaN counts as -inf. Fails with CP_INVALID for
 * threads < 1, and with CP_MEMORY; nothing has then changed. */
cp_status cp_select(const cp_selection *call);

/* Merge two lists of a query over disjoint keys into out; either may be empty.
 * Cannot fail. */
void cp_candidates_merge(cp_candidate *out, const cp_candidate *add,
                         int64_t room);

/* Attend as a kernel does (attend.h), but each query only to keys of the call
 * whose positions it has chosen. chosen is [rows][room]; a position that no key
 * of the call has is ignored. Fails as a kernel does, and with CP_MEMORY. */
cp_status cp_attend_chosen(const cp_attention *call, const int32_t *chosen,
                           int64_t room);

#endif
