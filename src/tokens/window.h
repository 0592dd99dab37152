/* Tangled from book/16-window.nw; edit the chapter. */
/* Sliding windows: a query sees the keys at its position and at the window - 1
 * positions before it; with a window of 0, all keys up to its position. */
#ifndef CP_WINDOW_H
#define CP_WINDOW_H

#include "tokens/span.h"

/* Keys number from to end - 1 of a span. */
typedef struct {
    int64_t from, end;
} cp_seen_keys;

/* Those that a query at a position sees, of its own sequence. */
static inline cp_seen_keys cp_window_seen(cp_span keys, int64_t position,
                                          int64_t window) {
    const int64_t first = position + 1 - window;
    return (cp_seen_keys){window > 0 ? cp_span_before(keys, first) : 0,
                          cp_span_before(keys, position + 1)};
}

/* As cp_span_relate and cp_span_pairs, and as exact. */
cp_relation cp_window_relate(cp_span queries, cp_span keys, int64_t window);
int64_t cp_window_pairs(cp_span queries, cp_span keys, int64_t window);

#endif
