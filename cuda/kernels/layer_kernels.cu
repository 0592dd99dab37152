/* Tangled from book/13-layers.nw; edit the chapter. */
/* The small layers of a transformer, and rows of eight bits. All are bound by
 * memory; none is a matrix product (multiply.h) or attention (kernels.h). */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/device_numbers.h"

enum { THREADS = 256, WARPS = THREADS / 32, PART = 4 * THREADS };

/* Blocks for so many rows: none where they are empty. */
static int64_t blocks_of(int64_t rows, int64_t width) {
    return width > 0 ? rows : width;
}

/* Whether codes of eight bits, if that is what is asked for, lie well. */
static bool may_write(int64_t width, const void *y, const float *scales) {
    return scales == NULL || width % 4 != 0 || (uintptr_t)y % 4 == 0;
}

static __device__ float join(float a, float b, bool largest) {
    return largest ? fmaxf(a, b) : a + b;
}

/* The sum over a block's threads, or the largest. */
static __device__ float join_block(float x, bool largest, float *of_warps) {
    for (int turn = 16; turn > 0; turn /= 2)
        x = join(x, __shfl_xor_sync(0xffffffffu, x, turn), largest);
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warps[0];
    for (int warp = 1; warp < WARPS; warp++)
        x = join(x, of_warps[warp], largest);
    return x;
}

typedef enum { NOTHING, FETCHED, NORMED, GATED } number_source;

/* A row of numbers that are made when they are asked for. */
typedef struct {
    number_source kind;
    const void *x;
    cp_element element; /* of x */
    const float *with;  /* the weights of a norm, or the other half of a gate */
    float scale;        /* of a norm */
} source;

/* Where it goes: see cp_device_norm_args. */
typedef struct {
    void *y;
    int64_t at; /* where the row begins */
    cp_element element;
    float *scales;
} target;

static __device__ float number_at(const source *s, int64_t i) {
    if (s->kind == NOTHING)
        return 0.0f;
    const float x = cp_get(s->x, s->element, i);
    if (s->kind == NORMED)
        return x * s->scale * s->with[i];
    return s->kind == GATED ? x / (1.0f + expf(-x)) * s->with[i] : x;
}

static __device__ void put_row(const source *from, int64_t first, int64_t end,
                               const target *to) {
    CP_SHARED(float, of_warps, [WARPS]);
    if (to->scales == NULL) {
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS)
            cp_put(to->y, to->element, to->at + i, number_at(from, i));
        return;
    }
    float largest = 0.0f;
    for (int64_t i = threadIdx.x; i < end; i += THREADS)
        largest = fmaxf(largest, fabsf(number_at(from, i)));
    largest = join_block(largest, true, of_warps);
    const float scale =
        largest == 0.0f ? 1.0f : fmaxf(largest / 448.0f, 0x1p-126f);
    if (threadIdx.x == 0)
        to->scales[blockIdx.x] = scale;
    /* Write codes, four at a time. */
    const int64_t step = end % 4 == 0 ? 4 : 1;
    for (int64_t i = step * threadIdx.x; i < end; i += step * THREADS) {
        uint32_t codes = 0;
        for (int k = 0; k < step; k++)
            codes |= cp_f8_bits(number_at(from, i + k) / scale) << 8 * k;
        if (step == 4)
            ((uint32_t *)to->y)[(to->at + i) / 4] = codes;
        else
            ((uint8_t *)to->y)[to->at + i] = (uint8_t)codes;
    }
}

CP_KERNEL(gather_rows, cp_device_gather_args) {
    const int64_t row = blockIdx.x, place = a.places[row];
    const int64_t size = a.stored == CP_F32 ? 4 : 2;
    const source from = {place < 0 ? NOTHING : FETCHED,
                         (const char *)a.from + place * a.width * size,
                         a.stored, NULL, 0.0f};
    const target to = {a.to, row * a.width, a.element, a.scales};
    put_row(&from, 0, a.width, &to);
}

cudaError_t cp_device_gather(const cp_device_gather_args *call,
                             cudaStream_t stream) {
    if (!may_write(call->width, call->to, call->scales))
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(gather_rows, blocks_of(call->rows, call->width), 1, 1,
                          THREADS, stream, *call);
}

CP_KERNEL(norm_rows, cp_device_norm_args) {
    CP_SHARED(float, of_warps, [WARPS]);
    const int64_t at = blockIdx.x * a.width;
    const float *x = a.x + at;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        squares = fmaf(x[i], x[i], squares);
    const float mean = join_block(squares, false, of_warps) / (float)a.width;
    const source from = {NORMED, x, CP_F32, a.weight,
                         1.0f / sqrtf(mean + a.epsilon)};
    const target to = {a.y, at, a.element, a.scales};
    put_row(&from, 0, a.width, &to);
}

cudaError_t cp_device_norm(const cp_device_norm_args *call,
                           cudaStream_t stream) {
    if (!may_write(call->width, call->y, call->scales))
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(norm_rows, blocks_of(call->rows, call->width), 1, 1,
                          THREADS, stream, *call);
}

static __device__ float angle_of(int64_t position, double frequency) {
    const double turns = (double)position * frequency * 0.15915494309189535;
    return (float)((turns - rint(turns)) * 6.283185307179586);
}

CP_KERNEL(rotate_rows, cp_device_rotate_args) {
    CP_SHARED(float, cosines, [CP_DEVICE_DIM_MAX / 2]);
    CP_SHARED(float, sines, [CP_DEVICE_DIM_MAX / 2]);
    const int64_t row = blockIdx.x, place = a.places[row];
    const int dim = (int)a.shape.head_dim, half = (dim + 1) / 2;
    const int query_heads = (int)a.shape.query_heads;
    const int kv_heads = (int)a.shape.kv_heads;
    const int heads = query_heads + 2 * kv_heads;
    if (place < 0)
        return;
    for (int64_t i = threadIdx.x; i < a.pairs; i += THREADS) {
        const float angle = angle_of(a.positions[row], a.frequencies[i]);
        cosines[i] = cosf(angle);
        sines[i] = sinf(angle);
    }
    __syncthreads();
    for (int n = (int)threadIdx.x; n < heads * half; n += THREADS) {
        const int head = n / half, i = n % half;
        const bool whole = 2 * i + 1 < dim;
        const int64_t from = (row * heads + head) * dim + 2 * i;
        float even = a.projected[from];
        float odd = whole ? a.projected[from + 1] : 0.0f;
        /* Turn the pair, unless it is a value. */
        if (i < a.pairs && head < query_heads + kv_heads) {
            const float turned = even * cosines[i] - odd * sines[i];
            odd = even * sines[i] + odd * cosines[i];
            even = turned;
        }
        /* Put the pair where attention looks for it. */
        const bool query = head < query_heads,
                   value = head >= query_heads + kv_heads;
        const int first = query ? 0 : query_heads + (value ? kv_heads : 0);
        void *tensor = query ? a.queries : value ? a.values : a.keys;
        const int64_t heads_there = query ? query_heads : kv_heads;
        const int64_t to = (place * heads_there + head - first) * dim + 2 * i;
        cp_put(tensor, a.element, to, even);
        if (whole)
            cp_put(tensor, a.element, to + 1, odd);
    }
}

cudaError_t cp_device_rotate(const cp_device_rotate_args *call,
                             cudaStream_t stream) {
    const cp_shape *shape = &call->shape;
    const int64_t heads = shape->query_heads + 2 * shape->kv_heads;
    int64_t numbers;
    if (call->pairs < 0 || 2 * call->pairs > shape->head_dim ||
        shape->head_dim > CP_DEVICE_DIM_MAX ||
        !cp_multiply(heads, shape->head_dim, &numbers) || numbers > INT32_MAX)
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(rotate_rows, blocks_of(call->rows, numbers), 1, 1,
                          THREADS, stream, *call);
}

CP_KERNEL(gate_rows, cp_device_gate_args) {
    const int64_t row = blockIdx.x, first = (int64_t)blockIdx.y * PART;
    const bool whole = a.scales != NULL || first + PART > a.inner;
    const float *gates = a.both + 2 * row * a.inner;
    const source from = {GATED, gates, CP_F32, gates + a.inner, 0.0f};
    const target to = {a.y, row * a.inner, a.element, a.scales};
    put_row(&from, first, whole ? a.inner : first + PART, &to);
}

cudaError_t cp_device_gate(const cp_device_gate_args *call,
                           cudaStream_t stream) {
    const int64_t parts =
        call->scales != NULL ? 1 : cp_ceil_divide(call->inner, PART);
    if (!may_write(call->inner, call->y, call->scales))
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(gate_rows, blocks_of(call->rows, call->inner), parts,
                          1, THREADS, stream, *call);
}

CP_KERNEL(quantise_rows, cp_device_quantise_args) {
    const int64_t at = blockIdx.x * a.width;
    const source from = {FETCHED, a.x + at, CP_F32, NULL, 0.0f};
    const target to = {a.y, at, CP_F32, a.scales};
    put_row(&from, 0, a.width, &to);
}

cudaError_t cp_device_quantise(const cp_device_quantise_args *call,
                               cudaStream_t stream) {
    if (!may_write(call->width, call->y, call->scales))
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(quantise_rows, blocks_of(call->rows, call->width), 1,
                          1, THREADS, stream, *call);
}

CP_KERNEL(add_numbers, cp_device_add_args) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.count;
         i += step)
        a.x[i] += cp_get(a.addends, CP_BF16, i);
}

cudaError_t cp_device_add(const cp_device_add_args *call, cudaStream_t stream) {
    const int64_t wanted = cp_ceil_divide(call->count, 4 * THREADS);
    return CP_LAUNCH_GRID(add_numbers, cp_min(wanted, 65535), 1, 1, THREADS,
                          stream, *call);
}

CP_KERNEL(argmax_rows, cp_device_argmax_args) {
    CP_SHARED(float, of_warps, [2][WARPS]);
    const float *scores = a.scores + blockIdx.x * a.width;
    float largest = -INFINITY, before = -INFINITY;
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        largest =
            fabsf(scores[i]) < INFINITY ? fmaxf(largest, scores[i]) : INFINITY;
    largest = join_block(largest, true, of_warps[0]);
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        if (scores[i] == largest)
            before = fmaxf(before, -(float)i);
    before = join_block(before, true, of_warps[1]);
    if (threadIdx.x == 0)
        a.best[blockIdx.x] = largest < INFINITY ? (int32_t)-before : -1;
}

cudaError_t cp_device_argmax(const cp_device_argmax_args *call,
                             cudaStream_t stream) {
    if (call->width > 1 << 24)
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(argmax_rows, blocks_of(call->rows, call->width), 1, 1,
                          THREADS, stream, *call);
}
