/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Words of one rank to all. */
#include "reference/ring/together.h"

cp_status cp_collect(cp_comm *comm, void *items, int64_t bytes) {
    void *places[CP_TOGETHER_MOST];
    if (comm->ranks > CP_TOGETHER_MOST)
        return cp_fail(CP_INVALID, "%d ranks: at most %d can work together",
                       comm->ranks, CP_TOGETHER_MOST);
    for (int r = 0; r < comm->ranks; r++)
        places[r] = (char *)items + r * bytes;
    return cp_comm_all_gather(comm, places[comm->rank], places, bytes);
}

cp_status cp_share(cp_comm *comm, void *data, int64_t bytes) {
    if (comm->rank != 0)
        CP_TRY(cp_comm_exchange(comm, CP_NOBODY, NULL, 0, 0, data, bytes));
    for (int r = 1; comm->rank == 0 && r < comm->ranks; r++)
        CP_TRY(cp_comm_exchange(comm, r, data, bytes, CP_NOBODY, NULL, 0));
    const int waits = comm->rank == 0 ? comm->ranks - 1 : 1;
    for (int n = 0; n < waits; n++)
        CP_TRY(cp_comm_wait(comm));
    return CP_OK;
}
