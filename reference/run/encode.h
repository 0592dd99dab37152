/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding numbers from fp32 for the wire, and decoding them. */
#ifndef CP_ENCODE_H
#define CP_ENCODE_H

#include "plan/messages.h"

/* The scale of the dim numbers of a head; NAN if one of them is not finite. */
float cp_row_scale(cp_encoding encoding, int64_t dim, const float *row);

/* The largest error of a number that is encoded with this scale and decoded. */
double cp_number_error(cp_encoding encoding, double scale, double number);

/* Encode rows of a head, dim numbers each, and decode them. The encoding is not
 * CP_ENCODING_NONE; both sides are aligned to 4 bytes. A row with a number that
 * is not finite is decoded as NaN throughout; in bf16 such numbers are kept. */
void cp_rows_encode(cp_encoding encoding, int64_t rows, int64_t dim,
                    const float *from, char *to);
void cp_rows_decode(cp_encoding encoding, int64_t rows, int64_t dim,
                    const char *from, float *to);

/* Encode a slot's tensors into their message, and decode it. */
void cp_tensors_encode(const cp_slot_tensors *tensors, void *held, void *sent);
void cp_tensors_decode(const cp_slot_tensors *tensors, void *sent, void *held);

#endif
