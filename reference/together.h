/* Tangled from book/13-mpi.nw; edit the chapter. */
/* What ranks without common memory do around a call. Works with any
 * communicator. */
#ifndef CP_TOGETHER_H
#define CP_TOGETHER_H

#include "plan.h"

enum { CP_TOGETHER_MOST = 1024 }; /* ranks; more are refused */

/* Compare with all other ranks what is about to be done: the plan, and a
 * fingerprint of what it is about (0: nothing). CP_BROKEN on all ranks, with
 * what two of them want, if any differ. */
cp_status cp_agree(cp_comm *comm, const cp_plan *plan, uint64_t about);

/* A fingerprint of some bytes, going on from another. */
uint64_t cp_fingerprint(const void *data, int64_t bytes, uint64_t before);

/* data of rank 0 becomes that of all: bytes, the same everywhere. */
cp_status cp_share(cp_comm *comm, void *data, int64_t bytes);

/* items [ranks] of bytes each: the own one becomes known to all. */
cp_status cp_collect(cp_comm *comm, void *items, int64_t bytes);

#endif
