/* Tangled from book/16-latent.nw; edit the chapter. */
/* Attention on a GPU for heads that the tiled kernels do not handle: values of
 * another width than keys, or part of them; wide heads; and chosen keys only.
 * Correct, not fast. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/block_rows.h"

enum {
    ROWS = 32, /* as in attend.cu, which makes the tiles of queries */
    WARPS = 4,
    NUMBERS = CP_HEAD_DIM_MAX / 32,
};

/* The width of a value, and the distance from one value to the next. */
typedef struct {
    int64_t value, step;
} widths_of_head;

CP_INLINE widths_of_head find_widths(const cp_shape *shape) {
    widths_of_head widths;
    widths.value = value_width(shape);
    widths.step = shape->latent ? shape->head_dim : widths.value;
    return widths;
}

/* What the lanes of a warp share: a query, and the rows of 32 keys. */
typedef struct {
    float *query;
    int64_t *rows;
} row_work;

/* What a lane has of a row's sums: of the output, every 32nd number. */
typedef struct {
    float level, total, sums[NUMBERS];
} latent_sums;

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

/* Add one key from each of the first count lanes: key_row is its row, or below
 * 0 if the lane has no key, as in all lanes from count on. */
static __device__ void add_keys(const cp_device_attention *a,
                                const widths_of_head *widths,
                                const row_work *work, int64_t key_row,
                                int64_t count, latent_sums *row) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t head = blockIdx.y;
    const float score =
        key_row < 0 ? -INFINITY
                    : score_key(a, work->query, key_row * a->key_heads + head);
    const float now = fmaxf(row->level, warp_max(score));
    const float level = now == -INFINITY ? 0.0f : now;
    const float weight = key_row < 0 ? 0.0f : exp2f(score - level);
    work->rows[lane] = key_row;
    __syncwarp();
    const float factor = exp2f(row->level - level);
    row->total = row->total * factor + warp_sum(weight);
    row->level = now;
    CP_EACH(c, NUMBERS)
        row->sums[c] *= factor;
    for (int key = 0; key < 32 && key < count; key++) {
        const float share = __shfl_sync(0xffffffffu, weight, key);
        const int64_t value =
            (work->rows[key] * a->key_heads + head) * widths->step + lane;
        if (work->rows[key] < 0)
            continue;
        CP_EACH(c, NUMBERS)
            if (lane + 32 * c < widths->value)
                row->sums[c] =
                    fmaf(share, cp_get(a->values, a->element, value + 32 * c),
                         row->sums[c]);
    }
    __syncwarp();
}

/* The row of the n-th key that query row r has chosen; -1: not in this block.
 */
static __device__ int64_t chosen_row(const cp_device_attention *a,
                                     const rows_of_block *block_rows, int r,
                                     int64_t n) {
    const int64_t sequence = block_rows->tile.span.sequence;
    const int64_t token =
        block_rows->tile.row + (block_rows->first + r) / block_rows->group;
    if (n >= a->top_k || sequence < 0 || sequence >= a->keys_of.sequences)
        return -1;
    const uint16_t *halves =
        (const uint16_t *)a->chosen + 2 * (token * a->top_k + n);
    const int64_t position = (int64_t)((uint32_t)halves[1] << 16 | halves[0]);
    const int64_t *first = a->keys_of.first + sequence;
    for (int64_t p = first[0]; p < first[1]; p++) {
        const cp_piece keys = a->keys_of.items[p];
        const int64_t ahead = position - keys.span.start;
        if (ahead >= 0 && ahead % keys.span.step == 0 &&
            ahead / keys.span.step < keys.span.count)
            return keys.row + ahead / keys.span.step;
    }
    return -1;
}

/* Add all that a row attends to: its chosen keys, or all keys it sees. */
static __device__ void add_all(const cp_device_attention *a,
                               const rows_of_block *block_rows, int r,
                               const widths_of_head *widths,
                               const row_work *work, latent_sums *row) {
    const int lane = (int)threadIdx.x % 32;
    cp_piece keys;
    for (int64_t n = 0; a->chosen != NULL && n < a->top_k; n += 32)
        add_keys(a, widths, work, chosen_row(a, block_rows, r, n + lane),
                 a->top_k - n, row);
    if (a->chosen != NULL)
        return;
    keys_of_block walk = find_keys(a, block_rows, 32);
    while (next_keys(&walk, &keys)) {
        const int64_t at = position(block_rows, r);
        const int count = (int)keys_seen(keys.span, at);
        const bool sees = lane < count && lane >= keys_hidden(a, keys.span, at);
        add_keys(a, widths, work, sees ? keys.row + lane : -1, count, row);
    }
}

static __device__ void attend_row(const cp_device_attention *a,
                                  const rows_of_block *block_rows, int r,
                                  const row_work *work) {
    const widths_of_head widths = find_widths(&a->shape);
    const int64_t dim = a->shape.head_dim, at = row_index(a, block_rows, r);
    const int lane = (int)threadIdx.x % 32;
    latent_sums row = {-INFINITY, 0.0f, {0.0f}};
    for (int64_t d = lane; d < dim; d += 32)
        work->query[d] = cp_get(a->queries, a->element, at * dim + d) *
                         (1.44269504f / sqrtf((float)dim));
    __syncwarp();
    add_all(a, block_rows, r, &widths, work, &row);
    const row_weights weigh = weigh_row(a, block_rows, r, row.level, row.total);
    CP_EACH(c, NUMBERS)
        if (lane + 32 * c < widths.value)
            put_number(&weigh, lane + 32 * c, row.sums[c]);
    __syncwarp();
}

CP_KERNEL(attend_uneven, cp_device_attention) {
    CP_SHARED(float, queries, [WARPS][CP_HEAD_DIM_MAX]);
    CP_SHARED(int64_t, rows, [WARPS][32]);
    const rows_of_block block_rows = find_rows(&a, ROWS);
    const int warp = (int)threadIdx.x / 32;
    const row_work work = {queries[warp], rows[warp]};
    for (int r = warp; r < block_rows.count; r += WARPS)
        attend_row(&a, &block_rows, r, &work);
}

cudaError_t cp_attend_uneven(const cp_device_attention *call,
                             cudaStream_t stream) {
    if (call->splits != 1)
        return cudaErrorInvalidValue;
    return CP_LAUNCH_GRID(attend_uneven, blocks_of(call) / call->shape.kv_heads,
                          call->shape.kv_heads, parts_of(call), 32 * WARPS,
                          stream, *call);
}
