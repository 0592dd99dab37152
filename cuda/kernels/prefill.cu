/* Tangled from book/14-hopper.nw; edit the chapter. */
/* Attention for many queries on Hopper: the consumers of the fast kernel, in
 * which three kinds of warps hand work to each other, and the launch of both.
 * For sm_90a. */
#include "cuda/kernels/kernel_launch.h"

#include <string.h>

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/maps.h"
#include "cuda/kernels/prefill.h"
#include "cuda/kernels/prefill_feed.h"
#include "cuda/kernels/prefill_plain.h"

/* A consumer's cursors, and the state of its run, whose last tile comes
 * first. */
typedef struct {
    stage_cursor keys, values, run, item;
    int left, flags; /* left: tiles */
    int seen[2];     /* how many of the run's keys each of the two rows sees */
    int hidden[2];   /* with a window: the first of these, which it hides */
    bool arrived;    /* the next tile's keys, as far as is known */
} progress;

CP_ALWAYS void take_run(const block_memory *block, progress *at) {
    const run_of_keys *run = &block->runs[at->run.stage];
    barrier_wait(&block->barriers->runs_full[at->run.stage], at->run.phase);
    at->left = uniform(run->tiles);
    at->flags = uniform(run->flags);
    CP_EACH(h, 2) {
        at->seen[h] = run->seen[row_of_thread(h)];
        if (block->window)
            at->hidden[h] =
                block->hidden[at->run.stage * ROWS + row_of_thread(h)];
    }
    __syncwarp();
    let_go(&block->barriers->runs_empty[at->run.stage]);
    advance(&at->run);
}

/* Advance to the next tile of this run, or of the next run. */
CP_ALWAYS void next_tile(const block_memory *block, progress *at) {
    at->flags &= MASKED;
    if (--at->left == 0)
        take_run(block, at);
}

/* A thread's numbers, all in registers; and descriptors of the first tile of
 * each kind, with the step to the second. */
typedef struct {
    float scores[64], sums[64];
    uint32_t weights[32];
    row_sums rows;
    float factor[2];
    uint64_t queries, keys, values;
    uint32_t step;
    int group;
} consumer;

CP_ALWAYS uint64_t tile_at(const consumer *c, uint64_t first, stage_cursor at) {
    return first + (uint64_t)((uint32_t)at.stage * c->step);
}

CP_ALWAYS void begin_scores(const progress *at, int boxes, consumer *c) {
    score_tile(c->scores, tile_at(c, c->queries, at->item),
               tile_at(c, c->keys, at->keys), boxes);
}

CP_ALWAYS void begin_values(const block_memory *block, const progress *at,
                            consumer *c) {
    barrier_wait(&block->barriers->values_full[at->values.stage],
                 at->values.phase);
    add_values(c->sums, c->weights, tile_at(c, c->values, at->values),
               block->boxes);
}

/* In its turn, a consumer begins the scores of this tile and the values of the
 * one before, and then waits for the scores. */
CP_ALWAYS void begin_both(const block_memory *block, progress *at,
                          consumer *c) {
    if (!at->arrived)
        barrier_wait(&block->barriers->keys_full[at->keys.stage],
                     at->keys.phase);
    at->arrived = false;
    named_wait(TURN + c->group, WITHOUT_PRODUCER);
    begin_scores(at, block->boxes, c);
    begin_values(block, at, c);
    named_arrive(TURN + (c->group ^ 1), WITHOUT_PRODUCER);
    PRODUCTS_WAIT(1);
    hold_registers(c->scores, 64);
}

CP_ALWAYS void end_keys(const block_memory *block, progress *at) {
    let_go(&block->barriers->keys_empty[at->keys.stage]);
    advance(&at->keys);
}

CP_ALWAYS void end_values(const block_memory *block, progress *at,
                          consumer *c) {
    PRODUCTS_WAIT(0);
    hold_registers(c->sums, 32 * block->boxes);
    let_go(&block->barriers->values_empty[at->values.stage]);
    advance(&at->values);
}

/* 2^32, with room for sums of values that are themselves large. */
#define HIGHEST 4294967296.0f

CP_ALWAYS void mask_tile(const block_memory *block, const progress *at,
                         consumer *c) {
    const int before = (at->left - 1) * KEYS;
    const int limit[2] = {at->seen[0] - before, at->seen[1] - before};
    const int hidden[2] = {at->hidden[0] - before, at->hidden[1] - before};
    mask_scores(c->scores, block->window ? hidden : NULL, limit);
}

/* Turn half of a row's scores into weights, and add them to two of the four
 * sums: halves 0 and 1 are the first row's. */
CP_ALWAYS void weigh_half(consumer *c, int half, float scale, float *sums) {
    CP_EACH(g, 8) {
        const int h = half / 2, first = 32 * (half % 2) + 4 * g + 2 * h;
        CP_UNROLL for (int i = first; i < first + 2; i++) {
            c->scores[i] =
                fast_exp2(fmaf(c->scores[i], scale, -c->rows.level[h]));
            sums[2 * h + i % 2] += c->scores[i];
        }
    }
}

/* By the products of a warp, for its own rows. */
CP_ALWAYS void score_again(const block_memory *block, const progress *at,
                           consumer *c) {
    const int lane = (int)threadIdx.x % 32, tile = block->boxes * BOX;
    const int warp = (int)threadIdx.x % WITHOUT_PRODUCER / 32;
    const cp_shared queries =
        part_at(cp_shared_at(block->queries + at->item.stage * tile),
                16 * warp + lane % 16, lane / 16);
    const cp_shared keys =
        part_at(cp_shared_at(block->keys + at->keys.stage * tile),
                lane % 8 + lane / 16 * 8, lane / 8 % 2);
    CP_EACH(i, 64)
        c->scores[i] = 0.0f;
    CP_NO_UNROLL for (int k = 0; k < 4 * block->boxes; k++) {
        const int along = 32 * (k % 4), box = k / 4 * BOX;
        uint32_t a[4], b[4];
        cp_load_matrices(a, cp_shared_xor(queries, along) + box);
        CP_EACH(i, 8) {
            cp_load_matrices(b, cp_shared_xor(keys, along) + box + 2048 * i);
            cp_multiply_add(c->scores + 8 * i, a, b);
            cp_multiply_add(c->scores + 8 * i + 4, a, b + 2);
        }
    }
    __syncwarp(); /* all lanes have read the keys */
}

/* Note whether the keys of the next tile have arrived already. */
CP_ALWAYS void look_ahead(const block_memory *block, progress *at,
                          float weight) {
    stage_cursor next = at->keys;
    advance(&next);
    at->arrived = barrier_over_after(&block->barriers->keys_full[next.stage],
                                     next.phase, weight);
}

/* A tile that is not an item's first, with the level that there is. */
CP_ALWAYS void attend_tile(const block_memory *block, progress *at, consumer *c,
                           float scale, bool masked) {
    row_sums *rows = &c->rows;
    float sums[4] = {rows->total[0], 0.0f, rows->total[1], 0.0f};
    begin_both(block, at, c);
    if (masked)
        mask_tile(block, at, c);
    weigh_half(c, 0, scale, sums);
    look_ahead(block, at, sums[1]);
    weigh_half(c, 1, scale, sums);
    end_values(block, at, c);
    hold_registers(c->scores, 64);
    weigh_half(c, 2, scale, sums);
    weigh_half(c, 3, scale, sums);
    pair_weights(c->weights, c->scores);
    const float totals[2] = {sums[0] + sums[1], sums[2] + sums[3]};
    if (any_lane(!(totals[0] <= HIGHEST) || !(totals[1] <= HIGHEST))) {
        /* Weigh again, with a new level. */
        score_again(block, at, c);
        if (masked)
            mask_tile(block, at, c);
        weigh_tile(c->scores, rows, c->factor, scale);
        rescale(c->sums, c->factor, block->boxes);
        pair_weights(c->weights, c->scores);
    } else {
        CP_EACH(h, 2)
            rows->total[h] = totals[h];
    }
    end_keys(block, at);
    next_tile(block, at);
}

/* Weigh an item's first tile, whose scores are complete. */
CP_ALWAYS void weigh_first(const block_memory *block, progress *at, consumer *c,
                           float scale) {
    end_keys(block, at);
    mask_tile(block, at, c);
    CP_EACH(h, 2) {
        c->rows.level[h] = -INFINITY;
        c->rows.total[h] = 0.0f;
    }
    weigh_tile(c->scores, &c->rows, c->factor, scale);
    hold_registers(c->scores, 64);
}

CP_ALWAYS void write_item(const cp_device_attention *a, const int64_t *indices,
                          const row_sums *rows, const consumer *c, int dim) {
    const int64_t index[2] = {indices[row_of_thread(0)],
                              indices[row_of_thread(1)]};
    write_rows(a, index, indices[0], rows, c->sums, dim);
    __syncwarp();
}

CP_ALWAYS void attend_items(const prefill_call *a, const block_memory *parts,
                            int dim) {
    /* Begin to consume. */
    const block_memory block = *parts;
    const float scale = score_scale(dim);
    const int leading = block.window ? 0 : MASKED; /* an item's first tiles */
    progress at = {{0, 0}, {0, 0}, {0, 0}, {0, 0}, 0, 0, {0, 0}, {0, 0}, false};
    consumer c;
    c.group = uniform((int)threadIdx.x / GROUP);
    c.step = (uint32_t)block.boxes * BOX / 16;
    c.queries =
        keep_in_register(matrix_at(block.queries + c.group * 64 * 128, 0));
    c.keys = keep_in_register(matrix_at(block.keys, 0));
    c.values = keep_in_register(matrix_at(block.values, BOX));
    if (c.group == 1)
        named_arrive(TURN, WITHOUT_PRODUCER);
    take_run(&block, &at);
    if (at.flags & OVER)
        return;
    /* Weigh the first tile of all. */
    barrier_wait(&block.barriers->items_full[0], 0);
    barrier_wait(&block.barriers->keys_full[0], 0);
    begin_scores(&at, block.boxes, &c);
    PRODUCTS_WAIT(0);
    hold_registers(c.scores, 64);
    weigh_first(&block, &at, &c, scale);
    pair_weights(c.weights, c.scores);
    CP_UNROLL for (int i = 0; i < 32 * block.boxes; i++) c.sums[i] = 0.0f;
    next_tile(&block, &at);
    for (;;) {
        CP_NO_UNROLL while (at.flags == leading)
            attend_tile(&block, &at, &c, scale, leading == MASKED);
        CP_NO_UNROLL while (at.flags == (leading ^ MASKED))
            attend_tile(&block, &at, &c, scale, leading != MASKED);
        if (at.flags & OVER)
            break;
        /* Begin an item while the one before it ends. */
        const row_sums done = c.rows;
        const int before = at.item.stage;
        advance(&at.item);
        barrier_wait(&block.barriers->items_full[at.item.stage], at.item.phase);
        begin_both(&block, &at, &c);
        weigh_first(&block, &at, &c, scale);
        end_values(&block, &at, &c);
        pair_weights(c.weights, c.scores);
        write_item(&a->call, block.items[before].index, &done, &c, dim);
        let_go(&block.barriers->items_empty[before]);
        CP_UNROLL for (int i = 0; i < 32 * block.boxes; i++) c.sums[i] = 0.0f;
        next_tile(&block, &at);
    }
    /* End the last item. */
    begin_values(&block, &at, &c);
    PRODUCTS_WAIT(0);
    hold_registers(c.sums, 32 * block.boxes);
    const row_sums done = c.rows;
    write_item(&a->call, block.items[at.item.stage].index, &done, &c, dim);
}

/* Zero the rows of queries that no copy writes, where a token's heads do not
 * divide a tile: what lies there could be NaN, and would be weighed again with
 * every tile. */
CP_ALWAYS void clean_queries(const prefill_call *a, const block_memory *block) {
    const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    const int per_box = (ROWS - a->box_rows) * 8;
    for (int box = 0; box < STAGES * block->boxes; box++)
        for (int i = (int)threadIdx.x; i < per_box; i += WITH_PRODUCER)
            CP_WIDE(float4, block->queries + box * BOX + a->box_rows * 128 +
                                16 * i) = zero;
    async_fence();
}

CP_ALWAYS void attend_in_turns(const prefill_call *a, int dim, bool window) {
    CP_DYNAMIC(shared);
    const block_memory block = lay_out(shared, dim, window);
    clean_queries(a, &block);
    /* Begin the block's barriers. */
    if (threadIdx.x == 0)
        begin_barriers(block.barriers);
    __syncthreads();
    if (uniform((int)threadIdx.x / GROUP) == CONSUMERS) {
        REGISTERS_DOWN(24);
        const int warp = (int)threadIdx.x % GROUP / 32;
        if (warp == 0)
            copy_tiles(a, &block);
        else if (warp == 1)
            walk_lists(a, &block, dim);
    } else {
        REGISTERS_UP(240);
        attend_items(a, &block, dim);
    }
}

enum { TOGETHER = 16 << 20 }; /* bytes of keys and values that L2 can hold */

static cudaError_t prepare(const cp_device_attention *call, prefill_call *out) {
    const cp_shape s = call->shape;
    const int64_t group = s.query_heads / s.kv_heads;
    const int64_t heads = cp_min(group, ROWS);
    const int64_t apart = cp_max(call->key_heads, s.kv_heads);
    out->call = *call;
    out->together = (uint32_t)cp_max(
        1, cp_min(s.kv_heads, TOGETHER / (4 * s.head_dim *
                                          cp_max(1, call->keys_of.longest))));
    out->group = (int)group;
    out->box_rows = (int)(ROWS / heads * heads);
    out->items = (uint32_t)(call->queries_of.room *
                            cp_ceil_divide(group, ROWS) * s.kv_heads);
    cudaError_t error =
        cp_tensor_map(call->queries, call->rows, s.query_heads, s.query_heads,
                      s.head_dim, ROWS / heads, heads, &out->queries);
    if (error == cudaSuccess)
        error = cp_tensor_map(call->keys, call->key_rows, apart, s.kv_heads,
                              s.head_dim, KEYS, 1, &out->keys);
    if (error == cudaSuccess)
        error = cp_tensor_map(call->values, call->key_rows, apart, s.kv_heads,
                              s.head_dim, KEYS, 1, &out->values);
    return error;
}

#define PREFILL(name, threads, attend)                                         \
    CP_KERNEL_ALONE(prefill_##name, prefill_call, threads) {                   \
        attend;                                                                \
    }
PREFILL(plainly_64, WITHOUT_PRODUCER, attend_plainly(&a, 64))
PREFILL(plainly_128, WITHOUT_PRODUCER, attend_plainly(&a, 128))
PREFILL(in_turns_64, WITH_PRODUCER, attend_in_turns(&a, 64, false))
PREFILL(in_turns_128, WITH_PRODUCER, attend_in_turns(&a, 128, false))
PREFILL(window_64, WITH_PRODUCER, attend_in_turns(&a, 64, true))
PREFILL(window_128, WITH_PRODUCER, attend_in_turns(&a, 128, true))

/* A block for each item; or persistent ones, one for each multiprocessor. */
static cudaError_t blocks_for(int which, const prefill_call *a,
                              int64_t *blocks) {
    int twice = 0; /* twice the multiprocessors */
    const cudaError_t error = cp_device_blocks(&twice);
    const int64_t most = cp_max(1, twice / 2 - a->call.spared);
    const int64_t heads = a->call.shape.kv_heads;
    *blocks =
        which == CP_PREFILL_PLAIN ? a->items / heads : cp_min(a->items, most);
    return error;
}

#define LAUNCH(name, heads, threads)                                           \
    (dim == 64 ? CP_LAUNCH_GRID_SHARED(prefill_##name##_64, blocks, heads, 1,  \
                                       threads, bytes, stream, a)              \
               : CP_LAUNCH_GRID_SHARED(prefill_##name##_128, blocks, heads, 1, \
                                       threads, bytes, stream, a))

cudaError_t cp_device_prefill(const cp_device_attention *call, int which,
                              cudaStream_t stream) {
    prefill_call a;
    const int64_t dim = call->shape.head_dim;
    int64_t blocks;
    cudaError_t error = cudaSuccess;
    const bool window = call->shape.window > 0;
    if (window && which == CP_PREFILL_PLAIN)
        return cudaErrorInvalidValue;
    if (call->queries_of.room == 0)
        return cudaSuccess;
    error = prepare(call, &a);
    if (error == cudaSuccess)
        error = blocks_for(which, &a, &blocks);
    if (error != cudaSuccess)
        return error;
    const size_t bytes = shared_bytes(dim, window);
    return which == CP_PREFILL_PLAIN
               ? LAUNCH(plainly, call->shape.kv_heads, WITHOUT_PRODUCER)
           : window ? LAUNCH(window, 1, WITH_PRODUCER)
                    : LAUNCH(in_turns, 1, WITH_PRODUCER);
}

int64_t cp_device_prefill_tile(const cp_shape *shape) {
    return ROWS / cp_min(shape->query_heads / shape->kv_heads, ROWS);
}
