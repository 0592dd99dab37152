/* Tangled from book/14-hopper.nw; edit the chapter. */
/* Attention for many queries on Hopper: five rungs, from products and copies
 * that run on their own to blocks that stay. For sm_90a. */
#include "cuda/kernels/launch.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cuda/kernels/rows.h"

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/prefill.h"

enum {
    ROWS = 128,       /* of a tile of queries: tokens times heads */
    KEYS = 128,       /* of a tile of keys */
    BOX = ROWS * 128, /* bytes of 64 dimensions of a tile */
    STAGES = 2,       /* tiles of keys, and of values, at hand */
    CONSUMERS = 2,    /* warpgroups that multiply, 64 rows each */
    GROUP = 128,      /* threads of a warpgroup */
    WITHOUT_PRODUCER = CONSUMERS * GROUP,
    WITH_PRODUCER = WITHOUT_PRODUCER + GROUP,
    TURN = 1, /* numbered barriers: whose turn it is */
};

typedef struct {
    cp_device_attention call;
    int64_t items; /* tiles of queries times key heads */
    CUtensorMap queries, keys, values;
} prefill_call;

/* Barriers of a block. Full: bytes have come; empty: those that read are
 * done. */
typedef struct {
    uint64_t queries_full[2], queries_empty[2];
    uint64_t keys_full[STAGES], keys_empty[STAGES];
    uint64_t values_full[STAGES], values_empty[STAGES];
    uint64_t tail; /* values that a warp has to clean first */
} gates_of_block;

/* Where a block's tiles lie. */
typedef struct {
    unsigned char *queries, *keys, *values;
    gates_of_block *gates;
    int boxes; /* of 64 dimensions */
} room_of_block;

/* Where the n-th tile goes in a ring of two, and which phase of that place's
 * barriers it is: they come in turns of 0 and 1. */
CP_ALWAYS int stage(uint32_t n) {
    return (int)(n & 1);
}

CP_ALWAYS int phase(uint32_t n) {
    return (int)(n >> 1 & 1);
}

CP_ALWAYS room_of_block lay_out(unsigned char *room, int dim, int buffers) {
    room_of_block parts;
    const int tile = dim / 64 * BOX;
    parts.boxes = dim / 64;
    parts.queries = room;
    parts.keys = parts.queries + buffers * tile;
    parts.values = parts.keys + STAGES * tile;
    parts.gates = (gates_of_block *)(void *)(parts.values + STAGES * tile);
    return parts;
}

static size_t room_for_tiles(int64_t dim, int buffers) {
    const int64_t tile = dim / 64 * BOX;
    return (size_t)((buffers + 2 * STAGES) * tile) + sizeof(gates_of_block);
}

/* One thread begins all barriers. Each warp that reads says when it is done. */
CP_ALWAYS void begin_gates(gates_of_block *gates) {
    const int readers = CONSUMERS * GROUP / 32;
    barrier_init(&gates->tail, 1);
    for (int i = 0; i < 2; i++) {
        barrier_init(&gates->queries_full[i], 1);
        barrier_init(&gates->queries_empty[i], readers);
        barrier_init(&gates->keys_full[i], 1);
        barrier_init(&gates->keys_empty[i], readers);
        barrier_init(&gates->values_full[i], 1);
        barrier_init(&gates->values_empty[i], readers);
    }
    barriers_ready();
}

/* A tile of queries under one key head. */
typedef struct {
    rows_of_block rows;
    int head; /* of keys */
} item_of_work;

CP_ALWAYS int64_t heads_in_box(int64_t group) {
    return group < ROWS ? group : ROWS;
}

/* Items come by tiles, the latest first, and by heads within a tile; a group
 * of more than 128 heads takes several items. */
CP_ALWAYS item_of_work find_item(const cp_device_attention *a, uint32_t n) {
    item_of_work item;
    const uint32_t heads = (uint32_t)a->shape.kv_heads;
    const uint32_t group = (uint32_t)a->shape.query_heads / heads;
    const uint32_t rows = ROWS, chunks = (group + rows - 1) / rows;
    const int64_t tile = *a->queries_of.count - 1 - n / heads / chunks;
    item.head = (int)(n % heads);
    item.rows.group = (int)group;
    item.rows.count = 0;
    if (tile >= 0) {
        item.rows.tile = a->queries_of.items[tile];
        item.rows.first = (int)(n / heads % chunks * rows);
        const int64_t left =
            item.rows.tile.span.count * group - item.rows.first;
        item.rows.count = (int)(left < ROWS ? left : ROWS);
    }
    return item;
}

/* The index [row][head] of an item's r-th row. */
CP_ALWAYS int64_t row_at(const cp_device_attention *a, const item_of_work *item,
                         int r) {
    const int64_t n = item->rows.first + r, group = item->rows.group;
    return (item->rows.tile.row + n / group) * a->shape.query_heads +
           item->head * group + n % group;
}

/* Values of a tile from this row on become zeros; threads share the work. */
CP_ALWAYS void clean_values(unsigned char *values, int boxes, int row,
                            int thread, int threads) {
    for (int box = 0; box < boxes; box++)
        for (int i = row * 32 + thread; i < KEYS * 32; i += threads)
            ((uint32_t *)(void *)(values + box * BOX))[i] = 0;
    async_fence();
}

/* How many rows of the tile that was just handed out belong to its span. */
CP_ALWAYS int rows_of_tile(const keys_of_block *walk) {
    const int64_t left = walk->piece->span.count - (walk->tile - 1) * KEYS;
    return (int)(left < KEYS ? left : KEYS);
}

CP_ALWAYS void load_queries(const prefill_call *a, const room_of_block *room,
                            const item_of_work *item, int buffer) {
    const int64_t heads = heads_in_box(item->rows.group);
    const int rows = (int)(ROWS / heads * heads);
    uint64_t *full = &room->gates->queries_full[buffer];
    unsigned char *to = room->queries + buffer * room->boxes * BOX;
    const int64_t head = item->head * item->rows.group + item->rows.first;
    barrier_expect(full, room->boxes * rows * 128);
    for (int box = 0; box < room->boxes; box++)
        load_box(to + box * BOX, &a->queries, 64 * box, (int)head,
                 (int)item->rows.tile.row, full);
}

CP_ALWAYS void load_tile(unsigned char *to, const CUtensorMap *map, int boxes,
                         int head, int row, uint64_t *full) {
    barrier_expect(full, boxes * BOX);
    for (int box = 0; box < boxes; box++)
        load_box(to + box * BOX, map, 64 * box, head, row, full);
}

CP_ALWAYS void load_both(const prefill_call *a, const room_of_block *room,
                         const item_of_work *item, int row, int place) {
    const int tile = room->boxes * BOX;
    load_tile(room->keys + place * tile, &a->keys, room->boxes, item->head, row,
              &room->gates->keys_full[place]);
    load_tile(room->values + place * tile, &a->values, room->boxes, item->head,
              row, &room->gates->values_full[place]);
}

CP_ALWAYS void score_tile(float *scores, const unsigned char *queries,
                          const unsigned char *keys, int boxes) {
    const uint64_t a = matrix_at(queries, 0), b = matrix_at(keys, 0);
    products_begin();
    CP_UNROLL for (int k = 0; k < 4 * boxes; k++) {
        const uint64_t along = (uint64_t)(k / 4 * (BOX / 16) + k % 4 * 2);
        multiply_scores(scores, a + along, b + along, k > 0);
    }
    products_commit();
}

CP_ALWAYS void add_values(float *sums, const uint32_t *weights,
                          const unsigned char *values, int boxes) {
    const uint64_t b = matrix_at(values, BOX);
    products_begin();
    CP_UNROLL for (int k = 0; k < KEYS / 16; k++) {
        const uint64_t down = b + (uint64_t)(k * 16 * 128 / 16);
        if (boxes == 2)
            multiply_values_128(sums, weights + 4 * k, down);
        else
            multiply_values_64(sums, weights + 4 * k, down);
    }
    products_commit();
}

/* A warp is done with what a barrier guards. */
CP_ALWAYS void let_go(uint64_t *empty) {
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

/* What a thread keeps of its two rows. */
typedef struct {
    float level[2], total[2], factor[2]; /* factor: what the last tile did */
    int row[2];      /* of the item; may be behind its end */
    int position[2]; /* of their queries */
    int first;       /* position of the warpgroup's first query */
    float scale;     /* of scores, to base 2 */
} rows_of_thread;

/* Rows behind an item's end stand where its last one does. */
CP_ALWAYS int position_of(const item_of_work *item, int row) {
    const int last = item->rows.count - 1;
    return (int)position(&item->rows, row < last ? row : last);
}

CP_ALWAYS rows_of_thread begin_rows(const item_of_work *item, int dim) {
    rows_of_thread mine;
    const int thread = (int)threadIdx.x % WITHOUT_PRODUCER;
    mine.scale = 1.44269504f / sqrtf((float)dim);
    mine.first = position_of(item, thread / GROUP * 64);
    CP_UNROLL for (int h = 0; h < 2; h++) {
        mine.row[h] = thread / 32 * 16 + thread % 32 / 4 + 8 * h;
        mine.position[h] = position_of(item, mine.row[h]);
        mine.level[h] = -INFINITY;
        mine.total[h] = 0.0f;
    }
    return mine;
}

CP_ALWAYS void weigh_scores(float *scores, rows_of_thread *mine) {
    CP_UNROLL for (int h = 0; h < 2; h++) {
        float top = mine->level[h];
        CP_UNROLL for (int g = 0; g < 16; g++) top =
            fmaxf(top, fmaxf(scores[4 * g + 2 * h], scores[4 * g + 2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float now = __fmul_rn(top, mine->scale);
        const float base = top == -INFINITY ? 0.0f : now;
        const float before = __fmul_rn(mine->level[h], mine->scale);
        mine->factor[h] = fast_exp2(before - base);
        mine->level[h] = top;
        float sum = 0.0f;
        /* Replace the scores of the row by their weights. */
        CP_UNROLL for (int g = 0; g < 16; g++)
            CP_UNROLL for (int i = 4 * g + 2 * h; i < 4 * g + 2 * h + 2; i++) {
            scores[i] = fast_exp2(fmaf(scores[i], mine->scale, -base));
            sum += scores[i];
        }
        mine->total[h] = fmaf(mine->total[h], mine->factor[h], sum);
    }
}

CP_ALWAYS void mask_scores(float *scores, const rows_of_thread *mine,
                           cp_span keys) {
    const int lane = (int)threadIdx.x % 4;
    int reach[2];
    CP_UNROLL for (int h = 0; h < 2; h++) reach[h] =
        (int)keys_seen(keys, mine->position[h]);
    CP_UNROLL for (int i = 0; i < 64; i++) {
        const int column = 8 * (i / 4) + 2 * lane + i % 2;
        if (column >= reach[i / 2 % 2])
            scores[i] = -INFINITY;
    }
}

CP_ALWAYS bool sees_all(const rows_of_thread *mine, cp_span keys) {
    return keys.count == KEYS && keys_seen(keys, mine->first) == KEYS;
}

CP_ALWAYS void pair_weights(uint32_t *weights, const float *scores) {
    CP_UNROLL for (int i = 0; i < 32; i++) weights[i] =
        bf16_pair(scores[2 * i], scores[2 * i + 1]);
}

CP_ALWAYS void rescale(float *sums, const rows_of_thread *mine, int boxes) {
    CP_UNROLL for (int i = 0; i < 32 * boxes; i++) sums[i] *=
        mine->factor[i / 2 % 2];
}

CP_ALWAYS void write_rows(const cp_device_attention *a,
                          const item_of_work *item, rows_of_thread *mine,
                          const float *sums, int dim) {
    CP_UNROLL for (int h = 0; h < 2; h++) {
        float total = mine->total[h];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const bool there = mine->row[h] < item->rows.count;
        const int64_t at = there ? row_at(a, item, mine->row[h]) : 0;
        /* Weigh what is new against what is there. */
        const bool empty = !(total > 0.0f || total != total);
        const float found = there && a->merge ? a->lse[at] : -INFINITY;
        const float fresh =
            empty ? -INFINITY
                  : mine->level[h] * mine->scale * 0.693147181f + logf(total);
        const float larger = fmaxf(found, fresh);
        const float old = found == -INFINITY ? 0.0f : expf(found - larger);
        const float add = empty ? 0.0f : expf(fresh - larger);
        const float kept = old == 0.0f ? 0.0f : old / (old + add);
        const float factor = empty ? 0.0f : add / (old + add) / total;
        __syncwarp();
        if (!there)
            continue;
        if (threadIdx.x % 4 == 0)
            a->lse[at] = old == 0.0f ? fresh : larger + logf(old + add);
        /* Write the row's numbers. */
        CP_UNROLL for (int g = 0; g < dim / 8; g++)
            CP_UNROLL for (int i = 0; i < 2; i++) {
            float *to =
                a->output + at * dim + 8 * g + 2 * (threadIdx.x % 4) + i;
            const float mean = empty ? 0.0f : sums[4 * g + 2 * h + i] * factor;
            *to = kept == 0.0f ? mean : fmaf(kept, *to, mean);
        }
    }
}

CP_ALWAYS void rung_1(const prefill_call *a, int dim) {
    CP_DYNAMIC(shared);
    const room_of_block room = lay_out(shared, dim, 1);
    const item_of_work item = find_item(&a->call, blockIdx.x);
    if (item.rows.count <= 0)
        return;
    /* Begin the block's barriers. */
    if (threadIdx.x == 0)
        begin_gates(room.gates);
    __syncthreads();
    /* Begin an item. */
    float scores[64], sums[64] = {0.0f};
    uint32_t weights[32];
    keys_of_block walk = find_keys(&a->call, &item.rows, KEYS);
    cp_piece keys;
    rows_of_thread mine = begin_rows(&item, dim);
    const int group = uniform((int)threadIdx.x / GROUP % CONSUMERS);
    const unsigned char *queries = room.queries + group * 64 * 128;
    const int boxes = room.boxes, tile = boxes * BOX;
    uint32_t at = 0;
    bool more = next_keys(&walk, &keys);
    if (more && threadIdx.x == 0) {
        load_queries(a, &room, &item, 0);
        load_both(a, &room, &item, (int)keys.row, 0);
    }
    for (bool first = true; more; first = false) {
        const cp_piece here = keys;
        const int rows = rows_of_tile(&walk);
        /* Begin to copy the tile after this one. */
        __syncthreads();
        more = next_keys(&walk, &keys);
        if (more && threadIdx.x == 0)
            load_both(a, &room, &item, (int)keys.row, stage(at + 1));
        /* Attend to this tile. */
        if (first)
            barrier_wait(&room.gates->queries_full[0], 0);
        barrier_wait(&room.gates->keys_full[stage(at)], phase(at));
        score_tile(scores, queries, room.keys + stage(at) * tile, boxes);
        PRODUCTS_WAIT(0);
        hold_registers(scores, 64);
        if (!sees_all(&mine, here.span))
            mask_scores(scores, &mine, here.span);
        weigh_scores(scores, &mine);
        pair_weights(weights, scores);
        rescale(sums, &mine, boxes);
        barrier_wait(&room.gates->values_full[stage(at)], phase(at));
        if (rows < KEYS) {
            clean_values(room.values + stage(at) * tile, boxes, rows,
                         (int)threadIdx.x, WITHOUT_PRODUCER);
            __syncthreads();
        }
        add_values(sums, weights, room.values + stage(at) * tile, boxes);
        PRODUCTS_WAIT(0);
        hold_registers(sums, 32 * boxes);
        at++;
    }
    write_rows(&a->call, &item, &mine, sums, dim);
}

CP_ALWAYS void feed_values(const prefill_call *a, const room_of_block *room,
                           int head, int row, int rows, int place,
                           uint32_t *tails) {
    const int lane = (int)threadIdx.x % 32;
    unsigned char *to = room->values + place * room->boxes * BOX;
    uint64_t *full = &room->gates->values_full[place];
    uint64_t *arrives = rows < KEYS ? &room->gates->tail : full;
    if (lane == 0)
        load_tile(to, &a->values, room->boxes, head, row, arrives);
    if (rows == KEYS)
        return;
    barrier_wait(arrives, (int)((*tails)++ & 1));
    clean_values(to, room->boxes, rows, lane, 32);
    __syncwarp();
    if (lane == 0)
        barrier_arrive(full);
}

CP_ALWAYS void feed(const prefill_call *a, const room_of_block *room,
                    const item_of_work *item, int buffer, uint32_t *at,
                    uint32_t *tails) {
    keys_of_block walk = find_keys(&a->call, &item->rows, KEYS);
    cp_piece keys;
    const int lane = (int)threadIdx.x % 32, head = item->head;
    if (lane == 0)
        load_queries(a, room, item, buffer);
    for (; next_keys(&walk, &keys); ++*at) {
        barrier_wait(&room->gates->keys_empty[stage(*at)], phase(*at) ^ 1);
        if (lane == 0)
            load_tile(room->keys + stage(*at) * room->boxes * BOX, &a->keys,
                      room->boxes, head, (int)keys.row,
                      &room->gates->keys_full[stage(*at)]);
        barrier_wait(&room->gates->values_empty[stage(*at)], phase(*at) ^ 1);
        feed_values(a, room, head, (int)keys.row, rows_of_tile(&walk),
                    stage(*at), tails);
    }
}

CP_ALWAYS void rung_2(const prefill_call *a, int dim) {
    CP_DYNAMIC(shared);
    const room_of_block room = lay_out(shared, dim, 1);
    const item_of_work item = find_item(&a->call, blockIdx.x);
    if (item.rows.count <= 0)
        return;
    /* Begin the block's barriers. */
    if (threadIdx.x == 0)
        begin_gates(room.gates);
    __syncthreads();
    if (uniform((int)threadIdx.x / GROUP) == CONSUMERS) {
        REGISTERS_DOWN(56);
        uint32_t at = 0, tails = 0;
        if (threadIdx.x % GROUP < 32)
            feed(a, &room, &item, 0, &at, &tails);
    } else {
        REGISTERS_UP(224);
        uint32_t at = 0;
        /* Begin an item. */
        float scores[64], sums[64] = {0.0f};
        uint32_t weights[32];
        keys_of_block walk = find_keys(&a->call, &item.rows, KEYS);
        cp_piece keys;
        rows_of_thread mine = begin_rows(&item, dim);
        const int group = uniform((int)threadIdx.x / GROUP % CONSUMERS);
        const unsigned char *queries = room.queries + group * 64 * 128;
        const int boxes = room.boxes, tile = boxes * BOX;
        barrier_wait(&room.gates->queries_full[0], 0);
        while (next_keys(&walk, &keys)) {
            /* Score this tile, and let its keys go. */
            barrier_wait(&room.gates->keys_full[stage(at)], phase(at));
            score_tile(scores, queries, room.keys + stage(at) * tile, boxes);
            PRODUCTS_WAIT(0);
            hold_registers(scores, 64);
            let_go(&room.gates->keys_empty[stage(at)]);
            if (!sees_all(&mine, keys.span))
                mask_scores(scores, &mine, keys.span);
            weigh_scores(scores, &mine);
            /* Add this tile's values, and let them go. */
            pair_weights(weights, scores);
            rescale(sums, &mine, boxes);
            barrier_wait(&room.gates->values_full[stage(at)], phase(at));
            add_values(sums, weights, room.values + stage(at) * tile, boxes);
            PRODUCTS_WAIT(0);
            hold_registers(sums, 32 * boxes);
            let_go(&room.gates->values_empty[stage(at)]);
            at++;
        }
        write_rows(&a->call, &item, &mine, sums, dim);
    }
}

CP_ALWAYS void rung_3(const prefill_call *a, int dim) {
    CP_DYNAMIC(shared);
    const room_of_block room = lay_out(shared, dim, 1);
    const item_of_work item = find_item(&a->call, blockIdx.x);
    if (item.rows.count <= 0)
        return;
    /* Begin the block's barriers. */
    if (threadIdx.x == 0)
        begin_gates(room.gates);
    __syncthreads();
    if (uniform((int)threadIdx.x / GROUP) == CONSUMERS) {
        REGISTERS_DOWN(56);
        uint32_t at = 0, tails = 0;
        if (threadIdx.x % GROUP < 32)
            feed(a, &room, &item, 0, &at, &tails);
    } else {
        REGISTERS_UP(224);
        uint32_t at = 0;
        /* Begin an item. */
        float scores[64], sums[64] = {0.0f};
        uint32_t weights[32];
        keys_of_block walk = find_keys(&a->call, &item.rows, KEYS);
        cp_piece keys;
        rows_of_thread mine = begin_rows(&item, dim);
        const int group = uniform((int)threadIdx.x / GROUP % CONSUMERS);
        const unsigned char *queries = room.queries + group * 64 * 128;
        const int boxes = room.boxes, tile = boxes * BOX;
        barrier_wait(&room.gates->queries_full[0], 0);
        /* The first consumer has the first turn. */
        if (group == 1)
            named_arrive(TURN, WITHOUT_PRODUCER);
        while (next_keys(&walk, &keys)) {
            /* Score this tile, and let its keys go. */
            barrier_wait(&room.gates->keys_full[stage(at)], phase(at));
            score_tile(scores, queries, room.keys + stage(at) * tile, boxes);
            PRODUCTS_WAIT(0);
            hold_registers(scores, 64);
            let_go(&room.gates->keys_empty[stage(at)]);
            if (!sees_all(&mine, keys.span))
                mask_scores(scores, &mine, keys.span);
            /* A turn. */
            named_wait(TURN + group, WITHOUT_PRODUCER);
            weigh_scores(scores, &mine);
            named_arrive(TURN + (group ^ 1), WITHOUT_PRODUCER);
            /* Add this tile's values, and let them go. */
            pair_weights(weights, scores);
            rescale(sums, &mine, boxes);
            barrier_wait(&room.gates->values_full[stage(at)], phase(at));
            add_values(sums, weights, room.values + stage(at) * tile, boxes);
            PRODUCTS_WAIT(0);
            hold_registers(sums, 32 * boxes);
            let_go(&room.gates->values_empty[stage(at)]);
            at++;
        }
        write_rows(&a->call, &item, &mine, sums, dim);
    }
}

CP_ALWAYS void rung_4(const prefill_call *a, int dim) {
    CP_DYNAMIC(shared);
    const room_of_block room = lay_out(shared, dim, 1);
    const item_of_work item = find_item(&a->call, blockIdx.x);
    if (item.rows.count <= 0)
        return;
    /* Begin the block's barriers. */
    if (threadIdx.x == 0)
        begin_gates(room.gates);
    __syncthreads();
    if (uniform((int)threadIdx.x / GROUP) == CONSUMERS) {
        REGISTERS_DOWN(56);
        uint32_t at = 0, tails = 0;
        if (threadIdx.x % GROUP < 32)
            feed(a, &room, &item, 0, &at, &tails);
    } else {
        REGISTERS_UP(224);
        uint32_t at = 0;
        /* Begin an item. */
        float scores[64], sums[64] = {0.0f};
        uint32_t weights[32];
        keys_of_block walk = find_keys(&a->call, &item.rows, KEYS);
        cp_piece keys;
        rows_of_thread mine = begin_rows(&item, dim);
        const int group = uniform((int)threadIdx.x / GROUP % CONSUMERS);
        const unsigned char *queries = room.queries + group * 64 * 128;
        const int boxes = room.boxes, tile = boxes * BOX;
        barrier_wait(&room.gates->queries_full[0], 0);
        /* The first consumer has the first turn. */
        if (group == 1)
            named_arrive(TURN, WITHOUT_PRODUCER);
        /* Attend, the softmax under products. */
        if (next_keys(&walk, &keys)) {
            /* Weigh the first tile. */
            barrier_wait(&room.gates->keys_full[stage(at)], phase(at));
            score_tile(scores, queries, room.keys + stage(at) * tile, boxes);
            PRODUCTS_WAIT(0);
            hold_registers(scores, 64);
            let_go(&room.gates->keys_empty[stage(at)]);
            if (!sees_all(&mine, keys.span))
                mask_scores(scores, &mine, keys.span);
            weigh_scores(scores, &mine);
            pair_weights(weights, scores);
            barrier_wait(&room.gates->values_full[stage(at)], phase(at));
            at++;
            while (next_keys(&walk, &keys)) {
                /* Begin the scores of this tile and the values of the one before. */
                barrier_wait(&room.gates->keys_full[stage(at)], phase(at));
                named_wait(TURN + group, WITHOUT_PRODUCER);
                score_tile(scores, queries, room.keys + stage(at) * tile,
                           boxes);
                add_values(sums, weights, room.values + stage(at - 1) * tile,
                           boxes);
                named_arrive(TURN + (group ^ 1), WITHOUT_PRODUCER);
                /* Weigh this tile while those values are added. */
                PRODUCTS_WAIT(1);
                hold_registers(scores, 64);
                let_go(&room.gates->keys_empty[stage(at)]);
                if (!sees_all(&mine, keys.span))
                    mask_scores(scores, &mine, keys.span);
                weigh_scores(scores, &mine);
                hold_registers(scores, 64);
                barrier_wait(&room.gates->values_full[stage(at)], phase(at));
                PRODUCTS_WAIT(0);
                hold_registers(sums, 32 * boxes);
                let_go(&room.gates->values_empty[stage(at - 1)]);
                rescale(sums, &mine, boxes);
                pair_weights(weights, scores);
                at++;
            }
            /* Add the last tile's values. */
            add_values(sums, weights, room.values + stage(at - 1) * tile,
                       boxes);
            PRODUCTS_WAIT(0);
            hold_registers(sums, 32 * boxes);
            let_go(&room.gates->values_empty[stage(at - 1)]);
        }
        write_rows(&a->call, &item, &mine, sums, dim);
    }
}

CP_ALWAYS void feed_all(const prefill_call *a, const room_of_block *room) {
    uint32_t at = 0, tails = 0, buffer = 0;
    for (uint32_t n = blockIdx.x; n < a->items; n += gridDim.x) {
        const item_of_work item = find_item(&a->call, n);
        if (item.rows.count <= 0)
            continue;
        barrier_wait(&room->gates->queries_empty[stage(buffer)],
                     phase(buffer) ^ 1);
        feed(a, room, &item, stage(buffer), &at, &tails);
        buffer++;
    }
}

CP_ALWAYS void attend_all(const prefill_call *a, const room_of_block *parts,
                          int dim) {
    const room_of_block room = *parts;
    uint32_t at = 0, buffer = 0;
    const int consumer = uniform((int)threadIdx.x / GROUP);
    if (consumer == 1)
        named_arrive(TURN, WITHOUT_PRODUCER);
    for (uint32_t n = blockIdx.x; n < a->items; n += gridDim.x) {
        const item_of_work item = find_item(&a->call, n);
        if (item.rows.count <= 0)
            continue;
        /* Begin an item. */
        float scores[64], sums[64] = {0.0f};
        uint32_t weights[32];
        keys_of_block walk = find_keys(&a->call, &item.rows, KEYS);
        cp_piece keys;
        rows_of_thread mine = begin_rows(&item, dim);
        const int group = uniform((int)threadIdx.x / GROUP % CONSUMERS);
        const unsigned char *queries = room.queries + group * 64 * 128;
        const int boxes = room.boxes, tile = boxes * BOX;
        queries += stage(buffer) * tile;
        barrier_wait(&room.gates->queries_full[stage(buffer)], phase(buffer));
        /* Attend, the softmax under products. */
        if (next_keys(&walk, &keys)) {
            /* Weigh the first tile. */
            barrier_wait(&room.gates->keys_full[stage(at)], phase(at));
            score_tile(scores, queries, room.keys + stage(at) * tile, boxes);
            PRODUCTS_WAIT(0);
            hold_registers(scores, 64);
            let_go(&room.gates->keys_empty[stage(at)]);
            if (!sees_all(&mine, keys.span))
                mask_scores(scores, &mine, keys.span);
            weigh_scores(scores, &mine);
            pair_weights(weights, scores);
            barrier_wait(&room.gates->values_full[stage(at)], phase(at));
            at++;
            while (next_keys(&walk, &keys)) {
                /* Begin the scores of this tile and the values of the one before. */
                barrier_wait(&room.gates->keys_full[stage(at)], phase(at));
                named_wait(TURN + group, WITHOUT_PRODUCER);
                score_tile(scores, queries, room.keys + stage(at) * tile,
                           boxes);
                add_values(sums, weights, room.values + stage(at - 1) * tile,
                           boxes);
                named_arrive(TURN + (group ^ 1), WITHOUT_PRODUCER);
                /* Weigh this tile while those values are added. */
                PRODUCTS_WAIT(1);
                hold_registers(scores, 64);
                let_go(&room.gates->keys_empty[stage(at)]);
                if (!sees_all(&mine, keys.span))
                    mask_scores(scores, &mine, keys.span);
                weigh_scores(scores, &mine);
                hold_registers(scores, 64);
                barrier_wait(&room.gates->values_full[stage(at)], phase(at));
                PRODUCTS_WAIT(0);
                hold_registers(sums, 32 * boxes);
                let_go(&room.gates->values_empty[stage(at - 1)]);
                rescale(sums, &mine, boxes);
                pair_weights(weights, scores);
                at++;
            }
            /* Add the last tile's values. */
            add_values(sums, weights, room.values + stage(at - 1) * tile,
                       boxes);
            PRODUCTS_WAIT(0);
            hold_registers(sums, 32 * boxes);
            let_go(&room.gates->values_empty[stage(at - 1)]);
        }
        let_go(&room.gates->queries_empty[stage(buffer)]);
        buffer++;
        const item_of_work done = find_item(&a->call, n);
        write_rows(&a->call, &done, &mine, sums, dim);
    }
}

CP_ALWAYS void rung_5(const prefill_call *a, int dim) {
    CP_DYNAMIC(shared);
    const room_of_block room = lay_out(shared, dim, 2);
    /* Begin the block's barriers. */
    if (threadIdx.x == 0)
        begin_gates(room.gates);
    __syncthreads();
    if (uniform((int)threadIdx.x / GROUP) == CONSUMERS) {
        REGISTERS_DOWN(56);
        if (threadIdx.x % GROUP < 32)
            feed_all(a, &room);
    } else {
        REGISTERS_UP(224);
        attend_all(a, &room, dim);
    }
}

/* How the driver is asked for a tensor map; found by name, since nothing here
 * links to the driver. */
typedef CUresult (*map_encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t,
                                void *, const cuuint64_t *, const cuuint64_t *,
                                const cuuint32_t *, const cuuint32_t *,
                                CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill);

static cudaError_t find_encoder(map_encoder *encode) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, 0, &result);
    memcpy(encode, &found, sizeof found);
    return error == cudaSuccess && found == NULL ? cudaErrorNotSupported
                                                 : error;
}

/* A tensor of bf16, [rows][apart][dim], of whose heads the first so many are
 * read, in boxes of [rows][heads][64]. A map of no rows is refused; nothing
 * asks for the row that stands for them. */
static cudaError_t encode_map(map_encoder encode, const void *tensor,
                              int64_t rows, int64_t apart, int64_t heads,
                              int64_t dim, int64_t box_rows, int64_t box_heads,
                              CUtensorMap *map) {
    const cuuint64_t sizes[] = {(cuuint64_t)dim, (cuuint64_t)heads,
                                (cuuint64_t)cp_max(1, rows)};
    const cuuint64_t strides[] = {(cuuint64_t)dim * 2,
                                  (cuuint64_t)(apart * dim) * 2};
    const cuuint32_t box[] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_rows};
    const cuuint32_t ones[] = {1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)tensor,
                  sizes, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

static cudaError_t prepare(const cp_device_attention *call, prefill_call *out) {
    map_encoder encode;
    const cp_shape s = call->shape;
    const int64_t group = s.query_heads / s.kv_heads;
    const int64_t heads = cp_min(group, ROWS);
    const int64_t apart = cp_max(call->key_heads, s.kv_heads);
    out->call = *call;
    out->items =
        call->queries_of.room * cp_ceil_divide(group, ROWS) * s.kv_heads;
    cudaError_t error = find_encoder(&encode);
    if (error == cudaSuccess)
        error = encode_map(encode, call->queries, call->rows, s.query_heads,
                           s.query_heads, s.head_dim, ROWS / heads, heads,
                           &out->queries);
    if (error == cudaSuccess)
        error = encode_map(encode, call->keys, call->key_rows, apart,
                           s.kv_heads, s.head_dim, KEYS, 1, &out->keys);
    if (error == cudaSuccess)
        error = encode_map(encode, call->values, call->key_rows, apart,
                           s.kv_heads, s.head_dim, KEYS, 1, &out->values);
    return error;
}

#define RUNG(rung, dim, threads)                                               \
    CP_KERNEL_ALONE(prefill_##rung##_##dim, prefill_call, threads) {           \
        rung_##rung(&a, dim);                                                  \
    }
RUNG(1, 64, WITHOUT_PRODUCER)
RUNG(1, 128, WITHOUT_PRODUCER)
RUNG(2, 64, WITH_PRODUCER)
RUNG(2, 128, WITH_PRODUCER)
RUNG(3, 64, WITH_PRODUCER)
RUNG(3, 128, WITH_PRODUCER)
RUNG(4, 64, WITH_PRODUCER)
RUNG(4, 128, WITH_PRODUCER)
RUNG(5, 64, WITH_PRODUCER)
RUNG(5, 128, WITH_PRODUCER)

/* A block for each item; or, of those that stay, one a multiprocessor. */
static cudaError_t blocks_for(int rung, int64_t items, int64_t *blocks) {
    int twice = 0; /* the multiprocessors */
    const cudaError_t error = cp_device_blocks(&twice);
    const int64_t most = cp_max(1, twice / 2 - CP_SPARED);
    *blocks = rung == 5 ? cp_min(items, most) : items;
    return error;
}

#define LAUNCH(rung, threads)                                                  \
    (dim == 64 ? CP_LAUNCH_GRID_SHARED(prefill_##rung##_64, blocks, 1, 1,      \
                                       threads, bytes, stream, a)              \
               : CP_LAUNCH_GRID_SHARED(prefill_##rung##_128, blocks, 1, 1,     \
                                       threads, bytes, stream, a))

cudaError_t cp_device_prefill(const cp_device_attention *call, int rung,
                              cudaStream_t stream) {
    prefill_call a;
    const int64_t dim = call->shape.head_dim;
    int64_t blocks;
    cudaError_t error = cudaSuccess;
    if (call->queries_of.room == 0)
        return cudaSuccess;
    error = prepare(call, &a);
    if (error == cudaSuccess)
        error = blocks_for(rung, a.items, &blocks);
    if (error != cudaSuccess)
        return error;
    const size_t bytes = room_for_tiles(dim, rung == 5 ? 2 : 1);
    return rung == 1   ? LAUNCH(1, WITHOUT_PRODUCER)
           : rung == 2 ? LAUNCH(2, WITH_PRODUCER)
           : rung == 3 ? LAUNCH(3, WITH_PRODUCER)
           : rung == 4 ? LAUNCH(4, WITH_PRODUCER)
                       : LAUNCH(5, WITH_PRODUCER);
}

int64_t cp_device_prefill_tile(const cp_shape *shape) {
    return ROWS / cp_min(shape->query_heads / shape->kv_heads, ROWS);
}
