/* Tangled from book/05-proof.nw; edit the chapter. */
/* Visit every interleaving of a small plan. */
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "plan/check.h"

/* Packed into a state without padding, so that states compare as bytes. */
typedef struct {
    uint64_t next;     /* operation to issue */
    uint64_t received; /* one bit for each operation: its bytes are here */
} rank_state;

enum { MOST_OPERATIONS = 64 };

typedef struct {
    const cp_plan *plan;
    int ranks;
    size_t size;         /* bytes of a state, for all ranks */
    rank_state *visited; /* [used][ranks]: states found, in order */
    int64_t *table;      /* hash table of state numbers from 1 on; 0 = free */
    int64_t room; /* states that fit; the table has twice as many entries */
    int64_t used, most;
} state_search;

static int64_t *find(const state_search *search, const rank_state *state) {
    const uint64_t mask = 2 * (uint64_t)search->room - 1;
    const uint64_t hash = cp_hash(0, state, (int64_t)search->size);
    uint64_t at = (hash ^ hash >> 29) & mask;
    while (search->table[at] > 0 &&
           memcmp(search->visited + (search->table[at] - 1) * search->ranks,
                  state, search->size) != 0)
        at = (at + 1) & mask;
    return &search->table[at];
}

static cp_status grow(state_search *search) {
    CP_TRY(cp_grow(&search->visited, &search->room,
                   cp_max(1024, search->used + 1), (int64_t)search->size,
                   "states"));
    free(search->table);
    CP_TRY(cp_allocate(&search->table, 2 * search->room, 8, "a table of them"));
    for (int64_t n = 0; n < search->used; n++)
        *find(search, search->visited + n * search->ranks) = n + 1;
    return CP_OK;
}

static cp_status discover(state_search *search, const rank_state *state) {
    if (*find(search, state) > 0)
        return CP_OK;
    if (search->used == search->most)
        return cp_fail(CP_CAPACITY, "more than %ld states to explore",
                       search->most);
    if (search->used == search->room)
        CP_TRY(grow(search));
    memcpy(search->visited + search->used * search->ranks, state, search->size);
    *find(search, state) = ++search->used;
    return CP_OK;
}

static bool is_received(const rank_state *state, int rank, const cp_op *ops,
                        int64_t n) {
    return ops[n].from == CP_NO_RANK || (state[rank].received >> n & 1) != 0;
}

static bool is_sent(const rank_state *state, const cp_op *op) {
    return op->to == CP_NO_RANK ||
           (state[op->to].received >> op->sent_to & 1) != 0;
}

static const cp_op *next_op(const state_search *search, const rank_state *state,
                            int rank) {
    const cp_program *program = &search->plan->programs[rank];
    const int64_t next = (int64_t)state[rank].next;
    return next < program->count ? &program->ops[next] : NULL;
}

static cp_status check_flight(const state_search *search,
                              const rank_state *state, int rank,
                              const cp_op *op) {
    const cp_op *ops = search->plan->programs[rank].ops;
    cp_touch touch;
    for (int i = 0; cp_op_touch(search->plan, rank, op, i, &touch); i++)
        for (int64_t n = 0; n < (int64_t)state[rank].next; n++) {
            const bool flies = ops[n].kind == CP_OP_EXCHANGE;
            const bool filled = flies && touch.slot == ops[n].out.slot &&
                                !is_received(state, rank, ops, n);
            const bool sent = flies && touch.writes &&
                              touch.slot == ops[n].in.slot &&
                              !is_sent(state, &ops[n]);
            if (filled || sent)
                return cp_fail(CP_BROKEN,
                               "in some order rank %d, hop %d: %s %s slot %d "
                               "while it is being %s",
                               rank, op->hop, cp_op_name(op->kind),
                               touch.writes ? "overwrites" : "reads",
                               touch.slot, filled ? "filled" : "sent");
        }
    return CP_OK;
}
static cp_status issue(state_search *search, rank_state *state, int rank,
                       bool *moved) {
    const cp_op *ops = search->plan->programs[rank].ops;
    const cp_op *op = next_op(search, state, rank);
    if (op == NULL || cp_op_is_collective(op) ||
        (op->kind == CP_OP_WAIT && !(is_sent(state, &ops[op->ends]) &&
                                     is_received(state, rank, ops, op->ends))))
        return CP_OK;
    CP_TRY(check_flight(search, state, rank, op));
    *moved = true;
    state[rank].next++;
    const cp_status status = discover(search, state);
    state[rank].next--;
    return status;
}
static cp_status move_bytes(state_search *search, rank_state *state, int from,
                            int to, bool *moved) {
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

static cp_status issue_collective(state_search *search, rank_state *state,
                                  bool *moved) {
    for (int k = 0; k < search->ranks; k++) {
        const cp_op *op = next_op(search, state, k);
        if (op == NULL || !cp_op_is_collective(op))
            return CP_OK;
    }
    *moved = true;
    for (int k = 0; k < search->ranks; k++) {
        CP_TRY(check_flight(search, state, k, next_op(search, state, k)));
        state[k].next++;
    }
    return discover(search, state);
}
static cp_status explore(state_search *search, rank_state *state) {
    bool moved = false;
    for (int k = 0; k < search->ranks; k++) {
        CP_TRY(issue(search, state, k, &moved));
        for (int r = 0; r < search->ranks; r++)
            CP_TRY(move_bytes(search, state, k, r, &moved));
    }
    CP_TRY(issue_collective(search, state, &moved));
    for (int k = 0; k < search->ranks && !moved; k++) {
        const cp_op *op = next_op(search, state, k);
        if (op != NULL)
            return cp_fail(CP_BROKEN,
                           "in some order all ranks are stuck, rank %d at "
                           "operation %d, %s",
                           k, (int)state[k].next, cp_op_name(op->kind));
    }
    return CP_OK;
}
static cp_status explore_all(state_search *search, rank_state *state) {
    /* Refuse more operations than there are bits. */
    for (int k = 0; k < search->ranks; k++)
        if (search->plan->programs[k].count > MOST_OPERATIONS)
            return cp_refuse("rank %d has %ld operations; the explorer takes "
                             "at most %d",
                             k, search->plan->programs[k].count,
                             MOST_OPERATIONS);
    CP_TRY(grow(search));
    CP_TRY(discover(search, state));
    for (int64_t n = 0; n < search->used; n++) {
        memcpy(state, search->visited + n * search->ranks, search->size);
        CP_TRY(explore(search, state));
    }
    return CP_OK;
}

cp_status cp_plan_explore(const cp_plan *plan, int64_t most, int64_t *states) {
    const int ranks = plan->layout->ranks;
    state_search search = {.plan = plan,
                           .ranks = ranks,
                           .size = (size_t)ranks * sizeof(rank_state),
                           .most = most};
    rank_state *state;
    CP_TRY(cp_allocate(&state, ranks, sizeof(rank_state), "a state"));
    const cp_status status = explore_all(&search, state);
    /* Free what the search used. */
    if (states != NULL)
        *states = search.used;
    free(search.visited);
    free(search.table);
    free(state);
    return status;
}
