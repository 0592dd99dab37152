/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding and decoding numbers. */
#include "reference/run/encode.h"

#include "plan/messages.h"
#include "tokens/encoding.h"

float cp_row_scale(cp_encoding encoding, int64_t dim, const float *row) {
    float most = 0;
    for (int64_t d = 0; d < dim; d++)
        most = cp_larger(most, row[d]);
    return cp_encoding_scale(encoding, most);
}

double cp_number_error(cp_encoding encoding, double scale, double number) {
    /* The error of floats: 127 units each way for 127 steps; half of the least
     * number for those that underflow. */
    static const double rounded = 1.00004, least = FLT_TRUE_MIN;
    switch (encoding) {
    case CP_ENCODING_BF16:
        return fmax(fabs(number) / 256, FLT_MIN / 256.0);
    case CP_ENCODING_FP8:
        return fmax(fabs(number) / 16, scale / 1024) * rounded + least;
    case CP_ENCODING_INT8:
        return scale / 2 * rounded + least;
    case CP_ENCODING_BLOCK:
        return scale / 2;
    case CP_ENCODING_NONE:
        break;
    }
    return 0;
}

void cp_rows_encode(cp_encoding encoding, int64_t rows, int64_t dim,
                    const float *from, char *to) {
    const int64_t bytes = cp_encoding_bytes(encoding, dim, sizeof(float));
    const int64_t before = encoding == CP_ENCODING_BF16 ? 0 : sizeof(float);
    for (int64_t n = 0; n < rows && dim > 0; n++, from += dim, to += bytes) {
        const float scale = before > 0 ? cp_row_scale(encoding, dim, from) : 1;
        memset(to + bytes - 4, 0, 4); /* the padding of a row */
        memcpy(to, &scale, (size_t)before);
        for (int64_t d = 0; d < dim; d++)
            cp_row_put(to + before, encoding, scale, d, from[d]);
    }
}

void cp_rows_decode(cp_encoding encoding, int64_t rows, int64_t dim,
                    const char *from, float *to) {
    const int64_t bytes = cp_encoding_bytes(encoding, dim, sizeof(float));
    const int64_t before = encoding == CP_ENCODING_BF16 ? 0 : sizeof(float);
    for (int64_t n = 0; n < rows; n++, from += bytes, to += dim) {
        float scale = 1;
        memcpy(&scale, from, (size_t)before);
        for (int64_t d = 0; d < dim; d++)
            to[d] = cp_row_get(from + before, encoding, scale, d);
    }
}

static void convert(const cp_slot_tensors *tensors, bool decodes, char *held,
                    char *sent) {
    for (int t = 0; t < 2; t++) {
        const cp_tensor tensor = tensors->of[t];
        const int64_t count = tensors->rows * tensor.heads;
        const int64_t bytes = count * tensor.dim * tensor.number;
        if (tensor.encoding == CP_ENCODING_NONE)
            memcpy(decodes ? held : sent, decodes ? sent : held, (size_t)bytes);
        else if (decodes)
            cp_rows_decode(tensor.encoding, count, tensor.dim, sent,
                           (float *)(void *)held);
        else
            cp_rows_encode(tensor.encoding, count, tensor.dim,
                           (const float *)(const void *)held, sent);
        held += bytes;
        sent += count *
                cp_encoding_bytes(tensor.encoding, tensor.dim, tensor.number);
    }
}

void cp_tensors_encode(const cp_slot_tensors *tensors, void *held, void *sent) {
    convert(tensors, false, held, sent);
}

void cp_tensors_decode(const cp_slot_tensors *tensors, void *sent, void *held) {
    convert(tensors, true, held, sent);
}
