/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when on each rank, as Chrome trace JSON. */
#ifndef CP_TRACE_H
#define CP_TRACE_H

#include "reference/ring/walk.h"
#include "ring/history.h"

/* What an observer of one rank needs to know. */
typedef struct {
    cp_history *history; /* NULL: nothing is noted */
    double origin;       /* by the clock: when the history begins */
    int rank;
    int64_t layer;
} cp_trace_context;

/* A cp_walk_observer; context is a cp_trace_context. */
void cp_trace_observe(void *context, const cp_walker *walker, const cp_op *op,
                      double start, double end);

/* Note that a rank did something other than an operation, from start till
 * now. Nothing happens without a history. */
void cp_trace_layers(const cp_trace_context *context, const char *what,
                     double start);

#endif
