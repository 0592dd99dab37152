/* Tangled from book/13-layers.nw; edit the chapter. */
/* Products of few rows of eight bits, as fast as memory delivers the weights.
 * For compute capability 8.9 and later. The library multiplies many rows. */
#include "cuda/kernels/kernel_launch.h"

#include <stdint.h>

#include "cuda/kernels/device_numbers.h"
#include "cuda/kernels/tensor.h"

enum {
    WARPS = 4, /* of a block; each takes a part of the depth */
    THREADS = 32 * WARPS,
    BLOCKS = 3,                       /* of a multiprocessor, at least */
    STRIDE = THREADS / CP_FEW_HEIGHT, /* from a thread's token to its next */
    STEP = 64,                        /* numbers of a row for a warp */
    LEAST = 4 * WARPS * STEP,         /* numbers of a row for a split */
    MOST_TILES = CP_FEW_ROWS / 8,
    PER_THREAD = CP_FEW_ROWS / STRIDE,
    APART = CP_FEW_HEIGHT + 4, /* from token to token, in other banks */
};

/* In fragments of 16 rows of w by 8 tokens. */
typedef float few_sums[CP_FEW_HEIGHT / 16][MOST_TILES][4];

CP_INLINED void add_up(const cp_few_rows *a, int tiles, int64_t first,
                       few_sums sums) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t apart = 8 * a->in;
    const int steps = (int)((a->in + STEP - 1) / STEP), part = (int)blockIdx.y;
    const int begin = (int)((int64_t)steps * part / a->splits) + warp;
    const int end = (int)((int64_t)steps * (part + 1) / a->splits);
    const char *w = (const char *)a->w + (first + lane / 4) * a->in;
    const char *x = (const char *)a->x + lane / 4 * a->in;
    CP_NO_UNROLL
    for (int step = begin; step < end; step += WARPS) {
        uint32_t rows[CP_FEW_HEIGHT / 8][4], tokens[MOST_TILES][4];
        const int64_t k = (int64_t)step * STEP + lane % 4 * 16;
        const char *row = w + k, *token = x + k;
        CP_EACH(i, CP_FEW_HEIGHT / 8) {
            cp_load_16(rows[i], row, k < a->in);
            row += apart;
        }
        CP_EACH(n, tiles) {
            cp_load_16(tokens[n], token,
                       k < a->in && 8 * n + lane / 4 < a->rows);
            token += apart;
        }
        /* Multiply chunks of rows and tokens. */
        CP_EACH(i, 4) {
            uint32_t b[MOST_TILES][2];
            CP_EACH(n, tiles)
                cp_unpack_f8(tokens[n][i], &b[n][0], &b[n][1]);
            CP_EACH(m, CP_FEW_HEIGHT / 16) {
                uint32_t a[4];
                cp_unpack_f8(rows[2 * m][i], &a[0], &a[2]);
                cp_unpack_f8(rows[2 * m + 1][i], &a[1], &a[3]);
                CP_EACH(n, tiles)
                    cp_multiply_add_f8(sums[m][n], a, b[n]);
            }
        }
    }
}

CP_INLINED int token_of(int t) {
    return (int)threadIdx.x / CP_FEW_HEIGHT + STRIDE * t;
}

/* Add parts that are `apart` floats apart; the sums of neighbouring tokens are
 * `width` apart. Sums of missing tokens are undefined. */
CP_INLINED void add_parts(float *sums, int count, const float *from, int parts,
                          int64_t apart, int64_t width) {
    CP_EACH(t, count)
        sums[t] = 0.0f;
    CP_UNROLL
    for (int n = 0; n < parts; n++)
        CP_EACH(t, count)
            sums[t] += from[n * apart + token_of(t) * width];
}

/* All loads come before the stores. */
CP_INLINED void put_sums(const cp_few_rows *a, int count, int tokens,
                         int64_t row, const float *sums) {
    const float scale = a->w_scales[row];
    float scales[PER_THREAD], before[PER_THREAD];
    CP_EACH(t, count) {
        const int token = token_of(t) < a->rows ? token_of(t) : 0;
        scales[t] = a->x_scales[token];
        before[t] = a->add ? ((const float *)a->y)[token * a->out + row] : 0.0f;
    }
    CP_EACH(t, count)
        if (token_of(t) < tokens)
            cp_put(a->y, a->element, token_of(t) * a->out + row,
                   before[t] + sums[t] * scales[t] * scale);
}

CP_INLINED void multiply_few(const cp_few_rows *a, int tiles, float *shared) {
    const int64_t block_start = (int64_t)blockIdx.x * CP_FEW_HEIGHT;
    const int64_t last = a->out - CP_FEW_HEIGHT;
    const int64_t first = block_start < last ? block_start : last;
    few_sums sums = {{{0.0f}}};
    add_up(a, tiles, first, sums);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int count = 8 * tiles / STRIDE;
    const int64_t area = a->rows * a->out;
    const int64_t row = first + threadIdx.x % CP_FEW_HEIGHT;
    const int tokens = row < block_start ? 0 : (int)a->rows;
    float *part = a->parts + blockIdx.y * area + row;
    float *lane_sums =
        shared + (8 * tiles * warp + lane % 4 * 2) * APART + lane / 4;
    float sum[PER_THREAD];
    CP_EACH(m, CP_FEW_HEIGHT / 16)
        CP_EACH(n, 4 * tiles)
            lane_sums[(n / 4 * 8 + n % 2) * APART + 16 * m + n % 4 / 2 * 8] =
                sums[m][n / 4][n % 4];
    __syncthreads();
    add_parts(sum, count, shared + (row - first), WARPS, 8 * tiles * APART,
              APART);
    if (a->splits > 1) {
        CP_EACH(t, count)
            if (token_of(t) < tokens)
                part[token_of(t) * a->out] = sum[t];
        if (!is_last_block(&a->tickets[blockIdx.x], a->splits))
            return;
        add_parts(sum, count, a->parts + row, a->splits, area, a->out);
    }
    put_sums(a, count, tokens, row, sum);
}

#define MULTIPLY_FEW(tiles)                                                    \
    CP_KERNEL_FITS(multiply_few_##tiles, cp_few_rows, THREADS, BLOCKS) {       \
        CP_SHARED(float, shared, [WARPS * 8 * tiles * APART]);                 \
        multiply_few(&a, tiles, shared);                                       \
    }
MULTIPLY_FEW(1)
MULTIPLY_FEW(2)
MULTIPLY_FEW(3)

int cp_few_splits(int64_t in, int64_t out, int blocks, int64_t room) {
    const int64_t tiles = cp_ceil_divide(out, CP_FEW_HEIGHT);
    const int64_t most = cp_min(in / LEAST, room / (CP_FEW_ROWS * out));
    return cp_device_fill(tiles, blocks / 2 * BLOCKS, most);
}

cudaError_t cp_device_multiply_few(const cp_few_rows *call,
                                   cudaStream_t stream) {
    const int64_t tiles = cp_ceil_divide(call->out, CP_FEW_HEIGHT);
#define LAUNCH(kernel)                                                         \
    CP_LAUNCH_GRID(kernel, tiles, call->splits, 1, THREADS, stream, *call)
    return call->rows <= 8    ? LAUNCH(multiply_few_1)
           : call->rows <= 16 ? LAUNCH(multiply_few_2)
                              : LAUNCH(multiply_few_3);
}
