/* Tangled from book/01-attention.nw; edit the chapter. */
/* Attention in fp64, from its definition: slow, dense, and right. For
 * comparison, not for use. */
#ifndef CP_ORACLE_H
#define CP_ORACLE_H

#include "tokens/span.h"

/* What cp_attend computes (attend.h), in double precision and token by
 * token: O = softmax(Q K^T / sqrt(D)) V over the visible keys, and the
 * log-sum-exp, natural log (paper, appendix B).
 *   queries  [rows][query_heads][head_dim]  keys [rows][kv_heads][head_dim]
 *   values   [rows][kv_heads][value_dim]    lse  [rows][query_heads]
 *   output   [rows][query_heads][value_dim]
 * With a latent, values is keys.
 * Writes only rows that query_pieces name; a query that sees no key gets
 * output 0 and lse -inf. Fails with CP_INVALID for a wrong shape and with
 * CP_MEMORY; output and lse are then untouched. */
cp_status cp_oracle(const cp_shape *shape, const cp_pieces *query_pieces,
                    const float *queries, const cp_pieces *key_pieces,
                    const float *keys, const float *values, double *output,
                    double *lse);

#endif
