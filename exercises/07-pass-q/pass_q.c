/* Tangled from book/labs/07-pass-q.nw; the skeleton; write your answer here. */
/* Ring pass-Q with partials that travel: a builder. */
#include "pass_q.h"

/* The first added slot of each kind. */
typedef struct {
    int queries, partials;
} pass_q_slots;

int pass_q_origin(int rank, int hop, int ranks) {
    /* Find whose queries are here. */
    return CP_NO_RANK;
}

int64_t pass_q_bytes(int ranks, int64_t rows, const cp_shape *shape,
                     int64_t element_bytes) {
    /* Count the bytes that a rank sends. */
    return -1;
}

/* What rank k does before, at and after hop 0, 1, ... ranks - 1. */
static void emit_hop(cp_plan *plan, pass_q_slots slots, int k, int hop) {
    /* Send queries on, attend, merge what arrived, send it on. */
}

/* What is left to do when the last hop is over. */
static void emit_end(cp_plan *plan, pass_q_slots slots, int k) {
    /* Wait for the result to return. */
}

void pass_q_plan(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    pass_q_slots slots = {0, 0};
    /* Add the slots. */
    for (int k = 0; k < ranks; k++) {
        for (int hop = 0; hop < ranks; hop++)
            emit_hop(plan, slots, k, hop);
        emit_end(plan, slots, k);
    }
}
