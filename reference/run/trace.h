/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when on each rank, as Chrome trace JSON. */
#ifndef CP_TRACE_H
#define CP_TRACE_H

#include "reference/run/walk.h"
#include "ground/history.h"

/* What an observer of one rank needs. */
typedef struct {
    cp_history *history; /* NULL: nothing is recorded */
    double origin;       /* clock when the history begins */
    int rank;
    int64_t layer;
} cp_trace_context;

/* A cp_walk_observer; context is a cp_trace_context. */
void cp_trace_observe(void *context, const cp_walker *walker, const cp_op *op,
                      double start, double end);

/* Record something other than an operation that a rank did, from start till
 * now. Does nothing without a history. */
void cp_trace_layers(const cp_trace_context *context, const char *what,
                     double start);

#endif
