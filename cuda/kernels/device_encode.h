/* Tangled from book/17-wire.nw; edit the chapter. */
/* Numbers in the writings in which they are sent, on a device. */
#ifndef CP_DEVICE_ENCODE_H
#define CP_DEVICE_ENCODE_H

#include "cuda/kernels/kernels.h"
#include "ring/wire.h"

/* So many rows of a head, dim numbers each, as they are held and in an encoding
 * with a name (encode.h); what is sent is aligned to 4 bytes. */
typedef struct {
    cp_encoding encoding;
    cp_element element; /* of those held */
    int64_t rows, dim;
    void *held, *sent;
} cp_device_encode_args;

/* From the one to the other; as cp_device_copy (kernels.h). */
cudaError_t cp_device_rows_encode(const cp_device_encode_args *, cudaStream_t);
cudaError_t cp_device_rows_decode(const cp_device_encode_args *, cudaStream_t);

#endif
