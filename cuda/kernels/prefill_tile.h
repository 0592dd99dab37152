/* Tangled from book/14-hopper.nw; edit the chapter. */
/* What both prompt kernels for Hopper share: the shared memory of a block,
 * tiles that are loaded and multiplied, and rows that are written. For
 * prefill.cu only. */
#ifndef CP_PREFILL_TILE_H
#define CP_PREFILL_TILE_H

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/block_rows.h"
#include "cuda/kernels/hopper.h"

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
    int *hidden;    /* with a window, [STAGES][ROWS]: how many of a run's keys
                       it hides from each row, the first ones */
    int boxes;      /* of 64 dimensions */
    bool window;
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

CP_ALWAYS block_memory lay_out(unsigned char *memory, int dim, bool window) {
    block_memory parts;
    const int tile = dim / 64 * BOX;
    parts.boxes = dim / 64;
    parts.window = window;
    parts.queries = memory;
    parts.keys = parts.queries + STAGES * tile;
    parts.values = parts.keys + STAGES * tile;
    parts.items = (rows_of_item *)(void *)(parts.values + STAGES * tile);
    parts.runs = (run_of_keys *)(void *)(parts.items + STAGES);
    parts.positions = (int *)(void *)(parts.runs + STAGES);
    parts.barriers = (block_barriers *)(void *)(parts.positions + ROWS);
    parts.hidden = (int *)(void *)(parts.barriers + 1);
    return parts;
}

static size_t shared_bytes(int64_t dim, bool window) {
    return (size_t)(3 * STAGES * dim / 64 * BOX + ROWS * 4) +
           STAGES * (sizeof(rows_of_item) + sizeof(run_of_keys)) +
           sizeof(block_barriers) + (window ? STAGES * ROWS * 4 : 0);
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

/* Mask the keys of a tile from each row's limit on, and those that a window
 * hides, the first ones; hidden: NULL without a window. */
CP_ALWAYS void mask_scores(float *scores, const int *hidden, const int *limit) {
    const int lane = (int)threadIdx.x % 4;
    CP_UNROLL for (int i = 0; i < 64; i++) {
        const int column = 8 * (i / 4) + 2 * lane + i % 2;
        if (column >= limit[i / 2 % 2] ||
            (hidden != NULL && column < hidden[i / 2 % 2]))
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

#endif
