/* Tangled from book/13-kernels.nw; edit the chapter. */
/* Attention on a GPU, in plain loops: what any of them can run. */
#include "cuda/kernels/launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/numbers.h"

enum {
    ROWS = 32,
    KEYS = CP_DEVICE_KEY_TILE,
    DEPTH = 32, /* dimensions that are at hand at a time */
    THREADS = 128,
    DOWN = 2,   /* a thread's part of a tile: so many rows */
    ACROSS = 4, /* by so many keys or dimensions, 8 apart */
    CHUNKS = CP_HEAD_DIM_MAX / DEPTH,
};

typedef struct {
    cp_piece tile;
    int64_t first, count; /* rows of the tile: token times group, plus head */
} rows_of_block;

static __device__ rows_of_block find_rows(const cp_device_attention *a) {
    const int64_t group = a->shape.query_heads / a->shape.kv_heads;
    const int64_t chunks = group > ROWS ? (group + ROWS - 1) / ROWS : 1;
    const int64_t n = (int64_t)blockIdx.x / chunks;
    rows_of_block mine;
    mine.first = (int64_t)blockIdx.x % chunks * ROWS;
    mine.count = 0;
    if (n < *a->queries_of.count) {
        mine.tile = a->queries_of.items[n];
        mine.count = mine.tile.span.count * group - mine.first;
        mine.count = mine.count < ROWS ? mine.count : ROWS;
    }
    return mine;
}

/* The index [row][head] of the block's r-th row. */
static __device__ int64_t place(const cp_device_attention *a,
                                const rows_of_block *mine, int r) {
    const int64_t group = a->shape.query_heads / a->shape.kv_heads;
    const int64_t n = mine->first + r;
    const int64_t head = (int64_t)blockIdx.y * group + n % group;
    return (mine->tile.row + n / group) * a->shape.query_heads + head;
}

/* How many of the keys the block's r-th row sees: the first so many. */
static __device__ int reach_of(const cp_device_attention *a,
                               const rows_of_block *mine, cp_span keys, int r) {
    const int64_t group = a->shape.query_heads / a->shape.kv_heads;
    const cp_span queries = mine->tile.span;
    const int64_t token = (mine->first + r) / group;
    const int64_t past = queries.start + token * queries.step - keys.start;
    if (r >= mine->count || queries.sequence != keys.sequence || past < 0)
        return 0;
    const int64_t seen = past / keys.step + 1;
    return (int)(seen < keys.count ? seen : keys.count);
}

static __device__ bool sees_any(const cp_device_attention *a,
                                const rows_of_block *mine, cp_span keys) {
    return reach_of(a, mine, keys, (int)mine->count - 1) > 0;
}

CP_KERNEL(attend, cp_device_attention) {
    CP_SHARED(float, left, [ROWS][DEPTH + 1]);
    CP_SHARED(float, right, [KEYS][DEPTH + 1]);
    CP_SHARED(float, weights, [ROWS][KEYS + 1]);
    CP_SHARED(float, level, [ROWS]);
    CP_SHARED(float, total, [ROWS]);
    CP_SHARED(float, factor, [ROWS]);
    CP_SHARED(float, kept, [ROWS]);
    CP_SHARED(int, reach, [ROWS]);
    const rows_of_block mine = find_rows(&a);
    if (mine.count <= 0)
        return;
    /* Begin with nothing. */
    const int thread = (int)threadIdx.x;
    const int row = thread / 8 * DOWN, column = thread % 8;
    const int64_t dim = a.shape.head_dim;
    const int64_t tiles = *a.keys_of.count, split = (int64_t)blockIdx.z;
    const int64_t first = tiles * split / a.splits;
    const int64_t last = tiles * (split + 1) / a.splits;
    float sums[CHUNKS][DOWN][ACROSS] = {{{0.0f}}};
    if (thread < ROWS) {
        level[thread] = -INFINITY;
        total[thread] = 0.0f;
    }
    for (int64_t n = first; n < last; n++) {
        const cp_piece keys = a.keys_of.items[n];
        if (!sees_any(&a, &mine, keys.span))
            continue;
        /* Find what each row sees of these keys. */
        if (thread < ROWS)
            reach[thread] = reach_of(&a, &mine, keys.span, thread);
        __syncthreads();
        int most = 0, least = KEYS;
        for (int r = 0; r < mine.count; r++) {
            most = reach[r] > most ? reach[r] : most;
            least = reach[r] < least ? reach[r] : least;
        }
        /* Score the tile. */
        float scores[DOWN][ACROSS] = {{0.0f}};
        for (int64_t d = 0; d < dim; d += DEPTH) {
            /* Fetch queries and keys. */
            for (int i = thread; i < ROWS * DEPTH; i += THREADS) {
                const int r = i / DEPTH, k = i % DEPTH;
                const int64_t key =
                    (keys.row + r) * a.shape.kv_heads + blockIdx.y;
                const bool inside = d + k < dim;
                left[r][k] = inside && r < mine.count
                                 ? cp_get(a.queries, a.element,
                                          place(&a, &mine, r) * dim + d + k)
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
                    key < reach[row + i] ? scores[i][j] * scale : -INFINITY;
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
                const int64_t at =
                    (keys.row + key) * a.shape.kv_heads + blockIdx.y;
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
                    if (key >= least && key >= reach[row + i])
                        continue;
                    CP_UNROLL for (int j = 0; j < ACROSS; j++) sums[c][i][j] =
                        fmaf(weights[row + i][key], right[key][column + 8 * j],
                             sums[c][i][j]);
                }
            __syncthreads();
        }
    }
    /* Write the rows. */
    float *output = a.output, *lse = a.lse;
    if (a.splits > 1) {
        output = a.unfinished + split * a.rows * a.shape.query_heads * dim;
        lse = a.unfinished + a.splits * a.rows * a.shape.query_heads * dim +
              split * a.rows * a.shape.query_heads;
    }
    const bool merges = a.merge && a.splits == 1;
    if (thread < mine.count) {
        /* Weigh what is new against what is there. */
        const int64_t at = place(&a, &mine, thread);
        const bool empty = total[thread] == 0.0f;
        const float found = merges ? lse[at] : -INFINITY;
        const float fresh =
            empty ? -INFINITY
                  : level[thread] * 0.693147181f + logf(total[thread]);
        const float larger = fmaxf(found, fresh);
        const float old = found == -INFINITY ? 0.0f : expf(found - larger);
        const float add = empty ? 0.0f : expf(fresh - larger);
        kept[thread] = old == 0.0f ? 0.0f : old / (old + add);
        factor[thread] = empty ? 0.0f : add / (old + add) / total[thread];
        if (!merges || !empty)
            lse[at] = old == 0.0f ? fresh : larger + logf(old + add);
    }
    __syncthreads();
    CP_UNROLL
    for (int c = 0; c < CHUNKS; c++)
        CP_UNROLL for (int i = 0; i < DOWN; i++)
            CP_UNROLL for (int j = 0; j < ACROSS; j++) {
            const int64_t d = c * DEPTH + column + 8 * j;
            if (row + i >= mine.count || d >= dim)
                continue;
            float *to = output + place(&a, &mine, row + i) * dim + d;
            const float mean = sums[c][i][j] * factor[row + i];
            *to = kept[row + i] == 0.0f ? mean : fmaf(kept[row + i], *to, mean);
        }
}

int64_t cp_device_query_tile(const cp_shape *shape) {
    const int64_t group = shape->query_heads / shape->kv_heads;
    return group > ROWS ? 1 : ROWS / group;
}

enum { MOST_SPLITS = 64, LEAST_TILES = 4 };

int64_t cp_device_most_splits(const cp_shape *shape, int blocks, int64_t rows) {
    const int64_t needed = cp_max(1, rows) * shape->kv_heads;
    const int64_t wanted = blocks * cp_device_query_tile(shape) / needed;
    return cp_max(1, cp_min(MOST_SPLITS, wanted));
}

int cp_device_splits(const cp_shape *shape, int blocks, int64_t query_tiles,
                     int64_t key_tiles, int64_t most) {
    const int64_t wanted = blocks / cp_max(1, query_tiles * shape->kv_heads);
    const int64_t room = cp_min(most, key_tiles / LEAST_TILES);
    return (int)cp_max(1, cp_min(wanted, room));
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

static cudaError_t attend_in_grid(const cp_device_attention *call,
                                  cudaStream_t stream) {
    const int64_t group = call->shape.query_heads / call->shape.kv_heads;
    const int64_t chunks = cp_ceil_divide(group, ROWS);
    return CP_LAUNCH_GRID(attend, call->queries_of.room * chunks,
                          call->shape.kv_heads, call->splits, THREADS, stream,
                          *call);
}

cudaError_t cp_device_attend(const cp_device_attention *call,
                             cudaStream_t stream) {
    if (call->splits == 1 || call->queries_of.room == 0)
        return attend_in_grid(call, stream);
    /* Attend in splits, and merge them. */
    const int64_t rows = call->rows * call->shape.query_heads;
    const int64_t dim = call->shape.head_dim;
    float *lse = call->unfinished + call->splits * rows * dim;
    cudaError_t error =
        cp_device_clear(NULL, lse, call->splits * rows, dim, stream);
    if (error == cudaSuccess && !call->merge)
        error = cp_device_clear(call->output, call->lse, rows, dim, stream);
    if (error == cudaSuccess)
        error = attend_in_grid(call, stream);
    const cp_device_merging merging = {
        rows, dim,          call->splits, call->unfinished,
        lse,  call->output, call->lse};
    return error == cudaSuccess ? cp_device_merge(&merging, stream) : error;
}
