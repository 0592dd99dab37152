/* Tangled from book/08-conversations.nw; edit the chapter. */
/* Who holds which cached tokens, between calls. */
#include "ring/cache.h"

#include <stdlib.h>

cp_status cp_cache_new(int ranks, int64_t sequences, int64_t room,
                       cp_cache **out) {
    *out = NULL;
    if (ranks < 1 || sequences < 1 || room < 1)
        return cp_fail(CP_INVALID,
                       "a cache of %d ranks, %ld sequences, %ld rows", ranks,
                       sequences, room);
    int64_t lists = 0;
    cp_cache *cache = NULL;
    cp_status status = cp_allocate(&cache, 1, sizeof(*cache), "a cache");
    if (status != CP_OK)
        return status;
    *cache = (cp_cache){.ranks = ranks, .sequences = sequences, .room = room};
    /* Allocate the lists of a cache. */
    if (!cp_multiply(ranks, sequences, &lists))
        lists = -1;
    status = cp_allocate(&cache->held, lists, sizeof(cp_pieces), "a cache");
    if (status == CP_OK)
        status = cp_allocate(&cache->length, sequences, 8, "lengths");
    if (status != CP_OK) {
        cp_cache_free(cache);
        return status;
    }
    *out = cache;
    return CP_OK;
}

void cp_cache_free(cp_cache *cache) {
    if (cache == NULL)
        return;
    for (int64_t n = 0;
         cache->held != NULL && n < cache->ranks * cache->sequences; n++)
        cp_pieces_free(&cache->held[n]);
    free(cache->held);
    free(cache->length);
    free(cache);
}

static cp_status lay_out(const cp_cache *cache, const int64_t *new_tokens,
                         cp_placement placement, cp_layout **out) {
    const cp_call call = {
        .ranks = cache->ranks,
        .sequences = cache->sequences,
        .new_tokens = new_tokens,
        .held = cache->held,
        .room = cache->room,
        .placement = placement,
        .step = cache->step,
    };
    return cp_layout_new(&call, out);
}

cp_status cp_cache_prefill(const cp_cache *cache, const int64_t *new_tokens,
                           cp_layout **out) {
    return lay_out(cache, new_tokens, CP_ZIGZAG, out);
}

cp_status cp_cache_decode(const cp_cache *cache, const int64_t *new_tokens,
                          cp_layout **out) {
    return lay_out(cache, new_tokens, CP_ROUND_ROBIN, out);
}

static cp_status add_new(const cp_cache *cache, const cp_layout *layout,
                         int rank, cp_pieces *after) {
    const cp_pieces *fresh = &layout->appended[rank].pieces;
    for (int64_t n = 0; n < fresh->count; n++) {
        const cp_piece piece = fresh->items[n];
        CP_TRY(cp_pieces_append(
            &after[rank * cache->sequences + piece.span.sequence], piece));
    }
    return CP_OK;
}

cp_status cp_cache_commit(cp_cache *cache, const cp_layout *layout) {
    const int64_t lists = cache->ranks * cache->sequences;
    cp_pieces *after = NULL;
    cp_status status = cp_allocate(&after, lists, sizeof(*after), "a commit");
    for (int64_t n = 0; n < lists && status == CP_OK; n++)
        status = cp_pieces_copy(&after[n], &cache->held[n]);
    for (int rank = 0; rank < cache->ranks && status == CP_OK; rank++)
        status = add_new(cache, layout, rank, after);
    /* Free the copies if any step failed. */
    if (status != CP_OK) {
        for (int64_t n = 0; after != NULL && n < lists; n++)
            cp_pieces_free(&after[n]);
        free(after);
        return status;
    }
    /* Put the new lists in place of the old. */
    for (int64_t n = 0; n < lists; n++)
        cp_pieces_free(&cache->held[n]);
    free(cache->held);
    cache->held = after;
    for (int64_t i = 0; i < cache->sequences; i++)
        cache->length[i] += layout->fresh[i];
    if (layout->placement == CP_ROUND_ROBIN)
        cache->step++;
    return CP_OK;
}

const cp_pieces *cp_cache_held(const cp_cache *cache, int rank,
                               int64_t sequence) {
    return &cache->held[rank * cache->sequences + sequence];
}

int64_t cp_cache_tokens(const cp_cache *cache, int rank, int64_t sequence) {
    return cp_pieces_tokens(cp_cache_held(cache, rank, sequence));
}
