/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Which ring attends to chosen keys. */
#ifndef CP_SPARSE_H
#define CP_SPARSE_H

#include "ring/choose.h"

/* Pass-KV or pass-Q, whichever sends fewer bytes: keys and values, or queries
 * with what they have chosen and partials. What lists cost is the same. Fails
 * with CP_INVALID if no sequence has new tokens. */
cp_status cp_choose_sparse(const cp_indexer *indexer, const cp_shape *shape,
                           int64_t element_bytes, cp_wire wire, int ranks,
                           int64_t sequences, const int64_t *new_tokens,
                           const int64_t *cached_tokens, cp_choice *choice);

#endif
