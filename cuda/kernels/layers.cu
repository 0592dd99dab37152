/* Tangled from book/13-layers.nw; edit the chapter. */
/* The small layers of a transformer, and rows of eight bits. All are bound by
 * memory; none is a matrix product (multiply.h) or attention (kernels.h). */
#include "cuda/kernels/launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/numbers.h"

enum { THREADS = 256, WARPS = THREADS / 32, PART = 4 * THREADS };

/* Blocks for so many rows: none where they are empty. */
static int64_t blocks_of(int64_t rows, int64_t width) {
    return width > 0 ? rows : width;
}

CP_KERNEL(gather_rows, cp_device_gathering) {
    const int64_t row = blockIdx.x, place = a.places[row];
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        cp_put(a.to, a.element, row * a.width + i,
               place < 0 ? 0.0f
                         : cp_get(a.from, a.stored, place * a.width + i));
}

cudaError_t cp_device_gather(const cp_device_gathering *call,
                             cudaStream_t stream) {
    return CP_LAUNCH_GRID(gather_rows, blocks_of(call->rows, call->width), 1, 1,
                          THREADS, stream, *call);
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

CP_KERNEL(norm_rows, cp_device_norming) {
    CP_SHARED(float, of_warps, [WARPS]);
    const float *x = a.x + (int64_t)blockIdx.x * a.width;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        squares = fmaf(x[i], x[i], squares);
    const float mean = join_block(squares, false, of_warps) / (float)a.width;
    const float scale = 1.0f / sqrtf(mean + a.epsilon);
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        cp_put(a.y, a.element, blockIdx.x * a.width + i,
               x[i] * scale * a.weight[i]);
}

cudaError_t cp_device_norm(const cp_device_norming *call, cudaStream_t stream) {
    return CP_LAUNCH_GRID(norm_rows, blocks_of(call->rows, call->width), 1, 1,
                          THREADS, stream, *call);
}

CP_KERNEL(rotate_rows, cp_device_rotating) {
    const int64_t row = blockIdx.x, place = a.places[row];
    const int dim = (int)a.shape.head_dim, half = (dim + 1) / 2;
    const int query_heads = (int)a.shape.query_heads;
    const int kv_heads = (int)a.shape.kv_heads;
    const int heads = query_heads + 2 * kv_heads;
    if (place < 0)
        return;
    for (int n = (int)threadIdx.x; n < heads * half; n += THREADS) {
        const int head = n / half, i = n % half;
        const bool whole = 2 * i + 1 < dim;
        const int64_t from = (row * heads + head) * dim + 2 * i;
        float even = a.projected[from];
        float odd = whole ? a.projected[from + 1] : 0.0f;
        /* Turn the pair, unless it is a value. */
        if (i < a.pairs && head < query_heads + kv_heads) {
            const float cosine = a.cosines[row * a.pairs + i];
            const float sine = a.sines[row * a.pairs + i];
            const float turned = even * cosine - odd * sine;
            odd = even * sine + odd * cosine;
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

cudaError_t cp_device_rotate(const cp_device_rotating *call,
                             cudaStream_t stream) {
    const cp_shape *shape = &call->shape;
    const int64_t heads = shape->query_heads + 2 * shape->kv_heads;
    int64_t numbers;
    if (call->pairs < 0 || 2 * call->pairs > shape->head_dim ||
        !cp_multiply(heads, shape->head_dim, &numbers) || numbers > INT32_MAX)
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(rotate_rows, blocks_of(call->rows, numbers), 1, 1,
                          THREADS, stream, *call);
}

CP_KERNEL(gate_rows, cp_device_gating) {
    const int64_t row = blockIdx.x, first = (int64_t)blockIdx.y * PART;
    const int64_t end = first + PART < a.inner ? first + PART : a.inner;
    const float *gates = a.both + 2 * row * a.inner;
    const float *ups = gates + a.inner;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        const float gate = gates[i];
        cp_put(a.y, a.element, row * a.inner + i,
               gate / (1.0f + expf(-gate)) * ups[i]);
    }
}

cudaError_t cp_device_gate(const cp_device_gating *call, cudaStream_t stream) {
    return CP_LAUNCH_GRID(gate_rows, blocks_of(call->rows, call->inner),
                          cp_ceil_divide(call->inner, PART), 1, THREADS, stream,
                          *call);
}

CP_KERNEL(quantise_rows, cp_device_quantising) {
    CP_SHARED(float, of_warps, [WARPS]);
    const int64_t row = blockIdx.x, first = row * a.width;
    float largest = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        largest = fmaxf(largest, fabsf(a.x[first + i]));
    largest = join_block(largest, true, of_warps);
    const float scale =
        largest == 0.0f ? 1.0f : fmaxf(largest / 448.0f, 0x1p-126f);
    if (threadIdx.x == 0)
        a.scales[row] = scale;
    if (a.width % 4 == 0)
        /* Write four codes at a time. */
        for (int64_t i = threadIdx.x; i < a.width / 4; i += THREADS) {
            const float4 x = ((const float4 *)(a.x + first))[i];
            ((uint32_t *)a.y)[first / 4 + i] =
                cp_f8_bits(x.x / scale) | cp_f8_bits(x.y / scale) << 8 |
                cp_f8_bits(x.z / scale) << 16 | cp_f8_bits(x.w / scale) << 24;
        }
    else
        for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
            ((uint8_t *)a.y)[first + i] =
                (uint8_t)cp_f8_bits(a.x[first + i] / scale);
}

cudaError_t cp_device_quantise(const cp_device_quantising *call,
                               cudaStream_t stream) {
    const int64_t blocks = blocks_of(call->rows, call->width);
    if (blocks != 0 && call->width % 4 == 0 &&
        ((uintptr_t)call->x % 16 != 0 || (uintptr_t)call->y % 4 != 0))
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(quantise_rows, blocks, 1, 1, THREADS, stream, *call);
}
