/* Keys and values go round, or are gathered. test_ring.c has pasts and batches,
 * and test_plan.c damaged rings. */
#include "around.h"

LOOP(keys_go_round, 1, 10) {
    for (int64_t tokens = 1; tokens <= 64; tokens *= 4)
        goes_around(cp_plan_pass_kv, _i, tokens, 1 + _i % 3);
}

LOOP(keys_are_gathered, 1, 6) {
    goes_around(cp_plan_all_gather, _i, 40, 1);
}

LOOP(one_exchange_flies_under_each_attention, 1, 10) {
    const int ranks = _i;
    cp_plan *plan = plan_of(cp_plan_pass_kv, ranks, 50, 1);
    for (int k = 0; k < ranks; k++) {
        int hop = 0, flying = 0;
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            flying += op->kind == CP_OP_EXCHANGE;
            flying -= op->kind == CP_OP_WAIT;
            if (op->kind != CP_OP_ATTEND)
                continue;
            ck_assert_int_eq(op->keys.origin, (k - hop + ranks) % ranks);
            ck_assert_int_eq(flying, hop < ranks - 1);
            hop++;
        }
        ck_assert_int_eq(hop, ranks);
    }
    plan_drop(plan);
}
