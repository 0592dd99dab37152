/* Tangled from book/14-hopper.nw; edit the chapter. */
/* Attention for few queries on Hopper: one warp copies, eight multiply. For
 * sm_90a. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/block_rows.h"
#include "cuda/kernels/tensor.h"
#include "cuda/kernels/shared_rows.h"

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/maps.h"

enum {
    ROWS = 16,        /* tokens times heads */
    KEYS = 128,       /* of a tile */
    BOX = KEYS * 128, /* bytes of 64 dimensions of a tile */
    WARPS = 8,        /* consumers, 16 keys of a tile each */
    THREADS = 32 * (WARPS + 1),
    PAIRS = 3, /* tiles of keys and of values */
    MOST_DIM = 128,
    BEGUN = 1, /* named barriers */
    MULTIPLIED,
};

typedef struct {
    cp_device_attention call;
    CUtensorMap keys, values;
} few_call;

/* The keys of each pair of tiles, 0 keys after the last pair; and barriers. */
typedef struct {
    cp_piece piece[PAIRS];
    uint64_t keys_full[PAIRS], keys_empty[PAIRS];
    uint64_t values_full[PAIRS], values_empty[PAIRS];
} handed_pairs;

typedef struct {
    int pair, phase;
} pair_cursor;

CP_ALWAYS void advance(pair_cursor *c) {
    if (++c->pair == PAIRS) {
        c->pair = 0;
        c->phase ^= 1;
    }
}

CP_ALWAYS void begin_barriers(handed_pairs *handed) {
    for (int i = 0; i < PAIRS; i++) {
        barrier_init(&handed->keys_full[i], 1);
        barrier_init(&handed->keys_empty[i], WARPS);
        barrier_init(&handed->values_full[i], 1);
        barrier_init(&handed->values_empty[i], WARPS);
    }
    barriers_ready();
}

CP_ALWAYS void let_go(uint64_t *empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

CP_ALWAYS void load_tile(unsigned char *to, const CUtensorMap *map, int boxes,
                         int row, uint64_t *full) {
    barrier_expect(full, boxes * BOX);
    for (int box = 0; box < boxes; box++)
        load_box(to + box * BOX, map, 64 * box, (int)blockIdx.y, row, full);
}

/* Begin a block's barriers, find its keys, and copy them. */
CP_ALWAYS void copy_pairs(const few_call *a, const rows_of_block *block_rows,
                          handed_pairs *handed, unsigned char *shared,
                          int boxes) {
    if (threadIdx.x % 32 == 0) {
        begin_barriers(handed);
        prefetch_map(&a->keys);
        prefetch_map(&a->values);
    }
    keys_of_block walk = find_keys(&a->call, block_rows, KEYS);
    named_wait(BEGUN, THREADS);
    if (threadIdx.x % 32 > 0)
        return;
    pair_cursor at = {0, 0};
    cp_piece keys = {{0, 0, 0, 1}, 0};
    while (next_keys(&walk, &keys)) {
        unsigned char *to = shared + 2 * at.pair * boxes * BOX;
        barrier_wait(&handed->keys_empty[at.pair], at.phase ^ 1);
        handed->piece[at.pair] = keys;
        load_tile(to, &a->keys, boxes, (int)keys.row,
                  &handed->keys_full[at.pair]);
        barrier_wait(&handed->values_empty[at.pair], at.phase ^ 1);
        load_tile(to + boxes * BOX, &a->values, boxes, (int)keys.row,
                  &handed->values_full[at.pair]);
        advance(&at);
    }
    barrier_wait(&handed->keys_empty[at.pair], at.phase ^ 1);
    handed->piece[at.pair].span.count = 0;
    barrier_arrive(&handed->keys_full[at.pair]);
}

/* A thread's two rows, 8 apart; level: the maximum score, not yet scaled. */
typedef struct {
    float output[MOST_DIM / 8][4];
    float level[2], total[2];
} warp_sums;

/* Load a block's queries as fragments for a product; 0 for missing rows. */
CP_ALWAYS void load_queries(const cp_device_attention *a,
                            const rows_of_block *block_rows,
                            uint32_t queries[][4], int dim) {
    const int lane = (int)threadIdx.x % 32;
    CP_EACH(half, 2) {
        const int row = lane / 4 + 8 * half;
        const bool exists = row < block_rows->count;
        const uint32_t *from =
            (const uint32_t *)a->queries +
            (row_index(a, block_rows, exists ? row : 0) * dim + lane % 4 * 2) /
                2;
        CP_EACH(k, dim / 16)
            CP_EACH(i, 2)
                queries[k][2 * i + half] = exists ? from[8 * k + 4 * i] : 0;
    }
}

CP_ALWAYS void score_keys(float scores[2][4], uint32_t queries[][4],
                          cp_shared tile, int boxes) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const cp_shared row =
        part_at(tile, 16 * warp + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    CP_EACH(k, 4 * boxes) {
        uint32_t b[4];
        cp_load_matrices(b, cp_shared_xor(row, 32 * (k % 4)) + k / 4 * BOX);
        cp_multiply_add(scores[0], queries[k], b);
        cp_multiply_add(scores[1], queries[k], b + 2);
    }
}

CP_ALWAYS void hide_keys(const cp_device_attention *a, float scores[2][4],
                         const rows_of_block *block_rows, cp_span keys) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    CP_EACH(half, 2) {
        const int64_t at = position(block_rows, lane / 4 + 8 * half);
        const int column = 16 * warp + lane % 4 * 2;
        const int reach = (int)keys_seen(keys, at) - column;
        const int hidden = (int)keys_hidden(a, keys, at) - column;
        CP_EACH(n, 4)
            if (n / 2 * 8 + n % 2 >= reach || n / 2 * 8 + n % 2 < hidden)
                scores[n / 2][2 * half + n % 2] = -INFINITY;
    }
}

CP_ALWAYS void weigh_keys(float scores[2][4], warp_sums *sums, int dim) {
    const float scale = 1.44269504f / sqrtf((float)dim);
    CP_EACH(half, 2) {
        float top = sums->level[half];
        CP_EACH(n, 4)
            top = fmaxf(top, scores[n / 2][2 * half + n % 2]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float base = top == -INFINITY ? 0.0f : __fmul_rn(top, scale);
        const float factor =
            fast_exp2(__fmul_rn(sums->level[half], scale) - base);
        float sum = 0.0f;
        sums->level[half] = top;
        CP_EACH(n, 4) {
            float *score = &scores[n / 2][2 * half + n % 2];
            *score = fast_exp2(fmaf(*score, scale, -base));
            sum += *score;
        }
        sums->total[half] = fmaf(sums->total[half], factor, sum);
        if (factor != 1.0f)
            CP_EACH(n, dim / 4)
                sums->output[n / 2][2 * half + n % 2] *= factor;
    }
}

/* Zero the values of the warp's keys from key `from` of the tile on. */
CP_ALWAYS void clean_own(unsigned char *values, int boxes, int from) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    const int first = from > 16 * warp ? from : 16 * warp;
    for (int box = 0; box < boxes; box++)
        for (int i = 8 * first + lane; i < 8 * 16 * (warp + 1); i += 32)
            ((float4 *)(void *)(values + box * BOX))[i] = zero;
    async_fence();
    __syncwarp();
}

CP_ALWAYS void add_own_values(warp_sums *sums, float scores[2][4],
                              cp_shared values, int boxes) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const cp_shared row = part_at(values, 16 * warp + lane % 16, lane / 16);
    uint32_t weights[4];
    CP_EACH(i, 4)
        weights[i] =
            bf16_pair(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
    CP_EACH(d, 4 * boxes) {
        uint32_t b[4];
        cp_load_transposed(b, cp_shared_xor(row, 32 * (d % 4)) + d / 4 * BOX);
        cp_multiply_add(sums->output[2 * d], weights, b);
        cp_multiply_add(sums->output[2 * d + 1], weights, b + 2);
    }
}

CP_ALWAYS void multiply_pairs(const few_call *a,
                              const rows_of_block *block_rows,
                              handed_pairs *handed, unsigned char *shared,
                              int dim) {
    const int boxes = dim / 64;
    const cp_shared memory = cp_shared_at(shared);
    const float scale = 1.44269504f / sqrtf((float)dim);
    uint32_t queries[MOST_DIM / 16][4];
    warp_sums sums = {{{0.0f}}, {-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    pair_cursor at = {0, 0};
    load_queries(&a->call, block_rows, queries, dim);
    named_wait(BEGUN, THREADS);
    /* Attend with a warp's keys. */
    for (;;) {
        barrier_wait(&handed->keys_full[at.pair], at.phase);
        const cp_span keys = handed->piece[at.pair].span;
        if (keys.count == 0)
            break;
        const cp_shared tile = memory + 2 * at.pair * boxes * BOX;
        float scores[2][4] = {{0.0f}};
        score_keys(scores, queries, tile, boxes);
        let_go(&handed->keys_empty[at.pair]);
        if (keys_seen(keys, position(block_rows, 0)) < KEYS ||
            keys_hidden(&a->call, keys,
                        position(block_rows, block_rows->count - 1)) > 0)
            hide_keys(&a->call, scores, block_rows, keys);
        weigh_keys(scores, &sums, dim);
        barrier_wait(&handed->values_full[at.pair], at.phase);
        if (keys.count < KEYS)
            clean_own(shared + (2 * at.pair + 1) * boxes * BOX, boxes,
                      (int)keys.count);
        add_own_values(&sums, scores, tile + boxes * BOX, boxes);
        let_go(&handed->values_empty[at.pair]);
        advance(&at);
    }
    CP_EACH(half, 2) {
        float *total = &sums.total[half];
        *total += __shfl_xor_sync(0xffffffffu, *total, 1);
        *total += __shfl_xor_sync(0xffffffffu, *total, 2);
        sums.level[half] *= scale;
    }
    named_wait(MULTIPLIED, 32 * WARPS);
    leave_sums(dim, (float *)(void *)shared, sums.output, sums.level,
               sums.total);
}

CP_ALWAYS void attend_few(const few_call *a, int dim) {
    CP_DYNAMIC(shared);
    handed_pairs *handed =
        (handed_pairs *)(void *)(shared + 2 * PAIRS * dim / 64 * BOX);
    const int warp = uniform((int)threadIdx.x / 32);
    const rows_of_block block_rows = find_rows(&a->call, ROWS);
    if (block_rows.count <= 0)
        return;
    if (warp < WARPS)
        multiply_pairs(a, &block_rows, handed, shared, dim);
    else
        copy_pairs(a, &block_rows, handed, shared, dim / 64);
    __syncthreads();
    for (int row = warp; row < block_rows.count; row += WARPS + 1)
        write_shared(&a->call, dim, WARPS, &block_rows, (float *)(void *)shared,
                     row);
    if (a->call.splits > 1)
        merge_splits(&a->call, &block_rows);
}

#define ATTEND_FEW(dim)                                                        \
    CP_KERNEL_ALONE(attend_few_##dim, few_call, THREADS) {                     \
        attend_few(&a, dim);                                                   \
    }
ATTEND_FEW(64)
ATTEND_FEW(128)

cudaError_t cp_device_decode(const cp_device_attention *call,
                             cudaStream_t stream) {
    const cp_shape s = call->shape;
    const int64_t apart = cp_max(call->key_heads, s.kv_heads);
    const size_t bytes =
        (size_t)(2 * PAIRS * s.head_dim / 64 * BOX) + sizeof(handed_pairs);
    few_call a;
    a.call = *call;
    cudaError_t error = cp_tensor_map(call->keys, call->key_rows, apart,
                                      s.kv_heads, s.head_dim, KEYS, 1, &a.keys);
    if (error == cudaSuccess)
        error = cp_tensor_map(call->values, call->key_rows, apart, s.kv_heads,
                              s.head_dim, KEYS, 1, &a.values);
    if (error != cudaSuccess)
        return error;
    const int64_t blocks = blocks_of(call) / s.kv_heads;
    return s.head_dim == 64 ? CP_LAUNCH_GRID_SHARED(attend_few_64, blocks,
                                                    s.kv_heads, parts_of(call),
                                                    THREADS, bytes, stream, a)
                            : CP_LAUNCH_GRID_SHARED(attend_few_128, blocks,
                                                    s.kv_heads, parts_of(call),
                                                    THREADS, bytes, stream, a);
}
