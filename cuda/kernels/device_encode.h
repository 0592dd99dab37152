/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding numbers to be sent, and decoding them, on a device. */
#ifndef CP_DEVICE_ENCODE_H
#define CP_DEVICE_ENCODE_H

#include "cuda/kernels/kernels.h"
#include "tokens/wire.h"

/* Rows of a head, dim numbers each, as they are held and as they are sent. Sent
 * rows are encoded (not CP_ENCODING_NONE; encode.h) and aligned to 4 bytes. */
typedef struct {
    cp_encoding encoding;
    cp_element element; /* of those held */
    int64_t rows, dim;
    void *held, *sent;
} cp_device_encode_args;

/* From held to sent, and back; launched as cp_device_copy is (kernels.h). */
cudaError_t cp_device_rows_encode(const cp_device_encode_args *, cudaStream_t);
cudaError_t cp_device_rows_decode(const cp_device_encode_args *, cudaStream_t);

#endif
