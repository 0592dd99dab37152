/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention over ranks with a past: what `longring attend` runs on cores. */
#ifndef CP_ATTEND_JOB_H
#define CP_ATTEND_JOB_H

#include "model/backend.h"
#include "reference/ring/place.h"

/* Lay a job out after its past and run it on the ranks of a place; every
 * process has all of the input and gets all of the output. Fails as
 * cp_attend_call_new and the ranks do; output and lse may then hold
 * anything. */
cp_status cp_attend_run(const cp_place *place, cp_attend_job *job);

#endif
