/* Tangled from book/12-model.nw; edit the chapter. */
/* One rank's forward pass over its own tokens: every layer of the model, with
 * attention handed to the walker of a plan. */
#ifndef CP_FORWARD_H
#define CP_FORWARD_H

#include "model/engine.h"
#include "reference/model/model.h"
#include "reference/ring/store.h"
#include "reference/ring/trace.h"

/* One call of the model on all ranks. */
typedef struct {
    const cp_llama *model;
    const cp_session_options *options; /* stop, progress */
    const cp_forward *call;
    cp_store *store;
    cp_trace *trace;         /* or NULL */
    int threads;             /* for each rank that has tokens */
    int first;               /* of the ranks here */
    const cp_hidden *hidden; /* of them: fp32 [its tokens][width] */
} cp_forward_job;

/* What rank comm->rank does in a call: all layers over its own tokens. job is
 * a cp_forward_job. Between layers it looks at the stop flag and then fails
 * with CP_INTERRUPTED. A cp_rank_main. */
cp_status cp_forward_rank(cp_comm *comm, void *job);

#endif
