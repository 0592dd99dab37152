/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when on each rank. */
#include "reference/run/trace.h"

static void note(const cp_trace_context *context, cp_stretch stretch) {
    stretch.start -= context->origin;
    stretch.end -= context->origin;
    cp_history_note(context->history, context->rank, 0, stretch);
}

void cp_trace_observe(void *context, const cp_walker *walker, const cp_op *op,
                      double start, double end) {
    const cp_trace_context *trace = context;
    const cp_plan *plan = walker->plan;
    const int64_t bytes =
        cp_op_messages(plan, op) * plan->slots[op->in.slot].bytes;
    note(trace, (cp_stretch){cp_op_name(op->kind), start, end, trace->layer,
                             bytes, op->hop});
}

void cp_trace_layers(const cp_trace_context *context, const char *what,
                     double start) {
    if (context->history != NULL)
        note(context,
             (cp_stretch){what, start, cp_clock(), context->layer, 0, 0});
}
