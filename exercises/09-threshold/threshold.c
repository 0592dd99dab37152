/* Tangled from book/labs/09-threshold.nw; the skeleton; write your answer here. */
/* Which ring sends less, or hides what it sends. */
#include "threshold.h"

wide kv_bytes(const freight *call) {
    /* Count keys and values. */
    return -1;
}

wide q_bytes(const freight *call) {
    /* Count queries and returned partials. */
    return -1;
}

bool keys_are_cheaper(const freight *call) {
    /* Compare, ties to pass-KV. */
    return false;
}

int64_t least_tokens(const freight *call, int64_t cached) {
    /* Solve for the new tokens. */
    return 0;
}

bool keys_hide(int64_t fresh, int64_t cached, int64_t ranks,
               const freight *call, int64_t flops, int64_t bandwidth) {
    /* Compare two times without dividing. */
    return false;
}
