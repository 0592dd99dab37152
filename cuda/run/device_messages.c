/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding the messages of a rank, and decoding them. */
#include "cuda/run/device_messages.h"

#include "cuda/kernels/device.h"
#include "cuda/kernels/device_encode.h"

/* Between a tensor and its part of a message; count heads, of all rows. */
static cp_status convert_tensor(const cp_tensor *tensor, int64_t count,
                                bool decodes, void *held, void *sent,
                                cudaStream_t stream) {
    const cp_element element = tensor->number == 4 ? CP_F32 : CP_BF16;
    const cp_device_encode_args call = {tensor->encoding, element, count,
                                        tensor->dim,      held,    sent};
    const int64_t bytes = count * tensor->dim * tensor->number;
    if (tensor->encoding != CP_ENCODING_NONE)
        return cp_cuda(decodes ? cp_device_rows_decode(&call, stream)
                               : cp_device_rows_encode(&call, stream),
                       "%s a message", decodes ? "decoding" : "encoding");
    return bytes > 0
               ? cp_bytes_copy(decodes ? held : sent, decodes ? sent : held,
                               bytes, stream, "a part of a message")
               : CP_OK;
}

static cp_status convert(const cp_slot_tensors *tensors, bool decodes,
                         char *held, char *sent, cudaStream_t stream) {
    for (int t = 0; t < 2; t++) {
        const cp_tensor *tensor = &tensors->of[t];
        const int64_t count = tensors->rows * tensor->heads;
        CP_TRY(convert_tensor(tensor, count, decodes, held, sent, stream));
        held += count * tensor->dim * tensor->number;
        sent += count * cp_encoding_bytes(tensor->encoding, tensor->dim,
                                          tensor->number);
    }
    return CP_OK;
}

cp_status cp_device_tensors_encode(const cp_slot_tensors *tensors, void *held,
                                   void *sent, cudaStream_t stream) {
    return convert(tensors, false, held, sent, stream);
}

cp_status cp_device_tensors_decode(const cp_slot_tensors *tensors, void *sent,
                                   void *held, cudaStream_t stream) {
    return convert(tensors, true, held, sent, stream);
}
