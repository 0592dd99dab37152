/* Tangled from book/13-start.nw; edit the chapter. */
/* The processes of one command line, each with a GPU, as a process group that
 * communicates over NCCL. */
#ifndef CP_NCCL_GROUP_H
#define CP_NCCL_GROUP_H

#include "cuda/run/nccl_link.h"
#include "group/process_group.h"
#include "group/launch.h"

/* Connect the processes that a launcher has started, at launch->root, each on
 * its current device. *world is a communicator of all of them, *group the
 * process group that communicates over it. All must call it. Fails with
 * CP_INVALID if launch->root is empty, and with CP_BROKEN, naming host and
 * port, if not all have joined within the timeout (seconds, as in
 * cp_nccl_new).
 * A failure ends the group: its later calls fail; with repairs, until the group
 * and world have shrunk. group->leave ends with one status for all, and leaves
 * the communicator to the caller. One group at a time; it borrows world, and
 * the caller must not copy it. */
cp_status cp_nccl_group_join(const cp_launch *launch, double timeout,
                             bool repairs, cp_nccl **world,
                             cp_process_group *group);

#endif
