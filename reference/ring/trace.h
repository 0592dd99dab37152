/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when on each rank, as Chrome trace JSON. */
#ifndef CP_TRACE_H
#define CP_TRACE_H

#include "reference/ring/walk.h"

typedef struct cp_trace cp_trace;

/* What an observer of one rank needs to know. */
typedef struct {
    cp_trace *trace;
    int rank;
    int64_t layer;
} cp_trace_context;

/* An empty trace; its clock starts now. Fails with CP_MEMORY. */
cp_status cp_trace_new(int ranks, cp_trace **out);
void cp_trace_free(cp_trace *trace);

/* A cp_walk_observer; context is a cp_trace_context. */
void cp_trace_observe(void *context, const cp_walker *walker, const cp_op *op,
                      double start, double end);

/* Note that a rank did something other than an operation, from start till
 * now. Nothing happens without a trace. */
void cp_trace_layers(const cp_trace_context *context, const char *what,
                     double start);

/* Write all as Chrome trace JSON. Fails as cp_save does. */
cp_status cp_trace_write(const cp_trace *trace, const char *path);

#endif
