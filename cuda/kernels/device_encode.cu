/* Tangled from book/17-wire.nw; edit the chapter. */
/* Encoding rows and decoding them. Half a warp encodes ROWS rows, each lane
 * eight numbers of each at a time; a warp decodes one. */
#include "cuda/kernels/kernel_launch.h"

#include "cuda/kernels/device_numbers.h"
#include "cuda/kernels/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "cuda/kernels/device_encode.h"
#include "tokens/encoding.h"
#ifdef __cplusplus
}
#endif

enum { THREADS = 128, LANES = 16, ROWS = 2, EIGHT = 8 };
enum { WRITTEN_ROWS = ROWS * THREADS / LANES, READ_ROWS = THREADS / 32 };

typedef struct {
    cp_device_encode_args of;
    int64_t bytes, before; /* of a row that is sent, and of its scale */
    bool even;             /* are eights of held numbers 16-byte aligned? */
} encode_call;

/* Neighbouring half-warps have neighbouring rows. */
static __device__ int64_t row_of(int r) {
    return (int64_t)blockIdx.x * WRITTEN_ROWS + r * (THREADS / LANES) +
           threadIdx.x / LANES;
}

static __device__ void take(const encode_call *a, int64_t d,
                            float x[ROWS][EIGHT]) {
    const int64_t dim = a->of.dim, size = a->of.element == CP_F32 ? 4 : 2;
    const char *held = (const char *)a->of.held;
    uint32_t words[ROWS][EIGHT];
    if (!a->even) {
        CP_EACH(r, ROWS)
            CP_EACH(i, EIGHT)
                x[r][i] =
                    row_of(r) < a->of.rows && d + i < dim
                        ? cp_get(held, a->of.element, row_of(r) * dim + d + i)
                        : 0.0f;
        return;
    }
    CP_EACH(r, ROWS)
        cp_load_16(words[r], held + (row_of(r) * dim + d) * size,
                   row_of(r) < a->of.rows);
    if (size == 4)
        CP_EACH(r, ROWS)
            cp_load_16(words[r] + 4, held + (row_of(r) * dim + d + 4) * size,
                       row_of(r) < a->of.rows);
    CP_EACH(r, ROWS)
        CP_EACH(i, EIGHT) {
            const uint32_t pair = words[r][i / 2];
            x[r][i] = __uint_as_float(size == 4    ? words[r][i]
                                      : i % 2 == 0 ? pair << 16
                                                   : pair & 0xffff0000u);
        }
}

static __device__ void put_eight(const encode_call *a, cp_encoding encoding,
                                 int64_t row, int64_t d, const float *steps) {
    const int wide = cp_encoding_is_wide(encoding);
    const int64_t first = wide ? d / 2 : d / 4;
    const int64_t left = (a->bytes - a->before) / 4 - first;
    uint32_t *to =
        (uint32_t *)((char *)a->of.sent + row * a->bytes + a->before) + first;
    uint32_t pairs[EIGHT / 2];
    CP_EACH(i, EIGHT / 2) {
        const float low = steps[2 * i], high = steps[2 * i + 1];
        const uint32_t most = wide ? 0xffff : 0xff;
        pairs[i] =
            encoding == CP_ENCODING_FP8
                ? cp_f8_pair(low + 0.0f, high + 0.0f)
                : (cp_steps_code(encoding, low) & most) |
                      (cp_steps_code(encoding, high) & most) * (most + 1);
    }
    CP_EACH(i, wide ? 4 : 2)
        if (i < left && row < a->of.rows)
            to[i] = wide ? pairs[i] : pairs[2 * i] | pairs[2 * i + 1] << 16;
}

static __device__ void divide(float *x, float scale, bool divides) {
    if (!divides || !(scale >= 0x1p-60f && scale <= 1.0f)) {
        CP_EACH(i, EIGHT)
            x[i] = cp_row_steps(scale, x[i]);
        return;
    }
    const float inverse = 1.0f / scale;
    CP_EACH(i, EIGHT) {
        float q = __fmul_rn(x[i], inverse);
        q = fmaf(inverse, fmaf(-scale, q, x[i]), q);
        x[i] = fmaf(inverse, fmaf(-scale, q, x[i]), q);
    }
}

/* Magnitudes are ordered like their bits, read as integers; NaN is last. */
enum { INFINITE = 0x7f800000 };
static __device__ uint32_t larger(uint32_t most, float x) {
    const uint32_t size = __float_as_uint(x) & 0x7fffffffu;
    return most < size ? size : most;
}

#define WRITE(writing)                                                         \
    case writing:                                                              \
        CP_EACH(r, ROWS)                                                       \
            put_eight(&a, writing, row_of(r), d, x[r]);                        \
        break;

CP_KERNEL_FITS(write_rows, encode_call, THREADS, 6) {
    const int64_t dim = a.of.dim, at = threadIdx.x % LANES * EIGHT;
    float x[ROWS][EIGHT], scales[ROWS];
    uint32_t most[ROWS] = {0};
    for (int64_t d = at; d < dim; d += EIGHT * LANES) {
        take(&a, d, x);
        CP_EACH(r, ROWS)
            CP_EACH(i, EIGHT)
                most[r] = larger(most[r], x[r][i]);
    }
    CP_EACH(r, ROWS) {
        for (int turn = LANES / 2; turn > 0; turn /= 2)
            most[r] = larger(
                most[r],
                __shfl_xor_sync(0xffffffffu, __uint_as_float(most[r]), turn));
        const float top =
            most[r] < INFINITE ? __uint_as_float(most[r]) : INFINITY;
        scales[r] = a.before > 0 ? cp_encoding_scale(a.of.encoding, top) : 1.0f;
        if (a.before > 0 && at == 0 && row_of(r) < a.of.rows)
            *(float *)((char *)a.of.sent + row_of(r) * a.bytes) = scales[r];
    }
    for (int64_t d = at; d < dim; d += EIGHT * LANES) {
        if (dim > EIGHT * LANES)
            take(&a, d, x);
        CP_EACH(r, ROWS)
            divide(x[r], scales[r], a.before > 0);
        switch (a.of.encoding) {
            WRITE(CP_ENCODING_BF16)
            WRITE(CP_ENCODING_FP8)
            WRITE(CP_ENCODING_INT8)
        default:
            WRITE(CP_ENCODING_BLOCK)
        }
    }
}

CP_KERNEL(read_rows, encode_call) {
    const int64_t row = (int64_t)blockIdx.x * READ_ROWS + threadIdx.x / 32;
    const char *from = (const char *)a.of.sent + row * a.bytes;
    if (row >= a.of.rows)
        return;
    const float scale = a.before > 0 ? *(const float *)from : 1.0f;
    for (int64_t d = threadIdx.x % 32; d < a.of.dim; d += 32)
        cp_put(a.of.held, a.of.element, row * a.of.dim + d,
               cp_row_get(from + a.before, a.of.encoding, scale, d));
}

static encode_call encode_call_of(const cp_device_encode_args *call) {
    const encode_call call_of_kernel = {
        *call, cp_encoding_bytes(call->encoding, call->dim, 4),
        call->encoding == CP_ENCODING_BF16 ? 0 : (int64_t)sizeof(float),
        call->dim % EIGHT == 0 && (uintptr_t)call->held % 16 == 0};
    return call_of_kernel;
}

static int64_t blocks_of(const cp_device_encode_args *call, int rows) {
    return call->dim > 0 ? cp_ceil_divide(call->rows, rows) : 0;
}

cudaError_t cp_device_rows_encode(const cp_device_encode_args *call,
                                  cudaStream_t stream) {
    const encode_call call_of_kernel = encode_call_of(call);
    return CP_LAUNCH_GRID(write_rows, blocks_of(call, WRITTEN_ROWS), 1, 1,
                          THREADS, stream, call_of_kernel);
}

cudaError_t cp_device_rows_decode(const cp_device_encode_args *call,
                                  cudaStream_t stream) {
    const encode_call call_of_kernel = encode_call_of(call);
    return CP_LAUNCH_GRID(read_rows, blocks_of(call, READ_ROWS), 1, 1, THREADS,
                          stream, call_of_kernel);
}
