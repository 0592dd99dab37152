/* Tangled from book/12-model.nw; edit the chapter. */
/* Ranks that compute on cores, for a session or for attention alone: threads
 * of this process, or one of them in each of several. */
#ifndef CP_CORES_ENGINE_H
#define CP_CORES_ENGINE_H

#include "model/engine.h"
#include "reference/run/runner.h"
#include "reference/run/store.h"
#include "reference/run/trace.h"

/* Ranks that compute on cores, and their current call. */
typedef struct {
    cp_engine base;
    const cp_runner *runner;
    cp_threads *threads; /* the ranks, if they are all here */
    cp_store *store;
    cp_history *trace; /* or NULL */
    double began;      /* clock when the trace began */
    const cp_forward *call;
    const cp_hidden *hidden; /* of the ranks here: fp32 [tokens][width] */
    int helpers;             /* OpenMP threads of each rank with tokens */
} cp_cores_engine;

/* Run rank comm->rank's part of a call: all layers over its own tokens. Fails
 * with CP_INTERRUPTED if the stop flag is set between layers. engine is a
 * cp_cores_engine. A cp_rank_main. */
cp_status cp_forward_rank(cp_comm *comm, void *engine);

/* The runner must outlive the engine, and has a process group if ranks are
 * processes. */
cp_status cp_cores_engine_new(const cp_runner *runner, const cp_model *model,
                              const cp_session_options *options,
                              cp_engine **out);

/* Lay a job out after its past and run it on a runner's ranks; every process
 * has all of the input and gets all of the output. Fails as cp_attend_call_new
 * and the ranks do; output and lse may then hold anything. */
cp_status cp_attend_run(const cp_runner *runner, cp_attend_job *job);

#endif
