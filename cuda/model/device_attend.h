/* Tangled from book/13-model.nw; edit the chapter. */
/* `longring attend` on one GPU. */
#ifndef CP_DEVICE_ATTEND_H
#define CP_DEVICE_ATTEND_H

#include "cuda/model/device_engine.h"

/* As cp_attend_job_run (model/attend_call.h), on the ranks that a place has on
 * the current device, inputs rounded to element. Fails besides with CP_BROKEN
 * without a GPU. */
cp_status cp_device_attend_run(const cp_device_place *place,
                               const cp_machine *machine, cp_element element,
                               cp_attend_job *job);

#endif
