/* Tangled from book/05-proof.nw; edit the chapter. */
/* One order in which the operations of all ranks of a plan could happen. */
#include "ring/order.h"

#include <stdlib.h>

typedef struct {
    const cp_op *op;
    bool sent, received; /* a half that does not exist counts as done */
} exchange;

typedef struct {
    int64_t next;          /* operation to issue */
    exchange *exchanges;   /* in the order of their start */
    int64_t started, over; /* how many exist; how many were waited for */
} rank_state;

typedef struct {
    const cp_plan *plan;
    rank_state *ranks;
    cp_event_visitor visit;
    void *context;
    const cp_op **all; /* [ranks] for a collective */
    bool moved;        /* something happened in this round */
} run;

static exchange *oldest_send(rank_state *state, int to) {
    for (int64_t n = state->over; n < state->started; n++)
        if (state->exchanges[n].op->to == to && !state->exchanges[n].sent)
            return &state->exchanges[n];
    return NULL;
}

static exchange *oldest_receive(rank_state *state, int from) {
    for (int64_t n = state->over; n < state->started; n++)
        if (state->exchanges[n].op->from == from &&
            !state->exchanges[n].received)
            return &state->exchanges[n];
    return NULL;
}

static cp_status transfer(run *run, int from, int to) {
    exchange *send = oldest_send(&run->ranks[from], to);
    exchange *receive = oldest_receive(&run->ranks[to], from);
    if (send == NULL || receive == NULL)
        return CP_OK;
    const int64_t sent = run->plan->slots[send->op->in.slot].bytes;
    const int64_t room = run->plan->slots[receive->op->out.slot].bytes;
    if (sent != room)
        return cp_fail(CP_BROKEN,
                       "rank %d sends %lld bytes to rank %d, which expects "
                       "%lld",
                       from, (long long)sent, to, (long long)room);
    send->sent = receive->received = true;
    run->moved = true;
    const cp_event event = {CP_EVENT_TRANSFER, from,        to,
                            send->op,          receive->op, NULL};
    return run->visit(run->context, &event);
}

static cp_status advance(run *run, int rank) {
    rank_state *state = &run->ranks[rank];
    const cp_program *program = &run->plan->programs[rank];
    cp_status status = CP_OK;
    while (status == CP_OK && state->next < program->count) {
        const cp_op *op = &program->ops[state->next];
        if (op->kind == CP_OP_ALL_TO_ALL || op->kind == CP_OP_ALL_GATHER)
            return CP_OK;
        cp_event event = {CP_EVENT_LOCAL, rank, -1, op, NULL, NULL};
        if (op->kind == CP_OP_EXCHANGE) {
            /* Post an exchange. */
            event.kind = CP_EVENT_START;
            state->exchanges[state->started++] = (exchange){
                .op = op,
                .sent = op->to == CP_NOBODY,
                .received = op->from == CP_NOBODY,
            };
        } else if (op->kind == CP_OP_WAIT) {
            /* End the oldest exchange, or stop here. */
            if (state->over == state->started)
                return cp_fail(CP_BROKEN,
                               "rank %d waits, but has no exchange to wait for",
                               rank);
            const exchange *oldest = &state->exchanges[state->over];
            if (!oldest->sent || !oldest->received)
                return CP_OK;
            event = (cp_event){CP_EVENT_WAIT, rank, -1, oldest->op, NULL, NULL};
            state->over++;
        }
        state->next++;
        run->moved = true;
        status = run->visit(run->context, &event);
        /* Try the transfers that this made possible. */
        if (op->kind == CP_OP_EXCHANGE) {
            if (status == CP_OK && op->to != CP_NOBODY)
                status = transfer(run, rank, op->to);
            if (status == CP_OK && op->from != CP_NOBODY)
                status = transfer(run, op->from, rank);
        }
    }
    return status;
}

static cp_status collective(run *run) {
    const int ranks = run->plan->layout->ranks;
    for (int rank = 0; rank < ranks; rank++) {
        const cp_program *program = &run->plan->programs[rank];
        if (run->ranks[rank].next >= program->count)
            return CP_OK;
        const cp_op *op = &program->ops[run->ranks[rank].next];
        if (op->kind != CP_OP_ALL_TO_ALL && op->kind != CP_OP_ALL_GATHER)
            return CP_OK;
        run->all[rank] = op;
        if (op->kind != run->all[0]->kind)
            return cp_fail(CP_BROKEN, "rank 0 is at an %s, rank %d at an %s",
                           cp_op_name(run->all[0]->kind), rank,
                           cp_op_name(op->kind));
    }
    for (int rank = 0; rank < ranks; rank++)
        run->ranks[rank].next++;
    run->moved = true;
    const cp_event event = {CP_EVENT_COLLECTIVE, -1,   -1,
                            run->all[0],         NULL, run->all};
    return run->visit(run->context, &event);
}

static cp_status ended(const run *run, int rank) {
    const rank_state *state = &run->ranks[rank];
    const cp_program *program = &run->plan->programs[rank];
    if (state->next == program->count && state->over == state->started)
        return CP_OK;
    if (state->next == program->count)
        return cp_fail(CP_BROKEN,
                       "rank %d ends with an exchange that nobody waited for",
                       rank);
    const cp_op *op = &program->ops[state->next];
    if (op->kind != CP_OP_WAIT)
        return cp_fail(CP_BROKEN,
                       "deadlock: rank %d waits at an %s for ranks "
                       "that never come",
                       rank, cp_op_name(op->kind));
    const exchange *oldest = &state->exchanges[state->over];
    if (!oldest->sent)
        return cp_fail(CP_BROKEN,
                       "deadlock: rank %d waits for its send to rank %d, "
                       "which posts no receive",
                       rank, oldest->op->to);
    return cp_fail(CP_BROKEN,
                   "deadlock: rank %d waits to receive from rank %d, which "
                   "posts no send",
                   rank, oldest->op->from);
}

static cp_status run_all(run *run) {
    cp_status status = CP_OK;
    do {
        run->moved = false;
        for (int rank = 0; rank < run->plan->layout->ranks && status == CP_OK;
             rank++)
            status = advance(run, rank);
        if (status == CP_OK)
            status = collective(run);
    } while (run->moved && status == CP_OK);
    for (int rank = 0; rank < run->plan->layout->ranks && status == CP_OK;
         rank++)
        status = ended(run, rank);
    return status;
}

cp_status cp_plan_order(const cp_plan *plan, cp_event_visitor visit,
                        void *context) {
    const int ranks = plan->layout->ranks;
    run run = {.plan = plan, .visit = visit, .context = context};
    cp_status status =
        cp_allocate(&run.ranks, ranks, sizeof(rank_state), "a run");
    if (status == CP_OK)
        status = cp_allocate(&run.all, ranks, sizeof(cp_op *), "a run");
    for (int rank = 0; rank < ranks && status == CP_OK; rank++)
        status =
            cp_allocate(&run.ranks[rank].exchanges, plan->programs[rank].count,
                        sizeof(exchange), "exchanges");
    if (status == CP_OK)
        status = run_all(&run);
    for (int rank = 0; run.ranks != NULL && rank < ranks; rank++)
        free(run.ranks[rank].exchanges);
    free(run.ranks);
    free(run.all);
    return status;
}
