/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Which rank holds which tokens during one attention call, and in which
 * rows. */
#include "tokens/layout.h"

#include <stdlib.h>
#include <string.h>

#include "tokens/weighted.h"
#include "tokens/window.h"

static const cp_pieces *pieces_held(const cp_call *call, int rank,
                                    int64_t sequence) {
    static const cp_pieces nothing = {0};
    return call->held == NULL ? &nothing
                              : &call->held[rank * call->sequences + sequence];
}

static cp_status add_key(cp_layout *layout, int rank, cp_piece piece,
                         int64_t *total) {
    cp_block *keys = &layout->keys[rank], *cache = &layout->cache[rank];
    const int64_t row = keys->rows + *total;
    *total += piece.span.count;
    keys->tokens = cache->tokens += piece.span.count;
    CP_TRY(cp_pieces_append(&keys->pieces, (cp_piece){piece.span, row}));
    return cp_pieces_append(&cache->pieces, piece);
}
/* A rank that is dealt to: the n-th recipient gets part n. */
typedef struct {
    int64_t held;  /* of the sequence, before the call */
    int64_t order; /* smallest first, ties by index */
    int64_t total; /* held, plus the new tokens that it gets */
    int64_t piece; /* its first new piece, among all that are appended */
    int rank, index;
} dealt_rank;

static int by_order(const void *a, const void *b) {
    const dealt_rank *one = a, *other = b;
    if (one->order == other->order)
        return one->index - other->index;
    return one->order < other->order ? -1 : 1;
}

static int owner_index(const cp_call *call, int64_t turn, int64_t nth,
                       const dealt_rank *recipients, int64_t *counts) {
    const cp_dealing *how = &call->dealing;
    const int ranks = call->ranks;
    int64_t least = INT64_MAX, before = 0;
    int owner = (int)(nth % ranks);
    for (int n = 0; n < ranks; n++) {
        least = cp_min(least, recipients[n].total);
        before += counts[recipients[n].rank] = recipients[n].total;
    }
    if (how->weights != NULL)
        return cp_weighted_owner(how->weights, ranks, turn + nth, counts,
                                 counts + ranks);
    if (how->leaves)
        return cp_dealing_owners(how, ranks).rank[cp_leaf_of(before)];
    if (how->block > 0)
        return (int)(before / how->block % ranks);
    while (recipients[owner].total - least >= cp_shard_spread(ranks))
        owner = (owner + 1) % ranks;
    return owner;
}

static int64_t rank_behind(const cp_call *call, int64_t sequence) {
    int64_t last = -1, behind = 0;
    for (int rank = 0; rank < call->ranks; rank++) {
        const cp_pieces *held = pieces_held(call, rank, sequence);
        const int64_t n = held->count - 1;
        if (n < 0 || cp_span_last(held->items[n].span) < last)
            continue;
        last = cp_span_last(held->items[n].span);
        behind = rank + 1;
    }
    return behind % call->ranks;
}

static int64_t first_rank(const cp_call *call, int64_t sequence,
                          int64_t ordinal) {
    const cp_dealing *how = &call->dealing;
    if (how->weights != NULL || how->block > 0)
        return 0;
    if (how->placement == CP_ROUND_ROBIN)
        return call->new_tokens[sequence] > 1
                   ? rank_behind(call, sequence)
                   : (ordinal + call->step) % call->ranks;
    return how->placement == CP_ZIGZAG ? ordinal % call->ranks : 0;
}

static void order_recipients(const cp_call *call, int64_t sequence,
                             int64_t ordinal, dealt_rank *recipients,
                             int64_t *counts) {
    const cp_dealing *how = &call->dealing;
    const int ranks = call->ranks;
    const bool fewer_first = call->new_tokens[sequence] < ranks;
    const int64_t first = first_rank(call, sequence, ordinal);
    for (int n = 0; n < ranks; n++) {
        const int rank = (int)((first + n) % ranks);
        const int64_t held =
            cp_pieces_tokens(pieces_held(call, rank, sequence));
        recipients[n] =
            (dealt_rank){held, fewer_first ? held : -held, held, 0, rank, n};
        counts[rank] = held;
    }
    if (how->placement == CP_ZIGZAG && how->weights == NULL)
        qsort(recipients, (size_t)ranks, sizeof(*recipients), by_order);
}
/* The tokens of a list whose numbers, from its first position on, are in a
 * span. */
static cp_status pick(const cp_pieces *list, cp_piece nth, cp_pieces *to) {
    int64_t before = list->items[0].span.start, picked = 0;
    for (int64_t n = 0; n < list->count; n++) {
        const cp_span from = list->items[n].span;
        const int64_t count =
            cp_span_before(nth.span, before + from.count) - picked;
        const int64_t at = nth.span.start + picked * nth.span.step - before;
        const cp_span span = {from.sequence, from.start + at * from.step, count,
                              count == 1 ? 1 : from.step * nth.span.step};
        if (count > 0)
            CP_TRY(cp_pieces_append(to, (cp_piece){span, nth.row + picked}));
        before += from.count;
        picked += count;
    }
    return CP_OK;
}

/* Tokens go to the owners of their leaves: positions decide, not numbers. */
static cp_status deal_leaves(const cp_dealing *how, int ranks, int part,
                             const cp_pieces *tokens, int64_t row,
                             cp_pieces *pieces) {
    const cp_owners owners = cp_dealing_owners(how, ranks);
    const uint32_t leaves = cp_rank_leaves(&owners, part);
    for (int64_t n = 0; n < tokens->count; n++) {
        const cp_span span = tokens->items[n].span;
        const cp_run run = {span.sequence, span.start, span.count};
        CP_TRY(cp_shard(how, ranks, part, run, row, pieces));
        row += cp_leaves_tokens(leaves, span.start, span.count);
    }
    return CP_OK;
}

static cp_status deal_part(const cp_dealing *how, int ranks, int part,
                           const cp_pieces *tokens, int64_t row,
                           cp_pieces *pieces) {
    const cp_span first = tokens->items[0].span;
    const cp_run numbers = {first.sequence, first.start,
                            cp_pieces_tokens(tokens)};
    cp_pieces nth = {0};
    if (how->leaves)
        return deal_leaves(how, ranks, part, tokens, row, pieces);
    cp_status status = cp_shard(how, ranks, part, numbers, row, &nth);
    for (int64_t n = 0; n < nth.count && status == CP_OK; n++)
        status = pick(tokens, nth.items[n], pieces);
    cp_pieces_free(&nth);
    return status;
}

static cp_status deal_parts(const cp_call *call, const cp_dealing *how,
                            const cp_pieces *tokens, dealt_rank *recipients,
                            cp_layout *layout) {
    const int ranks = call->ranks;
    const int64_t first = tokens->items[0].span.sequence * call->room;
    for (int part = 0; part < ranks; part++) {
        dealt_rank *recipient = &recipients[part];
        cp_block *queries = &layout->queries[recipient->rank];
        cp_pieces *appended = &layout->appended[recipient->rank].pieces;
        CP_TRY(deal_part(how, ranks, part, tokens, queries->rows,
                         &queries->pieces));
        CP_TRY(deal_part(how, ranks, part, tokens, first + recipient->held,
                         appended));
        for (int64_t n = recipient->piece; n < appended->count; n++)
            recipient->total += appended->items[n].span.count;
    }
    return CP_OK;
}

/* Add a separate piece, even if it continues one: kernels cut work by pieces,
 * and the few rows of a token are cheap only while they are few. */
static cp_status add_token(cp_pieces *pieces, cp_span token, int64_t row) {
    CP_TRY(cp_pieces_reserve(pieces, pieces->count + 1));
    pieces->items[pieces->count++] = (cp_piece){token, row};
    return CP_OK;
}

static cp_status deal_turns(const cp_call *call, int64_t turn, cp_run run,
                            dealt_rank *recipients, int64_t *counts,
                            cp_layout *layout) {
    for (int64_t n = 0; n < run.count; n++) {
        dealt_rank *owner =
            &recipients[owner_index(call, turn, n, recipients, counts)];
        cp_block *queries = &layout->queries[owner->rank];
        const cp_span token = {run.sequence, run.first + n, 1, 1};
        const int64_t row = queries->rows + owner->total - owner->held;
        const int64_t cache_row = run.sequence * call->room + owner->total++;
        CP_TRY(add_token(&queries->pieces, token, row));
        CP_TRY(
            add_token(&layout->appended[owner->rank].pieces, token, cache_row));
    }
    return CP_OK;
}

static cp_status list_keys(const cp_call *call, int64_t sequence,
                           const dealt_rank *recipient, cp_layout *layout) {
    const int rank = recipient->rank;
    const cp_pieces *held = pieces_held(call, rank, sequence);
    cp_block *appended = &layout->appended[rank];
    int64_t total = 0;
    for (int64_t n = 0; n < held->count; n++)
        CP_TRY(add_key(layout, rank, held->items[n], &total));
    for (int64_t n = recipient->piece; n < appended->pieces.count; n++)
        CP_TRY(add_key(layout, rank, appended->pieces.items[n], &total));
    layout->queries[rank].tokens = appended->tokens += total - recipient->held;
    if (total > call->room)
        return cp_fail(CP_CAPACITY,
                       "sequence %ld would hold %ld tokens on rank %d; its "
                       "cache has room for %ld",
                       sequence, total, rank, call->room);
    return CP_OK;
}
static int64_t rows_aside(const cp_dealing *how, int ranks, int64_t count,
                          int64_t longest) {
    if (how->placement == CP_ROUND_ROBIN)
        return 0;
    return how->placement == CP_ZIGZAG && how->weights == NULL
               ? 2 * cp_ceil_divide(count, 2 * (int64_t)ranks)
               : longest;
}

/* List the new tokens of a sequence after those of the sequences before. */
static cp_status list_new(const cp_call *call, cp_run run, cp_layout *layout) {
    cp_pieces *all = &layout->all_queries.pieces;
    cp_piece next = {{run.sequence, run.first, run.count, 1},
                     layout->new_tokens};
    if (call->positions == NULL)
        return cp_pieces_append(all, next);
    const cp_pieces *given = &call->positions[run.sequence];
    for (int64_t n = 0; n < given->count; n++) {
        next.span = given->items[n].span;
        CP_TRY(cp_pieces_append(all, next));
        next.row += next.span.count;
    }
    return CP_OK;
}

static cp_status lay_out(const cp_call *call, int64_t sequence, int64_t ordinal,
                         dealt_rank *recipients, int64_t *counts,
                         cp_layout *layout) {
    const int ranks = call->ranks;
    cp_dealing how = call->dealing;
    const int64_t fresh = call->new_tokens[sequence];
    int64_t cached = 0, longest = 0, most = 0;
    order_recipients(call, sequence, ordinal, recipients, counts);
    for (int part = 0; part < ranks; part++) {
        cached += recipients[part].held;
        recipients[part].piece =
            layout->appended[recipients[part].rank].pieces.count;
    }
    if (how.weights != NULL && how.placement == CP_ZIGZAG) {
        cp_weighted_deal(how.weights, ranks, fresh, counts, counts + ranks);
        how.weights = counts + ranks;
    }
    const cp_run run = {sequence, cached, fresh};
    const cp_pieces *all = &layout->all_queries.pieces;
    const int64_t before = all->count;
    CP_TRY(list_new(call, run, layout));
    const cp_pieces tokens = {all->items + before, all->count - before, 0};
    if (how.placement == CP_ROUND_ROBIN)
        CP_TRY(deal_turns(call, ordinal + call->step, run, recipients, counts,
                          layout));
    else
        CP_TRY(deal_parts(call, &how, &tokens, recipients, layout));
    for (int part = 0; part < ranks; part++) {
        CP_TRY(list_keys(call, sequence, &recipients[part], layout));
        longest = cp_max(longest, recipients[part].total);
        most = cp_max(most, recipients[part].total - recipients[part].held);
    }
    for (int rank = 0; rank < ranks; rank++) {
        cp_block *queries = &layout->queries[rank];
        const int64_t rows = rows_aside(&how, ranks, fresh, most);
        queries->rows = cp_max(queries->tokens, queries->rows + rows);
        layout->keys[rank].rows += longest;
    }
    layout->new_tokens += fresh;
    layout->all_queries.tokens = layout->all_queries.rows = layout->new_tokens;
    layout->cached_tokens += cached;
    layout->past[sequence] = cached;
    layout->fresh[sequence] = fresh;
    return CP_OK;
}
static void pad_queries(cp_layout *layout) {
    int64_t rows = 0;
    for (int rank = 0; rank < layout->ranks; rank++)
        rows = cp_max(rows, layout->queries[rank].rows);
    for (int rank = 0; rank < layout->ranks; rank++)
        layout->queries[rank].rows = rows;
}

int64_t cp_block_pairs(const cp_block *queries, const cp_block *keys,
                       int64_t window) {
    const cp_pieces *query_pieces = &queries->pieces,
                    *key_pieces = &keys->pieces;
    int64_t pairs = 0, first = 0;
    for (int64_t i = 0; i < query_pieces->count; i++) {
        const cp_span span = query_pieces->items[i].span;
        while (first < key_pieces->count &&
               key_pieces->items[first].span.sequence < span.sequence)
            first++;
        for (int64_t j = first; j < key_pieces->count; j++) {
            if (key_pieces->items[j].span.sequence > span.sequence)
                break;
            pairs += cp_window_pairs(span, key_pieces->items[j].span, window);
        }
    }
    return pairs;
}

static cp_status check_call(const cp_call *call) {
    int64_t total = 0, cache_rows;
    if (call->ranks < 1)
        return cp_refuse("%d ranks; at least 1 is needed", call->ranks);
    if (call->positions != NULL && call->dealing.placement == CP_ROUND_ROBIN)
        return cp_refuse("turns are for the tokens after the cached ones");
    if (call->dealing.leaves && call->ranks > CP_LEAVES)
        return cp_refuse("%d ranks; a tree with %d leaves has at most one rank "
                         "per leaf",
                         call->ranks, CP_LEAVES);
    if (call->dealing.weights != NULL)
        CP_TRY(cp_weighted_check(call->dealing.weights, call->ranks));
    for (int64_t i = 0; i < call->sequences; i++) {
        const int64_t count = call->new_tokens[i];
        if (count < 0)
            return cp_refuse("sequence %ld brings %ld new tokens", i, count);
        if (!cp_add(total, count, &total))
            return cp_refuse("the new tokens do not fit in 64 bits");
        if (call->positions != NULL &&
            cp_pieces_tokens(&call->positions[i]) != count)
            return cp_refuse("sequence %ld brings %ld tokens for %ld positions",
                             i, count, cp_pieces_tokens(&call->positions[i]));
    }
    if (total == 0)
        return cp_refuse("%ld sequences bring no new token", call->sequences);
    if (!cp_multiply(call->sequences, call->room, &cache_rows))
        return cp_refuse("%ld sequences of %ld rows overflow", call->sequences,
                         call->room);
    return CP_OK;
}
enum { LISTS = 4 };

static cp_status allocate(const cp_call *call, cp_layout *layout) {
    const int64_t ranks = call->ranks, sequences = call->sequences;
    CP_TRY(cp_allocate(&layout->queries, LISTS * ranks, sizeof(cp_block),
                       "blocks"));
    layout->keys = layout->queries + ranks;
    layout->cache = layout->keys + ranks;
    layout->appended = layout->cache + ranks;
    CP_TRY(cp_allocate(&layout->past, 2 * sequences, 8, "lengths"));
    layout->fresh = layout->past + sequences;
    return CP_OK;
}

static cp_status lay_out_all(const cp_call *call, cp_layout *layout) {
    dealt_rank *recipients = NULL;
    int64_t *counts = NULL; /* two for each rank */
    cp_status status = allocate(call, layout);
    if (status == CP_OK)
        status =
            cp_allocate(&counts, 2 * (int64_t)call->ranks, 8, "recipients");
    if (status == CP_OK)
        status = cp_allocate(&recipients, call->ranks, sizeof(*recipients),
                             "recipients");
    for (int64_t i = 0, ordinal = 0; i < call->sequences && status == CP_OK;
         i++)
        if (call->new_tokens[i] > 0)
            status = lay_out(call, i, ordinal++, recipients, counts, layout);
    free(counts);
    free(recipients);
    if (status == CP_OK)
        pad_queries(layout);
    return status;
}

cp_status cp_layout_new(const cp_call *call, cp_layout **out) {
    cp_layout *layout;
    *out = NULL;
    CP_TRY(check_call(call));
    CP_TRY(cp_allocate(&layout, 1, sizeof(*layout), "a layout"));
    *layout =
        (cp_layout){.ranks = call->ranks,
                    .sequences = call->sequences,
                    .placement = call->dealing.placement,
                    .leaves = call->dealing.leaves,
                    .owners = cp_dealing_owners(&call->dealing, call->ranks),
                    .room = call->room};
    const cp_status status = lay_out_all(call, layout);
    if (status == CP_OK)
        *out = layout;
    else
        cp_layout_free(layout);
    return status;
}

void cp_layout_free(cp_layout *layout) {
    if (layout == NULL)
        return;
    for (int n = 0; layout->queries != NULL && n < LISTS * layout->ranks; n++)
        cp_pieces_free(&layout->queries[n].pieces);
    cp_pieces_free(&layout->all_queries.pieces);
    for (int n = 0; layout->copies != NULL && n < layout->ranks; n++)
        cp_moves_free(&layout->copies[n]);
    free(layout->copies);
    free(layout->growth);
    free(layout->queries);
    free(layout->past);
    free(layout);
}
