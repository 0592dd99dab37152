/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Chooses the ring for sparse attention. */
#ifndef CP_SPARSE_H
#define CP_SPARSE_H

#include "variants/choose.h"

/* Choose pass-KV or pass-Q, whichever sends fewer bytes: keys and values, or
 * queries with their chosen positions and partials. The lists cost the same in
 * both. Fails with CP_INVALID if no sequence has new tokens. */
cp_status cp_choose_sparse(const cp_indexer *indexer, const cp_shape *shape,
                           int64_t element_bytes, cp_wire wire, int ranks,
                           int64_t sequences, const int64_t *new_tokens,
                           const int64_t *cached_tokens, cp_choice *choice);

#endif
