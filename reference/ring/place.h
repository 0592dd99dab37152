/* Tangled from book/12-model.nw; edit the chapter. */
/* A runner of ranks: all in this process, or one in each of several. */
#ifndef CP_PLACE_H
#define CP_PLACE_H

#include "ring/choose.h"
#include "ring/crew.h"
#include "reference/ring/threads.h"

/* How ranks run, and where. */
typedef struct {
    /* Run function(comm, context) on all ranks; as cp_threads_run. */
    cp_status (*run)(int ranks, cp_rank_main function, void *context);
    const cp_machine *machine; /* assumed by Algorithm 1 */
    int only;  /* the one rank of this process; CP_NOBODY: all are here */
    int local; /* ranks that share this machine's cores; 0: all */
    const cp_crew *crew; /* of all processes, if there are several */
} cp_place;

/* Threads of this process; and processes, if built with MPI. */
extern const cp_place cp_place_threads, *const cp_mpi_place;

/* OpenMP threads for each of ranks ranks, on cores cores (0: all). */
int cp_place_share(const cp_place *place, int cores, int ranks);

#endif
