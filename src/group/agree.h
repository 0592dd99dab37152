/* Tangled from book/12-model.nw; edit the chapter. */
/* Check that all ranks are about to do the same. Knows nothing of the
 * transport. */
#ifndef CP_AGREE_H
#define CP_AGREE_H

#include "group/process_group.h"
#include "plan/plan.h"

/* Agree on whether all processes of a group are ready; own_status is this
 * process's status, group NULL a group of one. A failure of any process fails
 * all: with its own status there, CP_ABORTED elsewhere. A request to stop stops
 * all. */
cp_status cp_agree_to_start(const cp_process_group *group,
                            cp_status own_status);

/* The same, and check that all processes are about to do the same: compare the
 * plan and about, a hash of its input (0: none). Fails with CP_BROKEN on all
 * ranks if any differ, naming what two of them want. The group's size need not
 * be the plan's. */
cp_status cp_agree_on_plan(const cp_process_group *group, const cp_plan *plan,
                           uint64_t about, cp_status own_status);

/* Check that all processes of this command line got the same arguments, apart
 * from the first, and run the same version of this program. Fails with
 * CP_INVALID on all ranks if not, naming one that differs. */
cp_status cp_agree_on_arguments(int count, char *const *arguments);

/* Check that all processes have opened the same file: own_status is that of
 * opening it, fingerprint a hash of its bytes. Fails with CP_INVALID on all
 * ranks, naming one whose file differs; a failure of any process fails all. */
cp_status cp_agree_on_file(const char *name, uint64_t fingerprint,
                           cp_status own_status);

#endif
