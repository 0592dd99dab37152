/* Tangled from book/13-kernels.nw; edit the chapter. */
/* Attention on a GPU, in plain loops that any GPU can run. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/block_rows.h"

enum {
    ROWS = 32,
    KEYS = 32,
    DEPTH = 32, /* dimensions in shared memory at a time */
    THREADS = 128,
    DOWN = 2,   /* a thread's part of a tile: this many rows */
    ACROSS = 4, /* by this many keys or dimensions, 8 apart */
    CHUNKS = CP_DEVICE_DIM_MAX / DEPTH,
};

CP_KERNEL(attend, cp_device_attention) {
    CP_SHARED(float, left, [ROWS][DEPTH + 1]);
    CP_SHARED(float, right, [KEYS][DEPTH + 1]);
    CP_SHARED(float, weights, [ROWS][KEYS + 1]);
    CP_SHARED(float, level, [ROWS]);
    CP_SHARED(float, total, [ROWS]);
    CP_SHARED(float, factor, [ROWS]);
    CP_SHARED(int, reach, [ROWS]);
    CP_SHARED(int, hidden, [ROWS]);
    const rows_of_block block_rows = find_rows(&a, ROWS);
    if (block_rows.count <= 0)
        return;
    /* Begin with nothing. */
    const int thread = (int)threadIdx.x;
    const int row = thread / 8 * DOWN, column = thread % 8;
    const int64_t dim = a.shape.head_dim;
    keys_of_block walk = find_keys(&a, &block_rows, KEYS);
    cp_piece keys;
    float sums[CHUNKS][DOWN][ACROSS] = {{{0.0f}}};
    if (thread < ROWS) {
        level[thread] = -INFINITY;
        total[thread] = 0.0f;
    }
    while (next_keys(&walk, &keys)) {
        /* Find what each row sees of these keys. */
        if (thread < ROWS) {
            const int64_t at = position(&block_rows, thread);
            reach[thread] =
                thread < block_rows.count ? (int)keys_seen(keys.span, at) : 0;
            hidden[thread] = (int)keys_hidden(&a, keys.span, at);
        }
        __syncthreads();
        const int least = reach[0], most = (int)keys.span.count;
        /* Score the tile. */
        float scores[DOWN][ACROSS] = {{0.0f}};
        for (int64_t d = 0; d < dim; d += DEPTH) {
            /* Fetch queries and keys. */
            for (int i = thread; i < ROWS * DEPTH; i += THREADS) {
                const int r = i / DEPTH, k = i % DEPTH;
                const int64_t key = (keys.row + r) * a.key_heads + blockIdx.y;
                const bool inside = d + k < dim;
                left[r][k] =
                    inside && r < block_rows.count
                        ? cp_get(a.queries, a.element,
                                 row_index(&a, &block_rows, r) * dim + d + k)
                        : 0.0f;
                right[r][k] = inside && r < most
                                  ? cp_get(a.keys, a.element, key * dim + d + k)
                                  : 0.0f;
            }
            __syncthreads();
            for (int k = 0; k < DEPTH; k++)
                CP_UNROLL for (int i = 0; i < DOWN; i++)
                    CP_UNROLL for (int j = 0; j < ACROSS; j++) scores[i][j] =
                        fmaf(left[row + i][k], right[column + 8 * j][k],
                             scores[i][j]);
            __syncthreads();
        }
        /* Turn scores into weights. */
        const float scale = 1.44269504f / sqrtf((float)dim);
        for (int i = 0; i < DOWN; i++)
            for (int j = 0; j < ACROSS; j++) {
                const int key = column + 8 * j;
                weights[row + i][key] =
                    key >= hidden[row + i] && key < reach[row + i]
                        ? scores[i][j] * scale
                        : -INFINITY;
            }
        __syncthreads();
        const int shared = thread / 4, part = thread % 4;
        float top = -INFINITY, sum = 0.0f;
        for (int key = part; key < KEYS; key += 4)
            top = fmaxf(top, weights[shared][key]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float before = level[shared], now = fmaxf(before, top);
        const float base = now == -INFINITY ? 0.0f : now;
        for (int key = part; key < KEYS; key += 4) {
            const float weight = exp2f(weights[shared][key] - base);
            weights[shared][key] = weight;
            sum += weight;
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        __syncwarp();
        if (part == 0) {
            factor[shared] = exp2f(before - base);
            total[shared] = total[shared] * factor[shared] + sum;
            level[shared] = now;
        }
        /* Add the values, weighed. */
        CP_UNROLL
        for (int c = 0; c < CHUNKS; c++) {
            if (c * DEPTH >= dim)
                break;
            /* Fetch values. */
            for (int i = thread; i < KEYS * DEPTH; i += THREADS) {
                const int key = i / DEPTH, d = c * DEPTH + i % DEPTH;
                const int64_t at = (keys.row + key) * a.key_heads + blockIdx.y;
                right[key][i % DEPTH] =
                    key < most && d < dim
                        ? cp_get(a.values, a.element, at * dim + d)
                        : 0.0f;
            }
            __syncthreads();
            CP_UNROLL for (int i = 0; i < DOWN; i++)
                CP_UNROLL for (int j = 0; j < ACROSS; j++) sums[c][i][j] *=
                factor[row + i];
            /* Multiply weights and values. */
            for (int key = 0; key < most; key++)
                CP_UNROLL for (int i = 0; i < DOWN; i++) {
                    if (key < hidden[row + i] ||
                        (key >= least && key >= reach[row + i]))
                        continue;
                    CP_UNROLL for (int j = 0; j < ACROSS; j++) sums[c][i][j] =
                        fmaf(weights[row + i][key], right[key][column + 8 * j],
                             sums[c][i][j]);
                }
            __syncthreads();
        }
    }
    /* Write the rows. */
    __syncthreads();
    CP_UNROLL
    for (int i = 0; i < DOWN; i++) {
        const int r = row + i;
        const row_weights weigh =
            weigh_row(&a, &block_rows, r, level[r], total[r]);
        CP_UNROLL
        for (int c = 0; c < CHUNKS; c++)
            CP_UNROLL for (int j = 0; j < ACROSS; j++) {
                const int d = c * DEPTH + column + 8 * j;
                if (d < dim)
                    put_number(&weigh, d, sums[c][i][j]);
            }
    }
    if (a.splits > 1)
        merge_splits(&a, &block_rows);
}

static const int tile_rows[CP_ATTEND_KERNELS] = {[CP_ATTEND_LOOPS] = ROWS,
                                                 [CP_ATTEND_TILES] = 128,
                                                 [CP_ATTEND_FEW] = 16,
                                                 [CP_ATTEND_HOPPER] = 128,
                                                 [CP_ATTEND_HOPPER_FEW] = 16};

int64_t cp_device_query_tile(cp_attend_kernel kernel, const cp_shape *shape) {
    const int64_t group = shape->query_heads / shape->kv_heads;
    return cp_max(1, tile_rows[kernel] / group);
}

int64_t parts_of(const cp_device_attention *call) {
    int64_t count = call->leaves != 0 ? 0 : call->splits;
    for (uint32_t left = call->leaves; left != 0; left &= left - 1)
        count++;
    return count;
}

int64_t blocks_of(const cp_device_attention *call) {
    const int64_t group = call->shape.query_heads / call->shape.kv_heads;
    return call->queries_of.room *
           cp_ceil_divide(group, tile_rows[call->kernel]) *
           call->shape.kv_heads;
}

enum { LEAST_KEYS = 128 };

int64_t cp_device_most_splits(cp_attend_kernel kernel, const cp_shape *shape,
                              int blocks, int64_t rows) {
    const int64_t needed = cp_max(1, rows) * shape->kv_heads;
    const int64_t splits =
        2 * blocks * cp_device_query_tile(kernel, shape) / needed;
    if (cp_device_uneven(shape))
        return 1;
    return cp_max(1, cp_min(MOST_SPLITS, splits));
}

int cp_device_fill(int64_t work, int64_t blocks, int64_t most) {
    double full[MOST_SPLITS + 1], best = 0.0;
    const int64_t limit = cp_min(most, MOST_SPLITS);
    for (int64_t n = 1; n <= limit; n++) {
        const int64_t waves = cp_ceil_divide(work * n, blocks);
        full[n] = (double)(work * n) / (double)(waves * blocks);
        best = full[n] > best ? full[n] : best;
    }
    int splits = 1;
    while (splits < limit && full[splits] < 0.95 * best)
        splits++;
    return splits;
}

int cp_device_splits(const cp_device_attention *call, int blocks,
                     int64_t most) {
    const int64_t sense = call->keys_of.longest / LEAST_KEYS;
    if (call->kernel == CP_ATTEND_HOPPER)
        return 1;
    if (call->kernel == CP_ATTEND_HOPPER_FEW)
        blocks /= 2; /* each has a multiprocessor to itself */
    return cp_device_fill(blocks_of(call), blocks, cp_min(most, sense));
}

cudaError_t cp_device_blocks(int *blocks) {
    int device = 0, count = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount,
                                       device);
    *blocks = 2 * count;
    return error;
}

bool cp_device_uneven(const cp_shape *shape) {
    return shape->latent || shape->head_dim > CP_DEVICE_DIM_MAX ||
           cp_value_dim(shape) != shape->head_dim;
}

bool cp_device_takes(cp_attend_kernel kernel, const cp_shape *shape,
                     cp_element element, int capability) {
    if (cp_device_uneven(shape) || kernel == CP_ATTEND_LOOPS)
        return kernel == CP_ATTEND_LOOPS;
    return element == CP_BF16 &&
           (kernel >= CP_ATTEND_HOPPER
                ? capability == 90 && cp_device_prefill != NULL
                : capability >= 80) &&
           (shape->head_dim == 64 || shape->head_dim == 128);
}

cudaError_t cp_device_choose(const cp_shape *shape, cp_element element,
                             int64_t tokens, cp_attend_kernel *kernel) {
    const int64_t rows = tokens * (shape->query_heads / shape->kv_heads);
    int device = 0, major = 0, minor = 0, blocks = 1;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(
            &major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(
            &minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error == cudaSuccess)
        error = cp_device_blocks(&blocks);
    const int capability = 10 * major + minor;
    const int64_t tiles = rows * shape->kv_heads / tile_rows[CP_ATTEND_HOPPER];
    const cp_attend_kernel few =
        cp_device_takes(CP_ATTEND_HOPPER_FEW, shape, element, capability)
            ? CP_ATTEND_HOPPER_FEW
            : CP_ATTEND_FEW;
    *kernel = CP_ATTEND_LOOPS;
    if (cp_device_takes(CP_ATTEND_TILES, shape, element, capability))
        *kernel = rows <= tile_rows[CP_ATTEND_FEW] ? few : CP_ATTEND_TILES;
    if (tiles >= blocks &&
        cp_device_takes(CP_ATTEND_HOPPER, shape, element, capability))
        *kernel = CP_ATTEND_HOPPER;
    return error;
}

cudaError_t cp_device_attend(const cp_device_attention *call,
                             cudaStream_t stream) {
    const int64_t heads = call->shape.kv_heads;
    cp_device_attention full = *call;
    full.key_heads = cp_max(call->key_heads, heads);
    if (!cp_device_takes(call->kernel, &call->shape, call->element, 90))
        return cudaErrorInvalidValue;
    if (call->kernel == CP_ATTEND_HOPPER)
        return cp_device_prefill(&full, CP_PREFILL_FAST, stream);
    if (call->kernel == CP_ATTEND_HOPPER_FEW)
        return cp_device_decode(&full, stream);
    if (call->kernel != CP_ATTEND_LOOPS)
        return cp_attend_tiles(&full, stream);
    if (cp_device_uneven(&call->shape) || call->chosen != NULL)
        return cp_attend_uneven(&full, stream);
    return CP_LAUNCH_GRID(attend, blocks_of(call) / heads, heads,
                          parts_of(call), THREADS, stream, full);
}
