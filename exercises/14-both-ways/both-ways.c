/* Tangled from book/labs/14-both-ways.nw; the skeleton; write your answer here. */
/* Pass-KV both ways: keys and values go round clockwise and back. */
#include "both-ways.h"

enum { CLOCKWISE, COUNTER }; /* from the previous rank; from the next */

/* The rank whose program is being built, and its progress. */
typedef struct {
    cp_plan *plan;
    int rank, next, previous, ranks, steps;
    int first[2], count; /* key slots of each way */
    int scratch;
    int started, arrived; /* steps whose exchanges have */
} builder;

/* The number of steps after step 0. */
static int steps_of(int ranks) {
    /* Count the steps. */
    return 0;
}

/* How many blocks step 1, 2, ... brings. */
static int ways_of(const builder *to, int step) {
    /* Count the blocks that a step brings. */
    return 0;
}

/* The slot and the origin of the block that a step brings this way. Step 0 is
 * the rank's own block, in the same slot for both ways. */
static cp_use block_at(const builder *to, int way, int step) {
    /* Name the slot and the origin of a block. */
    return cp_use_of(to->first[way], to->rank);
}

static void wait_for(builder *to, int step) {
    for (int way = 0; way < ways_of(to, step); way++)
        cp_emit_wait(to->plan, to->rank, step);
    to->arrived = step;
}

/* Start the exchanges of all steps with free buffers, before the rank attends
 * to what this step brought. */
static void start_ahead(builder *to, int step) {
    const int free = step + to->count - 1;
    while (to->started < to->steps && to->started < free) {
        /* Start the exchanges of one more step. */
        to->started++;
    }
}

/* Attend to what this step brought. */
static void attend(const builder *to, int step) {
    /* Attend to each block of a step once. */
}

static void program(builder *to) {
    const cp_use cache = cp_use_of(to->plan->cache, to->rank);
    if (to->ranks > 1)
        cp_emit(to->plan, to->rank, 0, CP_OP_PACK, cache,
                block_at(to, CLOCKWISE, 0));
    for (int step = 0; step <= to->steps; step++) {
        /* Start, attend and wait in an order that hides. */
        attend(to, step);
        start_ahead(to, step);
        if (step < to->steps)
            wait_for(to, step + 1);
    }
}

void plan_both_ways(cp_plan *plan) {
    const int ranks = plan->layout->ranks, count = 1 + plan->spare;
    builder to = {.plan = plan, .ranks = ranks, .count = count};
    to.steps = steps_of(ranks);
    for (int way = 0; way < 2; way++)
        to.first[way] = cp_plan_add_slots(plan, CP_SLOT_KEYS, count);
    to.scratch = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1);
    for (to.rank = 0; to.rank < ranks; to.rank++) {
        to.next = (to.rank + 1) % ranks;
        to.previous = (to.rank + ranks - 1) % ranks;
        to.started = to.arrived = 0;
        program(&to);
    }
}
