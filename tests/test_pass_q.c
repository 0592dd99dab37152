/* Queries go round, and partials return. test_ring.c has pasts and batches.
 * */
#include "around.h"

LOOP(queries_go_round, 1, 10) {
    for (int64_t tokens = 1; tokens <= 64; tokens *= 4)
        goes_around(cp_plan_pass_q, _i, tokens, 1 + _i % 3);
}
