/* Tangled from book/14-hopper.nw; edit the chapter. */
/* Attention for many queries on Hopper: a plain kernel, and the fast one, in
 * which three kinds of warps hand work to each other. For sm_90a. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cuda/kernels/block_rows.h"

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/maps.h"
#include "cuda/kernels/prefill.h"

enum {
    ROWS = 128,       /* of a tile of queries: tokens times heads */
    KEYS = 128,       /* of a tile of keys */
    BOX = ROWS * 128, /* bytes of 64 dimensions of a tile */
    STAGES = 2,       /* tiles of keys, of values, of queries; and of lists */
    CONSUMERS = 2,    /* warpgroups that multiply, 64 rows each */
    GROUP = 128,      /* threads of a warpgroup */
    WITHOUT_PRODUCER = CONSUMERS * GROUP,
    WITH_PRODUCER = WITHOUT_PRODUCER + GROUP,
    TURN = 1, /* the first of two numbered barriers: each consumer's turn */
};

typedef struct {
    cp_device_attention call;
    uint32_t items;    /* tiles of queries times key heads */
    uint32_t together; /* key heads whose items run at the same time */
    int group;         /* query heads of a key head */
    int box_rows;      /* of queries: those of whole tokens */
    CUtensorMap queries, keys, values;
} prefill_call;

/* Consecutive tiles of keys of a piece, for one item. */
typedef struct {
    int tiles, flags;
    int row, count; /* the first key's row in the tensor; keys from there to the
                       end of the piece */
    int seen[ROWS]; /* how many of these keys each row sees */
} run_of_keys;

/* For an item: the index [row][head] of each of its rows, -1 past its end; its
 * key head; and where its queries lie. */
typedef struct {
    int64_t index[ROWS];
    int head, query_head, query_row;
} rows_of_item;

/* Flags of a run: some rows do not see all of it; it is its item's first; there
 * are no more runs. */
enum { MASKED = 1, BEGINS = 2, OVER = 4 };

/* Barriers of a block. Full: the guarded data has arrived; empty: its readers
 * are done. */
typedef struct {
    uint64_t runs_full[STAGES], runs_empty[STAGES];
    uint64_t items_full[STAGES], items_empty[STAGES];
    uint64_t keys_full[STAGES], keys_empty[STAGES];
    uint64_t values_full[STAGES], values_empty[STAGES];
    uint64_t tail; /* values that a warp must clean before use */
} block_barriers;

/* The shared memory of a block. An item has one tile of queries. */
typedef struct {
    unsigned char *queries, *keys, *values;
    block_barriers *barriers;
    run_of_keys *runs;
    rows_of_item *items;
    int *positions; /* [ROWS]: of the item that is being handed on */
    int boxes;      /* of 64 dimensions */
} block_memory;

/* One of the two stages of a ring buffer, and the alternating parity of its
 * barriers' phase. */
typedef struct {
    int stage, phase;
} stage_cursor;

CP_ALWAYS void advance(stage_cursor *c) {
    c->stage ^= 1;
    c->phase ^= c->stage == 0;
}

CP_ALWAYS block_memory lay_out(unsigned char *memory, int dim) {
    block_memory parts;
    const int tile = dim / 64 * BOX;
    parts.boxes = dim / 64;
    parts.queries = memory;
    parts.keys = parts.queries + STAGES * tile;
    parts.values = parts.keys + STAGES * tile;
    parts.items = (rows_of_item *)(void *)(parts.values + STAGES * tile);
    parts.runs = (run_of_keys *)(void *)(parts.items + STAGES);
    parts.positions = (int *)(void *)(parts.runs + STAGES);
    parts.barriers = (block_barriers *)(void *)(parts.positions + ROWS);
    return parts;
}

static size_t shared_bytes(int64_t dim) {
    return (size_t)(3 * STAGES * dim / 64 * BOX + ROWS * 4) +
           STAGES * (sizeof(rows_of_item) + sizeof(run_of_keys)) +
           sizeof(block_barriers);
}

/* One thread initialises all barriers. Each reading warp reports when it is
 * done. */
CP_ALWAYS void begin_barriers(block_barriers *b) {
    const int readers = WITHOUT_PRODUCER / 32;
    barrier_init(&b->tail, 1);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(&b->runs_full[i], 1);
        barrier_init(&b->runs_empty[i], readers + 1);
        barrier_init(&b->items_full[i], 1);
        barrier_init(&b->items_empty[i], readers);
        barrier_init(&b->keys_full[i], 1);
        barrier_init(&b->keys_empty[i], readers);
        barrier_init(&b->values_full[i], 1);
        barrier_init(&b->values_empty[i], readers);
    }
    barriers_ready();
}

/* Zero the values of a tile from this row on; threads share the work. */
CP_ALWAYS void clean_values(unsigned char *values, int boxes, int row,
                            int thread, int threads) {
    const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int box = 0; box < boxes; box++)
        for (int i = row * 8 + thread; i < KEYS * 8; i += threads)
            ((float4 *)(void *)(values + box * BOX))[i] = zero;
    async_fence();
}

CP_ALWAYS void load_queries(const prefill_call *a, const block_memory *block,
                            int head, int row, int buffer) {
    uint64_t *full = &block->barriers->items_full[buffer];
    unsigned char *to = block->queries + buffer * block->boxes * BOX;
    barrier_expect(full, block->boxes * a->box_rows * 128);
    for (int box = 0; box < block->boxes; box++)
        load_box(to + box * BOX, &a->queries, 64 * box, head, row, full);
}

CP_ALWAYS void load_tile(unsigned char *to, const CUtensorMap *map, int boxes,
                         int head, int row, uint64_t *full) {
    barrier_expect(full, boxes * BOX);
    for (int box = 0; box < boxes; box++)
        load_box(to + box * BOX, map, 64 * box, head, row, full);
}

CP_ALWAYS void score_tile(float *scores, uint64_t queries, uint64_t keys,
                          int boxes) {
    products_begin();
    CP_UNROLL for (int k = 0; k < 4 * boxes; k++) {
        const uint64_t along = (uint64_t)(k / 4 * (BOX / 16) + k % 4 * 2);
        multiply_scores(scores, queries + along, keys + along, k > 0);
    }
    products_commit();
}

CP_ALWAYS void add_values(float *sums, const uint32_t *weights, uint64_t values,
                          int boxes) {
    products_begin();
    CP_UNROLL for (int k = 0; k < KEYS / 16; k++) {
        const uint64_t down = values + (uint64_t)(k * 16 * 128 / 16);
        if (boxes == 2)
            multiply_values_128(sums, weights + 4 * k, down);
        else
            multiply_values_64(sums, weights + 4 * k, down);
    }
    products_commit();
}

/* Report that a warp is done with the guarded data. */
CP_ALWAYS void let_go(uint64_t *empty) {
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

/* A thread's row h of an item, 0 or 1: the two are 8 apart. */
CP_ALWAYS int row_of_thread(int h) {
    const int thread = (int)threadIdx.x % WITHOUT_PRODUCER;
    return thread / 32 * 16 + thread % 32 / 4 + 8 * h;
}

/* The level of the weights of a thread's two rows, and the sums of these. */
typedef struct {
    float level[2], total[2];
} row_sums;

/* Mask the keys of a tile from each row's limit on. */
CP_ALWAYS void mask_scores(float *scores, const int *limit) {
    const int lane = (int)threadIdx.x % 4;
    CP_UNROLL for (int i = 0; i < 64; i++) {
        const int column = 8 * (i / 4) + 2 * lane + i % 2;
        if (column >= limit[i / 2 % 2])
            scores[i] = -INFINITY;
    }
}

CP_ALWAYS void pair_weights(uint32_t *weights, const float *scores) {
    CP_UNROLL for (int i = 0; i < 32; i++) weights[i] =
        bf16_pair(scores[2 * i], scores[2 * i + 1]);
}

CP_ALWAYS void rescale(float *sums, const float *factor, int boxes) {
    CP_UNROLL for (int i = 0; i < 32 * boxes; i++) sums[i] *= factor[i / 2 % 2];
}

CP_ALWAYS float score_scale(int dim) {
    return 1.44269504f / sqrtf((float)dim);
}

/* Write a thread's two rows to these indices, -1 for none. first: the index of
 * the item's first row, which always exists. */
CP_ALWAYS void write_rows(const cp_device_attention *a, const int64_t *index,
                          int64_t first, const row_sums *rows,
                          const float *sums, int dim) {
    const int64_t at[2] = {index[0] >= 0 ? index[0] : first,
                           index[1] >= 0 ? index[1] : first};
    const int lane = 2 * ((int)threadIdx.x % 4);
    float found[2] = {-INFINITY, -INFINITY};
    float2 was[16]; /* of the first row, then of the second */
    if (a->merge) {
        CP_EACH(h, 2)
            found[h] = a->lse[at[h]];
        CP_EACH(g, dim / 8)
            was[g] = load_pair(a->output + at[0] * dim + lane + 8 * g);
    }
    CP_UNROLL for (int h = 0; h < 2; h++) {
        float total = rows->total[h];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const bool exists = index[h] >= 0;
        float *to = a->output + at[h] * dim + lane;
        const bool empty = !(total > 0.0f || total != total);
        const float fresh =
            empty ? -INFINITY
                  : 0.693147181f * (rows->level[h] + fast_log2(total));
        const float larger = fmaxf(found[h], fresh);
        const float old = found[h] == -INFINITY
                              ? 0.0f
                              : fast_exp2(1.44269504f * (found[h] - larger));
        const float add =
            empty ? 0.0f : fast_exp2(1.44269504f * (fresh - larger));
        const float inverse = fast_inverse(old + add);
        const float old_share = old == 0.0f ? 0.0f : old * inverse;
        const float factor = empty ? 0.0f : add * inverse * fast_inverse(total);
        __syncwarp();
        store_one(a->lse + at[h],
                  old == 0.0f
                      ? fresh
                      : fmaf(0.693147181f, fast_log2(old + add), larger),
                  exists && threadIdx.x % 4 == 0);
        if (a->merge) {
            CP_UNROLL for (int g = 0; g < dim / 8; g++) {
                const float2 old_pair = was[g];
                const float x = empty ? 0.0f : sums[4 * g + 2 * h] * factor;
                const float y = empty ? 0.0f : sums[4 * g + 2 * h + 1] * factor;
                if (h == 0) /* while the first row is written */
                    was[g] = load_pair(a->output + at[1] * dim + lane + 8 * g);
                store_pair(
                    to + 8 * g,
                    old_share == 0.0f ? x : fmaf(old_share, old_pair.x, x),
                    old_share == 0.0f ? y : fmaf(old_share, old_pair.y, y),
                    exists);
            }
        } else {
            CP_UNROLL for (int g = 0; g < dim / 8; g++) store_pair(
                to + 8 * g, empty ? 0.0f : sums[4 * g + 2 * h] * factor,
                empty ? 0.0f : sums[4 * g + 2 * h + 1] * factor, exists);
        }
    }
}

CP_ALWAYS void mask_plainly(float *scores, const rows_of_block *block_rows,
                            cp_span keys) {
    int seen[2];
    CP_UNROLL for (int h = 0; h < 2; h++) {
        const int r = row_of_thread(h), last = block_rows->count - 1;
        seen[h] =
            (int)keys_seen(keys, position(block_rows, r < last ? r : last));
    }
    mask_scores(scores, seen);
}

/* Turn two rows' scores into weights, 2^(score - level), where the level is the
 * highest so far, and add them up; factor is for what was added before. */
CP_ALWAYS void weigh_tile(float *scores, row_sums *rows, float *factor,
                          float scale) {
    CP_EACH(h, 2) {
        float top = scores[2 * h], other = scores[2 * h + 1];
        CP_EACH(g, 15) {
            top = fmaxf(top, scores[4 * (g + 1) + 2 * h]);
            other = fmaxf(other, scores[4 * (g + 1) + 2 * h + 1]);
        }
        top = fmaxf(top, other);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float before = rows->level[h];
        rows->level[h] = fmaxf(before, __fmul_rn(top, scale));
        const float base = rows->level[h] == -INFINITY ? 0.0f : rows->level[h];
        float sum = 0.0f;
        factor[h] = fast_exp2(before - base);
        CP_EACH(g, 16)
            CP_UNROLL for (int i = 4 * g + 2 * h; i < 4 * g + 2 * h + 2; i++) {
                scores[i] = fast_exp2(fmaf(scores[i], scale, -base));
                sum += scores[i];
            }
        rows->total[h] = fmaf(rows->total[h], factor[h], sum);
    }
}

/* How many rows of the tile just returned belong to its span. */
CP_ALWAYS int rows_of_tile(const keys_of_block *walk) {
    const int64_t left = walk->piece->span.count - (walk->tile - 1) * KEYS;
    return (int)(left < KEYS ? left : KEYS);
}

CP_ALWAYS void load_both(const prefill_call *a, const block_memory *block,
                         int head, int row, int n) {
    const int tile = block->boxes * BOX;
    load_tile(block->keys + n * tile, &a->keys, block->boxes, head, row,
              &block->barriers->keys_full[n]);
    load_tile(block->values + n * tile, &a->values, block->boxes, head, row,
              &block->barriers->values_full[n]);
}

CP_ALWAYS void attend_plainly(const prefill_call *a, int dim) {
    CP_DYNAMIC(shared);
    const block_memory block = lay_out(shared, dim);
    const rows_of_block block_rows = find_rows(&a->call, ROWS);
    const int head = (int)blockIdx.y;
    if (block_rows.count <= 0)
        return;
    /* Begin the block's barriers. */
    if (threadIdx.x == 0)
        begin_barriers(block.barriers);
    __syncthreads();
    /* Begin an item plainly. */
    float scores[64], sums[64] = {0.0f}, factor[2];
    uint32_t weights[32];
    row_sums rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    keys_of_block walk = find_keys(&a->call, &block_rows, KEYS);
    cp_piece keys;
    const int group = uniform((int)threadIdx.x / GROUP);
    const unsigned char *queries = block.queries + group * 64 * 128;
    const int boxes = block.boxes, tile = boxes * BOX;
    stage_cursor at = {0, 0}, next = {1, 0};
    bool has_next = next_keys(&walk, &keys);
    if (has_next && threadIdx.x == 0) {
        load_queries(a, &block, head * block_rows.group + block_rows.first,
                     (int)block_rows.tile.row, 0);
        load_both(a, &block, head, (int)keys.row, 0);
    }
    for (bool first = true; has_next; first = false) {
        const cp_piece current = keys;
        const int present = rows_of_tile(&walk);
        /* Begin to copy the tile after this one. */
        __syncthreads();
        has_next = next_keys(&walk, &keys);
        if (has_next && threadIdx.x == 0)
            load_both(a, &block, head, (int)keys.row, next.stage);
        /* Attend to this tile. */
        if (first)
            barrier_wait(&block.barriers->items_full[0], 0);
        barrier_wait(&block.barriers->keys_full[at.stage], at.phase);
        score_tile(scores, matrix_at(queries, 0),
                   matrix_at(block.keys + at.stage * tile, 0), boxes);
        PRODUCTS_WAIT(0);
        hold_registers(scores, 64);
        mask_plainly(scores, &block_rows, current.span);
        weigh_tile(scores, &rows, factor, score_scale(dim));
        pair_weights(weights, scores);
        rescale(sums, factor, boxes);
        barrier_wait(&block.barriers->values_full[at.stage], at.phase);
        if (present < KEYS) {
            clean_values(block.values + at.stage * tile, boxes, present,
                         (int)threadIdx.x, WITHOUT_PRODUCER);
            __syncthreads();
        }
        add_values(sums, weights,
                   matrix_at(block.values + at.stage * tile, BOX), boxes);
        PRODUCTS_WAIT(0);
        hold_registers(sums, 32 * boxes);
        at = next;
        advance(&next);
    }
    /* Write the rows of the plain kernel. */
    int64_t index[2];
    CP_UNROLL for (int h = 0; h < 2; h++) index[h] =
        row_of_thread(h) < block_rows.count
            ? row_index(&a->call, &block_rows, row_of_thread(h))
            : -1;
    write_rows(&a->call, index, row_index(&a->call, &block_rows, 0), &rows,
               sums, dim);
}

/* A tile of queries under one key head: rows [token][head of the group], from
 * row `first` on. 32 bits are enough for the rows that one device holds. */
typedef struct {
    int sequence, start, step, row; /* of the tile */
    int head, group, first, count;
} item_of_work;

/* Items are ordered by sets of key heads whose keys fit into the L2 cache; then
 * by tile, the latest first; then by head. A group of more than 128 heads takes
 * several items. */
CP_ALWAYS item_of_work find_item(const prefill_call *call, uint32_t n) {
    const cp_device_attention *a = &call->call;
    item_of_work item = {0};
    const uint32_t heads = (uint32_t)a->shape.kv_heads;
    item.group = call->group;
    const uint32_t chunks = (uint32_t)(item.group + ROWS - 1) / ROWS;
    const uint32_t of_head = (uint32_t)a->queries_of.room * chunks;
    const uint32_t before = n / (of_head * call->together) * call->together;
    const uint32_t together =
        heads - before < call->together ? heads - before : call->together;
    n -= before * of_head;
    item.head = (int)(before + n % together);
    n /= together;
    const int tile = (int)*a->queries_of.count - 1 - (int)(n / chunks);
    if (tile < 0)
        return item;
    const cp_piece *piece = &a->queries_of.items[tile];
    item.sequence = (int)piece->span.sequence;
    item.start = (int)piece->span.start;
    item.step = (int)piece->span.step;
    item.row = (int)piece->row;
    item.first = (int)(n % chunks) * ROWS;
    item.count = (int)piece->span.count * item.group - item.first;
    item.count = item.count < ROWS ? item.count : ROWS;
    return item;
}

/* How many keys of a piece a query sees. */
CP_ALWAYS int seen_from(int position, const cp_piece *keys) {
    const int past = position - (int)keys->span.start;
    const int step = (int)keys->span.step, count = (int)keys->span.count;
    if (past < 0)
        return 0;
    const int seen =
        (step == 1 ? past : (int)((uint32_t)past / (uint32_t)step)) + 1;
    return seen < count ? seen : count;
}

/* Write an item that sees no keys: O = 0 and LSE = -inf, unless a row is merged
 * with a partial that saw some. Each lane takes whole rows. */
CP_ALWAYS void write_nothing(const cp_device_attention *a,
                             const int64_t *indices, int count, int dim) {
    const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    CP_NO_UNROLL for (int r = (int)threadIdx.x % 32; r < count; r += 32) {
        const int64_t at = indices[r];
        if (a->merge && a->lse[at] != -INFINITY)
            continue;
        a->lse[at] = -INFINITY;
        for (int d = 0; d < dim; d += 4)
            CP_WIDE(float4, a->output + at * dim + d) = zero;
    }
}

/* The stages of the next run and item; and BEGINS, if that run is the item's
 * first. */
typedef struct {
    stage_cursor run, item;
    int begins;
} handed_on;

/* Hand on the masked tiles of a piece, or the unmasked ones. */
CP_ALWAYS void hand_on_run(const block_memory *block, const cp_piece *piece,
                           int masked, handed_on *done) {
    const int lane = (int)threadIdx.x % 32, n = done->run.stage;
    const int full = seen_from(block->positions[0], piece) / KEYS;
    const int most = seen_from(block->positions[ROWS - 1], piece);
    const int all = (most + KEYS - 1) / KEYS;
    const int first = masked ? full : 0, tiles = (masked ? all : full) - first;
    run_of_keys *run = &block->runs[n];
    if (tiles == 0)
        return;
    barrier_wait(&block->barriers->runs_empty[n], done->run.phase ^ 1);
    if (lane == 0) {
        run->tiles = tiles;
        run->flags = masked | done->begins;
        run->row = (int)piece->row + first * KEYS;
        run->count = (int)piece->span.count - first * KEYS;
    }
    CP_NO_UNROLL for (int r = lane; r < ROWS; r += 32) run->seen[r] =
        seen_from(block->positions[r], piece) - first * KEYS;
    __syncwarp();
    let_go(&block->barriers->runs_full[n]);
    advance(&done->run);
    done->begins = 0;
}

/* Write the indices of an item's rows, -1 past its end, and their positions;
 * rows past the end repeat the last position. */
CP_ALWAYS void begin_item(const prefill_call *a, const block_memory *block,
                          const item_of_work *item, handed_on *done) {
    const int lane = (int)threadIdx.x % 32;
    const int heads = (int)a->call.shape.query_heads;
    rows_of_item *rows = &block->items[done->item.stage];
    const int last = item->count - 1;
    __syncwarp(); /* all lanes have read the previous item's positions */
    CP_NO_UNROLL for (int r = lane; r < ROWS; r += 32) {
        const int n = item->first + (r < last ? r : last);
        const int token = n / item->group;
        const int head = item->head * item->group + n - token * item->group;
        block->positions[r] = item->start + token * item->step;
        rows->index[r] =
            r > last ? -1 : (int64_t)(item->row + token) * heads + head;
    }
    if (lane == 0) {
        rows->head = item->head;
        rows->query_head = item->head * item->group + item->first;
        rows->query_row = item->row;
    }
    __syncwarp();
    done->begins = BEGINS;
}

/* First the masked tiles of all pieces, then the unmasked ones. */
CP_ALWAYS void hand_on_item(const prefill_call *a, const block_memory *block,
                            const item_of_work *item, int dim,
                            handed_on *done) {
    const cp_device_keys *lists = &a->call.keys_of;
    const bool known =
        item->sequence >= 0 && item->sequence < (int)lists->sequences;
    const int end = known ? (int)lists->first[item->sequence + 1] : 0;
    const int first = known ? (int)lists->first[item->sequence] : 0;
    begin_item(a, block, item, done);
    CP_NO_UNROLL for (int masked = MASKED; masked >= 0; masked--)
        CP_NO_UNROLL for (int n = first; n < end; n++)
            hand_on_run(block, &lists->items[n], masked, done);
    if (done->begins == 0)
        advance(&done->item);
    else
        write_nothing(&a->call, block->items[done->item.stage].index,
                      item->count, dim);
}

/* The counter's next item, for a block that has time for it. The last block to
 * find none resets the counter. */
CP_ALWAYS uint32_t next_item(const prefill_call *a) {
    int n = 0;
    if (threadIdx.x % 32 == 0) {
        n = take_number(&a->call.tickets[0]) + (int)gridDim.x;
        if ((uint32_t)n >= a->items &&
            take_number(&a->call.tickets[1]) == (int)gridDim.x - 1)
            a->call.tickets[0] = a->call.tickets[1] = 0;
    }
    return (uint32_t)uniform(n);
}

/* Ask for the next item only when the last item but one has been written;
 * otherwise blocks would hold work for which others have time. */
CP_ALWAYS void walk_lists(const prefill_call *a, const block_memory *block,
                          int dim) {
    handed_on done = {{0, 0}, {0, 0}};
    for (uint32_t n = blockIdx.x; n < a->items; n = next_item(a)) {
        const item_of_work item = find_item(a, n);
        if (item.count > 0)
            hand_on_item(a, block, &item, dim, &done);
        barrier_wait(&block->barriers->items_empty[done.item.stage],
                     done.item.phase ^ 1);
    }
    /* No more items. */
    barrier_wait(&block->barriers->runs_empty[done.run.stage],
                 done.run.phase ^ 1);
    if (threadIdx.x % 32 == 0) {
        block->runs[done.run.stage].flags = OVER | BEGINS;
        barrier_arrive(&block->barriers->runs_full[done.run.stage]);
    }
}

/* A tile of values: its location, and how many rows from its first to the end
 * of its piece. */
typedef struct {
    int head, row, count;
} tile_of_values;

CP_ALWAYS void feed_values(const prefill_call *a, const block_memory *block,
                           tile_of_values tile, stage_cursor *at, int *tail) {
    const int lane = (int)threadIdx.x % 32;
    unsigned char *to = block->values + at->stage * block->boxes * BOX;
    uint64_t *full = &block->barriers->values_full[at->stage];
    uint64_t *arrives = tile.count < KEYS ? &block->barriers->tail : full;
    barrier_wait(&block->barriers->values_empty[at->stage], at->phase ^ 1);
    if (lane == 0)
        load_tile(to, &a->values, block->boxes, tile.head, tile.row, arrives);
    advance(at);
    if (tile.count >= KEYS)
        return;
    barrier_wait(arrives, *tail);
    *tail ^= 1;
    clean_values(to, block->boxes, tile.count, lane, 32);
    __syncwarp();
    let_go(full);
}

CP_ALWAYS void copy_tiles(const prefill_call *a, const block_memory *block) {
    stage_cursor run_at = {0, 0}, keys = {0, 0}, values = {0, 0};
    int item = 0, head = 0, tail = 0;
    tile_of_values late = {0, 0, 0}; /* count 0: none is waiting */
    for (;;) {
        /* Take a run, and begin to copy its item's queries. */
        const run_of_keys *run = &block->runs[run_at.stage];
        barrier_wait(&block->barriers->runs_full[run_at.stage], run_at.phase);
        const int tiles = run->tiles, row = run->row, count = run->count;
        if (run->flags & OVER)
            break;
        if (run->flags & BEGINS) {
            const rows_of_item *rows = &block->items[item];
            head = rows->head;
            if (threadIdx.x % 32 == 0)
                load_queries(a, block, rows->query_head, rows->query_row, item);
            item ^= 1;
        }
        __syncwarp();
        let_go(&block->barriers->runs_empty[run_at.stage]);
        advance(&run_at);
        for (int tile = tiles - 1; tile >= 0; tile--) {
            /* Begin to copy the keys of a tile. */
            barrier_wait(&block->barriers->keys_empty[keys.stage],
                         keys.phase ^ 1);
            if (threadIdx.x % 32 == 0)
                load_tile(block->keys + keys.stage * block->boxes * BOX,
                          &a->keys, block->boxes, head, row + tile * KEYS,
                          &block->barriers->keys_full[keys.stage]);
            advance(&keys);
            if (late.count > 0)
                feed_values(a, block, late, &values, &tail);
            late.head = head;
            late.row = row + tile * KEYS;
            late.count = count - tile * KEYS;
        }
    }
    if (late.count > 0)
        feed_values(a, block, late, &values, &tail);
}

/* A consumer's cursors, and the state of its run, whose last tile comes
 * first. */
typedef struct {
    stage_cursor keys, values, run, item;
    int left, flags; /* left: tiles */
    int seen[2];     /* how many of the run's keys each of the two rows sees */
    bool arrived;    /* the next tile's keys, as far as is known */
} progress;

CP_ALWAYS void take_run(const block_memory *block, progress *at) {
    const run_of_keys *run = &block->runs[at->run.stage];
    barrier_wait(&block->barriers->runs_full[at->run.stage], at->run.phase);
    at->left = uniform(run->tiles);
    at->flags = uniform(run->flags);
    CP_EACH(h, 2)
        at->seen[h] = run->seen[row_of_thread(h)];
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

CP_ALWAYS void mask_tile(const progress *at, consumer *c) {
    const int before = (at->left - 1) * KEYS;
    const int limit[2] = {at->seen[0] - before, at->seen[1] - before};
    mask_scores(c->scores, limit);
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
        mask_tile(at, c);
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
            mask_tile(at, c);
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
    mask_tile(at, c);
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
    progress at = {{0, 0}, {0, 0}, {0, 0}, {0, 0}, 0, 0, {0, 0}, false};
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
        CP_NO_UNROLL while (at.flags == MASKED)
            attend_tile(&block, &at, &c, scale, true);
        CP_NO_UNROLL while (at.flags == 0)
            attend_tile(&block, &at, &c, scale, false);
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

CP_ALWAYS void attend_in_turns(const prefill_call *a, int dim) {
    CP_DYNAMIC(shared);
    const block_memory block = lay_out(shared, dim);
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

#define PREFILL(name, dim, threads)                                            \
    CP_KERNEL_ALONE(prefill_##name##_##dim, prefill_call, threads) {           \
        attend_##name(&a, dim);                                                \
    }
PREFILL(plainly, 64, WITHOUT_PRODUCER)
PREFILL(plainly, 128, WITHOUT_PRODUCER)
PREFILL(in_turns, 64, WITH_PRODUCER)
PREFILL(in_turns, 128, WITH_PRODUCER)

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
    if (call->queries_of.room == 0)
        return cudaSuccess;
    error = prepare(call, &a);
    if (error == cudaSuccess)
        error = blocks_for(which, &a, &blocks);
    if (error != cudaSuccess)
        return error;
    const size_t bytes = shared_bytes(dim);
    return which == CP_PREFILL_PLAIN
               ? LAUNCH(plainly, call->shape.kv_heads, WITHOUT_PRODUCER)
               : LAUNCH(in_turns, 1, WITH_PRODUCER);
}

int64_t cp_device_prefill_tile(const cp_shape *shape) {
    return ROWS / cp_min(shape->query_heads / shape->kv_heads, ROWS);
}
