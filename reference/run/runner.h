/* Tangled from book/12-model.nw; edit the chapter. */
/* A runner of ranks: all in this process, or one in each of several. */
#ifndef CP_RUNNER_H
#define CP_RUNNER_H

#include "reference/attend/fast.h"
#include "variants/choose.h"
#include "group/process_group.h"
#include "reference/run/threads.h"

/* How ranks run, and where. */
typedef struct {
    /* Run function(comm, context) on all ranks; as cp_threads_run. */
    cp_status (*run)(int ranks, cp_rank_main function, void *context);
    const cp_machine *machine; /* assumed by Algorithm 1 */
    int only;  /* the one rank of this process; CP_NO_RANK: all are here */
    int local; /* ranks that share this machine's cores; 0: all */
    const cp_process_group *group; /* of all processes, if there are several */
    bool bf16;                     /* many rows are multiplied in bf16 */
} cp_runner;

/* Threads of this process; and processes, if built with MPI. */
extern const cp_runner cp_runner_threads,
    cp_runner_threads_bf16, *const cp_runner_mpi;

/* How its ranks attend. */
static inline cp_kernel cp_runner_kernel(const cp_runner *runner) {
    return runner->bf16 ? cp_attend_bf16 : cp_attend_fast;
}

/* OpenMP threads for each of ranks ranks, on cores cores (0: all). */
int cp_runner_cores(const cp_runner *runner, int cores, int ranks);

#endif
