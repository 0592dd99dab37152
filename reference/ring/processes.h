/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Ranks as processes: the communicator over MPI, for one machine or many.
 * Keeps the contract of comm.h, but for one thing: long messages move only
 * while both their ranks are inside of these functions or poke. */
#ifndef CP_PROCESSES_H
#define CP_PROCESSES_H

#include "ring/comm.h"

typedef struct {
    double patience; /* seconds that a wait may last; 0: for ever */
    int64_t piece;   /* most bytes that MPI counts singly; 0: 1 GiB */
    bool repairs;    /* the launcher lets the others live when one dies */
} cp_mpi_options;

/* Start MPI if need be, and make a communicator of all processes that the
 * launcher started. All of them must call it, with the same options. Fails
 * with CP_INVALID, CP_MEMORY, or CP_BROKEN, also if not all have called it
 * when patience ends. */
cp_status cp_mpi_open(const cp_mpi_options *options, cp_comm **comm);

/* Run function(comm, context), which is this process's rank, and return when
 * all ranks have returned from theirs. All get the same: CP_OK, or the status
 * and message of a rank that failed ("rank 2: ..."). comm->sent counts
 * this run alone. After a failure all later runs fail. */
cp_status cp_mpi_run(cp_comm *comm, cp_rank_main function, void *context);

/* After a run that failed, with options.repairs: if a rank was lost, and all
 * others are still there and know it, go on with those, numbered anew: all of
 * them have failed in the same run and may begin another, when no more are lost:
 * call it until it says false, as it does where there is nothing to mend. */
bool cp_mpi_mend(cp_comm *comm, int *lost);

/* Do the others go on without this one? What it was to print, they print. */
bool cp_mpi_is_outcast(const cp_comm *comm);

/* Say goodbye with an exit status, hear everybody's, and free comm. Returns
 * the largest status of all, or -1 if somebody did not say goodbye in time; if
 * this one was 0 and that is not, the message is now that rank's, or names who
 * is missing. Of all that are still there, one is told to speak of it. With
 * options.repairs, to miss another than rank 0 after success is no failure. */
int cp_mpi_close(cp_comm *comm, int status, bool *speaks);

/* Leave MPI, after everybody's goodbye; or else have the launcher end all
 * processes with status 1, and do not return. If a rank was lost there is no
 * leaving MPI: the process is to end. */
void cp_mpi_end(bool orderly);

/* From now on, waits last so long. */
void cp_mpi_set_patience(cp_comm *comm, double seconds);

/* How many of the processes are on this machine. */
int cp_mpi_local(cp_comm *comm);

#endif
