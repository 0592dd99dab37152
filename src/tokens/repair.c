/* Tangled from book/17-repair.nw; edit the chapter. */
/* The ledger after a loss. */
#include "tokens/repair.h"

#include <stdlib.h>
#include <string.h>

static void set_room(cp_cache *cache, int64_t room) {
    const int64_t added_room = room - cache->room;
    for (int64_t n = 0; n < cache->ranks * cache->sequences; n++)
        for (int64_t i = 0; i < cache->held[n].count; i++)
            cache->held[n].items[i].row += n % cache->sequences * added_room;
    cache->room = room;
}

static int by_position(const void *a, const void *b) {
    const cp_piece *one = a, *other = b;
    return (one->span.start > other->span.start) -
           (one->span.start < other->span.start);
}

/* In exact order a block lies in one piece. The rest of an open block is still
 * to come, and other blocks would lie before it: so the block is lost, too. */
static void lose_open_block(cp_cache *cache, int64_t sequence) {
    const int64_t length = cache->length[sequence];
    cp_pieces *lost = &cache->lost[sequence];
    for (int rank = 0; rank < cache->ranks; rank++) {
        cp_pieces *held = cp_cache_held(cache, rank, sequence);
        int64_t left = 0;
        for (int64_t n = 0; n < held->count; n++) {
            const cp_piece piece = held->items[n];
            const int64_t count =
                cp_span_before(piece.span, length - length % CP_LEAF_BLOCK);
            if (count > 0)
                held->items[left++] = cp_piece_part(piece, 0, count);
            if (count < piece.span.count)
                lost->items[lost->count++] =
                    cp_piece_part(piece, count, piece.span.count - count);
        }
        held->count = left;
        if (cache->pages != NULL)
            cp_pages_cut(cache->pages[rank], sequence, cp_pieces_tokens(held));
    }
}

static cp_status note_lost(cp_cache *cache, int rank) {
    if (cache->lost == NULL)
        CP_TRY(cp_allocate(&cache->lost, 2 * cache->sequences,
                           sizeof(cp_pieces), "lost tokens"));
    for (int64_t s = 0; s < cache->sequences; s++)
        CP_TRY(cp_pieces_reserve(&cache->lost[s],
                                 cache->lost[s].count +
                                     cp_cache_held(cache, rank, s)->count +
                                     CP_LEAF_BLOCK));
    for (int64_t s = 0; s < cache->sequences; s++) {
        cp_pieces *held = cp_cache_held(cache, rank, s),
                  *lost = &cache->lost[s];
        if (cache->dealing.leaves)
            lose_open_block(cache, s);
        for (int64_t n = 0; n < held->count; n++)
            lost->items[lost->count++] = held->items[n];
        if (lost->count > 0)
            qsort(lost->items, (size_t)lost->count, sizeof(cp_piece),
                  by_position);
        cp_pieces_free(held);
    }
    return CP_OK;
}

static void forget_if_none(cp_cache *cache) {
    int64_t count = 0;
    for (int64_t s = 0; s < cache->sequences; s++)
        count += cache->lost[s].count;
    if (count > 0)
        return;
    for (int64_t n = 0; n < 2 * cache->sequences; n++)
        cp_pieces_free(&cache->lost[n]);
    free(cache->lost);
    cache->lost = NULL;
}

cp_status cp_cache_lose(cp_cache *cache, int rank, int64_t room) {
    const int64_t sequences = cache->sequences;
    int64_t rows;
    if (rank < 0 || rank >= cache->ranks || cache->ranks == 1)
        return cp_refuse("lost rank %d: there are %d ranks, one must be left",
                         rank, cache->ranks);
    if (room < cache->room || !cp_multiply(sequences, room, &rows))
        return cp_refuse("room of %ld rows; it must not be less than %ld", room,
                         cache->room);
    CP_TRY(note_lost(cache, rank));
    if (cache->dealing.leaves)
        cache->dealing.owners =
            cp_owners_without(cp_dealing_owners(&cache->dealing, cache->ranks),
                              rank, cache->ranks);
    const int after = --cache->ranks - rank;
    cp_pieces *held = cp_cache_held(cache, rank, 0);
    memmove(held, held + sequences,
            (size_t)(after * sequences) * sizeof(*held));
    if (cache->pages != NULL) {
        cp_pages_free(cache->pages[rank]);
        memmove(&cache->pages[rank], &cache->pages[rank + 1],
                (size_t)after * sizeof(cache->pages[0]));
    }
    set_room(cache, room);
    forget_if_none(cache);
    return CP_OK;
}

cp_status cp_cache_lose_all(cp_cache *cache) {
    if (cache->lost == NULL)
        CP_TRY(cp_allocate(&cache->lost, 2 * cache->sequences,
                           sizeof(cp_pieces), "lost tokens"));
    for (int64_t s = 0; s < cache->sequences; s++)
        CP_TRY(cp_pieces_reserve(&cache->lost[s], 1));
    for (int64_t s = 0; s < cache->sequences; s++) {
        const int64_t length = cache->length[s];
        cache->lost[s].items[0] = (cp_piece){{s, 0, length, 1}, 0};
        cache->lost[s].count = length > 0;
        for (int rank = 0; rank < cache->ranks; rank++) {
            cp_cache_held(cache, rank, s)->count = 0;
            if (cache->pages != NULL)
                cp_pages_cut(cache->pages[rank], s, 0);
        }
    }
    forget_if_none(cache);
    return CP_OK;
}

static int64_t lost_before(const cp_pieces *lost, int64_t position) {
    int64_t tokens = 0;
    for (int64_t n = 0; n < lost->count; n++)
        tokens += cp_span_before(lost->items[n].span, position);
    return tokens;
}

/* The position before which this many tokens are lost, of more in all. */
static int64_t end_of_first(const cp_pieces *lost, int64_t tokens) {
    int64_t low = 0, high = INT32_MAX;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (lost_before(lost, middle) <= tokens)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Copy the part before position `end`, or, without a copy, keep only the
 * rest. */
static void split(cp_pieces *lost, int64_t end, cp_pieces *before) {
    int64_t left = 0;
    for (int64_t n = 0; n < lost->count; n++) {
        const cp_piece piece = lost->items[n];
        const int64_t count = cp_span_before(piece.span, end);
        if (before != NULL && count > 0)
            before->items[before->count++] = cp_piece_part(piece, 0, count);
        if (before == NULL && count < piece.span.count)
            lost->items[left++] =
                cp_piece_part(piece, count, piece.span.count - count);
    }
    if (before == NULL)
        lost->count = left;
}

cp_status cp_cache_refill(cp_cache *cache, int64_t most, int64_t *lengths,
                          int64_t *count) {
    *count = 0;
    for (int64_t s = 0; s < cache->sequences; s++) {
        lengths[s] = 0;
        if (cache->lost == NULL)
            continue;
        cp_pieces *lost = &cache->lost[s];
        cp_pieces *holes = &cache->lost[cache->sequences + s];
        const int64_t tokens = cp_pieces_tokens(lost);
        const int64_t end = *count + tokens > most
                                ? end_of_first(lost, most - *count)
                                : INT32_MAX;
        CP_TRY(cp_pieces_reserve(holes, lost->count));
        holes->count = 0;
        split(lost, end, holes);
        *count += lengths[s] = cp_pieces_tokens(holes);
    }
    return CP_OK;
}

void cp_cache_refilled(cp_cache *cache) {
    for (int64_t s = 0; s < cache->sequences; s++) {
        cp_pieces *holes = &cache->lost[cache->sequences + s];
        int64_t end = 0;
        for (int64_t n = 0; n < holes->count; n++)
            end = cp_max(end, cp_span_last(holes->items[n].span) + 1);
        split(&cache->lost[s], end, NULL);
        holes->count = 0;
    }
    forget_if_none(cache);
}
