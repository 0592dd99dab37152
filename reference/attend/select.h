/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Sparse attention on the CPU's cores: the best keys of each query, and
 * attention to those alone. Plain loops. */
#ifndef CP_SELECT_H
#define CP_SELECT_H

#include "reference/attend/attend.h"
#include "ring/indexer.h"

/* What to choose among, and where the choice goes. Owns nothing. */
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

/* Make lists empty: count of them in all, whatever their room. */
void cp_candidates_clear(cp_candidate *list, int64_t count);

/* Let the visible keys of each query join its list, candidates [rows][room],
 * best first. Only rows that the pieces name are read or written. Scores are
 * summed by dimension, then by head, in fp32 (cp_fused), and have the same bits
 * whatever else is in the call; a score that is not a number counts as -inf.
 * Fails with CP_INVALID for threads < 1, and with CP_MEMORY; nothing has then
 * changed. */
cp_status cp_select(const cp_selection *call);

/* Merge two lists of a query over disjoint keys into out; either may be empty.
 * Cannot fail. */
void cp_candidates_merge(cp_candidate *out, const cp_candidate *add,
                         int64_t room);

/* As a kernel does (attend.h), but a query attends only to those of the call's
 * keys whose positions it has chosen: chosen is [rows][room]; one that no key
 * of the call has counts as none. */
cp_status cp_attend_chosen(const cp_attention *call, const int32_t *chosen,
                           int64_t room);

#endif
