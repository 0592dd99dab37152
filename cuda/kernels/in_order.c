/* Tangled from book/17-exact.nw; edit the chapter. */
/* A trial of exact order. */
#include "cuda/kernels/in_order.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "ground/random.h"

enum { ROWS = 160, BASE = 256 };
static const int64_t groups[][2] = {{0, 1},   {77, 1},   {5, 2},  {16, 17},
                                    {31, 64}, {48, 112}, {1, 159}};

typedef struct {
    const cp_device_matrix *w;
    int64_t row, scales, result; /* bytes: a row of x; all scales; a row of y */
    char *device;                /* x, scales, y of all, y of a part */
    char *host;                  /* x and scales; then both y */
} order_trial;

static int64_t align_up(int64_t bytes) {
    return cp_ceil_divide(bytes, BASE) * BASE;
}

static int64_t size_of(const order_trial *t) {
    return align_up(ROWS * t->row) + t->scales + 2 * align_up(ROWS * t->result);
}

/* Finite numbers of any format, with scales of 1. */
static void draw_rows(const order_trial *t) {
    uint64_t state = 1;
    float *scales = (float *)(void *)(t->host + align_up(ROWS * t->row));
    for (int64_t i = 0; i < ROWS * t->w->in; i++) {
        const float x = (float)cp_random_uniform(&state) - 0.5f;
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        const unsigned char code = (unsigned char)(bits >> 24 | bits % 8);
        if (t->w->numbers == CP_NUMBERS_F32)
            memcpy(t->host + 4 * i, &bits, 4);
        else if (t->w->numbers == CP_NUMBERS_BF16)
            memcpy(t->host + 2 * i, (const char *)&bits + 2, 2);
        else
            t->host[i] = (char)((code & 0x80) | code % 0x70);
    }
    for (int n = 0; n < ROWS; n++)
        scales[n] = 1.0f;
}

static cp_status product(const order_trial *t, cp_multiplier *multiplier,
                         int64_t first, int64_t rows, char *y,
                         cudaStream_t stream) {
    const float *scales =
        (const float *)(const void *)(t->device + align_up(ROWS * t->row));
    return cp_device_multiply(multiplier, t->w, rows,
                              t->device + first * t->row,
                              t->w->numbers == CP_NUMBERS_F8 ? scales : NULL,
                              false, (float *)(void *)y, stream);
}

static cp_status compare(const order_trial *t, cp_multiplier *multiplier,
                         int64_t first, int64_t rows, cudaStream_t stream) {
    const int64_t bytes = rows * t->result;
    char *all = t->device + align_up(ROWS * t->row) + t->scales;
    char *part = all + align_up(ROWS * t->result);
    CP_TRY(product(t, multiplier, first, rows, part, stream));
    CP_TRY(cp_bytes_copy(t->host, all + first * t->result, bytes, stream,
                         "a trial"));
    CP_TRY(cp_bytes_copy(t->host + bytes, part, bytes, stream, "a trial"));
    CP_TRY(cp_cuda(cudaStreamSynchronize(stream), "a trial of exact order"));
    if (memcmp(t->host, t->host + bytes, (size_t)bytes) == 0)
        return CP_OK;
    return cp_refuse("--exact-order: this GPU sums a row of %ld numbers in "
                     "one order among %ld rows, and in another among %d",
                     t->w->in, rows, ROWS);
}

static cp_status try_all(order_trial *t, cp_multiplier *multiplier,
                         cudaStream_t stream) {
    const int64_t sent = align_up(ROWS * t->row) + t->scales;
    CP_TRY(cp_allocate(&t->host, size_of(t), 1, "a trial of exact order"));
    CP_TRY(cp_device_reserve(size_of(t), "a trial of exact order", &t->device));
    draw_rows(t);
    CP_TRY(cp_bytes_copy(t->device, t->host, sent, stream, "a trial"));
    CP_TRY(product(t, multiplier, 0, ROWS, t->device + sent, stream));
    for (size_t n = 0; n < sizeof(groups) / sizeof(groups[0]); n++)
        CP_TRY(compare(t, multiplier, groups[n][0], groups[n][1], stream));
    return CP_OK;
}

cp_status cp_multiplier_try_order(cp_multiplier *multiplier,
                                  const cp_device_matrix *w,
                                  cudaStream_t stream) {
    const int64_t number = w->numbers == CP_NUMBERS_F32    ? 4
                           : w->numbers == CP_NUMBERS_BF16 ? 2
                                                           : 1;
    order_trial t = {.w = w,
                     .row = w->in * number,
                     .scales = align_up(4 * ROWS),
                     .result = 4 * w->out};
    const cp_status status = try_all(&t, multiplier, stream);
    cudaStreamSynchronize(stream);
    cudaFree(t.device);
    free(t.host);
    return status;
}
