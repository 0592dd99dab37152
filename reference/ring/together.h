/* Tangled from book/13-mpi.nw; edit the chapter. */
/* What ranks without common memory do around a call. Works with any
 * communicator. */
#ifndef CP_TOGETHER_H
#define CP_TOGETHER_H

#include "ring/comm.h"

enum { CP_TOGETHER_MOST = 1024 }; /* ranks; more are refused */

/* data of rank 0 becomes that of all: bytes, the same everywhere. */
cp_status cp_share(cp_comm *comm, void *data, int64_t bytes);

/* items [ranks] of bytes each: the own one becomes known to all. */
cp_status cp_collect(cp_comm *comm, void *items, int64_t bytes);

#endif
