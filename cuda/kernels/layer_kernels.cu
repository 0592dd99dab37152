/* Tangled from book/13-layers.nw; edit the chapter. */
/* The small layers of a transformer, and rows of eight bits. All are bound by
 * memory. Matrix products are in multiply.h, attention in kernels.h. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/device_numbers.h"
#include "cuda/kernels/tensor.h"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    EIGHT = 8, /* numbers that a thread loads or stores at once */
    PART = EIGHT * THREADS,
    SHARED_ROW = 24576, /* numbers, in 96 KB, which sm_80 gives a block */
    NORMED_HEADS = 512  /* of a layer, at most */
};

/* Go over a row from first to end: each thread takes the eight numbers at i. */
#define EACH_EIGHT(i, first, end)                                              \
    for (int64_t i = (first) + EIGHT * (int64_t)threadIdx.x; i < (end);        \
         i += PART)

/* Launch a block for each part of each row, and none for empty rows. If keeps
 * is set, shared memory has room for a row that is not too wide. */
#define LAUNCH(kernel, rows, width, parts, keeps)                              \
    CP_LAUNCH_GRID_SHARED(                                                     \
        kernel, (width) > 0 ? (rows) : (width), parts, 1, THREADS,             \
        (keeps) && (width) <= SHARED_ROW ? (size_t)(width) * sizeof(float)     \
                                         : 0,                                  \
        stream, *call)

static __device__ float join(float a, float b, bool largest) {
    return largest ? fmaxf(a, b) : a + b;
}

/* The sum of x over a warp's threads, or the largest x. */
static __device__ float join_warp(float x, bool largest) {
    for (int turn = 16; turn > 0; turn /= 2)
        x = join(x, __shfl_xor_sync(0xffffffffu, x, turn), largest);
    return x;
}

/* The same over a block's threads. */
static __device__ float join_block(float x, bool largest, float *of_warps) {
    x = join_warp(x, largest);
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warps[0];
    for (int warp = 1; warp < WARPS; warp++)
        x = join(x, of_warps[warp], largest);
    return x;
}

typedef struct {
    const void *numbers; /* NULL: zeros */
    int64_t at;          /* index of the row's first number */
    cp_element element;
    float *scales; /* NULL, or a row of eight bits: see cp_device_norm_args */
} row;

typedef enum { FETCHED, NORMED, GATED } number_source;

/* A row whose numbers are computed when they are needed. */
typedef struct {
    number_source kind;
    row x, with; /* with: the weights of a norm, or the other half of a gate */
    float scale; /* of a norm */
} source;

typedef struct {
    float x[EIGHT];
} __attribute__((aligned(16))) eight;
typedef struct {
    uint32_t x[EIGHT / 2];
} __attribute__((aligned(16))) eight_pairs;

/* Numbers i to i + 7 of a row; zeros from end on. */
CP_INLINED eight get_eight(const row *from, int64_t i, int64_t end) {
    eight to = {{0.0f}};
    if (from->numbers == NULL)
        return to;
    const int64_t size = from->element == CP_F32 ? 4 : 2;
    const char *row = (const char *)from->numbers + from->at * size;
    const char *address = row + i * size;
    if (end % EIGHT != 0 || (uintptr_t)row % 16 != 0) {
        CP_EACH(k, EIGHT)
            if (i + k < end)
                to.x[k] = cp_get(address, from->element, k);
    } else if (size == 4) {
        to = *(const eight *)address;
    } else {
        const eight_pairs pairs = *(const eight_pairs *)address;
        CP_EACH(k, EIGHT)
            to.x[k] = __uint_as_float(k % 2 == 0 ? pairs.x[k / 2] << 16
                                                 : pairs.x[k / 2] & ~0xffffu);
    }
    return to;
}

CP_INLINED void put_eight(const row *to, int64_t i, int64_t end, eight y) {
    const bool codes = to->scales != NULL;
    const int64_t size = codes ? 1 : to->element == CP_F32 ? 4 : 2;
    char *row = (char *)to->numbers + to->at * size, *address = row + i * size;
    const float *x = y.x;
    if (end % EIGHT != 0 || (uintptr_t)row % (codes ? 4 : 16) != 0) {
        CP_EACH(k, EIGHT)
            if (i + k < end && codes)
                address[k] = (char)cp_f8_bits(x[k]);
            else if (i + k < end)
                cp_put(address, to->element, k, x[k]);
    } else if (codes) {
        CP_EACH(k, EIGHT / 4)
            ((uint32_t *)address)[k] = cp_f8_pair(x[4 * k], x[4 * k + 1]) |
                                       cp_f8_pair(x[4 * k + 2], x[4 * k + 3])
                                           << 16;
    } else if (size == 4) {
        *(eight *)address = y;
    } else {
        eight_pairs pairs;
        CP_EACH(k, EIGHT / 2)
            pairs.x[k] = cp_pack_bf16(x[2 * k], x[2 * k + 1]);
        *(eight_pairs *)address = pairs;
    }
}

CP_INLINED eight make_eight(const source *s, int64_t i, int64_t end) {
    eight y = get_eight(&s->x, i, end);
    if (s->kind == FETCHED)
        return y;
    const eight with = get_eight(&s->with, i, end);
    CP_EACH(k, EIGHT)
        y.x[k] = (s->kind == NORMED ? y.x[k] * s->scale
                                    : y.x[k] / (1.0f + expf(-y.x[k]))) *
                 with.x[k];
    return y;
}

static __device__ void put_row(source from, int64_t first, int64_t end,
                               const row *to) {
    CP_SHARED(float, of_warps, [WARPS]);
    CP_DYNAMIC(room);
    float scale = 1.0f, largest = 0.0f;
    if (to->scales != NULL) {
        const source shared_row = {FETCHED, {room, 0, CP_F32}};
        EACH_EIGHT(i, 0, end) {
            const eight y = make_eight(&from, i, end);
            CP_EACH(k, EIGHT)
                largest = fmaxf(largest, fabsf(y.x[k]));
            if (end <= SHARED_ROW)
                put_eight(&shared_row.x, i, end, y);
        }
        if (end <= SHARED_ROW)
            from = shared_row;
        largest = join_block(largest, true, of_warps);
        scale = largest == 0.0f ? 1.0f : fmaxf(largest / 448.0f, 0x1p-126f);
        if (threadIdx.x == 0)
            to->scales[blockIdx.x] = scale;
    }
    EACH_EIGHT(i, first, end) {
        eight y = make_eight(&from, i, end);
        if (to->scales != NULL)
            CP_EACH(k, EIGHT)
                y.x[k] /= scale;
        put_eight(to, i, end, y);
    }
}

CP_KERNEL(gather_rows, cp_device_gather_args) {
    const int64_t index =
        a.indices == NULL ? blockIdx.x : a.indices[blockIdx.x];
    const source from = {
        FETCHED, {index < 0 ? NULL : a.from, index * a.width, a.stored}};
    const row to = {a.to, blockIdx.x * a.width, a.element, a.scales};
    put_row(from, 0, a.width, &to);
}

cudaError_t cp_device_gather(const cp_device_gather_args *call,
                             cudaStream_t stream) {
    return LAUNCH(gather_rows, call->rows, call->width, 1,
                  call->scales != NULL);
}

CP_KERNEL(norm_rows, cp_device_norm_args) {
    CP_SHARED(float, of_warps, [WARPS]);
    CP_DYNAMIC(room);
    const int64_t at = blockIdx.x * a.width;
    const row x = {a.x, at, CP_F32}, shared_row = {room, 0, CP_F32};
    const row to = {a.y, at, a.element, a.scales};
    float squares = 0.0f;
    EACH_EIGHT(i, 0, a.width) {
        const eight all = get_eight(&x, i, a.width);
        CP_EACH(k, EIGHT)
            squares = fmaf(all.x[k], all.x[k], squares);
        if (a.width <= SHARED_ROW)
            put_eight(&shared_row, i, a.width, all);
    }
    const float mean = join_block(squares, false, of_warps) / (float)a.width;
    const source from = {NORMED,
                         a.width <= SHARED_ROW ? shared_row : x,
                         {a.weight, 0, CP_F32},
                         1.0f / sqrtf(mean + a.epsilon)};
    put_row(from, 0, a.width, &to);
}

cudaError_t cp_device_norm(const cp_device_norm_args *call,
                           cudaStream_t stream) {
    return LAUNCH(norm_rows, call->rows, call->width, 1, true);
}

static __device__ float angle_of(int64_t position, double frequency) {
    const double turns = (double)position * frequency * 0.15915494309189535;
    return (float)((turns - rint(turns)) * 6.283185307179586);
}

/* Numbers d to d + 7 of a head, with its bias. */
CP_INLINED eight get_of_head(const cp_device_rotate_args *a, int64_t token,
                             int head, int d) {
    const int64_t dim = a->shape.head_dim;
    const int64_t heads = a->shape.query_heads + 2 * a->shape.kv_heads;
    const int64_t first = token * (heads * dim + a->behind);
    const row from = {a->projected, first + head * dim, CP_F32};
    const row bias = {a->bias, head * dim, CP_F32};
    eight y = get_eight(&from, d, dim);
    if (a->bias == NULL)
        return y;
    const eight addends = get_eight(&bias, d, dim);
    CP_EACH(k, EIGHT)
        y.x[k] += addends.x[k];
    return y;
}

static __device__ void weigh_heads(const cp_device_rotate_args *a,
                                   int64_t token, float *scales) {
    const int dim = (int)a->shape.head_dim, lane = (int)threadIdx.x % 32;
    const int heads = (int)(a->shape.query_heads + a->shape.kv_heads);
    for (int head = (int)threadIdx.x / 32; head < heads; head += WARPS) {
        float squares = 0.0f;
        for (int d = EIGHT * lane; d < dim; d += EIGHT * 32) {
            const eight y = get_of_head(a, token, head, d);
            CP_EACH(k, EIGHT)
                squares = fmaf(y.x[k], y.x[k], squares);
        }
        squares = join_warp(squares, false);
        if (lane == 0)
            scales[head] = 1.0f / sqrtf(squares / (float)dim + a->epsilon);
    }
}

CP_KERNEL(rotate_rows, cp_device_rotate_args) {
    CP_SHARED(float, cosines, [CP_DEVICE_DIM_MAX / 2]);
    CP_SHARED(float, sines, [CP_DEVICE_DIM_MAX / 2]);
    CP_SHARED(float, scales, [NORMED_HEADS]);
    const int64_t token = blockIdx.x, index = a.indices[token];
    const int dim = (int)a.shape.head_dim, eights = (dim + EIGHT - 1) / EIGHT;
    const int query_heads = (int)a.shape.query_heads;
    const int kv_heads = (int)a.shape.kv_heads;
    const int heads = query_heads + 2 * kv_heads;
    if (index < 0)
        return;
    for (int64_t i = threadIdx.x; i < a.pairs; i += THREADS) {
        const float angle = angle_of(a.positions[token], a.frequencies[i]);
        cosines[i] = cosf(angle);
        sines[i] = sinf(angle);
    }
    if (a.query_norm != NULL)
        weigh_heads(&a, token, scales);
    __syncthreads();
    for (int n = (int)threadIdx.x; n < heads * eights; n += THREADS) {
        const int head = n / eights, d = n % eights * EIGHT;
        eight y = get_of_head(&a, token, head, d);
        /* Norm the head, unless it has values. */
        if (a.query_norm != NULL && head < query_heads + kv_heads) {
            const row weights = {head < query_heads ? a.query_norm : a.key_norm,
                                 0, CP_F32};
            const eight weight = get_eight(&weights, d, dim);
            CP_EACH(k, EIGHT)
                y.x[k] = y.x[k] * scales[head] * weight.x[k];
        }
        /* Rotate the pairs, unless they are values. */
        CP_EACH(k, EIGHT / 2) {
            const int i = d / 2 + k;
            const float even = y.x[2 * k], odd = y.x[2 * k + 1];
            if (i < a.pairs && head < query_heads + kv_heads) {
                y.x[2 * k] = even * cosines[i] - odd * sines[i];
                y.x[2 * k + 1] = even * sines[i] + odd * cosines[i];
            }
        }
        /* Store them where attention reads them. */
        const bool query = head < query_heads,
                   value = head >= query_heads + kv_heads;
        const int first = query ? 0 : query_heads + (value ? kv_heads : 0);
        const int64_t tensor_heads = query ? query_heads : kv_heads;
        void *tensor = query ? a.queries : value ? a.values : a.keys;
        const row to = {tensor, (index * tensor_heads + head - first) * dim,
                        a.element};
        put_eight(&to, d, dim, y);
    }
}

cudaError_t cp_device_rotate(const cp_device_rotate_args *call,
                             cudaStream_t stream) {
    const cp_shape *shape = &call->shape;
    const int64_t heads = shape->query_heads + 2 * shape->kv_heads;
    int64_t numbers;
    if (call->pairs < 0 || 2 * call->pairs > shape->head_dim ||
        shape->head_dim > CP_DEVICE_DIM_MAX ||
        (call->query_norm != NULL && heads > NORMED_HEADS) ||
        !cp_multiply(heads, shape->head_dim, &numbers) || numbers > INT32_MAX)
        return cudaErrorInvalidValue;
    return LAUNCH(rotate_rows, call->rows, numbers, 1, false);
}

CP_KERNEL(gate_rows, cp_device_gate_args) {
    const int64_t at = blockIdx.x * a.inner, first = (int64_t)blockIdx.y * PART;
    const bool to_end = a.scales != NULL || first + PART > a.inner;
    const source from = {
        GATED, {a.both, 2 * at, CP_F32}, {a.both, 2 * at + a.inner, CP_F32}};
    const row to = {a.y, at, a.element, a.scales};
    put_row(from, first, to_end ? a.inner : first + PART, &to);
}

cudaError_t cp_device_gate(const cp_device_gate_args *call,
                           cudaStream_t stream) {
    const bool codes = call->scales != NULL;
    return LAUNCH(gate_rows, call->rows, call->inner,
                  codes ? 1 : cp_ceil_divide(call->inner, PART), codes);
}

cudaError_t cp_device_quantise(const cp_device_quantise_args *call,
                               cudaStream_t stream) {
    const cp_device_gather_args all = {call->rows, call->width, NULL,
                                       call->x,    CP_F32,      CP_F32,
                                       call->y,    call->scales};
    return cp_device_gather(&all, stream);
}

CP_KERNEL(add_numbers, cp_device_add_args) {
    const int64_t i = (int64_t)blockIdx.x * PART + EIGHT * threadIdx.x;
    const row x = {a.x, 0, CP_F32}, addends = {a.addends, 0, CP_BF16};
    if (i >= a.count)
        return;
    eight sum = get_eight(&x, i, a.count);
    const eight add = get_eight(&addends, i, a.count);
    CP_EACH(k, EIGHT)
        sum.x[k] += add.x[k];
    put_eight(&x, i, a.count, sum);
}

cudaError_t cp_device_add(const cp_device_add_args *call, cudaStream_t stream) {
    return LAUNCH(add_numbers, cp_ceil_divide(call->count, PART), 1, 1, false);
}

CP_KERNEL(argmax_rows, cp_device_argmax_args) {
    CP_SHARED(float, of_warps, [2][WARPS]);
    const row scores = {a.scores, blockIdx.x * a.width, CP_F32};
    float largest = -INFINITY, before = 0.0f;
    EACH_EIGHT(i, 0, a.width) {
        const eight all = get_eight(&scores, i, a.width);
        CP_EACH(k, EIGHT) {
            const float score =
                fabsf(all.x[k]) < INFINITY ? all.x[k] : INFINITY;
            if (i + k < a.width && score > largest) {
                largest = score;
                before = -(float)(i + k);
            }
        }
    }
    const float most = join_block(largest, true, of_warps[0]);
    before =
        join_block(largest == most ? before : -INFINITY, true, of_warps[1]);
    if (threadIdx.x == 0)
        a.best[blockIdx.x] = most < INFINITY ? (int32_t)-before : -1;
}

cudaError_t cp_device_argmax(const cp_device_argmax_args *call,
                             cudaStream_t stream) {
    if (call->width > 1 << 24)
        return cudaErrorInvalidValue;
    return LAUNCH(argmax_rows, call->rows, call->width, 1, false);
}
