/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Who holds which tokens during one attention call, and in which rows. */
#include "ring/layout.h"

#include <stdlib.h>
#include <string.h>

static cp_pieces pieces_held(const cp_call *call, int rank, int64_t sequence) {
    return call->held == NULL ? (cp_pieces){0}
                              : call->held[rank * call->sequences + sequence];
}

static int64_t tokens_held(const cp_call *call, int rank, int64_t sequence) {
    const cp_pieces held = pieces_held(call, rank, sequence);
    return cp_pieces_tokens(&held);
}

static cp_status add_key(cp_block *keys, cp_block *cache, cp_piece piece,
                         int64_t *row) {
    const int64_t tokens = piece.span.count, at = *row;
    *row += tokens;
    keys->tokens += tokens;
    cache->tokens += tokens;
    const cp_status status =
        cp_pieces_append(&keys->pieces, (cp_piece){piece.span, at});
    return status == CP_OK ? cp_pieces_append(&cache->pieces, piece) : status;
}

static cp_status write_keys(const cp_call *call, int rank, int64_t sequence,
                            cp_layout *layout) {
    cp_block *keys = &layout->keys[rank], *cache = &layout->cache[rank];
    const cp_pieces held = pieces_held(call, rank, sequence);
    const cp_pieces *fresh = &layout->appended[rank].pieces;
    int64_t row = keys->rows;
    cp_status status = CP_OK;
    for (int64_t n = 0; n < held.count && status == CP_OK; n++)
        status = add_key(keys, cache, held.items[n], &row);
    /* Copy the new pieces. */
    for (int64_t n = 0; n < fresh->count && status == CP_OK; n++)
        if (fresh->items[n].span.sequence == sequence)
            status = add_key(keys, cache, fresh->items[n], &row);
    return status;
}

/* A rank that is dealt to: the n-th seat gets part n. */
typedef struct {
    int64_t held; /* of the sequence, before the call */
    int rank, place;
} seat;

static int fewer_first(const void *a, const void *b) {
    const seat *one = a, *other = b;
    if (one->held == other->held)
        return one->place - other->place;
    return one->held < other->held ? -1 : 1;
}

static int more_first(const void *a, const void *b) {
    const seat *one = a, *other = b;
    return one->held == other->held ? one->place - other->place
                                    : fewer_first(b, a);
}

static void pass_over_the_full(int ranks, seat *seats) {
    int64_t least = INT64_MAX;
    int turn = 0;
    for (int n = 0; n < ranks; n++)
        least = cp_min(least, seats[n].held);
    while (seats[turn].held - least >= cp_shard_spread(ranks))
        turn++;
    const seat owner = seats[turn];
    seats[turn] = seats[0];
    seats[0] = owner;
}

static int64_t first_seat(const cp_call *call, int64_t place) {
    if (call->placement == CP_ROUND_ROBIN)
        return (place + call->step) % call->ranks;
    return call->placement == CP_ZIGZAG ? place % call->ranks : 0;
}

static void seat_ranks(const cp_call *call, int64_t sequence, int64_t place,
                       seat *seats) {
    const int ranks = call->ranks;
    const int64_t first = first_seat(call, place);
    for (int n = 0; n < ranks; n++) {
        const int rank = (int)((first + n) % ranks);
        seats[n] = (seat){tokens_held(call, rank, sequence), rank, n};
    }
    if (call->placement == CP_ROUND_ROBIN)
        pass_over_the_full(ranks, seats);
    if (call->placement == CP_ZIGZAG)
        qsort(seats, (size_t)ranks, sizeof(*seats),
              call->new_tokens[sequence] < ranks ? fewer_first : more_first);
}

static cp_status deal(const cp_call *call, int part, const seat *seat,
                      cp_run run, cp_layout *layout, int64_t *longest) {
    const int rank = seat->rank;
    cp_block *queries = &layout->queries[rank];
    cp_block *appended = &layout->appended[rank];
    const int64_t row = run.sequence * call->room + seat->held;
    cp_status status = cp_shard(call->placement, call->ranks, part, run,
                                queries->rows, &queries->pieces);
    if (status == CP_OK)
        status = cp_shard(call->placement, call->ranks, part, run, row,
                          &appended->pieces);
    const int64_t all = cp_pieces_tokens(&queries->pieces);
    const int64_t total = seat->held + all - queries->tokens;
    queries->tokens = appended->tokens = all;
    *longest = cp_max(*longest, total);
    if (status == CP_OK && total > call->room)
        status = cp_fail(CP_CAPACITY,
                         "sequence %ld would hold %ld tokens on rank %d; its "
                         "cache has room for %ld",
                         run.sequence, total, rank, call->room);
    return status;
}

static cp_status lay_out(const cp_call *call, int64_t sequence, int64_t place,
                         seat *seats, cp_layout *layout) {
    const int64_t fresh = call->new_tokens[sequence];
    int64_t cached = 0, longest = 0;
    seat_ranks(call, sequence, place, seats);
    for (int part = 0; part < call->ranks; part++)
        cached += seats[part].held;
    const cp_run run = {sequence, cached, fresh};
    cp_status status = CP_OK;
    for (int part = 0; part < call->ranks && status == CP_OK; part++)
        status = deal(call, part, &seats[part], run, layout, &longest);
    for (int rank = 0; rank < call->ranks && status == CP_OK; rank++) {
        /* Write the blocks of this sequence. */
        cp_block *queries = &layout->queries[rank];
        const int64_t rows = cp_shard_rows(call->placement, call->ranks, fresh);
        status = write_keys(call, rank, sequence, layout);
        layout->keys[rank].rows += longest;
        queries->rows = cp_max(queries->tokens, queries->rows + rows);
    }
    layout->new_tokens += fresh;
    layout->cached_tokens += cached;
    layout->past[sequence] = cached;
    layout->fresh[sequence] = fresh;
    return status;
}

static void pad_queries(cp_layout *layout) {
    int64_t rows = 0;
    for (int rank = 0; rank < layout->ranks; rank++)
        rows = cp_max(rows, layout->queries[rank].rows);
    for (int rank = 0; rank < layout->ranks; rank++)
        layout->queries[rank].rows = rows;
}

int64_t cp_block_pairs(const cp_block *queries, const cp_block *keys) {
    const cp_pieces *asked = &queries->pieces, *held = &keys->pieces;
    int64_t pairs = 0, first = 0;
    for (int64_t i = 0; i < asked->count; i++) {
        const cp_span span = asked->items[i].span;
        while (first < held->count &&
               held->items[first].span.sequence < span.sequence)
            first++;
        for (int64_t j = first; j < held->count; j++) {
            if (held->items[j].span.sequence > span.sequence)
                break;
            pairs += cp_span_pairs(span, held->items[j].span);
        }
    }
    return pairs;
}

enum { LISTS = 4 };

static cp_block **list_of(cp_layout *layout, int n) {
    cp_block **const lists[LISTS] = {&layout->queries, &layout->keys,
                                     &layout->cache, &layout->appended};
    return lists[n];
}

static cp_status allocate_blocks(int ranks, int64_t sequences,
                                 cp_layout **out) {
    cp_layout *layout;
    cp_status status = cp_allocate(&layout, 1, sizeof(*layout), "a layout");
    if (status != CP_OK)
        return status;
    for (int n = 0; n < LISTS && status == CP_OK; n++)
        status =
            cp_allocate(list_of(layout, n), ranks, sizeof(cp_block), "blocks");
    if (status == CP_OK)
        status = cp_allocate(&layout->past, 2 * sequences, 8, "lengths");
    if (status == CP_OK)
        layout->fresh = layout->past + sequences;
    layout->ranks = ranks;
    *out = layout;
    return status;
}

cp_status cp_layout_new(const cp_call *call, cp_layout **out) {
    *out = NULL;
    /* Refuse a call that makes no sense. */
    if (call->ranks < 1)
        return cp_fail(CP_INVALID, "%d ranks; at least 1 is needed",
                       call->ranks);
    const bool decode = call->placement == CP_ROUND_ROBIN;
    int64_t total = 0;
    for (int64_t i = 0; i < call->sequences; i++) {
        const int64_t count = call->new_tokens[i];
        if (count < 0 || (decode && count > 1))
            return cp_fail(CP_INVALID, "sequence %ld brings %ld new tokens%s",
                           i, count, decode ? " to a decode step" : "");
        if (!cp_add(total, count, &total))
            return cp_fail(CP_INVALID, "the new tokens do not fit in 64 bits");
    }
    int64_t cache_rows;
    if (total == 0)
        return cp_fail(CP_INVALID, "%ld sequences bring no new token",
                       call->sequences);
    if (!cp_multiply(call->sequences, call->room, &cache_rows))
        return cp_fail(CP_INVALID, "%ld sequences of %ld rows overflow",
                       call->sequences, call->room);
    cp_layout *layout = NULL;
    cp_status status = allocate_blocks(call->ranks, call->sequences, &layout);
    if (layout == NULL)
        return status;
    layout->sequences = call->sequences;
    layout->placement = call->placement;
    layout->room = call->room;
    seat *seats = NULL;
    if (status == CP_OK)
        status = cp_allocate(&seats, call->ranks, sizeof(*seats), "seats");
    for (int64_t i = 0, place = 0; i < call->sequences && status == CP_OK; i++)
        if (call->new_tokens[i] > 0)
            status = lay_out(call, i, place++, seats, layout);
    free(seats);
    if (status != CP_OK) {
        cp_layout_free(layout);
        return status;
    }
    pad_queries(layout);
    *out = layout;
    return CP_OK;
}

static void free_blocks(cp_block *blocks, int ranks) {
    for (int rank = 0; blocks != NULL && rank < ranks; rank++)
        cp_pieces_free(&blocks[rank].pieces);
    free(blocks);
}

void cp_layout_free(cp_layout *layout) {
    if (layout == NULL)
        return;
    for (int n = 0; n < LISTS; n++)
        free_blocks(*list_of(layout, n), layout->ranks);
    free(layout->past);
    free(layout);
}

static cp_status copy_blocks(const cp_block *from, int ranks, cp_block *to) {
    cp_status status = CP_OK;
    for (int rank = 0; rank < ranks && status == CP_OK; rank++) {
        to[rank].tokens = from[rank].tokens;
        to[rank].rows = from[rank].rows;
        status = cp_pieces_copy(&to[rank].pieces, &from[rank].pieces);
    }
    return status;
}

cp_status cp_layout_copy(const cp_layout *layout, cp_layout **out) {
    cp_layout from = *layout, *copy = NULL;
    *out = NULL;
    cp_status status = allocate_blocks(layout->ranks, layout->sequences, &copy);
    for (int n = 0; n < LISTS && status == CP_OK; n++)
        status =
            copy_blocks(*list_of(&from, n), layout->ranks, *list_of(copy, n));
    if (status != CP_OK) {
        cp_layout_free(copy);
        return status;
    }
    memcpy(copy->past, layout->past, 16 * (size_t)layout->sequences);
    copy->sequences = layout->sequences;
    copy->new_tokens = layout->new_tokens;
    copy->cached_tokens = layout->cached_tokens;
    copy->placement = layout->placement;
    copy->room = layout->room;
    *out = copy;
    return CP_OK;
}
