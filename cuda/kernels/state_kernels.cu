/* Tangled from book/16-state-gpu.nw; edit the chapter. */
/* Layers with a state: a few lanes follow a column of a head's state, token by
 * token, and a thread follows a channel. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "cuda/kernels/state_kernels.h"
#ifdef __cplusplus
}
#endif

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    MANY = 1024, /* threads of a block that works alone */
    LANES = 8,   /* that share a column of a state */
    COLUMNS = THREADS / LANES,
    HELD = CP_DEVICE_DIM_MAX / LANES /* numbers of a column in a lane */
};

/* The sum of x over this number of neighbouring lanes, a power of 2. */
static __device__ float sum_lanes(float x, int lanes) {
    for (int turn = lanes / 2; turn > 0; turn /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, turn);
    return x;
}

static __device__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static __device__ int64_t row_of(const int64_t *order, int64_t t) {
    return order != NULL ? order[t] : t;
}

CP_KERNEL(split_rows, cp_device_split_args) {
    const float *from = a.from + blockIdx.x * a.stride;
    float *to = a.to + blockIdx.x * (a.channels + 2 * a.heads);
    float *kept = a.kept + blockIdx.x * a.gates;
    for (int64_t i = threadIdx.x; i < a.channels; i += THREADS)
        to[i] = from[i];
    for (int64_t i = threadIdx.x; i < a.gates; i += THREADS)
        kept[i] = from[a.channels + i];
    from += a.channels + a.gates;
    to += a.channels;
    for (int64_t h = threadIdx.x; h < a.heads; h += THREADS) {
        const float x = from[h] + a.bias[h];
        to[h] = a.factor[h] * (x > 20.0f ? x : log1pf(expf(x)));
        to[a.heads + h] = sigmoid(from[a.heads + h]);
    }
}

cudaError_t cp_device_split(const cp_device_split_args *call,
                            cudaStream_t stream) {
    return CP_LAUNCH_GRID(split_rows, call->rows, 1, 1, THREADS, stream, *call);
}

CP_KERNEL(take_tail, cp_device_take_args) {
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t room = a.of.room;
    const int64_t held = room < a.of.tokens ? room : a.of.tokens;
    for (int64_t i = room - held; i < room && c < a.of.channels; i++)
        a.tail[1 + i * a.of.channels + c] =
            a.of.rows[row_of(a.of.order, a.of.tokens - room + i) * a.of.stride +
                      c];
    if (c == 0)
        a.tail[0] = (float)held;
}

cudaError_t cp_device_take(const cp_device_take_args *call,
                           cudaStream_t stream) {
    return CP_LAUNCH_GRID(take_tail, cp_ceil_divide(call->of.channels, THREADS),
                          1, 1, THREADS, stream, *call);
}

/* One block, so that the count is read before it is written. */
CP_KERNEL(combine_tails, cp_device_tails_args) {
    const int64_t held = (int64_t)a.tail[0], before = (int64_t)a.earlier[0];
    const int64_t space = a.room - held,
                  taken = space < before ? space : before;
    const int64_t first = 1 + (space - taken) * a.channels;
    const float *from = a.earlier + first + held * a.channels;
    for (int64_t i = threadIdx.x; i < taken * a.channels; i += MANY)
        a.tail[first + i] = from[i];
    __syncthreads();
    if (threadIdx.x == 0)
        a.tail[0] = (float)(held + taken);
}

cudaError_t cp_device_tails(const cp_device_tails_args *call,
                            cudaStream_t stream) {
    return CP_LAUNCH_GRID(combine_tails, 1, 1, 1, MANY, stream, *call);
}

/* From the last token back: a row is overwritten when no other needs it. */
CP_KERNEL(convolve_rows, cp_device_convolve_args) {
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t width = a.of.room + 1, channels = a.of.channels;
    if (c >= channels)
        return;
    const int64_t held = a.tail != NULL ? (int64_t)a.tail[0] : 0;
    for (int64_t t = a.of.tokens - 1; t >= 0; t--) {
        float sum = 0.0f;
        for (int64_t i = 0; i < width; i++) {
            const int64_t at = t - a.of.room + i;
            if (at >= 0)
                sum += a.taps[c * width + i] *
                       a.of.rows[row_of(a.of.order, at) * a.of.stride + c];
            else if (-at <= held)
                sum += a.taps[c * width + i] *
                       a.tail[1 + (a.of.room + at) * channels + c];
        }
        a.of.rows[row_of(a.of.order, t) * a.of.stride + c] = sum * sigmoid(sum);
    }
}

cudaError_t cp_device_convolve(const cp_device_convolve_args *call,
                               cudaStream_t stream) {
    return CP_LAUNCH_GRID(convolve_rows,
                          cp_ceil_divide(call->of.channels, THREADS), 1, 1,
                          THREADS, stream, *call);
}

/* A warp for each head of each token. */
CP_KERNEL(normalise_heads, cp_device_normalise_args) {
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int64_t token = n / (2 * a.key_heads), head = n % (2 * a.key_heads);
    if (token >= a.tokens)
        return;
    float *x = a.rows + row_of(a.order, token) * a.stride + head * a.key_dim;
    float squares = 0.0f;
    for (int64_t d = threadIdx.x % 32; d < a.key_dim; d += 32)
        squares += x[d] * x[d];
    const float scale = head < a.key_heads ? (float)a.key_dim : 1.0f;
    const float length = 1.0f / sqrtf((sum_lanes(squares, 32) + 1e-6f) * scale);
    for (int64_t d = threadIdx.x % 32; d < a.key_dim; d += 32)
        x[d] *= length;
}

cudaError_t cp_device_normalise(const cp_device_normalise_args *call,
                                cudaStream_t stream) {
    const int64_t heads = 2 * call->tokens * call->key_heads;
    return CP_LAUNCH_GRID(normalise_heads, cp_ceil_divide(heads, WARPS), 1, 1,
                          THREADS, stream, *call);
}

/* Lane l of a column has its numbers l, l + LANES, ...; a lane without a column
 * takes part in the sums. */
CP_KERNEL(follow_tokens, cp_device_follow_args) {
    const cp_state_facts f = a.facts;
    const int64_t head = blockIdx.x, lane = threadIdx.x % LANES;
    const int64_t c = (int64_t)blockIdx.y * COLUMNS + threadIdx.x / LANES;
    const int64_t keys = f.key_dim, blank = a.pairs ? keys : 0;
    const bool used = c < blank + f.value_dim;
    const float *q = a.rows + head % f.key_heads * keys + lane;
    const float *k = q + f.key_heads * keys;
    const float *values = a.rows + 2 * f.key_heads * keys;
    const float *v = values + head * f.value_dim;
    const float *decay = values + f.heads * f.value_dim + head;
    const int left = (int)(keys - lane); /* of a column, from its lane on */
    float state[HELD];
    CP_EACH(i, HELD) {
        const int64_t d = i * LANES + lane;
        state[i] = d == c && c < blank ? 1.0f : 0.0f;
        if (a.before.at != NULL && used && d < keys)
            state[i] = a.before.at[(head * keys + d) * a.before.stride + c];
    }
    for (int64_t t = 0; t < a.tokens; t++) {
        const int64_t row = row_of(a.order, t), at = row * a.stride;
        const float kept = expf(decay[at]);
        const float rate = decay[at + f.heads];
        const float value = used && c >= blank ? v[at + c - blank] : 0.0f;
        float prediction = 0.0f, answer = 0.0f;
        CP_EACH(i, HELD) {
            if (i * LANES >= left)
                break;
            state[i] *= kept;
            prediction += state[i] * k[at + i * LANES];
        }
        const float change = rate * (value - sum_lanes(prediction, LANES));
        CP_EACH(i, HELD) {
            if (i * LANES >= left)
                break;
            state[i] += k[at + i * LANES] * change;
            answer += state[i] * q[at + i * LANES];
        }
        if (a.answers == NULL)
            continue;
        answer = sum_lanes(answer, LANES);
        if (lane == 0 && used && c >= blank)
            a.answers[(row * f.heads + head) * f.value_dim + c - blank] =
                answer;
    }
    CP_EACH(i, HELD) {
        const int64_t d = i * LANES + lane;
        if (a.after.at != NULL && used && d < keys)
            a.after.at[(head * keys + d) * a.after.stride + c] = state[i];
    }
}

cudaError_t cp_device_follow(const cp_device_follow_args *call,
                             cudaStream_t stream) {
    const cp_state_facts *f = &call->facts;
    const int64_t width = f->value_dim + (call->pairs ? f->key_dim : 0);
    if (f->key_dim > CP_DEVICE_DIM_MAX)
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(follow_tokens, f->heads,
                          cp_ceil_divide(width, COLUMNS), 1, THREADS, stream,
                          *call);
}

/* A block for each row of the later pair, which it alone reads and writes. */
CP_KERNEL(combine_pairs, cp_device_pairs_args) {
    CP_SHARED(float, row, [CP_DEVICE_DIM_MAX]);
    const int64_t keys = a.facts.key_dim, width = keys + a.facts.value_dim;
    const float *before = a.earlier + blockIdx.x / keys * keys * width;
    float *to = a.pair + blockIdx.x * width;
    for (int64_t d = threadIdx.x; d < keys; d += THREADS)
        row[d] = to[d];
    __syncthreads();
    for (int64_t c = threadIdx.x; c < width; c += THREADS) {
        float sum = c < keys ? 0.0f : to[c];
        for (int64_t d = 0; d < keys; d++)
            sum += row[d] * before[d * width + c];
        to[c] = sum;
    }
}

cudaError_t cp_device_pairs(const cp_device_pairs_args *call,
                            cudaStream_t stream) {
    const cp_state_facts *f = &call->facts;
    if (f->key_dim > CP_DEVICE_DIM_MAX)
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(combine_pairs, f->heads * f->key_dim, 1, 1, THREADS,
                          stream, *call);
}

CP_KERNEL(open_gates, cp_device_open_args) {
    const int64_t index = a.indices[blockIdx.x], dim = a.dim;
    const int64_t row = a.placed ? index : blockIdx.x;
    const int lane = (int)threadIdx.x % 32;
    for (int64_t head = threadIdx.x / 32; head < a.heads; head += WARPS) {
        const float *x = a.answers + (row * a.heads + head) * dim;
        float *gates = a.gates + (blockIdx.x * a.heads + head) * dim;
        float squares = 0.0f;
        for (int64_t d = lane; d < dim && index >= 0; d += 32)
            squares += x[d] * x[d];
        squares = sum_lanes(squares, 32);
        const float scale = 1.0f / sqrtf(squares / (float)dim + a.epsilon);
        for (int64_t d = lane; d < dim; d += 32) {
            const float gate = gates[d];
            const float y = index < 0 ? 0.0f
                            : a.weight == NULL
                                ? x[d]
                                : x[d] * scale * a.weight[d] * gate;
            gates[d] = y * sigmoid(gate);
        }
    }
}

cudaError_t cp_device_open(const cp_device_open_args *call,
                           cudaStream_t stream) {
    return CP_LAUNCH_GRID(open_gates, call->rows, 1, 1, THREADS, stream, *call);
}

/* The blocks of a row share its numbers. */
CP_KERNEL(cut_rows, cp_device_cut_args) {
    const int64_t first = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    const int64_t step = (int64_t)gridDim.y * THREADS;
    for (int n = 0; n < a.cut.count; n++) {
        const cp_head_strip s = a.cut.strips[n];
        const int64_t wide = a.cut.key_heads * s.dim, count = a.cut.has * s.dim;
        float *full = a.full + blockIdx.x * a.cut.width + s.full;
        float *part = a.part + blockIdx.x * a.cut.part_width + s.part;
        full += a.cut.first * s.dim;
        for (int64_t i = first; i < s.groups * count; i += step) {
            float *one = &full[i / count * wide + i % count];
            *(a.back ? one : &part[i]) = *(a.back ? &part[i] : one);
        }
    }
}

cudaError_t cp_device_cut(const cp_device_cut_args *call, cudaStream_t stream) {
    enum { MOST = 64 };
    const int64_t across = cp_ceil_divide(call->cut.part_width, THREADS);
    return CP_LAUNCH_GRID(cut_rows, call->rows, cp_min(across, MOST), 1,
                          THREADS, stream, *call);
}
