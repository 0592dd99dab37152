/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding a rank's slots to be sent, and decoding messages, on a device. */
#ifndef CP_DEVICE_MESSAGES_H
#define CP_DEVICE_MESSAGES_H

#include <cuda_runtime_api.h>

#include "plan/plan.h"

/* Encode on a stream what a communicating operation is about to send, or decode
 * what it has received; does nothing if the data is sent as held.
 *   slots, messages   [slot_count], on the device; see plan/messages.h */
cp_status cp_messages_encode(const cp_plan *plan, int rank, const cp_op *op,
                             bool received, void *const *slots,
                             void *const *messages, cudaStream_t stream);

#endif
