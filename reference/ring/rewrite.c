/* Tangled from book/17-wire.nw; edit the chapter. */
/* Numbers in the writings in which they are sent. */
#include "reference/ring/rewrite.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* The largest magnitude, or NAN if a number is not finite. */
static float largest(int64_t dim, const float *row) {
    float most = 0;
    bool finite = true;
    for (int64_t d = 0; d < dim; d++) {
        most = fabsf(row[d]) > most ? fabsf(row[d]) : most;
        finite = finite && isfinite(row[d]);
    }
    return finite ? most : NAN;
}

float cp_row_scale(cp_writing writing, int64_t dim, const float *row) {
    const float most = largest(dim, row);
    int exponent;
    if (isnan(most))
        return NAN;
    if (writing != CP_WRITING_BLOCK)
        return fmaxf(most / (writing == CP_WRITING_INT8 ? 127 : 448), FLT_MIN);
    frexpf(most, &exponent); /* 2^exponent is above it */
    if (most >= ldexpf(32767.5f, exponent - 15))
        exponent++; /* it would be rounded to 32,768 */
    return fmaxf(ldexpf(1, exponent - 15), FLT_MIN);
}

double cp_number_off(cp_writing writing, double scale, double number) {
    static const double rounded = 1.00001; /* for what floats add */
    switch (writing) {
    case CP_WRITING_BF16:
        return fmax(fabs(number) / 256, FLT_MIN / 256.0);
    case CP_WRITING_FP8:
        return fmax(fabs(number) / 16, scale / 1024) * rounded;
    case CP_WRITING_INT8:
    case CP_WRITING_BLOCK:
        return scale / 2 * rounded;
    case CP_WRITING_NONE:
        break;
    }
    return 0;
}

/* To the nearest float of which the lower bits are zero, ties to even, without
 * these bits. */
static uint32_t upper_bits(float number, int lower) {
    const uint32_t half = 1u << (lower - 1);
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return (bits + half - 1 + (bits >> lower & 1)) >> lower;
}

static float of_bits(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof(number));
    return number;
}

static uint16_t bf16_of(float number) {
    return isnan(number) ? 0x7FC0 : (uint16_t)upper_bits(number, 16);
}

/* Exponents of e4m3 begin 120 below those of a float. */
static uint8_t fp8_of(float number) {
    const uint32_t sign = signbit(number) ? 0x80 : 0;
    return (uint8_t)(sign | upper_bits(fabsf(number) * 0x1p-120f, 20));
}

static float of_fp8(uint8_t byte) {
    const float size = of_bits((uint32_t)(byte & 0x7F) << 20) * 0x1p120f;
    return byte & 0x80 ? -size : size;
}

static void write_row(cp_writing writing, float scale, int64_t dim,
                      const float *from, char *to) {
    int8_t *bytes = (int8_t *)to;
    int16_t *words = (int16_t *)(void *)to;
    for (int64_t d = 0; d < dim; d++)
        if (writing == CP_WRITING_BF16)
            words[d] = (int16_t)bf16_of(from[d]);
        else if (writing == CP_WRITING_BLOCK)
            words[d] = (int16_t)lrintf(from[d] / scale);
        else if (writing == CP_WRITING_INT8)
            bytes[d] = (int8_t)lrintf(from[d] / scale);
        else
            bytes[d] = (int8_t)fp8_of(from[d] / scale);
}

void cp_rows_write(cp_writing writing, int64_t rows, int64_t dim,
                   const float *from, char *to) {
    const int64_t bytes = cp_writing_bytes(writing, dim, sizeof(float));
    const int64_t before = writing == CP_WRITING_BF16 ? 0 : sizeof(float);
    for (int64_t n = 0; n < rows; n++, from += dim, to += bytes) {
        const float scale = before > 0 ? cp_row_scale(writing, dim, from) : 1;
        memcpy(to, &scale, (size_t)before);
        if (isnan(scale))
            memset(to + before, 0, (size_t)(bytes - before));
        else
            write_row(writing, scale, dim, from, to + before);
    }
}

static void read_row(cp_writing writing, float scale, int64_t dim,
                     const char *from, float *to) {
    const int8_t *bytes = (const int8_t *)from;
    const int16_t *words = (const int16_t *)(const void *)from;
    for (int64_t d = 0; d < dim; d++)
        if (writing == CP_WRITING_BF16)
            to[d] = of_bits((uint32_t)(uint16_t)words[d] << 16);
        else if (writing == CP_WRITING_BLOCK)
            to[d] = scale * (float)words[d];
        else if (writing == CP_WRITING_INT8)
            to[d] = scale * (float)bytes[d];
        else
            to[d] = scale * of_fp8((uint8_t)bytes[d]);
}

void cp_rows_read(cp_writing writing, int64_t rows, int64_t dim,
                  const char *from, float *to) {
    const int64_t bytes = cp_writing_bytes(writing, dim, sizeof(float));
    const int64_t before = writing == CP_WRITING_BF16 ? 0 : sizeof(float);
    for (int64_t n = 0; n < rows; n++, from += bytes, to += dim) {
        float scale = 1;
        memcpy(&scale, from, (size_t)before);
        read_row(writing, scale, dim, from + before, to);
    }
}

/* A slot holds one or two tensors of so many rows, and something else. */
typedef struct {
    cp_writing writing;
    int64_t rows, dims[2], rest; /* numbers of a row; bytes */
} cargo;

static cargo cargo_of(const cp_plan *plan, int number) {
    const cp_slot *slot = &plan->slots[number];
    const cp_shape shape = cp_plan_shape(plan, number);
    const bool keys = slot->kind == CP_SLOT_KEYS;
    cargo it = {.rows =
                    slot->rows * (keys ? shape.kv_heads : shape.query_heads),
                .dims = {shape.head_dim, 0}};
    it.writing = cp_slot_writing(plan, number);
    if (slot->kind == CP_SLOT_PARTIAL)
        it.dims[0] = cp_value_dim(&shape);
    if (keys && !shape.latent)
        it.dims[1] = cp_value_dim(&shape);
    it.rest = slot->held -
              it.rows * (it.dims[0] + it.dims[1]) * (int64_t)sizeof(float);
    return it;
}

void cp_slot_write(const cp_plan *plan, int slot, const void *held,
                   void *sent) {
    const cargo it = cargo_of(plan, slot);
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
    const cargo it = cargo_of(plan, slot);
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
