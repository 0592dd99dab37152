/* Tangled from book/09-decode.nw; edit the chapter. */
/* Batched ring pass-Q decode (the paper's Algorithm 4). */
#include "ring/pass_q.h"

cp_status cp_plan_decode(const cp_layout *layout, const cp_shape *shape,
                         const cp_plan_options *options, cp_plan **out) {
    *out = NULL;
    if (!layout->decode)
        return cp_fail(CP_INVALID,
                       "decode needs a call of one token a sequence; this one "
                       "prefills %lld tokens",
                       (long long)layout->new_tokens);
    return cp_plan_query_ring(CP_DECODE, layout, shape, options, out);
}
