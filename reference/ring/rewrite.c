/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding and decoding numbers. */
#include "reference/ring/rewrite.h"

#include "ring/messages.h"
#include "ring/writing.h"

float cp_row_scale(cp_writing writing, int64_t dim, const float *row) {
    float most = 0;
    for (int64_t d = 0; d < dim; d++)
        most = cp_larger(most, row[d]);
    return cp_writing_scale(writing, most);
}

double cp_number_off(cp_writing writing, double scale, double number) {
    /* The error of floats: 127 units each way for 127 steps; half of the least
     * number for those that underflow. */
    static const double rounded = 1.00004, least = FLT_TRUE_MIN;
    switch (writing) {
    case CP_WRITING_BF16:
        return fmax(fabs(number) / 256, FLT_MIN / 256.0);
    case CP_WRITING_FP8:
        return fmax(fabs(number) / 16, scale / 1024) * rounded + least;
    case CP_WRITING_INT8:
        return scale / 2 * rounded + least;
    case CP_WRITING_BLOCK:
        return scale / 2;
    case CP_WRITING_NONE:
        break;
    }
    return 0;
}

void cp_rows_write(cp_writing writing, int64_t rows, int64_t dim,
                   const float *from, char *to) {
    const int64_t bytes = cp_writing_bytes(writing, dim, sizeof(float));
    const int64_t before = writing == CP_WRITING_BF16 ? 0 : sizeof(float);
    for (int64_t n = 0; n < rows && dim > 0; n++, from += dim, to += bytes) {
        const float scale = before > 0 ? cp_row_scale(writing, dim, from) : 1;
        memset(to + bytes - 4, 0, 4); /* the padding of a row */
        memcpy(to, &scale, (size_t)before);
        for (int64_t d = 0; d < dim; d++)
            cp_row_put(to + before, writing, scale, d, from[d]);
    }
}

void cp_rows_read(cp_writing writing, int64_t rows, int64_t dim,
                  const char *from, float *to) {
    const int64_t bytes = cp_writing_bytes(writing, dim, sizeof(float));
    const int64_t before = writing == CP_WRITING_BF16 ? 0 : sizeof(float);
    for (int64_t n = 0; n < rows; n++, from += bytes, to += dim) {
        float scale = 1;
        memcpy(&scale, from, (size_t)before);
        for (int64_t d = 0; d < dim; d++)
            to[d] = cp_row_get(from + before, writing, scale, d);
    }
}

void cp_slot_write(const cp_plan *plan, int slot, const void *held,
                   void *sent) {
    const cp_slot_tensors it = cp_slot_tensors_of(plan, slot);
    const float *from = held;
    char *to = sent;
    for (int n = 0; n < 2; n++) {
        cp_rows_write(it.writing, it.rows, it.dims[n], from, to);
        from += it.rows * it.dims[n];
        to += it.rows * cp_writing_bytes(it.writing, it.dims[n], sizeof(float));
    }
    memcpy(to, from, (size_t)it.rest);
}

void cp_slot_read(const cp_plan *plan, int slot, const void *sent, void *held) {
    const cp_slot_tensors it = cp_slot_tensors_of(plan, slot);
    const char *from = sent;
    float *to = held;
    for (int n = 0; n < 2; n++) {
        cp_rows_read(it.writing, it.rows, it.dims[n], from, to);
        from +=
            it.rows * cp_writing_bytes(it.writing, it.dims[n], sizeof(float));
        to += it.rows * it.dims[n];
    }
    memcpy(to, from, (size_t)it.rest);
}
