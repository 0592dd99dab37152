/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding the messages of a rank, and decoding them. */
#include "cuda/run/device_messages.h"

#include "cuda/kernels/device.h"
#include "cuda/kernels/device_encode.h"

static cp_status convert(const cp_slot_tensors *tensors, bool decodes,
                         char *held, char *sent, cudaStream_t stream) {
    const cp_element element = tensors->number == 4 ? CP_F32 : CP_BF16;
    for (int n = 0; n < 2; n++) {
        const cp_device_encode_args call = {
            tensors->encoding, element, tensors->rows,
            tensors->dims[n],  held,    sent};
        CP_TRY(cp_cuda(decodes ? cp_device_rows_decode(&call, stream)
                               : cp_device_rows_encode(&call, stream),
                       "%s a message", decodes ? "decoding" : "encoding"));
        held += tensors->rows * tensors->dims[n] * tensors->number;
        sent += tensors->rows * cp_encoding_bytes(tensors->encoding,
                                                  tensors->dims[n],
                                                  tensors->number);
    }
    return tensors->tail_bytes == 0
               ? CP_OK
               : cp_bytes_copy(decodes ? held : sent, decodes ? sent : held,
                               tensors->tail_bytes, stream,
                               "the end of a message");
}

cp_status cp_device_tensors_encode(const cp_slot_tensors *tensors, void *held,
                                   void *sent, cudaStream_t stream) {
    return convert(tensors, false, held, sent, stream);
}

cp_status cp_device_tensors_decode(const cp_slot_tensors *tensors, void *sent,
                                   void *held, cudaStream_t stream) {
    return convert(tensors, true, held, sent, stream);
}
