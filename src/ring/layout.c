/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Who holds which tokens during one attention call, and in which rows. */
#include "ring/layout.h"

#include <stdlib.h>

const cp_pieces *cp_call_held(const cp_call *call, int rank, int64_t sequence) {
    if (call->held == NULL)
        return NULL;
    return &call->held[rank * call->sequences + sequence];
}

static int64_t tokens_held(const cp_call *call, int rank, int64_t sequence) {
    const cp_pieces *held = cp_call_held(call, rank, sequence);
    return held == NULL ? 0 : cp_pieces_tokens(held);
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
    const cp_pieces *held = cp_call_held(call, rank, sequence);
    const cp_pieces *fresh = &layout->appended[rank].pieces;
    int64_t row = keys->rows;
    cp_status status = CP_OK;
    /* Copy the cached pieces. */
    for (int64_t n = 0; held != NULL && n < held->count; n++)
        if (status == CP_OK)
            status = add_key(keys, cache, held->items[n], &row);
    /* Copy the new pieces. */
    for (int64_t n = 0; n < fresh->count; n++)
        if (status == CP_OK && fresh->items[n].span.sequence == sequence)
            status = add_key(keys, cache, fresh->items[n], &row);
    return status;
}

static cp_status lay_out(const cp_call *call, int64_t sequence,
                         cp_layout *layout) {
    cp_status status = CP_OK;
    int64_t cached = 0;
    for (int rank = 0; rank < call->ranks; rank++)
        cached += tokens_held(call, rank, sequence);
    /* Deal out the new tokens of this sequence. */
    const cp_run run = {sequence, cached, call->new_tokens[sequence],
                        layout->new_tokens + call->step};
    for (int rank = 0; rank < call->ranks && status == CP_OK; rank++) {
        const int64_t held = tokens_held(call, rank, sequence);
        const int64_t row = sequence * call->room + held;
        status =
            cp_shard(call->placement, call->ranks, rank, run,
                     layout->queries[rank].rows, &layout->queries[rank].pieces);
        if (status == CP_OK)
            status = cp_shard(call->placement, call->ranks, rank, run, row,
                              &layout->appended[rank].pieces);
    }
    /* Find the longest shard, cached and new. */
    int64_t longest = 0;
    for (int rank = 0; rank < call->ranks && status == CP_OK; rank++) {
        const int64_t held = tokens_held(call, rank, sequence);
        const int64_t fresh = cp_pieces_tokens(&layout->queries[rank].pieces) -
                              layout->queries[rank].tokens;
        longest = cp_max(longest, held + fresh);
        layout->queries[rank].tokens += fresh;
        layout->appended[rank].tokens += fresh;
        if (held + fresh > call->room)
            status = cp_fail(CP_CAPACITY,
                             "sequence %lld would hold %lld tokens on rank %d; "
                             "its cache has room for %lld",
                             (long long)sequence, (long long)(held + fresh),
                             rank, (long long)call->room);
    }
    /* Write the key blocks of this sequence. */
    for (int rank = 0; rank < call->ranks && status == CP_OK; rank++) {
        status = write_keys(call, rank, sequence, layout);
        layout->keys[rank].rows += longest;
        layout->queries[rank].rows =
            cp_max(layout->queries[rank].tokens,
                   layout->queries[rank].rows +
                       cp_shard_rows(call->placement, call->ranks, run.count));
    }
    layout->new_tokens += call->new_tokens[sequence];
    layout->cached_tokens += cached;
    layout->past[sequence] = cached;
    layout->fresh[sequence] = call->new_tokens[sequence];
    return status;
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
        status = cp_allocate(&layout->past, sequences, 8, "lengths");
    if (status == CP_OK)
        status = cp_allocate(&layout->fresh, sequences, 8, "lengths");
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
            return cp_fail(CP_INVALID, "sequence %lld brings %lld new tokens%s",
                           (long long)i, (long long)count,
                           decode ? " to a decode step" : "");
        if (!cp_add(total, count, &total))
            return cp_fail(CP_INVALID, "the new tokens do not fit in 64 bits");
    }
    int64_t cache_rows;
    if (total == 0)
        return cp_fail(CP_INVALID, "%lld sequences bring no new token",
                       (long long)call->sequences);
    if (!cp_multiply(call->sequences, call->room, &cache_rows))
        return cp_fail(CP_INVALID, "%lld sequences of %lld rows overflow",
                       (long long)call->sequences, (long long)call->room);
    cp_layout *layout = NULL;
    cp_status status = allocate_blocks(call->ranks, call->sequences, &layout);
    if (layout == NULL)
        return status;
    layout->sequences = call->sequences;
    layout->placement = call->placement;
    layout->room = call->room;
    /* Lay out all sequences. */
    for (int64_t i = 0; i < call->sequences && status == CP_OK; i++)
        if (call->new_tokens[i] > 0)
            status = lay_out(call, i, layout);
    int64_t rows = 0;
    for (int rank = 0; rank < call->ranks; rank++)
        rows = cp_max(rows, layout->queries[rank].rows);
    for (int rank = 0; rank < call->ranks; rank++)
        layout->queries[rank].rows = rows;
    if (status != CP_OK) {
        cp_layout_free(layout);
        return status;
    }
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
    free(layout->fresh);
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
    for (int64_t i = 0; i < layout->sequences; i++) {
        copy->past[i] = layout->past[i];
        copy->fresh[i] = layout->fresh[i];
    }
    copy->sequences = layout->sequences;
    copy->new_tokens = layout->new_tokens;
    copy->cached_tokens = layout->cached_tokens;
    copy->placement = layout->placement;
    copy->room = layout->room;
    *out = copy;
    return CP_OK;
}
