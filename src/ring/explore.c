/* Tangled from book/05-proof.nw; edit the chapter. */
/* Visit every interleaving of a small plan. */
#include "ring/explore.h"

#include <stdlib.h>
#include <string.h>

/* Packed into a state without padding, so that states compare as bytes. */
typedef struct {
    uint32_t next;     /* operation to issue */
    uint32_t sent;     /* one bit for each exchange, in order */
    uint32_t received; /* likewise */
} place;

typedef struct {
    const cp_plan *plan;
    int ranks;
    int *numbers;   /* scratch for lists of slots */
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
        return cp_fail(CP_MEMORY, "no memory for %lld states",
                       (long long)search->room);
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
        return cp_fail(CP_CAPACITY, "more than %lld states",
                       (long long)search->most);
    if (search->used == search->room) {
        const cp_status status = grow(search);
        if (status != CP_OK)
            return status;
    }
    *find(search, state) = search->used;
    memcpy(search->visited + search->used++ * search->ranks, state,
           (size_t)search->ranks * sizeof(place));
    return CP_OK;
}

/* The n-th exchange of a rank's program, or NULL if it is not posted yet. */
static const cp_op *posted(const search *search, const place *state, int rank,
                           int n) {
    const cp_program *program = &search->plan->programs[rank];
    for (uint32_t i = 0; i < state[rank].next; i++)
        if (program->ops[i].kind == CP_OP_EXCHANGE && n-- == 0)
            return &program->ops[i];
    return NULL;
}

static bool is_sent(const place *place, const cp_op *op, int n) {
    return op->to == CP_NOBODY || (place->sent >> n & 1) != 0;
}

static bool is_received(const place *place, const cp_op *op, int n) {
    return op->from == CP_NOBODY || (place->received >> n & 1) != 0;
}

static cp_status overtaken(int rank, const cp_op *op, int slot, const char *how,
                           const char *state) {
    return cp_fail(CP_BROKEN,
                   "in some order rank %d, hop %d: %s %s slot %d while it is "
                   "being %s",
                   rank, op->hop, cp_op_name(op->kind), how, slot, state);
}

static cp_status check_flight(const search *search, const place *state,
                              int rank, const cp_op *op) {
    cp_op_slots used = {0, 0, search->numbers,
                        search->numbers + search->ranks + 2};
    cp_op_slots_list(search->plan, rank, op, &used);
    const cp_op *other;
    for (int n = 0; (other = posted(search, state, rank, n)) != NULL; n++) {
        const bool leaving = !is_sent(&state[rank], other, n);
        const bool coming = !is_received(&state[rank], other, n);
        for (int i = 0; i < used.read_count; i++)
            if (coming && used.read[i] == other->out.slot)
                return overtaken(rank, op, used.read[i], "reads", "filled");
        for (int i = 0; i < used.write_count; i++)
            if ((coming && used.write[i] == other->out.slot) ||
                (leaving && used.write[i] == other->in.slot))
                return overtaken(rank, op, used.write[i], "overwrites",
                                 coming ? "filled" : "sent");
    }
    return CP_OK;
}

static bool may_issue(const search *search, const place *state, int rank) {
    const cp_program *program = &search->plan->programs[rank];
    if (state[rank].next >= program->count)
        return false;
    const cp_op *op = &program->ops[state[rank].next];
    if (op->kind == CP_OP_ALL_TO_ALL || op->kind == CP_OP_ALL_GATHER)
        return false;
    if (op->kind != CP_OP_WAIT)
        return true;
    int waits = 0;
    for (uint32_t i = 0; i < state[rank].next; i++)
        waits += program->ops[i].kind == CP_OP_WAIT;
    const cp_op *oldest = posted(search, state, rank, waits);
    return oldest != NULL && is_sent(&state[rank], oldest, waits) &&
           is_received(&state[rank], oldest, waits);
}

static cp_status issue(search *search, place *state, int rank, bool *moved) {
    if (!may_issue(search, state, rank))
        return CP_OK;
    const cp_op *op = &search->plan->programs[rank].ops[state[rank].next];
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
    const cp_op *send, *receive;
    int s = 0, r = 0;
    while ((send = posted(search, state, from, s)) != NULL &&
           (send->to != to || is_sent(&state[from], send, s)))
        s++;
    while ((receive = posted(search, state, to, r)) != NULL &&
           (receive->from != from || is_received(&state[to], receive, r)))
        r++;
    if (send == NULL || receive == NULL)
        return CP_OK;
    state[from].sent |= 1u << s;
    state[to].received |= 1u << r;
    const cp_status status = discover(search, state);
    state[from].sent &= ~(1u << s);
    state[to].received &= ~(1u << r);
    *moved = true;
    return status;
}

static cp_status meet(search *search, place *state, bool *moved) {
    cp_status status = CP_OK;
    for (int k = 0; k < search->ranks; k++) {
        const cp_program *program = &search->plan->programs[k];
        if (state[k].next >= program->count)
            return CP_OK;
        const cp_op *op = &program->ops[state[k].next];
        if (op->kind != CP_OP_ALL_TO_ALL && op->kind != CP_OP_ALL_GATHER)
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
        end = end && state[k].next == search->plan->programs[k].count;
        status = issue(search, state, k, &moved);
        for (int r = 0; r < search->ranks && status == CP_OK; r++)
            status = move_bytes(search, state, k, r, &moved);
    }
    if (status == CP_OK)
        status = meet(search, state, &moved);
    if (status != CP_OK || moved || end)
        return status;
    for (int k = 0; k < search->ranks; k++)
        if (state[k].next < search->plan->programs[k].count)
            return cp_fail(
                CP_BROKEN,
                "in some order all ranks are stuck, rank %d at "
                "operation %u, %s",
                k, (unsigned)state[k].next,
                cp_op_name(search->plan->programs[k].ops[state[k].next].kind));
    return CP_OK;
}

static cp_status few_exchanges(const cp_plan *plan) {
    for (int k = 0; k < plan->layout->ranks; k++) {
        const cp_program *program = &plan->programs[k];
        int exchanges = 0;
        for (int64_t n = 0; n < program->count; n++)
            exchanges += program->ops[n].kind == CP_OP_EXCHANGE;
        if (exchanges > 32)
            return cp_fail(CP_INVALID,
                           "rank %d has %d exchanges; all orders can be "
                           "explored for 32 at most",
                           k, exchanges);
    }
    return CP_OK;
}

cp_status cp_plan_explore(const cp_plan *plan, int64_t most, int64_t *states) {
    const int ranks = plan->layout->ranks;
    search search = {.plan = plan, .ranks = ranks, .most = most};
    place *state = NULL;
    cp_status status = few_exchanges(plan);
    if (status == CP_OK)
        status = cp_allocate(&search.numbers, 2 * (ranks + 2), sizeof(int),
                             "a list of slots");
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
    free(search.numbers);
    free(state);
    return status;
}
