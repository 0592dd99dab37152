/* Tangled from book/01-attention.nw; edit the chapter. */
/* Spans of positions and lists of them, in closed form. */
#include "tokens/span.h"

#include <assert.h>
#include <stdlib.h>

cp_status cp_shape_check(const cp_shape *shape) {
    const int64_t heads = shape->query_heads, kv_heads = shape->kv_heads;
    const int64_t dim = shape->head_dim;
    if (heads < 1 || kv_heads < 1 || dim < 1)
        return cp_refuse("%ld query heads and %ld key heads of dimension %ld: "
                         "each must be at least 1",
                         heads, kv_heads, dim);
    if (heads % kv_heads != 0)
        return cp_refuse("%ld key heads do not divide %ld query heads",
                         kv_heads, heads);
    if (heads > CP_HEADS_MAX)
        return cp_refuse("%ld query heads are more than %d", heads,
                         CP_HEADS_MAX);
    if (dim > CP_HEAD_DIM_MAX)
        return cp_refuse("a head of dimension %ld is more than %d", dim,
                         CP_HEAD_DIM_MAX);
    if (shape->value_dim < 0 || cp_value_dim(shape) > CP_HEAD_DIM_MAX)
        return cp_refuse("values of %ld numbers; there may be 1 to %d",
                         shape->value_dim, CP_HEAD_DIM_MAX);
    if (shape->latent && cp_value_dim(shape) > dim)
        return cp_refuse("values are the first %ld numbers of keys of %ld",
                         shape->value_dim, dim);
    if (shape->window < 0 || shape->window > INT32_MAX)
        return cp_refuse("a window of %ld tokens; there may be 0, which is "
                         "none, to %d",
                         shape->window, INT32_MAX);
    return CP_OK;
}

cp_relation cp_span_relate(cp_span queries, cp_span keys) {
    if (queries.sequence != keys.sequence || keys.start > cp_span_last(queries))
        return CP_APART;
    return cp_span_last(keys) <= queries.start ? CP_FULL : CP_DIAGONAL;
}

/* The sum over 0 <= i < count of (slope * i + offset) / divisor, rounded
 * down; nothing is negative, divisor is at least 1. */
static int64_t floor_sum(int64_t count, int64_t slope, int64_t offset,
                         int64_t divisor) {
    int64_t sum = 0;
    while (count > 0) {
        /* Take out the whole multiples of the divisor. */
        sum += count * (count - 1) / 2 * (slope / divisor);
        sum += count * (offset / divisor);
        slope %= divisor;
        offset %= divisor;
        /* Count by rows what was counted by columns. */
        const int64_t top = slope * count + offset, old_slope = slope;
        count = top / divisor;
        offset = top % divisor;
        slope = divisor;
        divisor = old_slope;
    }
    return sum;
}

int64_t cp_span_pairs(cp_span queries, cp_span keys) {
    if (queries.sequence != keys.sequence)
        return 0;
    const int64_t none = cp_span_before(queries, keys.start);
    const int64_t part = cp_span_before(queries, cp_span_last(keys));
    const int64_t first = queries.start + none * queries.step - keys.start;
    int64_t pairs = (queries.count - part) * keys.count;
    if (none < part)
        pairs += part - none +
                 floor_sum(part - none, queries.step, first, keys.step);
    return pairs;
}

/* x with a * x = gcd(a, m) modulo m, 0 <= x < m; stores the gcd. */
static int64_t inverse(int64_t a, int64_t m, int64_t *gcd) {
    int64_t r = a, next_r = m, x = 1, next_x = 0;
    while (next_r != 0) {
        const int64_t quotient = r / next_r;
        const int64_t remainder = r - quotient * next_r;
        const int64_t remainder_x = x - quotient * next_x;
        r = next_r, next_r = remainder;
        x = next_x, next_x = remainder_x;
    }
    *gcd = r;
    return (x % m + m) % m;
}

cp_span cp_span_shared(cp_span a, cp_span b) {
    int64_t gcd;
    const int64_t x = inverse(a.step, b.step, &gcd);
    const int64_t distance = b.start - a.start;
    if (a.sequence != b.sequence || distance % gcd != 0)
        return (cp_span){0};
    /* Find where the lattices meet. */
    const int64_t period = b.step / gcd;
    const int64_t index = distance / gcd % period * (x % period) % period;
    /* Climb to where both spans have begun. */
    const int64_t begin = cp_max(a.start, b.start), both = a.step * period;
    int64_t position = a.start + index * a.step;
    if (position < begin)
        position += cp_ceil_divide(begin - position, both) * both;
    const int64_t end = cp_min(cp_span_last(a), cp_span_last(b));
    if (position > end)
        return (cp_span){0};
    const int64_t count = (end - position) / both + 1;
    return (cp_span){a.sequence, position, count, count == 1 ? 1 : both};
}

/* The step with which b continues a, or 0. */
static int64_t joining_step(cp_piece a, cp_piece b) {
    const int64_t gap = b.span.start - cp_span_last(a.span);
    if (a.span.sequence != b.span.sequence || gap < 1 ||
        a.row + a.span.count != b.row)
        return 0;
    if ((a.span.count > 1 && a.span.step != gap) ||
        (b.span.count > 1 && b.span.step != gap))
        return 0;
    return gap;
}

cp_status cp_pieces_reserve(cp_pieces *pieces, int64_t room) {
    return cp_grow(&pieces->items, &pieces->room, room, sizeof(cp_piece),
                   "a list of pieces");
}

cp_status cp_pieces_append(cp_pieces *pieces, cp_piece piece) {
    assert(piece.span.count >= 1 && piece.span.step >= 1);
    /* Grow the last piece, if the new one continues it. */
    if (pieces->count > 0) {
        cp_piece *last = &pieces->items[pieces->count - 1];
        const int64_t step = joining_step(*last, piece);
        if (step > 0) {
            last->span.count += piece.span.count;
            last->span.step = step;
            return CP_OK;
        }
    }
    CP_TRY(cp_pieces_reserve(pieces, pieces->count + 1));
    pieces->items[pieces->count++] = piece;
    return CP_OK;
}

int64_t cp_pieces_tokens(const cp_pieces *pieces) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < pieces->count; i++)
        tokens += pieces->items[i].span.count;
    return tokens;
}

cp_status cp_pieces_copy(cp_pieces *to, const cp_pieces *from) {
    CP_TRY(cp_pieces_reserve(to, from->count));
    for (int64_t i = 0; i < from->count; i++)
        to->items[i] = from->items[i];
    to->count = from->count;
    return CP_OK;
}

void cp_pieces_free(cp_pieces *pieces) {
    free(pieces->items);
    *pieces = (cp_pieces){0};
}

cp_piece cp_piece_part(cp_piece piece, int64_t first, int64_t longest) {
    piece.span.start += first * piece.span.step;
    piece.span.count = cp_min(longest, piece.span.count - first);
    piece.span.step = piece.span.count == 1 ? 1 : piece.span.step;
    piece.row += first;
    return piece;
}

cp_status cp_pieces_cut(const cp_pieces *pieces, int64_t longest,
                        cp_pieces *tiles) {
    for (int64_t p = 0; p < pieces->count; p++)
        tiles->room += cp_ceil_divide(pieces->items[p].span.count, longest);
    CP_TRY(cp_allocate(&tiles->items, tiles->room, sizeof(*tiles->items),
                       "a list of tiles"));
    for (int64_t p = 0; p < pieces->count; p++)
        for (int64_t i = 0; i < pieces->items[p].span.count; i += longest)
            tiles->items[tiles->count++] =
                cp_piece_part(pieces->items[p], i, longest);
    return CP_OK;
}
