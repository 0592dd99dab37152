/* Tangled from book/12-model.nw; edit the chapter. */
/* The process group that runs one command line: one process, unless a launcher
 * such as mpirun started more. Knows nothing of the transport. */
#ifndef CP_PROCESS_GROUP_H
#define CP_PROCESS_GROUP_H

#include "ground/ground.h"

typedef struct {
    int rank, ranks;
    /* Broadcast rank 0's data; bytes is the same on all ranks. */
    cp_status (*broadcast)(void *data, int64_t bytes);
    /* All-gather items [ranks] of bytes each; each rank fills in its own. */
    cp_status (*all_gather)(void *items, int64_t bytes);
    void (*set_timeout)(double seconds); /* timeout of every wait from now on */
    /* End together: agree on one exit status, with the message of a process
     * that failed. Only exit may follow. */
    int (*leave)(int status);
    /* After a failure: continue without one lost process, and renumber those
     * above it. Call it until it returns false: then no other was lost, or
     * recovery failed and the message says why. NULL: no recovery. */
    bool (*shrink)(int *lost);
} cp_process_group;

/* The process group of this process. Its functions are NULL in a group
 * of one that no launcher started. */
const cp_process_group *cp_process_group_own(void);
void cp_process_group_set(const cp_process_group *group);

/* Is this the process that reads, prints and writes files? */
bool cp_process_group_leads(void);

/* Broadcast the result of a step that rank 0 ran: its status and, if that is
 * CP_OK, head_bytes at head and *bytes bytes at *data, from malloc, followed by
 * a zero byte. On the other ranks *data must be NULL or from malloc. Returns
 * rank 0's status with its message, or a failure of the broadcast. */
cp_status cp_process_group_broadcast(cp_status status, void *head,
                                     int64_t head_bytes, void **data,
                                     int64_t *bytes);

/* Rank 0: return when there is something to read from file, and until then
 * notify the others now and then that it is alive. Others return at once. */
cp_status cp_process_group_await(int file);

#endif
