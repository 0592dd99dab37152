/* Tangled from book/05-proof.nw; edit the chapter. */
/* Visit every interleaving of a small plan. */
#include "ring/explore.h"

#include <stdlib.h>
#include <string.h>

/* Packed into a state without padding, so that states compare as bytes. */
typedef struct {
    uint64_t next;     /* operation to issue */
    uint64_t received; /* one bit for each operation: its bytes are here */
} place;

enum { MOST_OPERATIONS = 64 };

typedef struct {
    const cp_plan *plan;
    int ranks;
    place *visited; /* [used][ranks]: states found, in order */
    int64_t *table; /* hash table of state numbers, -1 = free */
    int64_t room;   /* states that fit; the table has twice as many places */
    int64_t used, most;
} search;

static uint64_t hash(const place *state, int ranks) {
    const unsigned char *bytes = (const unsigned char *)state;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t n = 0; n < (size_t)ranks * sizeof(place); n++)
        h = (h ^ bytes[n]) * 0x100000001b3u;
    return h ^ (h >> 29);
}

static int64_t *find(const search *search, const place *state) {
    const size_t size = (size_t)search->ranks * sizeof(place);
    const uint64_t mask = 2 * (uint64_t)search->room - 1;
    uint64_t at = hash(state, search->ranks) & mask;
    while (search->table[at] >= 0 &&
           memcmp(search->visited + search->table[at] * search->ranks, state,
                  size) != 0)
        at = (at + 1) & mask;
    return &search->table[at];
}

static cp_status grow(search *search) {
    search->room = search->room == 0 ? 1024 : 2 * search->room;
    const size_t size = (size_t)search->ranks * sizeof(place);
    place *visited = realloc(search->visited, (size_t)search->room * size);
    int64_t *table =
        realloc(search->table, 2 * (size_t)search->room * sizeof(int64_t));
    search->visited = visited != NULL ? visited : search->visited;
    search->table = table != NULL ? table : search->table;
    if (visited == NULL || table == NULL)
        return cp_fail(CP_MEMORY, "no memory for %ld states", search->room);
    for (int64_t n = 0; n < 2 * search->room; n++)
        table[n] = -1;
    for (int64_t n = 0; n < search->used; n++)
        *find(search, visited + n * search->ranks) = n;
    return CP_OK;
}

static cp_status discover(search *search, const place *state) {
    if (*find(search, state) >= 0)
        return CP_OK;
    if (search->used == search->most)
        return cp_fail(CP_CAPACITY, "more than %ld states", search->most);
    if (search->used == search->room) {
        CP_TRY(grow(search));
    }
    *find(search, state) = search->used;
    memcpy(search->visited + search->used++ * search->ranks, state,
           (size_t)search->ranks * sizeof(place));
    return CP_OK;
}

static bool is_received(const place *state, int rank, const cp_op *ops,
                        int64_t n) {
    return ops[n].from == CP_NOBODY || (state[rank].received >> n & 1) != 0;
}

static bool is_sent(const place *state, const cp_op *op) {
    return op->to == CP_NOBODY ||
           (state[op->to].received >> op->sent_to & 1) != 0;
}

static const cp_op *next_op(const search *search, const place *state,
                            int rank) {
    const cp_program *program = &search->plan->programs[rank];
    const int64_t next = (int64_t)state[rank].next;
    return next < program->count ? &program->ops[next] : NULL;
}

static cp_status check_touch(const search *search, const place *state, int rank,
                             const cp_op *op, cp_touch touch) {
    const cp_op *ops = search->plan->programs[rank].ops;
    for (int64_t n = 0; n < (int64_t)state[rank].next; n++) {
        if (ops[n].kind != CP_OP_EXCHANGE)
            continue;
        const bool filled =
            touch.slot == ops[n].out.slot && !is_received(state, rank, ops, n);
        const bool sent = touch.writes && touch.slot == ops[n].in.slot &&
                          !is_sent(state, &ops[n]);
        if (filled || sent)
            return cp_fail(CP_BROKEN,
                           "in some order rank %d, hop %d: %s %s slot %d while "
                           "it is being %s",
                           rank, op->hop, cp_op_name(op->kind),
                           touch.writes ? "overwrites" : "reads", touch.slot,
                           filled ? "filled" : "sent");
    }
    return CP_OK;
}

static cp_status check_flight(const search *search, const place *state,
                              int rank, const cp_op *op) {
    cp_touch touch;
    for (int n = 0; cp_op_touch(search->plan, rank, op, n, &touch); n++)
        CP_TRY(check_touch(search, state, rank, op, touch));
    return CP_OK;
}

static bool may_issue(const search *search, const place *state, int rank) {
    const cp_op *ops = search->plan->programs[rank].ops;
    const cp_op *op = next_op(search, state, rank);
    if (op == NULL || cp_op_is_collective(op))
        return false;
    return op->kind != CP_OP_WAIT || (is_sent(state, &ops[op->ends]) &&
                                      is_received(state, rank, ops, op->ends));
}

static cp_status issue(search *search, place *state, int rank, bool *moved) {
    if (!may_issue(search, state, rank))
        return CP_OK;
    const cp_op *op = next_op(search, state, rank);
    cp_status status = check_flight(search, state, rank, op);
    state[rank].next++;
    if (status == CP_OK)
        status = discover(search, state);
    state[rank].next--;
    *moved = true;
    return status;
}

static cp_status move_bytes(search *search, place *state, int from, int to,
                            bool *moved) {
    const cp_op *op = search->plan->programs[from].ops;
    const cp_op *end = op + state[from].next;
    while (op < end &&
           (op->kind != CP_OP_EXCHANGE || op->to != to || is_sent(state, op)))
        op++;
    if (op == end || (int64_t)state[to].next <= op->sent_to)
        return CP_OK;
    const uint64_t received = state[to].received;
    state[to].received |= (uint64_t)1 << op->sent_to;
    const cp_status status = discover(search, state);
    state[to].received = received;
    *moved = true;
    return status;
}

static cp_status meet(search *search, place *state, bool *moved) {
    cp_status status = CP_OK;
    for (int k = 0; k < search->ranks; k++) {
        const cp_op *op = next_op(search, state, k);
        if (op == NULL || !cp_op_is_collective(op))
            return CP_OK;
        if (status == CP_OK)
            status = check_flight(search, state, k, op);
    }
    for (int k = 0; k < search->ranks; k++)
        state[k].next++;
    if (status == CP_OK)
        status = discover(search, state);
    for (int k = 0; k < search->ranks; k++)
        state[k].next--;
    *moved = true;
    return status;
}

static cp_status explore(search *search, place *state) {
    bool moved = false, end = true;
    cp_status status = CP_OK;
    for (int k = 0; k < search->ranks && status == CP_OK; k++) {
        end = end && next_op(search, state, k) == NULL;
        status = issue(search, state, k, &moved);
        for (int r = 0; r < search->ranks && status == CP_OK; r++)
            status = move_bytes(search, state, k, r, &moved);
    }
    if (status == CP_OK)
        status = meet(search, state, &moved);
    if (status != CP_OK || moved || end)
        return status;
    int stuck = 0;
    while (next_op(search, state, stuck) == NULL)
        stuck++;
    return cp_fail(CP_BROKEN,
                   "in some order all ranks are stuck, rank %d at "
                   "operation %d, %s",
                   stuck, (int)state[stuck].next,
                   cp_op_name(next_op(search, state, stuck)->kind));
}

static cp_status few_operations(const cp_plan *plan) {
    for (int k = 0; k < plan->layout->ranks; k++)
        if (plan->programs[k].count > MOST_OPERATIONS)
            return cp_fail(CP_INVALID,
                           "rank %d has %ld operations; all orders can be "
                           "explored for %d at most",
                           k, plan->programs[k].count, MOST_OPERATIONS);
    return CP_OK;
}

cp_status cp_plan_explore(const cp_plan *plan, int64_t most, int64_t *states) {
    const int ranks = plan->layout->ranks;
    search search = {.plan = plan, .ranks = ranks, .most = most};
    place *state = NULL;
    cp_status status = few_operations(plan);
    if (status == CP_OK)
        status = cp_allocate(&state, ranks, sizeof(place), "a state");
    if (status == CP_OK)
        status = grow(&search);
    if (status == CP_OK)
        status = discover(&search, state);
    for (int64_t n = 0; n < search.used && status == CP_OK; n++) {
        memcpy(state, search.visited + n * ranks,
               (size_t)ranks * sizeof(place));
        status = explore(&search, state);
    }
    /* Free what the search used. */
    if (states != NULL)
        *states = search.used;
    free(search.visited);
    free(search.table);
    free(state);
    return status;
}
