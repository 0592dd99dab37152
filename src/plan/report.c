/* Tangled from book/05-proof.nw; edit the chapter. */
/* Count what a plan costs. */
#include "plan/report.h"

#include <stdlib.h>

static double sparse_flops(const cp_plan *plan, const cp_op *op,
                           int64_t pairs) {
    const cp_indexer *indexer = &plan->indexer;
    const cp_pieces *queries = &cp_plan_queries(plan, op->in.origin)->pieces;
    if (op->kind == CP_OP_SELECT)
        return 2 * (double)(indexer->heads * indexer->dim) * (double)pairs;
    return 2 * (double)plan->shape.query_heads *
           (double)(plan->shape.head_dim + cp_value_dim(&plan->shape)) *
           (double)pairs * cp_indexer_share(indexer, queries);
}

/* Pairs of some heads count as fractions of a pair: add whole ones and the
 * remainders, since not all products with heads would fit. */
static void count_rank(const cp_plan *plan, const int64_t *pairs_of, int k,
                       cp_plan_report *report) {
    const cp_shape *shape = &plan->shape;
    const cp_program *program = &plan->programs[k];
    const bool sparse = plan->indexer.top_k > 0;
    const double a_score = 2 * (double)(shape->head_dim + cp_value_dim(shape));
    int64_t hops = 0, left = 0;
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        const int64_t messages = cp_op_messages(plan, op);
        report->messages[k] += messages;
        report->bytes[k] += messages * plan->slots[op->in.slot].bytes;
        hops += op->kind == CP_OP_EXCHANGE && op->to != CP_NO_RANK;
        if (op->kind != CP_OP_ATTEND && op->kind != CP_OP_SELECT)
            continue;
        const int64_t heads = cp_plan_shape(plan, op->in.slot).query_heads;
        const int64_t pairs =
            pairs_of[op->in.origin * report->ranks + op->keys.origin];
        report->flops[k] += sparse ? sparse_flops(plan, op, pairs)
                                   : a_score * (double)heads * (double)pairs;
        if (sparse && op->kind == CP_OP_ATTEND)
            continue;
        report->pairs[k] += pairs / shape->query_heads * heads;
        left += pairs % shape->query_heads * heads;
    }
    report->pairs[k] += left / shape->query_heads;
    report->hops = cp_max(report->hops, hops);
}

cp_status cp_plan_report_new(const cp_plan *plan, const int64_t *pairs,
                             cp_plan_report *report) {
    const int ranks = plan->layout->ranks;
    double sum = 0;
    int64_t most = 0;
    *report = (cp_plan_report){.ranks = ranks};
    CP_TRY(cp_allocate(&report->pairs, 3 * (int64_t)ranks, 8, "a report"));
    CP_TRY(cp_allocate(&report->flops, ranks, sizeof(double), "a report"));
    report->bytes = report->pairs + ranks;
    report->messages = report->bytes + ranks;
    for (int n = 0; n < plan->slot_count; n++)
        report->slot_bytes += plan->slots[n].held;
    for (int k = 0; k < ranks; k++) {
        count_rank(plan, pairs, k, report);
        sum += (double)report->pairs[k];
        most = cp_max(most, report->pairs[k]);
    }
    report->balance = sum > 0 ? (double)most * ranks / sum : 1;
    return CP_OK;
}

void cp_plan_report_free(cp_plan_report *report) {
    free(report->pairs);
    free(report->flops);
    *report = (cp_plan_report){0};
}
