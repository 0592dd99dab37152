/* Tangled from book/13-start.nw; edit the chapter. */
/* The processes of one command line, each with a GPU, as a crew that talks by
 * NCCL. */
#ifndef CP_NCCL_CREW_H
#define CP_NCCL_CREW_H

#include "cuda/ring/nccl_link.h"
#include "ring/crew.h"
#include "ring/launch.h"

/* Find the other processes that a launcher has started, at launch->root, each
 * on its current device: a communicator of all of them, and the crew that
 * talks over it. All must call it. Fails with CP_INVALID if nothing says where
 * rank 0 is, and with CP_BROKEN, naming the place, if not all have come in time
 * (patience, as in cp_nccl_new).
 * A failure ends the crew: its later calls fail; with repairs, until it is
 * mended, and world with it. crew->leave ends with one status for all, and
 * leaves the communicator to the caller. One crew at a time; it borrows world,
 * and is borrowed. */
cp_status cp_nccl_meet(const cp_launch *launch, double patience, bool repairs,
                       cp_nccl **world, cp_crew *crew);

#endif
