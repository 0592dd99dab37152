/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Ranks as processes: the communicator over MPI, for one machine or many.
 * Keeps the contract of comm.h with one exception: long messages move only
 * while both their ranks are inside these functions or cp_comm_progress. */
#ifndef CP_PROCESSES_H
#define CP_PROCESSES_H

#include "group/comm.h"

typedef struct {
    double timeout; /* timeout of a wait, seconds; 0: none */
    int64_t piece;  /* longer messages are counted in these; 0: 1 GiB */
    bool repairs;   /* the launcher keeps the others alive when one dies;
                       ignored above 64 ranks */
} cp_mpi_options;

/* Start MPI if need be, and make a communicator of all processes that the
 * launcher started. All of them must call it, with the same options. Fails
 * with CP_INVALID, CP_MEMORY, or CP_BROKEN, also if some have not called it
 * within the timeout. */
cp_status cp_mpi_open(const cp_mpi_options *options, cp_comm **comm);

/* Run function(comm, context), which is this process's rank, and return when
 * all ranks have returned from theirs. All get the same result: CP_OK, or the
 * status and message of a rank that failed ("rank 2: ..."). comm->sent counts
 * this run alone. After a failure all later runs fail. */
cp_status cp_mpi_run(cp_comm *comm, cp_rank_main function, void *context);

/* Shrink comm by one lost rank after a failed run, with options.repairs. *lost
 * is its number; the other ranks are renumbered, and comm may begin another run
 * when no more are lost: call this until it returns false. It returns true only
 * if all survivors are still there and have failed in the same run. */
bool cp_mpi_shrink(cp_comm *comm, int *lost);

/* Has this rank been evicted? The others print what it was to print. */
bool cp_mpi_is_evicted(const cp_comm *comm);

/* Send this rank's exit status as its last message, receive those of all ranks,
 * and free comm. Returns the largest, or -1 if a rank did not send its own in
 * time. If status was 0 and the result is not, the message is now that rank's,
 * or names the missing rank. *is_reporter is true on one of the ranks that are
 * still there: it reports. With options.repairs a missing rank other than rank
 * 0 is no failure after success. */
int cp_mpi_close(cp_comm *comm, int status, bool *is_reporter);

/* Finalize MPI after every rank's last message; or else have the launcher end
 * all processes with status 1, and do not return. If a rank was lost, MPI
 * cannot be finalized: the caller must end the process. */
void cp_mpi_end(bool orderly);

/* Set the timeout of waits from now on. */
void cp_mpi_set_timeout(cp_comm *comm, double seconds);

/* How many of the processes are on this machine. */
int cp_mpi_local(cp_comm *comm);

#endif
