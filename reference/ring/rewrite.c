/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Keys and values in other writings. */
#include "reference/ring/rewrite.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* For what float arithmetic adds to a rounding of half a step. */
#define ROUNDED 1.00001

static void write_int8(int64_t dim, const float *from, void *to) {
    float most = 0, scale;
    int8_t *numbers = (int8_t *)to + sizeof(float);
    bool whole = true;
    for (int64_t d = 0; d < dim; d++) {
        most = fmaxf(most, fabsf(from[d]));
        whole = whole && isfinite(from[d]);
    }
    scale = whole ? most / 127 : NAN;
    memcpy(to, &scale, sizeof(float));
    for (int64_t d = 0; d < dim; d++)
        numbers[d] =
            scale >= FLT_MIN ? (int8_t)lrintf(from[d] / scale) : (int8_t)0;
}

static void bound_query(const cp_shape *shape, const float *query, double keys,
                        double values, cp_wire_error *most) {
    double sum = 0;
    for (int64_t d = 0; d < shape->head_dim; d++)
        sum += fabs(query[d]);
    const double score =
        sum / sqrt((double)shape->head_dim) * keys / 254 * ROUNDED;
    const double output = values * (1.0 / 254 + 2 * tanh(score / 2)) * ROUNDED;
    most->lse = fmax(most->lse, score);
    most->output = fmax(most->output, output);
}

void cp_wire_write(cp_wire wire, int64_t rows, int64_t dim, const float *from,
                   void *to) {
    const int64_t bytes = cp_wire_bytes(wire, dim, sizeof(float));
    for (int64_t n = 0; n < rows; n++)
        write_int8(dim, from + n * dim, (char *)to + n * bytes);
}

void cp_wire_read(cp_wire wire, int64_t rows, int64_t dim, const void *from,
                  float *to) {
    const int64_t bytes = cp_wire_bytes(wire, dim, sizeof(float));
    for (int64_t n = 0; n < rows; n++) {
        const int8_t *row = (const int8_t *)from + n * bytes;
        float scale;
        memcpy(&scale, row, sizeof(scale));
        for (int64_t d = 0; d < dim; d++)
            to[n * dim + d] = scale * (float)row[(int64_t)sizeof(scale) + d];
    }
}

static double largest(const cp_shape *shape, int64_t rows, int64_t head,
                      int64_t dim, const float *numbers) {
    double most = FLT_MIN * 127.0;
    for (int64_t n = 0; n < rows; n++)
        for (int64_t d = 0; d < dim; d++) {
            const double number =
                fabs(numbers[(n * shape->kv_heads + head) * dim + d]);
            most = number > most ? number : most;
        }
    return most;
}

cp_wire_error cp_wire_bound(cp_wire wire, const cp_shape *shape,
                            int64_t queries, const float *query, int64_t rows,
                            const float *keys, const float *values) {
    const int64_t group = shape->query_heads / shape->kv_heads;
    cp_wire_error most = {0, 0};
    for (int64_t h = 0; h < shape->kv_heads && wire == CP_WIRE_INT8; h++) {
        const double k = largest(shape, rows, h, shape->head_dim, keys);
        const double v = shape->latent ? k
                                       : largest(shape, rows, h,
                                                 cp_value_dim(shape), values);
        for (int64_t n = 0; n < queries * group; n++) {
            const int64_t row =
                n / group * shape->query_heads + h * group + n % group;
            bound_query(shape, query + row * shape->head_dim, k, v, &most);
        }
    }
    return most;
}
