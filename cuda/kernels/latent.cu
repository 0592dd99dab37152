/* Tangled from book/16-latent.nw; edit the chapter. */
/* Attention on a GPU to heads that are uneven: values that are not as wide as
 * keys, or part of them, and heads that are wide. Right, and not fast. */
#include "cuda/kernels/launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/rows.h"

enum {
    ROWS = 32, /* as those of attend.cu, whose tiles of queries these are */
    WARPS = 4,
    NUMBERS = CP_HEAD_DIM_MAX / 32,
};

/* Numbers of a value, and from one to the next. */
typedef struct {
    int64_t value, step;
} widths_of_head;

CP_INLINE widths_of_head find_widths(const cp_shape *shape) {
    widths_of_head widths;
    widths.value = shape->value_dim > 0 ? shape->value_dim : shape->head_dim;
    widths.step = shape->latent ? shape->head_dim : widths.value;
    return widths;
}

/* What a warp has of a row: of the value, every 32nd number. */
typedef struct {
    float level, total, sums[NUMBERS];
} row_sums;

static __device__ float score_key(const cp_device_attention *a,
                                  const float *query, int64_t key) {
    const int64_t dim = a->shape.head_dim;
    float score = 0.0f, part = 0.0f;
    for (int64_t d = 0; d < dim; d++) {
        part = fmaf(query[d], cp_get(a->keys, a->element, key * dim + d), part);
        if (d % 32 == 31) { /* short sums lose less */
            score += part;
            part = 0.0f;
        }
    }
    return score + part;
}

/* Add so many keys, 32 at most, from the first on. */
static __device__ void add_keys(const cp_device_attention *a,
                                const widths_of_head *widths,
                                const float *query, cp_piece keys, int count,
                                row_sums *row) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t first = keys.row * a->key_heads + blockIdx.y;
    const float score = lane < count
                            ? score_key(a, query, first + lane * a->key_heads)
                            : -INFINITY;
    const float now = fmaxf(row->level, warp_max(score));
    const float level = now == -INFINITY ? 0.0f : now;
    const float weight = lane < count ? exp2f(score - level) : 0.0f;
    const float factor = exp2f(row->level - level);
    row->total = row->total * factor + warp_sum(weight);
    row->level = now;
    CP_EACH(c, NUMBERS)
        row->sums[c] *= factor;
    for (int key = 0; key < count; key++) {
        const float share = __shfl_sync(0xffffffffu, weight, key);
        const int64_t value =
            (first + key * a->key_heads) * widths->step + lane;
        CP_EACH(c, NUMBERS)
            if (lane + 32 * c < widths->value)
                row->sums[c] =
                    fmaf(share, cp_get(a->values, a->element, value + 32 * c),
                         row->sums[c]);
    }
}

static __device__ void attend_row(const cp_device_attention *a,
                                  const rows_of_block *mine, int r,
                                  float *query) {
    const widths_of_head widths = find_widths(&a->shape);
    const int64_t dim = a->shape.head_dim, at = place(a, mine, r);
    const int lane = (int)threadIdx.x % 32;
    row_sums row = {-INFINITY, 0.0f, {0.0f}};
    cp_piece keys;
    for (int64_t d = lane; d < dim; d += 32)
        query[d] = cp_get(a->queries, a->element, at * dim + d) *
                   (1.44269504f / sqrtf((float)dim));
    __syncwarp();
    keys_of_block walk = find_keys(a, mine, 32);
    while (next_keys(&walk, &keys))
        add_keys(a, &widths, query, keys,
                 (int)keys_seen(keys.span, position(mine, r)), &row);
    row_weights weigh = weigh_row(a, mine, r, row.level, row.total);
    weigh.to = a->output + at * widths.value;
    CP_EACH(c, NUMBERS)
        if (lane + 32 * c < widths.value)
            put_number(&weigh, lane + 32 * c, row.sums[c]);
    __syncwarp();
}

CP_KERNEL(attend_uneven, cp_device_attention) {
    CP_SHARED(float, queries, [WARPS][CP_HEAD_DIM_MAX]);
    const rows_of_block mine = find_rows(&a, ROWS);
    const int warp = (int)threadIdx.x / 32;
    for (int r = warp; r < mine.count; r += WARPS)
        attend_row(&a, &mine, r, queries[warp]);
}

cudaError_t cp_attend_uneven(const cp_device_attention *call,
                             cudaStream_t stream) {
    if (call->splits != 1)
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(attend_uneven, blocks_of(call) / call->shape.kv_heads,
                          call->shape.kv_heads, 1, 32 * WARPS, stream, *call);
}
