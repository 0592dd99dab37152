/* Tangled from book/13-kernels.nw; edit the chapter. */
/* The beginning and end of every attention kernel: the rows of a block, the
 * keys that they see, and where their partial goes. For kernel files only. */
#ifndef CP_BLOCK_ROWS_H
#define CP_BLOCK_ROWS_H

#include "cuda/kernels/device_numbers.h"

typedef struct {
    cp_piece tile;
    int group;
    int first; /* rows of the tile: token times group, plus head */
    int count; /* 0: nothing to do */
} rows_of_block;

/* At most rows rows. A group with more needs several blocks for each token. */
CP_INLINE rows_of_block find_rows(const cp_device_attention *a, int rows) {
    rows_of_block block_rows;
    block_rows.count = 0;
    block_rows.group = (int)a->shape.query_heads / (int)a->shape.kv_heads;
    const int chunks = (block_rows.group + rows - 1) / rows;
    const int64_t n = *a->queries_of.count - 1 - (int)blockIdx.x / chunks;
    if (n >= 0) {
        block_rows.tile = a->queries_of.items[n];
        block_rows.first = (int)blockIdx.x % chunks * rows;
        const int left = (int)block_rows.tile.span.count * block_rows.group -
                         block_rows.first;
        block_rows.count = left < rows ? left : rows;
    }
    return block_rows;
}

/* The index [row][head] of the block's r-th row. */
CP_INLINE int64_t row_index(const cp_device_attention *a,
                            const rows_of_block *block_rows, int r) {
    const int n = block_rows->first + r, token = n / block_rows->group;
    const int head =
        (int)blockIdx.y * block_rows->group + n - token * block_rows->group;
    return (block_rows->tile.row + token) * a->shape.query_heads + head;
}

CP_INLINE int64_t position(const rows_of_block *block_rows, int r) {
    const cp_span queries = block_rows->tile.span;
    return queries.start +
           (block_rows->first + r) / block_rows->group * queries.step;
}

/* The number of keys of a span that a query sees: the first ones. */
CP_INLINE int64_t keys_seen(cp_span keys, int64_t position) {
    const int64_t past = position - keys.start;
    if (past < 0)
        return 0;
    const int64_t seen =
        keys.step == 1 ? past : (uint32_t)past / (uint32_t)keys.step;
    return seen < keys.count ? seen + 1 : keys.count;
}

/* Those of them that a window hides: the first ones. */
CP_INLINE int64_t keys_hidden(const cp_device_attention *a, cp_span keys,
                              int64_t position) {
    return a->shape.window > 0 ? keys_seen(keys, position - a->shape.window)
                               : 0;
}

typedef struct {
    const cp_piece *piece; /* of the sequence */
    cp_piece now;          /* the part that rows see, from the next tile */
    int tile, left;        /* the next tile of the piece; how many to come */
    int last;              /* the latest query's position */
    int hidden;            /* up to this one no row sees a key */
    int keys;              /* of a tile */
} keys_of_block;

CP_INLINE int tiles_of(const keys_of_block *walk, cp_span span) {
    const int64_t seen =
        keys_seen(span, walk->last) - keys_seen(span, walk->hidden);
    return ((int)seen + walk->keys - 1) / walk->keys;
}

CP_INLINE void pass_tiles(keys_of_block *walk, int tiles) {
    const int64_t keys = (int64_t)tiles * walk->keys;
    walk->tile += tiles;
    walk->now.row += keys;
    walk->now.span.start += keys * walk->now.span.step;
    walk->now.span.count -= keys;
}

CP_INLINE void begin_piece(keys_of_block *walk) {
    const cp_span span = walk->piece->span;
    const int64_t hidden = keys_seen(span, walk->hidden);
    walk->now = *walk->piece;
    walk->now.row += hidden;
    walk->now.span.start += hidden * span.step;
    walk->now.span.count = keys_seen(span, walk->last) - hidden;
    walk->tile = 0;
}

/* The list of keys of a sequence: in exact order, of this block's leaf. */
CP_INLINE int64_t list_of(const cp_device_attention *a, int64_t sequence) {
    int leaf = 0, before = (int)blockIdx.z;
    if (a->leaves == 0 || sequence < 0)
        return sequence;
    for (; (a->leaves >> leaf & 1) == 0 || before-- > 0; leaf++)
        continue;
    return sequence * CP_LEAVES + leaf;
}

CP_INLINE keys_of_block find_keys(const cp_device_attention *a,
                                  const rows_of_block *block_rows, int keys) {
    const int64_t sequence = list_of(a, block_rows->tile.span.sequence);
    keys_of_block walk = {0};
    walk.keys = keys;
    walk.last = (int)position(block_rows, block_rows->count - 1);
    walk.hidden = a->shape.window > 0
                      ? (int)(position(block_rows, 0) - a->shape.window)
                      : -1;
    if (a->leaves != 0) /* a block is a tile, whatever is hidden of it */
        walk.hidden = (walk.hidden + 1) / CP_LEAF_BLOCK * CP_LEAF_BLOCK - 1;
    if (sequence < 0 || sequence >= a->keys_of.sequences)
        return walk;
    /* Count the tiles that the last row sees. */
    const int64_t *first = a->keys_of.first + sequence;
    const int64_t begin = first[0], end = first[1];
    uint32_t tiles = 0;
    walk.piece = a->keys_of.items + begin;
    for (int64_t n = begin; n < end; n++)
        tiles += (uint32_t)tiles_of(&walk, a->keys_of.items[n].span);
    const uint32_t split = a->leaves != 0 ? 0 : blockIdx.z;
    const uint32_t each = tiles / (uint32_t)a->splits;
    const uint32_t extra = tiles - each * (uint32_t)a->splits;
    int before = (int)(each * split + (split < extra ? split : extra));
    int piece_tiles;
    walk.left = (int)(each + (split < extra));
    if (walk.left == 0)
        return walk;
    for (; before >= (piece_tiles = tiles_of(&walk, walk.piece->span));
         before -= piece_tiles)
        walk.piece++;
    begin_piece(&walk);
    pass_tiles(&walk, before);
    return walk;
}

/* The next keys, some of which a row sees; false if there are no more. */
CP_INLINE bool next_keys(keys_of_block *walk, cp_piece *keys) {
    if (walk->left-- <= 0)
        return false;
    while (walk->now.span.count <= 0) {
        walk->piece++;
        begin_piece(walk);
    }
    *keys = walk->now;
    if (keys->span.count > walk->keys)
        keys->span.count = walk->keys;
    pass_tiles(walk, 1);
    return true;
}

CP_INLINE float warp_max(float x) {
    for (int turn = 1; turn < 32; turn *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, turn));
    return x;
}

CP_INLINE float warp_sum(float x) {
    for (int turn = 1; turn < 32; turn *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, turn);
    return x;
}

enum { MOST_SPLITS = 128 };

/* The weights of splits lane, lane + 32, ...; and of what was found. */
typedef struct {
    float share[MOST_SPLITS / 32], old_share;
} split_weights;

/* wide numbers, which exist or not: 4, at a multiple of 16 bytes, or 1. */
CP_INLINE float4 load_some(const float *from, bool exist, int wide) {
    float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
    if (exist && wide == 4)
        x = CP_WIDE(const float4, from);
    else if (exist)
        x.x = *from;
    return x;
}

CP_INLINE void store_some(float *to, bool exist, int wide, float4 x) {
    if (exist && wide == 4)
        CP_WIDE(float4, to) = x;
    else if (exist)
        *to = x.x;
}

CP_INLINE void add_some(float4 *sum, float weight, float4 x) {
    sum->x = fmaf(weight, x.x, sum->x);
    sum->y = fmaf(weight, x.y, sum->y);
    sum->z = fmaf(weight, x.z, sum->z);
    sum->w = fmaf(weight, x.w, sum->w);
}

/* From number d of the row on. All lanes of a warp call it. */
CP_INLINE void merge_numbers(const cp_device_attention *a,
                             const split_weights *weights, int64_t at,
                             int64_t d, int wide) {
    const int64_t dim = a->shape.head_dim;
    const int64_t next = a->rows * a->shape.query_heads * dim;
    const bool exist = d < dim;
    const float *from = a->unfinished + at * dim + d;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f}, loaded[16];
    CP_NO_UNROLL
    for (int first = 0; first < a->splits; first += 16) {
        float share = 0.0f;
        CP_EACH(i, MOST_SPLITS / 32)
            share = first / 32 == i ? weights->share[i] : share;
        CP_EACH(i, 16) {
            loaded[i] = load_some(from, exist && first + i < a->splits, wide);
            from += next;
        }
        CP_EACH(i, 16) {
            const float weight =
                __shfl_sync(0xffffffffu, share, first % 32 + i);
            if (weight != 0.0f)
                add_some(&sum, weight, loaded[i]);
        }
    }
    /* Write these numbers of all splits. */
    float *to = a->output + at * dim + d;
    if (weights->old_share != 0.0f)
        add_some(&sum, weights->old_share, load_some(to, exist, wide));
    store_some(to, exist, wide, sum);
}

/* Outputs begin at multiples of 16 bytes where dim is a multiple of 4. */
static __device__ void merge_row(const cp_device_attention *a, int64_t at) {
    const int64_t dim = a->shape.head_dim;
    const int64_t rows = a->rows * a->shape.query_heads;
    const float *add_lse = a->unfinished + a->splits * rows * dim + at;
    const int lane = (int)threadIdx.x % 32;
    split_weights weights;
    /* Weigh the splits and what was found. */
    const float found = a->merge ? a->lse[at] : -INFINITY;
    float larger = found, sum = 0.0f;
    CP_EACH(i, MOST_SPLITS / 32) {
        const int s = lane + 32 * i;
        weights.share[i] = s < a->splits ? add_lse[s * rows] : -INFINITY;
        larger = fmaxf(larger, weights.share[i]);
    }
    larger = warp_max(larger);
    const float base = larger == -INFINITY ? 0.0f : larger;
    CP_EACH(i, MOST_SPLITS / 32) {
        weights.share[i] = expf(weights.share[i] - base);
        sum += weights.share[i];
    }
    weights.old_share = expf(found - base);
    sum = warp_sum(sum) + weights.old_share;
    const float inverse = sum > 0.0f ? 1.0f / sum : sum;
    CP_EACH(i, MOST_SPLITS / 32)
        weights.share[i] *= inverse;
    weights.old_share *= inverse;
    if (lane == 0)
        a->lse[at] = base + logf(sum);
    const int wide = dim % 4 == 0 ? 4 : 1;
    for (int64_t d = 0; d < dim; d += 32 * wide)
        if (wide == 4)
            merge_numbers(a, &weights, at, d + 4 * lane, 4);
        else
            merge_numbers(a, &weights, at, d + lane, 1);
}

CP_INLINE void merge_splits(const cp_device_attention *a,
                            const rows_of_block *block_rows) {
    const int warps = (int)blockDim.x / 32;
    if (is_last_block(&a->tickets[row_index(a, block_rows, 0)], a->splits))
        for (int r = (int)threadIdx.x / 32; r < block_rows->count; r += warps)
            merge_row(a, row_index(a, block_rows, r));
}

CP_INLINE int64_t value_width(const cp_shape *shape) {
    return shape->value_dim > 0 ? shape->value_dim : shape->head_dim;
}

/* The partial that a block writes, and whether to merge into the old one. */
CP_INLINE bool find_partial(const cp_device_attention *a, float **output,
                            float **lse) {
    const int64_t split = (int64_t)blockIdx.z, dim = value_width(&a->shape);
    const int64_t rows = a->rows * a->shape.query_heads;
    *output = a->splits == 1 ? a->output : a->unfinished + split * rows * dim;
    *lse = a->splits == 1 ? a->lse
                          : a->unfinished + (a->splits * dim + split) * rows;
    if (a->leaves != 0) {
        *output = a->unfinished + split * rows * (dim + 1);
        *lse = *output + rows * dim;
    }
    return a->merge && a->splits == 1;
}

/* Where a row's numbers go, or NULL if the row does not exist; and the weights
 * of the old numbers and of the new ones. */
typedef struct {
    float *to;
    float old_share, new_share;
} row_weights;

/* The level is that of the row's scores, to the base 2. All lanes of a warp
 * call it, those of a row with the same numbers. */
CP_INLINE row_weights weigh_row(const cp_device_attention *a,
                                const rows_of_block *block_rows, int row,
                                float level, float total) {
    row_weights weigh;
    weigh.to = NULL;
    float *output, *lse;
    const bool merges = find_partial(a, &output, &lse);
    const bool exists = row < block_rows->count, empty = total == 0.0f;
    const int64_t at = row_index(a, block_rows, exists ? row : 0);
    const float found = merges && exists ? lse[at] : -INFINITY;
    __syncwarp();
    if (!exists)
        return weigh;
    /* Weigh both sides. */
    const float fresh = empty ? -INFINITY : level * 0.693147181f + logf(total);
    const float larger = fmaxf(found, fresh);
    weigh.old_share = 0.0f;
    weigh.new_share = empty ? 0.0f : 1.0f / total;
    lse[at] = fresh;
    const float old = found == -INFINITY ? 0.0f : expf(found - larger);
    if (old != 0.0f) {
        const float add = empty ? 0.0f : expf(fresh - larger);
        lse[at] = larger + logf(old + add);
        weigh.old_share = old / (old + add);
        weigh.new_share *= add / (old + add);
    }
    weigh.to = output + at * value_width(&a->shape);
    return weigh;
}

CP_INLINE void put_number(const row_weights *weigh, int d, float sum) {
    if (weigh->to == NULL)
        return;
    const float mean = sum * weigh->new_share;
    weigh->to[d] = weigh->old_share == 0.0f
                       ? mean
                       : fmaf(weigh->old_share, weigh->to[d], mean);
}

/* Four of them, where a row begins at a multiple of 16 bytes. */
CP_INLINE void put_numbers(const row_weights *weigh, int d, float4 sum) {
    if (weigh->to == NULL)
        return;
    const float share = weigh->new_share;
    float4 x = {sum.x * share, sum.y * share, sum.z * share, sum.w * share};
    if (weigh->old_share != 0.0f)
        add_some(&x, weigh->old_share, CP_WIDE(float4, weigh->to + d));
    CP_WIDE(float4, weigh->to + d) = x;
}

/* The blocks for each part of a call; its parts, which are splits or leaves;
 * and the launches of other files' kernels. */
int64_t blocks_of(const cp_device_attention *call);
int64_t parts_of(const cp_device_attention *call);
cudaError_t cp_attend_tiles(const cp_device_attention *call,
                            cudaStream_t stream);
cudaError_t cp_attend_uneven(const cp_device_attention *call,
                             cudaStream_t stream);

#endif
