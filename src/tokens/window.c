/* Tangled from book/16-window.nw; edit the chapter. */
/* Windows of positions, each as a difference of two causal ones. */
#include "tokens/window.h"

int64_t cp_window_pairs(cp_span queries, cp_span keys, int64_t window) {
    const int64_t pairs = cp_span_pairs(queries, keys);
    if (window == 0 || pairs == 0)
        return pairs;
    queries.start -= window;
    return pairs - cp_span_pairs(queries, keys);
}

cp_relation cp_window_relate(cp_span queries, cp_span keys, int64_t window) {
    const cp_relation causal = cp_span_relate(queries, keys);
    cp_span earlier = queries;
    earlier.start -= window;
    const cp_relation hidden = cp_span_relate(earlier, keys);
    if (window == 0 || causal == CP_APART || hidden == CP_APART)
        return causal;
    return hidden == CP_FULL || cp_window_pairs(queries, keys, window) == 0
               ? CP_APART
               : CP_DIAGONAL;
}
