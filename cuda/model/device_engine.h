/* Tangled from book/13-model.nw; edit the chapter. */
/* A session's ranks on GPUs: what they keep, and how a call is run and ends.
 * For what is enqueued see device_forward.h. */
#ifndef CP_DEVICE_ENGINE_H
#define CP_DEVICE_ENGINE_H

#include "cuda/model/device_forward.h"

/* As cp_engine_new, on the current device. Each rank has a cache of
 * options->sequences * options->room rows a layer, of the model's element, and
 * it is reserved at once. Fails with CP_MEMORY, naming the bytes, with
 * CP_INVALID if the device cannot multiply the model's numbers, and as CUDA
 * does. A call fails with CP_INTERRUPTED if it is to stop, with CP_MEMORY, and
 * with CP_BROKEN if the device or a link failed; no work is left on the queues
 * then. */
cp_status cp_device_engine_new(const cp_device_place *place,
                               const cp_model *model,
                               const cp_session_options *options,
                               cp_engine **out);

/* What `longring attend` asks for, as cp_attend_run on cores (reference/model)
 * but on the ranks that a place has on the current device, inputs rounded to
 * what the machine has, fp32 or bf16. Fails besides with CP_BROKEN without a
 * GPU. */
cp_status cp_device_attend_run(const cp_device_place *place,
                               const cp_machine *machine, cp_attend_job *job);

#endif
