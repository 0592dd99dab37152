/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Caches that get all their tokens at once. */
#include "ring/settle.h"

cp_status cp_cache_settle(cp_cache *cache, const int64_t *lengths) {
    cp_layout *layout;
    int64_t tokens = 0;
    for (int64_t s = 0; s < cache->sequences; s++) {
        if (cache->length[s] > 0)
            return cp_refuse("sequence %ld has %ld tokens already", s,
                             cache->length[s]);
        tokens += lengths[s];
    }
    if (tokens == 0)
        return CP_OK;
    CP_TRY(cp_cache_lay_out(cache, false, lengths, &layout));
    const cp_status status = cp_cache_commit(cache, layout);
    cp_layout_free(layout);
    return status;
}

/* The tokens of a rank, in the rows that they have in its pages. */
static cp_status list(const cp_cache *cache, int rank, cp_pieces *out) {
    cp_pieces beside = {0};
    for (int64_t s = 0; s < cache->sequences; s++) {
        const cp_pieces *held = cp_cache_held(cache, rank, s);
        for (int64_t n = 0; n < held->count; n++)
            CP_TRY(cp_pieces_append(out, held->items[n]));
    }
    if (cache->pages == NULL)
        return CP_OK;
    cp_status status = cp_pieces_copy(&beside, out);
    if (status == CP_OK)
        status =
            cp_pages_place(cache->pages[rank], NULL, cache->room, out, &beside);
    cp_pieces_free(&beside);
    return status;
}

cp_status cp_cache_migration(const cp_cache *from, const cp_cache *to,
                             cp_migration **out) {
    const int ranks = (int)cp_max(from->ranks, to->ranks);
    CP_TRY(cp_migration_new(ranks, from->sequences, from->length, out));
    cp_status status = CP_OK;
    for (int rank = 0; rank < from->ranks && status == CP_OK; rank++)
        status = list(from, rank, &(*out)->before[rank]);
    for (int rank = 0; rank < to->ranks && status == CP_OK; rank++)
        status = list(to, rank, &(*out)->after[rank]);
    if (status == CP_OK)
        return CP_OK;
    cp_migration_free(*out);
    *out = NULL;
    return status;
}
