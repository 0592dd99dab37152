/* Tangled from book/08-conversations.nw; edit the chapter. */
/* Which rank holds which cached tokens, between calls. */
#include "tokens/cache.h"

#include <stdlib.h>

cp_status cp_cache_new(int ranks, int64_t sequences, int64_t room,
                       cp_cache **out) {
    cp_cache *cache;
    int64_t lists;
    *out = NULL;
    if (ranks < 1 || sequences < 1 || room < 1)
        return cp_refuse("cache of %d ranks, %ld sequences, %ld rows", ranks,
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
static void free_pages(cp_pages **pages, int ranks) {
    for (int rank = 0; rank < ranks && pages != NULL; rank++)
        cp_pages_free(pages[rank]);
    free(pages);
}

void cp_cache_free(cp_cache *cache) {
    if (cache == NULL)
        return;
    for (int64_t n = 0;
         cache->held != NULL && n < cache->ranks * cache->sequences; n++)
        cp_pieces_free(&cache->held[n]);
    for (int64_t n = 0; cache->lost != NULL && n < 2 * cache->sequences; n++)
        cp_pieces_free(&cache->lost[n]);
    free(cache->lost);
    free(cache->held);
    free(cache->length);
    free_pages(cache->pages, cache->ranks);
    free(cache);
}

static cp_status page_rank(const cp_cache *cache, int rank, cp_layout *layout) {
    const cp_pages *pages = cache->pages[rank];
    const cp_pieces *fresh = &layout->appended[rank].pieces;
    cp_growth *growth = layout->growth + rank * cache->sequences;
    for (int64_t n = 0; n < fresh->count; n++)
        growth[fresh->items[n].span.sequence].rows +=
            fresh->items[n].span.count;
    const cp_status status =
        cp_pages_plan(pages, growth, &layout->copies[rank]);
    if (status == CP_CAPACITY)
        return cp_fail(status, "rank %d: %s", rank, cp_message());
    CP_TRY(status);
    CP_TRY(cp_pages_map(pages, growth, cache->room, &layout->cache[rank].pieces,
                        &layout->keys[rank].pieces));
    return cp_pages_map(pages, growth, cache->room,
                        &layout->appended[rank].pieces,
                        &layout->queries[rank].pieces);
}

static cp_status page_layout(const cp_cache *cache, cp_layout **out) {
    cp_layout *layout = *out;
    const int64_t ranks = cache->ranks;
    layout->pool = cache->pages[0]->block * cache->pages[0]->blocks;
    cp_status status =
        cp_allocate(&layout->copies, ranks, sizeof(cp_moves), "rows to copy");
    if (status == CP_OK)
        status = cp_allocate(&layout->growth, ranks * cache->sequences,
                             sizeof(cp_growth), "blocks to add");
    for (int rank = 0; rank < ranks && status == CP_OK; rank++)
        status = page_rank(cache, rank, layout);
    if (status != CP_OK) {
        cp_layout_free(layout);
        *out = NULL;
    }
    return status;
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
        .positions =
            cache->lost != NULL ? cache->lost + cache->sequences : NULL,
    };
    CP_TRY(cp_layout_new(&call, out));
    return cache->pages == NULL ? CP_OK : page_layout(cache, out);
}

static void lengthen(cp_cache *cache, const cp_pieces *all) {
    for (int64_t n = 0; n < all->count; n++) {
        const cp_span span = all->items[n].span;
        int64_t *length = &cache->length[span.sequence];
        *length = cp_max(*length, cp_span_last(span) + 1);
    }
}

static cp_status make_room(const cp_cache *cache, int rank,
                           const cp_pieces *fresh) {
    int64_t added = 0; /* pieces of one sequence */
    for (int64_t n = 0; n < fresh->count; n++) {
        const int64_t sequence = fresh->items[n].span.sequence;
        const bool same =
            n > 0 && fresh->items[n - 1].span.sequence == sequence;
        cp_pieces *held = cp_cache_held(cache, rank, sequence);
        added = same ? added + 1 : 1;
        CP_TRY(cp_pieces_reserve(held, held->count + added));
    }
    return CP_OK;
}

static const cp_growth *growth_of(const cp_layout *layout, int rank) {
    return layout->growth + rank * layout->sequences;
}

cp_status cp_cache_commit(cp_cache *cache, const cp_layout *layout) {
    for (int rank = 0; rank < cache->ranks; rank++) {
        CP_TRY(make_room(cache, rank, &layout->appended[rank].pieces));
        /* Reserve pages. */
        if (cache->pages != NULL)
            CP_TRY(
                cp_pages_reserve(cache->pages[rank], growth_of(layout, rank)));
    }
    for (int rank = 0; rank < cache->ranks; rank++) {
        const cp_pieces *fresh = &layout->appended[rank].pieces;
        for (int64_t n = 0; n < fresh->count; n++) {
            cp_piece piece = fresh->items[n];
            const int64_t sequence = piece.span.sequence;
            cp_pieces *held = cp_cache_held(cache, rank, sequence);
            piece.row = sequence * cache->room + cp_pieces_tokens(held);
            CP_TRY(cp_pieces_append(held, piece));
        }
        /* Take pages. */
        if (cache->pages != NULL)
            cp_pages_grow(cache->pages[rank], growth_of(layout, rank));
    }
    lengthen(cache, &layout->all_queries.pieces);
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
    if (cache->lost != NULL)
        return cp_refuse("tokens of a lost rank are missing");
    if (length < 0 || length > cache->length[sequence])
        return cp_refuse("sequence %ld has %ld tokens; it cannot be cut to "
                         "%ld",
                         sequence, cache->length[sequence], length);
    for (int rank = 0; rank < cache->ranks; rank++)
        if (!is_packed(cache, rank, sequence, length))
            return cp_refuse("sequence %ld cannot be cut to %ld tokens: rank "
                             "%d has others between them",
                             sequence, length, rank);
    for (int rank = 0; rank < cache->ranks; rank++) {
        cp_pieces *held = cp_cache_held(cache, rank, sequence);
        cut_pieces(held, length);
        if (cache->pages != NULL)
            cp_pages_cut(cache->pages[rank], sequence, cp_pieces_tokens(held));
    }
    cache->length[sequence] = length;
    return CP_OK;
}

cp_pieces *cp_cache_held(const cp_cache *cache, int rank, int64_t sequence) {
    return &cache->held[rank * cache->sequences + sequence];
}
cp_status cp_cache_page(cp_cache *cache, int64_t block, int64_t blocks) {
    cp_pages **pages;
    for (int64_t s = 0; s < cache->sequences; s++)
        if (cache->length[s] > 0)
            return cp_refuse("sequence %ld already has %ld tokens, outside "
                             "pages",
                             s, cache->length[s]);
    CP_TRY(cp_allocate(&pages, cache->ranks, sizeof(*pages), "pages"));
    cp_status status = CP_OK;
    for (int rank = 0; rank < cache->ranks && status == CP_OK; rank++)
        status = cp_pages_new(cache->sequences, block, blocks, &pages[rank]);
    if (status != CP_OK) {
        free_pages(pages, cache->ranks);
        return status;
    }
    free_pages(cache->pages, cache->ranks);
    cache->pages = pages;
    return CP_OK;
}

static cp_status fork_check(const cp_cache *cache, int64_t from, int64_t to,
                            int64_t tokens) {
    const int64_t sequences = cache->sequences;
    if (cache->pages == NULL)
        return cp_refuse("a cache without pages cannot share rows");
    if (cache->lost != NULL)
        return cp_refuse("tokens of a lost rank are missing");
    if (from < 0 || from >= sequences || to < 0 || to >= sequences)
        return cp_refuse("sequence %ld cannot fork sequence %ld, of %ld", to,
                         from, sequences);
    if (cache->length[to] > 0)
        return cp_refuse("sequence %ld has %ld tokens already", to,
                         cache->length[to]);
    if (tokens < 0 || tokens > cache->length[from])
        return cp_refuse("%ld tokens of sequence %ld, which has %ld", tokens,
                         from, cache->length[from]);
    return CP_OK;
}

static cp_status fork_rank(cp_cache *cache, int rank, int64_t from, int64_t to,
                           int64_t tokens) {
    cp_pieces *list = cp_cache_held(cache, rank, to);
    if (!is_packed(cache, rank, from, tokens))
        return cp_refuse("sequence %ld cannot be shared up to %ld tokens: rank "
                         "%d has others between them",
                         from, tokens, rank);
    CP_TRY(cp_pieces_copy(list, cp_cache_held(cache, rank, from)));
    for (int64_t n = 0; n < list->count; n++) {
        list->items[n].span.sequence = to;
        list->items[n].row += (to - from) * cache->room;
    }
    cut_pieces(list, tokens);
    return cp_pages_fork(cache->pages[rank], from, to, cp_pieces_tokens(list));
}

cp_status cp_cache_fork(cp_cache *cache, int64_t from, int64_t to,
                        int64_t tokens) {
    CP_TRY(fork_check(cache, from, to, tokens));
    cp_status status = CP_OK;
    for (int rank = 0; rank < cache->ranks && status == CP_OK; rank++)
        status = fork_rank(cache, rank, from, to, tokens);
    for (int rank = 0; rank < cache->ranks && status != CP_OK; rank++) {
        cp_cache_held(cache, rank, to)->count = 0;
        cp_pages_cut(cache->pages[rank], to, 0);
    }
    if (status == CP_OK)
        cache->length[to] = tokens;
    return status;
}
