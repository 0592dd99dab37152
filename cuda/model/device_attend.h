/* Tangled from book/13-model.nw; edit the chapter. */
/* `longring attend` on one GPU. */
#ifndef CP_DEVICE_ATTEND_H
#define CP_DEVICE_ATTEND_H

#include "cuda/model/device_engine.h"

/* Lay a job out after its past and run it on the ranks that a place has on the
 * current device, inputs rounded to element; every process has all of the input
 * and gets all of the output. Fails as cp_attend_call_new and the ranks do, and
 * with CP_BROKEN without a GPU; output and lse may then hold anything. */
cp_status cp_device_attend_run(const cp_device_place *place,
                               const cp_machine *machine, cp_element element,
                               cp_attend_job *job);

#endif
