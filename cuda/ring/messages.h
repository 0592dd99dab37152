/* Tangled from book/17-wire.nw; edit the chapter. */
/* What lies in a rank's slots, written to be sent, and back, on a device. */
#ifndef CP_DEVICE_MESSAGES_H
#define CP_DEVICE_MESSAGES_H

#include <cuda_runtime_api.h>

#include "ring/plan.h"

/* Write on a stream what an operation that talks is about to send, or read what
 * it has received; nothing, if that travels as it is held.
 *   slots, messages   [slot_count], on the device; see ring/messages.h */
cp_status cp_messages_rewrite(const cp_plan *plan, int rank, const cp_op *op,
                              bool received, void *const *slots,
                              void *const *messages, cudaStream_t stream);

#endif
