/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding a rank's slots to be sent, and decoding messages. */
#include "cuda/ring/messages.h"

#include "cuda/kernels/device.h"
#include "cuda/kernels/writing.h"
#include "ring/messages.h"

static cp_status rewrite_slot(const cp_plan *plan, int slot, bool reads,
                              char *held, char *sent, cudaStream_t stream) {
    const cp_slot_tensors it = cp_slot_tensors_of(plan, slot);
    for (int n = 0; n < 2; n++) {
        const cp_element element = it.number == 4 ? CP_F32 : CP_BF16;
        const cp_device_rewriting call = {it.writing, element, it.rows,
                                          it.dims[n], held,    sent};
        CP_TRY(cp_cuda(reads ? cp_device_rows_read(&call, stream)
                             : cp_device_rows_write(&call, stream),
                       "%s a message", reads ? "decoding" : "encoding"));
        held += it.rows * it.dims[n] * it.number;
        sent += it.rows * cp_writing_bytes(it.writing, it.dims[n], it.number);
    }
    return it.rest == 0
               ? CP_OK
               : cp_bytes_copy(reads ? held : sent, reads ? sent : held,
                               it.rest, stream, "the end of a message");
}

cp_status cp_messages_rewrite(const cp_plan *plan, int rank, const cp_op *op,
                              bool received, void *const *slots,
                              void *const *messages, cudaStream_t stream) {
    cp_touch touch;
    for (int n = 0; cp_op_touch(plan, rank, op, n, &touch); n++) {
        const int slot = touch.slot;
        if (touch.writes != received || !cp_op_rewrites(plan, rank, op, touch))
            continue;
        if (!received)
            CP_TRY(rewrite_slot(plan, slot, false, slots[slot], messages[slot],
                                stream));
        if (received || cp_slot_is_read_back(plan, slot))
            CP_TRY(rewrite_slot(plan, slot, true, slots[slot], messages[slot],
                                stream));
    }
    return CP_OK;
}
