/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention over ranks with a past: what `longring attend` runs. */
#ifndef CP_ATTEND_JOB_H
#define CP_ATTEND_JOB_H

#include "backend.h"

/* Replay the past's bookkeeping, then run the call under test on ranks that
 * are threads. Fails with CP_INVALID, CP_CAPACITY or CP_MEMORY, or as the
 * ranks do; output and lse may then hold anything. */
cp_status cp_attend_run(cp_attend_job *job);

#endif
