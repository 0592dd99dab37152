/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Makes lists of the best keys of each query. Correct, not fast. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/block_rows.h"
#include "cuda/kernels/device_top_k.h"

enum { WARPS = 4 };

static __device__ bool before(cp_candidate a, cp_candidate b) {
    return a.score > b.score || (a.score == b.score && a.position < b.position);
}

/* All lanes of a warp offer the same key. */
static __device__ void offer(cp_candidate *list, int64_t room,
                             cp_candidate key) {
    const int lane = (int)threadIdx.x % 32;
    int64_t first = 0, last = room - 1;
    if (!before(key, list[last]))
        return;
    while (first < last) {
        const int64_t middle = (first + last) / 2;
        if (before(list[middle], key))
            first = middle + 1;
        else
            last = middle;
    }
    /* Shift the entries behind it, 32 at a time, from the end. */
    for (int64_t to = room - 1 - lane; to + lane >= first; to -= 32) {
        const cp_candidate moved = to > first ? list[to - 1] : key;
        __syncwarp();
        if (to >= first)
            list[to] = moved;
        __syncwarp();
    }
}

static __device__ float score_key(const cp_device_selection *a, int64_t row,
                                  int64_t key) {
    const int64_t heads = a->indexer.heads, dim = a->indexer.dim;
    float sum = 0.0f;
    for (int64_t h = row * heads; h < (row + 1) * heads; h++) {
        float dot = 0.0f;
        for (int64_t d = 0; d < dim; d++)
            dot = fmaf(cp_get(a->queries, a->element, h * dim + d),
                       cp_get(a->keys, a->element, key * dim + d), dot);
        sum = fmaf(cp_get(a->weights, a->element, h), dot <= 0.0f ? 0.0f : dot,
                   sum);
    }
    return sum != sum ? -INFINITY : sum;
}

/* Offer those keys of a piece that a query at position sees. */
static __device__ void offer_keys(const cp_device_selection *a, int64_t row,
                                  int64_t position, cp_piece keys,
                                  cp_candidate *list) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t room = a->indexer.top_k;
    const int64_t seen = keys_seen(keys.span, position);
    for (int64_t j = 0; j < seen; j += 32) {
        const float lane_score = j + lane < seen
                                     ? score_key(a, row, keys.row + j + lane)
                                     : -INFINITY;
        for (int l = 0; l < 32 && j + l < seen; l++) {
            const float score = __shfl_sync(0xffffffffu, lane_score, l);
            const int64_t at = keys.span.start + (j + l) * keys.span.step;
            const cp_candidate key = {score, (int32_t)at};
            offer(list, room, key);
        }
    }
}

static __device__ void select_row(const cp_device_selection *a, cp_span tile,
                                  int64_t row, int64_t position) {
    const int64_t room = a->indexer.top_k;
    const cp_candidate none = {-INFINITY, INT32_MAX};
    cp_candidate *list = a->lists + row * room;
    for (int64_t n = threadIdx.x % 32; n < room && !a->merge; n += 32)
        list[n] = none;
    __syncwarp();
    if (tile.sequence < 0 || tile.sequence >= a->keys_of.sequences)
        return;
    const int64_t *first = a->keys_of.first + tile.sequence;
    for (int64_t p = first[0]; p < first[1]; p++)
        offer_keys(a, row, position, a->keys_of.items[p], list);
}

CP_KERNEL(select_keys, cp_device_selection) {
    if ((int64_t)blockIdx.x >= *a.queries_of.count)
        return;
    const cp_piece tile = a.queries_of.items[blockIdx.x];
    for (int64_t i = threadIdx.x / 32; i < tile.span.count; i += WARPS)
        select_row(&a, tile.span, tile.row + i,
                   tile.span.start + i * tile.span.step);
}

CP_KERNEL(merge_lists, cp_device_lists) {
    const int64_t first = blockIdx.x * a.room;
    cp_candidate *list = a.to + first;
    for (int64_t n = 0; n < a.room; n++)
        offer(list, a.room, a.from[first + n]);
}

cudaError_t cp_device_select(const cp_device_selection *call,
                             cudaStream_t stream) {
    return CP_LAUNCH_GRID(select_keys, call->queries_of.room, 1, 1, 32 * WARPS,
                          stream, *call);
}

cudaError_t cp_device_merge_lists(const cp_device_lists *call,
                                  cudaStream_t stream) {
    return CP_LAUNCH_GRID(merge_lists, call->rows, 1, 1, 32, stream, *call);
}
