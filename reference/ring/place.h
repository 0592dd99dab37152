/* Tangled from book/12-model.nw; edit the chapter. */
/* Where ranks run: in this process, or one of them in each of several. */
#ifndef CP_PLACE_H
#define CP_PLACE_H

#include "ring/choose.h"
#include "ring/crew.h"
#include "reference/ring/threads.h"

/* Where ranks run. */
typedef struct {
    /* Run function(comm, context) on all ranks; as cp_threads_run. */
    cp_status (*run)(int ranks, cp_rank_main function, void *context);
    const cp_machine *machine; /* what Algorithm 1 is to assume */
    int only;  /* the one rank of this process; CP_NOBODY: all are here */
    int local; /* ranks that share this machine's cores; 0: all */
    const cp_crew *crew; /* of all processes, if there are several */
} cp_place;

/* Threads of this process; and processes, if built with MPI. */
extern const cp_place cp_place_threads, *const cp_mpi_place;

/* OpenMP threads for each of so many ranks, of cores (0: all there are). */
int cp_place_share(const cp_place *place, int cores, int ranks);

#endif
