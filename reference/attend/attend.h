/* Tangled from book/01-attention.nw; edit the chapter. */
/* Attention in fp32 on the CPU's cores. Not the fastest kernel there is:
 * the one that can be read in one sitting. */
#ifndef CP_ATTEND_H
#define CP_ATTEND_H

#include "ring/span.h"

/* What to attend to, and where the answer goes. Owns nothing. */
typedef struct {
    const cp_shape *shape;
    const cp_pieces *query_pieces;
    const float *queries;
    const cp_pieces *key_pieces;
    const float *keys, *values;
    int threads;
    bool merge; /* into what output and lse hold, instead of over it */
    float *output, *lse;
    void (*poke)(void *context); /* or NULL: see below */
    void *poke_context;
} cp_attention;

/* Causal grouped-query attention of some queries over some keys: the
 * partial (O, LSE) of the paper's section 3.5.2 and appendix B.
 *   queries       [rows][query_heads][head_dim]  output as queries
 *   keys, values  [rows][kv_heads][head_dim]     lse [rows][query_heads]
 * A key is visible to a query of the same sequence at its position or a
 * later one. Scores are scaled by 1 / sqrt(head_dim); lse is a natural
 * logarithm. Only rows that the pieces name are read or written; a query
 * that sees no key gets output 0 and lse -inf. NaN in a query or in keys
 * and values that it sees gives NaN, elsewhere it does nothing. With merge
 * the partial is merged into the one that output and lse hold, with the bits
 * that cp_partial_merge would give (partial.h). threads OpenMP threads share
 * the work; the result does not depend on them. A kernel may call poke now
 * and then, on the caller's thread: something else may want that thread
 * for a moment. Fails with CP_INVALID for a wrong shape or threads < 1, and
 * with CP_MEMORY; output and lse are then untouched. */
typedef cp_status (*cp_kernel)(const cp_attention *call);

/* The first kernel: blocks of keys, online softmax, plain loops. */
cp_status cp_attend(const cp_attention *call);

#endif
