/* Tangled from book/05-proof.nw; edit the chapter. */
/* Prove that a layout is right. */
#include "tokens/layout_check.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    cp_span span;
    int rank;
} owned;

static int by_sequence_and_start(const void *left, const void *right) {
    const cp_span *a = &((const owned *)left)->span;
    const cp_span *b = &((const owned *)right)->span;
    if (a->sequence != b->sequence)
        return a->sequence < b->sequence ? -1 : 1;
    return (a->start > b->start) - (a->start < b->start);
}

static cp_status refuse_shared(const owned *list, int64_t count,
                               const char *what) {
    for (int64_t i = 0; i < count; i++) {
        const cp_span a = list[i].span;
        for (int64_t j = i + 1; j < count; j++) {
            const cp_span b = list[j].span;
            if (b.sequence != a.sequence || b.start > cp_span_last(a))
                break;
            const cp_span shared = cp_span_shared(a, b);
            if (shared.count > 0)
                return cp_fail(
                    CP_BROKEN,
                    "%s %ld of sequence %ld is held by rank %d and by rank %d",
                    what, shared.start, a.sequence, list[i].rank, list[j].rank);
        }
    }
    return CP_OK;
}

/* How many tokens of a span are in a list. */
static int64_t listed(const cp_pieces *list, cp_span span) {
    int64_t tokens = 0;
    for (int64_t n = 0; n < list->count; n++)
        tokens += cp_span_shared(list->items[n].span, span).count;
    return tokens;
}

/* The first position after all of a list. */
static int64_t end_of(const cp_pieces *list) {
    int64_t end = 0;
    for (int64_t n = 0; n < list->count; n++)
        end = cp_max(end, cp_span_last(list->items[n].span) + 1);
    return end;
}

static cp_status refuse_missing(const cp_layout *layout, const owned *list,
                                int64_t count, const char *what, bool keys) {
    const cp_pieces *new_tokens = &layout->all_queries.pieces;
    int64_t n = 0, next = 0;
    for (int64_t i = 0; i < layout->sequences; i++) {
        /* Take the sequence's new tokens. */
        cp_pieces tokens = {new_tokens->items + next, 0, 0};
        while (next < new_tokens->count &&
               new_tokens->items[next].span.sequence == i) {
            tokens.count++;
            next++;
        }
        const int64_t end = end_of(&tokens), fresh = layout->fresh[i];
        const int64_t all = keys ? layout->past[i] + fresh : fresh;
        int64_t held = 0, missing = keys ? end : fresh;
        for (; n < count && list[n].span.sequence == i; n++) {
            /* Refuse a span that is not in the call. */
            const cp_span span = list[n].span;
            if (keys ? span.start < 0 : listed(&tokens, span) != span.count)
                return cp_fail(CP_BROKEN,
                               "rank %d holds the %s positions %ld to %ld of "
                               "sequence %ld, which %s",
                               list[n].rank, what, span.start,
                               cp_span_last(span), i,
                               keys ? "begin before 0" : "are not all new");
            held += list[n].span.count;
            missing -= cp_span_before(list[n].span, end);
        }
        if (missing != 0)
            return cp_fail(CP_BROKEN,
                           "%ld of the %s positions before %ld of sequence %ld "
                           "are held by no rank",
                           missing, what, end, i);
        if (held != all)
            return cp_fail(CP_BROKEN,
                           "the ranks hold %ld %s positions of sequence %ld; "
                           "expected %ld",
                           held, what, i, all);
    }
    if (n < count)
        return cp_fail(CP_BROKEN, "rank %d holds a %s of sequence %ld of %ld",
                       list[n].rank, what, list[n].span.sequence,
                       layout->sequences);
    return CP_OK;
}

static cp_status check_partition(const cp_layout *layout, bool keys) {
    const cp_block *blocks = keys ? layout->keys : layout->queries;
    const char *what = keys ? "key" : "query";
    int64_t count = 0, n = 0;
    owned *list;
    for (int rank = 0; rank < layout->ranks; rank++)
        count += blocks[rank].pieces.count;
    CP_TRY(cp_allocate(&list, count, sizeof(owned), "spans"));
    for (int rank = 0; rank < layout->ranks; rank++)
        for (int64_t i = 0; i < blocks[rank].pieces.count; i++)
            list[n++] = (owned){blocks[rank].pieces.items[i].span, rank};
    qsort(list, (size_t)count, sizeof(owned), by_sequence_and_start);
    cp_status status = refuse_shared(list, count, what);
    if (status == CP_OK)
        status = refuse_missing(layout, list, count, what, keys);
    free(list);
    return status;
}

static cp_status check_block(const cp_layout *layout, int rank, bool keys) {
    const cp_block *blocks = keys ? layout->keys : layout->queries;
    const cp_block *lists = keys ? layout->cache : layout->appended;
    const cp_block *block = &blocks[rank];
    const cp_pieces *pieces = &block->pieces, *listed = &lists[rank].pieces;
    const int64_t count = cp_max(pieces->count, listed->count);
    const char *what = keys ? "key" : "query";
    int64_t next = 0;
    for (int64_t n = 0; n < count; n++) {
        const cp_piece piece = (n < pieces->count ? pieces : listed)->items[n];
        if (n >= pieces->count || n >= listed->count ||
            memcmp(&piece.span, &listed->items[n].span, sizeof(cp_span)) != 0)
            return cp_fail(CP_BROKEN,
                           "rank %d: the %s from %ld to %ld of sequence %ld "
                           "are not the same %s",
                           rank, keys ? "keys" : "new tokens", piece.span.start,
                           cp_span_last(piece.span), piece.span.sequence,
                           keys ? "in its cache" : "where they are appended");
        if (piece.row < next)
            return cp_fail(CP_BROKEN,
                           "row %ld of the %s block of rank %d is used twice",
                           piece.row, what, rank);
        next = piece.row + piece.span.count;
    }
    if (next > block->rows || block->rows != blocks[0].rows)
        return cp_fail(CP_BROKEN,
                       "the %s block of rank %d needs %ld rows and has %ld; "
                       "that of rank 0 has %ld",
                       what, rank, next, block->rows, blocks[0].rows);
    return CP_OK;
}

static int by_row(const void *a, const void *b) {
    const cp_piece *one = a, *other = b;
    if (one->row != other->row)
        return one->row < other->row ? -1 : 1;
    return one->span.sequence < other->span.sequence ? -1 : 1;
}

/* May two pieces, the second of which does not begin before the first, overlap
 * in their rows as they do? */
static bool may_share(const cp_layout *layout, cp_piece one, cp_piece other) {
    const cp_pieces *new_tokens = &layout->all_queries.pieces;
    const int64_t ahead = other.row - one.row, left = one.span.count - ahead;
    const int64_t rows = cp_min(left, other.span.count);
    const cp_span a = cp_piece_part(one, ahead, rows).span;
    const cp_span b = cp_piece_part(other, 0, rows).span;
    return a.sequence != b.sequence && a.start == b.start && a.step == b.step &&
           listed(new_tokens, a) + listed(new_tokens, b) == 0;
}

static cp_status check_sorted(const cp_layout *layout, int rank,
                              const cp_pieces *cache) {
    for (int64_t n = 0; n < cache->count; n++) {
        const cp_piece piece = cache->items[n];
        const int64_t end = piece.row + piece.span.count;
        if (piece.row < 0 || end > layout->pool)
            return cp_fail(CP_BROKEN,
                           "rank %d has keys in rows %ld to %ld of a cache of "
                           "%ld",
                           rank, piece.row, end - 1, layout->pool);
        for (int64_t m = n + 1; m < cache->count; m++) {
            const cp_piece other = cache->items[m];
            if (other.row >= end)
                break;
            if (!may_share(layout, piece, other))
                return cp_fail(CP_BROKEN,
                               "row %ld of the cache of rank %d has a token of "
                               "sequence %ld and another of sequence %ld",
                               other.row, rank, piece.span.sequence,
                               other.span.sequence);
        }
    }
    return CP_OK;
}

static cp_status check_pages(const cp_layout *layout, int rank) {
    cp_pieces sorted = {0};
    CP_TRY(cp_pieces_copy(&sorted, &layout->cache[rank].pieces));
    if (sorted.count > 0)
        qsort(sorted.items, (size_t)sorted.count, sizeof(cp_piece), by_row);
    const cp_status status = check_sorted(layout, rank, &sorted);
    cp_pieces_free(&sorted);
    return status;
}

static cp_status check_cache(const cp_layout *layout, int rank) {
    const cp_pieces *cache = &layout->cache[rank].pieces;
    int64_t next = 0;
    if (layout->pool > 0)
        return check_pages(layout, rank);
    for (int64_t n = 0; n < cache->count; n++) {
        const cp_piece piece = cache->items[n];
        const int64_t first = piece.span.sequence * layout->room;
        const int64_t row = cp_max(next, first);
        next = row + piece.span.count;
        if (piece.row != row || next > first + layout->room)
            return cp_fail(
                CP_BROKEN,
                "rank %d has %ld keys of sequence %ld, from %ld on, in row %ld "
                "of its cache; expected row %ld, and room ends before %ld",
                rank, piece.span.count, piece.span.sequence, piece.span.start,
                piece.row, row, first + layout->room);
    }
    return CP_OK;
}

static bool lies_in(cp_piece piece, cp_piece outer) {
    const cp_span a = piece.span, b = outer.span;
    const int64_t ahead = a.start - b.start, rows = piece.row - outer.row;
    return a.sequence == b.sequence && (a.count == 1 || a.step == b.step) &&
           rows >= 0 && rows + a.count <= b.count && ahead == rows * b.step;
}

static cp_status check_appended(const cp_layout *layout, int rank) {
    const cp_pieces *cache = &layout->cache[rank].pieces;
    const cp_pieces *added = &layout->appended[rank].pieces;
    int64_t at = 0;
    for (int64_t n = 0; n < added->count; n++) {
        const cp_piece piece = added->items[n];
        while (at < cache->count && !lies_in(piece, cache->items[at]))
            at++;
        if (at == cache->count)
            return cp_fail(CP_BROKEN,
                           "rank %d appends token %ld of sequence %ld in row "
                           "%ld, where its cache does not have it",
                           rank, piece.span.start, piece.span.sequence,
                           piece.row);
    }
    return CP_OK;
}

/* The new tokens of each sequence are in consecutive rows. */
static cp_status check_all_queries(const cp_layout *layout) {
    const cp_pieces *all = &layout->all_queries.pieces;
    int64_t n = 0, row = 0;
    for (int64_t i = 0; i < layout->sequences; i++) {
        const int64_t fresh = layout->fresh[i], end = row + fresh;
        bool right = true;
        for (; n < all->count && all->items[n].span.sequence == i; n++) {
            right = right && all->items[n].row == row;
            row += all->items[n].span.count;
        }
        if (!right || row != end)
            return cp_fail(CP_BROKEN,
                           "all ranks' queries of sequence %ld are not its %ld "
                           "new tokens, in rows %ld to %ld",
                           i, fresh, end - fresh, end - 1);
    }
    return CP_OK;
}

cp_status cp_layout_check(const cp_layout *layout) {
    CP_TRY(check_partition(layout, true));
    CP_TRY(check_partition(layout, false));
    CP_TRY(check_all_queries(layout));
    for (int rank = 0; rank < layout->ranks; rank++) {
        CP_TRY(check_block(layout, rank, true));
        CP_TRY(check_block(layout, rank, false));
        CP_TRY(check_cache(layout, rank));
        CP_TRY(check_appended(layout, rank));
    }
    return CP_OK;
}
