/* Tangled from book/labs/10-bytes.nw; the skeleton; write your answer here. */
/* Pass-KV without forwarding, and what it costs. */
#include "bytes.h"

/* Slots: the rank's own block, buffers for others, a partial to merge. */
typedef struct {
    int local, first, buffers, scratch;
} slots;

static void program(cp_plan *plan, int k, slots at) {
    const int ranks = plan->layout->ranks;
    const cp_use queries = cp_use_of(plan->queries, k);
    const cp_use result = cp_use_of(plan->result, k);
    const cp_use cache = cp_use_of(plan->cache, k);
    const cp_use local = cp_use_of(at.local, k);
    /* Emit the operations of rank k. */
    (void)ranks, (void)queries, (void)result, (void)cache, (void)local;
}

void direct_plan(cp_plan *plan) {
    const int buffers = 1 + plan->spare;
    const slots at = {
        .local = cp_plan_add_slots(plan, CP_SLOT_KEYS, 1),
        .first = cp_plan_add_slots(plan, CP_SLOT_KEYS, buffers),
        .buffers = buffers,
        .scratch = cp_plan_add_slots(plan, CP_SLOT_PARTIAL, 1),
    };
    for (int k = 0; k < plan->layout->ranks; k++)
        program(plan, k, at);
}

int64_t direct_bytes(int ranks, int64_t rows, const cp_shape *shape,
                     int64_t element_bytes) {
    /* Count the bytes that a rank sends. */
    return -1;
}

int64_t direct_cable_bytes(int ranks, int64_t rows, const cp_shape *shape,
                           int64_t element_bytes) {
    /* Count the bytes that cross a cable. */
    return -1;
}

int64_t ring_cable_bytes(int ranks, int64_t rows, const cp_shape *shape,
                         int64_t element_bytes) {
    /* Count the bytes that cross a cable of the ring. */
    return -1;
}
