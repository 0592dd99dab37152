/* Tangled from book/09-decode.nw; edit the chapter. */
/* Batched ring pass-Q decode (the paper's Algorithm 4). */
#include "plan/build.h"

void cp_plan_decode(cp_plan *plan) {
    if (plan->layout->placement == CP_ROUND_ROBIN)
        cp_plan_pass_q(plan);
    else
        plan->status = cp_refuse("decode needs tokens that are dealt by "
                                 "turns; this call prefills %ld",
                                 plan->layout->new_tokens);
}
