/* Tangled from book/16-sparse.nw; edit the chapter. */
/* How many keys queries choose. */
#include "tokens/indexer.h"

int64_t cp_indexer_chosen(const cp_pieces *queries, int64_t top_k) {
    int64_t chosen = 0;
    for (int64_t n = 0; n < queries->count; n++) {
        const cp_span span = queries->items[n].span;
        const int64_t all = cp_span_before(span, top_k); /* choose all */
        chosen += all * (span.start + 1) + span.step * (all * (all - 1) / 2);
        chosen += (span.count - all) * top_k;
    }
    return chosen;
}

double cp_indexer_share(const cp_indexer *indexer, const cp_pieces *queries) {
    const int64_t visible = cp_indexer_chosen(queries, INT32_MAX);
    return visible > 0 ? (double)cp_indexer_chosen(queries, indexer->top_k) /
                             (double)visible
                       : 1.0;
}
