/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding a rank's slots to be sent, and decoding messages. */
#include "cuda/run/device_messages.h"

#include "cuda/kernels/device.h"
#include "cuda/kernels/device_encode.h"
#include "plan/messages.h"

static cp_status convert_slot(const cp_plan *plan, int slot, bool reads,
                              char *held, char *sent, cudaStream_t stream) {
    const cp_slot_tensors tensors = cp_slot_tensors_of(plan, slot);
    for (int n = 0; n < 2; n++) {
        const cp_element element = tensors.number == 4 ? CP_F32 : CP_BF16;
        const cp_device_encode_args call = {
            tensors.encoding, element, tensors.rows,
            tensors.dims[n],  held,    sent};
        CP_TRY(cp_cuda(reads ? cp_device_rows_decode(&call, stream)
                             : cp_device_rows_encode(&call, stream),
                       "%s a message", reads ? "decoding" : "encoding"));
        held += tensors.rows * tensors.dims[n] * tensors.number;
        sent +=
            tensors.rows * cp_encoding_bytes(tensors.encoding, tensors.dims[n],
                                             tensors.number);
    }
    return tensors.tail_bytes == 0
               ? CP_OK
               : cp_bytes_copy(reads ? held : sent, reads ? sent : held,
                               tensors.tail_bytes, stream,
                               "the end of a message");
}

cp_status cp_messages_encode(const cp_plan *plan, int rank, const cp_op *op,
                             bool received, void *const *slots,
                             void *const *messages, cudaStream_t stream) {
    cp_touch touch;
    for (int n = 0; cp_op_touch(plan, rank, op, n, &touch); n++) {
        const int slot = touch.slot;
        if (touch.writes != received || !cp_op_encodes(plan, rank, op, touch))
            continue;
        if (!received)
            CP_TRY(convert_slot(plan, slot, false, slots[slot], messages[slot],
                                stream));
        if (received || cp_slot_is_read_back(plan, slot))
            CP_TRY(convert_slot(plan, slot, true, slots[slot], messages[slot],
                                stream));
    }
    return CP_OK;
}
