/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention over ranks with a past: what `longring attend` runs. */
#ifndef CP_ATTEND_JOB_H
#define CP_ATTEND_JOB_H

#include "model/backend.h"
#include "reference/ring/place.h"

/* Replay the past's bookkeeping, then run the call under test on ranks at a
 * place; every process has all of the input and gets all of the output. Fails
 * with CP_INVALID, CP_CAPACITY or CP_MEMORY, or as the ranks do; output and
 * lse may then hold anything. */
cp_status cp_attend_run(const cp_place *place, cp_attend_job *job);

#endif
