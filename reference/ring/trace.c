/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when on each rank. */
#include "reference/ring/trace.h"

#include <stdlib.h>

#include "ring/history.h"

struct cp_trace {
    double origin;
    cp_history *history;
};

static void note(const cp_trace_context *context, cp_stretch stretch) {
    cp_history_note(context->trace->history, context->rank, 0, stretch);
}

void cp_trace_observe(void *context, const cp_walker *walker, const cp_op *op,
                      double start, double end) {
    const cp_trace_context *mine = context;
    const cp_plan *plan = cp_walker_plan(walker);
    const int64_t bytes =
        cp_op_messages(plan, op) * plan->slots[op->in.slot].bytes;
    note(mine, (cp_stretch){cp_op_name(op->kind), start, end, mine->layer,
                            bytes, op->hop});
}

void cp_trace_layers(const cp_trace_context *context, const char *what,
                     double start) {
    if (context->trace != NULL)
        note(context,
             (cp_stretch){what, start, cp_clock(), context->layer, 0, 0});
}

cp_status cp_trace_new(int ranks, cp_trace **out) {
    cp_trace *trace;
    *out = NULL;
    CP_TRY(cp_allocate(&trace, 1, sizeof(*trace), "a trace"));
    trace->origin = cp_clock();
    const cp_status status = cp_history_new(ranks, 1, NULL, &trace->history);
    if (status == CP_OK)
        *out = trace;
    else
        free(trace);
    return status;
}

void cp_trace_free(cp_trace *trace) {
    if (trace != NULL)
        cp_history_free(trace->history);
    free(trace);
}

cp_status cp_trace_write(const cp_trace *trace, const char *path) {
    return cp_history_write(trace->history, trace->origin, path);
}
