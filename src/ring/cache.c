/* Tangled from book/08-conversations.nw; edit the chapter. */
/* Who holds which cached tokens, between calls. */
#include "ring/cache.h"

#include <stdlib.h>

cp_status cp_cache_new(int ranks, int64_t sequences, int64_t room,
                       cp_cache **out) {
    cp_cache *cache;
    int64_t lists;
    *out = NULL;
    if (ranks < 1 || sequences < 1 || room < 1)
        return cp_refuse("a cache of %d ranks, %ld sequences, %ld rows", ranks,
                         sequences, room);
    if (!cp_multiply(ranks, sequences, &lists))
        lists = -1;
    CP_TRY(cp_allocate(&cache, 1, sizeof(*cache), "a cache"));
    *cache = (cp_cache){.ranks = ranks, .sequences = sequences, .room = room};
    cp_status status =
        cp_allocate(&cache->held, lists, sizeof(cp_pieces), "a cache");
    if (status == CP_OK)
        status = cp_allocate(&cache->length, sequences, 8, "lengths");
    if (status == CP_OK)
        *out = cache;
    else
        cp_cache_free(cache);
    return status;
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

cp_status cp_cache_lay_out(const cp_cache *cache, bool decode,
                           const int64_t *new_tokens, cp_layout **out) {
    const cp_call call = {
        .ranks = cache->ranks,
        .sequences = cache->sequences,
        .new_tokens = new_tokens,
        .held = cache->held,
        .room = cache->room,
        .dealing = decode ? cp_dealing_step(&cache->dealing) : cache->dealing,
        .step = cache->step,
    };
    return cp_layout_new(&call, out);
}

static cp_status make_room(const cp_cache *cache, int rank,
                           const cp_pieces *fresh) {
    int64_t more = 0; /* pieces of one sequence */
    for (int64_t n = 0; n < fresh->count; n++) {
        const int64_t sequence = fresh->items[n].span.sequence;
        const bool same =
            n > 0 && fresh->items[n - 1].span.sequence == sequence;
        cp_pieces *held = cp_cache_held(cache, rank, sequence);
        more = same ? more + 1 : 1;
        CP_TRY(cp_pieces_reserve(held, held->count + more));
    }
    return CP_OK;
}

cp_status cp_cache_commit(cp_cache *cache, const cp_layout *layout) {
    for (int rank = 0; rank < cache->ranks; rank++)
        CP_TRY(make_room(cache, rank, &layout->appended[rank].pieces));
    for (int rank = 0; rank < cache->ranks; rank++) {
        const cp_pieces *fresh = &layout->appended[rank].pieces;
        for (int64_t n = 0; n < fresh->count; n++)
            CP_TRY(cp_pieces_append(
                cp_cache_held(cache, rank, fresh->items[n].span.sequence),
                fresh->items[n]));
    }
    for (int64_t i = 0; i < cache->sequences; i++)
        cache->length[i] += layout->fresh[i];
    if (layout->placement == CP_ROUND_ROBIN)
        cache->step++;
    return CP_OK;
}

static bool is_packed(const cp_cache *cache, int rank, int64_t sequence,
                      int64_t length) {
    const cp_pieces *held = cp_cache_held(cache, rank, sequence);
    int64_t tokens = 0, end = sequence * cache->room;
    for (int64_t n = 0; n < held->count; n++) {
        const int64_t left = cp_span_before(held->items[n].span, length);
        tokens += left;
        if (left > 0)
            end = cp_max(end, held->items[n].row + left);
    }
    return end - sequence * cache->room == tokens;
}

static void cut_pieces(cp_pieces *held, int64_t length) {
    int64_t count = 0;
    for (int64_t n = 0; n < held->count; n++) {
        cp_piece piece = held->items[n];
        piece.span.count = cp_span_before(piece.span, length);
        if (piece.span.count == 1)
            piece.span.step = 1;
        if (piece.span.count > 0)
            held->items[count++] = piece;
    }
    held->count = count;
}

cp_status cp_cache_truncate(cp_cache *cache, int64_t sequence, int64_t length) {
    if (length < 0 || length > cache->length[sequence])
        return cp_refuse("sequence %ld has %ld tokens, and cannot be cut to "
                         "%ld",
                         sequence, cache->length[sequence], length);
    for (int rank = 0; rank < cache->ranks; rank++)
        if (!is_packed(cache, rank, sequence, length))
            return cp_refuse("sequence %ld cannot be cut to %ld tokens: rank "
                             "%d has others between them",
                             sequence, length, rank);
    for (int rank = 0; rank < cache->ranks; rank++)
        cut_pieces(cp_cache_held(cache, rank, sequence), length);
    cache->length[sequence] = length;
    return CP_OK;
}

cp_pieces *cp_cache_held(const cp_cache *cache, int rank, int64_t sequence) {
    return &cache->held[rank * cache->sequences + sequence];
}
