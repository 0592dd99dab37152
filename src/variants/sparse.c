/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Chooses the ring for sparse attention. */
#include "variants/sparse.h"

#include <stdio.h>

#include "ground/text.h"

cp_status cp_choose_sparse(const cp_indexer *indexer, const cp_shape *shape,
                           int64_t element_bytes, cp_wire wire, int ranks,
                           int64_t sequences, const int64_t *new_tokens,
                           const int64_t *cached_tokens, cp_choice *choice) {
    cp_load load;
    int64_t longest = 0;
    CP_TRY(cp_load_of(sequences, new_tokens, cached_tokens, 0, &load));
    for (int64_t s = 0; s < sequences; s++)
        longest = cp_max(longest, cached_tokens[s] + new_tokens[s]);
    const cp_head_bytes head = cp_head_bytes_of(wire, shape, element_bytes);
    const int64_t query = head.query + head.partial;
    const int64_t chosen = cp_min(indexer->top_k, longest) * CP_CHOSEN_BYTES;
    const double queries =
        (double)load.fresh * (double)(shape->query_heads * query + chosen);
    const double keys =
        (double)load.keys * (double)(shape->kv_heads * head.keys);
    choice->variant = ranks == 1 || keys <= queries ? CP_PASS_KV : CP_PASS_Q;
    if (ranks == 1)
        snprintf(choice->rule, sizeof(choice->rule),
                 "one rank: nothing to send");
    else
        snprintf(choice->rule, sizeof(choice->rule),
                 "by bytes: keys and values are %s; queries, their chosen "
                 "positions and partials %s",
                 cp_group_number(keys).text, cp_group_number(queries).text);
    return CP_OK;
}
