/* Tangled from book/12-model.nw; edit the chapter. */
/* Attention over ranks with a past: what `longring attend` runs on cores. */
#ifndef CP_ATTEND_JOB_H
#define CP_ATTEND_JOB_H

#include "model/backend.h"
#include "reference/ring/place.h"

/* As cp_attend_job_run (model/attend_call.h), on the ranks of a place. */
cp_status cp_attend_run(const cp_place *place, cp_attend_job *job);

#endif
