/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding the messages of a rank, and decoding them, on a device. */
#ifndef CP_DEVICE_MESSAGES_H
#define CP_DEVICE_MESSAGES_H

#include <cuda_runtime_api.h>

#include "plan/messages.h"

/* Encode a slot's tensors into their message, on a stream, and decode it. */
cp_status cp_device_tensors_encode(const cp_slot_tensors *tensors, void *held,
                                   void *sent, cudaStream_t stream);
cp_status cp_device_tensors_decode(const cp_slot_tensors *tensors, void *sent,
                                   void *held, cudaStream_t stream);

#endif
