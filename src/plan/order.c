/* Tangled from book/05-proof.nw; edit the chapter. */
/* One possible order of the operations of all ranks of a plan. */
#include "plan/order.h"

#include <stdlib.h>

typedef struct {
    const cp_plan *plan;
    int64_t *next; /* [ranks] operation to issue */
    int64_t *open; /* [ranks] exchanges not waited for yet */
    cp_event_visitor visit;
    void *context;
    bool moved; /* something happened in this round */
} order_run;

static const cp_op *op_of(const order_run *run, int rank, int64_t number) {
    return &run->plan->programs[rank].ops[number];
}

static bool is_sent(const order_run *run, const cp_op *op) {
    return op->to == CP_NO_RANK || run->next[op->to] > op->sent_to;
}

static bool is_received(const order_run *run, const cp_op *op) {
    return op->from == CP_NO_RANK || run->next[op->from] > op->got_from;
}

static cp_status emit_event(order_run *run, cp_event_kind kind, int rank,
                            int64_t number) {
    const cp_event event = {kind, rank, number, op_of(run, rank, number),
                            run->next};
    run->moved = true;
    return run->visit(run->context, &event);
}

static cp_status transfer(order_run *run, int from, int64_t number) {
    const cp_op *send = op_of(run, from, number);
    const cp_op *receive = op_of(run, send->to, send->sent_to);
    const int64_t sent = run->plan->slots[send->in.slot].bytes;
    const int64_t room = run->plan->slots[receive->out.slot].bytes;
    if (sent != room)
        return cp_fail(CP_BROKEN,
                       "rank %d sends %ld bytes to rank %d, which expects %ld",
                       from, sent, send->to, room);
    return emit_event(run, CP_EVENT_TRANSFER, from, number);
}

static cp_status post(order_run *run, int rank, int64_t number) {
    const cp_op *op = op_of(run, rank, number);
    const bool to_self = op->from == rank && op->got_from == number;
    run->open[rank]++;
    CP_TRY(emit_event(run, CP_EVENT_START, rank, number));
    if (op->to != CP_NO_RANK && is_sent(run, op))
        CP_TRY(transfer(run, rank, number));
    if (op->from != CP_NO_RANK && !to_self && is_received(run, op))
        CP_TRY(transfer(run, op->from, op->got_from));
    return CP_OK;
}

static bool can_go_on(const order_run *run, int rank) {
    const cp_op *op = op_of(run, rank, run->next[rank]);
    if (op->kind != CP_OP_WAIT)
        return !cp_op_is_collective(op);
    const cp_op *ended = op_of(run, rank, op->ends);
    return is_sent(run, ended) && is_received(run, ended);
}

static cp_status advance(order_run *run, int rank) {
    const cp_program *program = &run->plan->programs[rank];
    while (run->next[rank] < program->count && can_go_on(run, rank)) {
        const int64_t number = run->next[rank]++;
        const cp_op_kind kind = program->ops[number].kind;
        run->open[rank] -= kind == CP_OP_WAIT;
        if (kind == CP_OP_EXCHANGE)
            CP_TRY(post(run, rank, number));
        else
            CP_TRY(emit_event(
                run, kind == CP_OP_WAIT ? CP_EVENT_WAIT : CP_EVENT_LOCAL, rank,
                number));
    }
    return CP_OK;
}

static cp_status collective(order_run *run) {
    const int ranks = run->plan->layout->ranks;
    for (int rank = 0; rank < ranks; rank++)
        if (run->next[rank] >= run->plan->programs[rank].count ||
            !cp_op_is_collective(op_of(run, rank, run->next[rank])))
            return CP_OK;
    const cp_status status =
        emit_event(run, CP_EVENT_COLLECTIVE, 0, run->next[0]);
    for (int rank = 0; rank < ranks; rank++)
        run->next[rank]++;
    return status;
}

static cp_status ended(const order_run *run, int rank) {
    const bool over = run->next[rank] == run->plan->programs[rank].count;
    if (over && run->open[rank] == 0)
        return CP_OK;
    if (over)
        return cp_fail(CP_BROKEN,
                       "rank %d ends with an exchange that was not waited for",
                       rank);
    const cp_op *op = op_of(run, rank, run->next[rank]);
    if (op->kind != CP_OP_WAIT)
        return cp_fail(
            CP_BROKEN,
            "deadlock: rank %d waits at an %s for ranks that never come", rank,
            cp_op_name(op->kind));
    const cp_op *exchange = op_of(run, rank, op->ends);
    const bool sent = is_sent(run, exchange);
    return cp_fail(
        CP_BROKEN, "deadlock: rank %d waits %s rank %d, which posts no %s",
        rank, sent ? "to receive from" : "for its send to",
        sent ? exchange->from : exchange->to, sent ? "send" : "receive");
}
static cp_status run_all(order_run *run) {
    const int ranks = run->plan->layout->ranks;
    do {
        run->moved = false;
        for (int rank = 0; rank < ranks; rank++)
            CP_TRY(advance(run, rank));
        CP_TRY(collective(run));
    } while (run->moved);
    for (int rank = 0; rank < ranks; rank++)
        CP_TRY(ended(run, rank));
    return CP_OK;
}
cp_status cp_plan_order(const cp_plan *plan, cp_event_visitor visit,
                        void *context) {
    const int ranks = plan->layout->ranks;
    order_run run = {.plan = plan, .visit = visit, .context = context};
    CP_TRY(cp_allocate(&run.next, 2 * (int64_t)ranks, 8, "a run"));
    run.open = run.next + ranks;
    const cp_status status = run_all(&run);
    free(run.next);
    return status;
}
