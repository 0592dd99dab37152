/* Tangled from book/14-hopper.nw; edit the chapter. */
/* The warps that feed the fast prompt kernel for Hopper: one walks the lists
 * and hands on runs of tiles, one copies the tiles. For prefill.cu only. */
#ifndef CP_PREFILL_FEED_H
#define CP_PREFILL_FEED_H

#include "cuda/kernels/prefill_tile.h"

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

/* How many keys of a piece a query sees that is so far before this position: a
 * window hides from a query those that one a window before it sees. */
CP_ALWAYS int seen_before(int position, int distance, const cp_piece *keys) {
    const int past = position - (int)keys->span.start;
    const int step = (int)keys->span.step, count = (int)keys->span.count;
    if (past < distance)
        return 0;
    const int far = past - distance;
    const int seen =
        (step == 1 ? far : (int)((uint32_t)far / (uint32_t)step)) + 1;
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

/* The tiles of a piece begin at the first key that a row of the item sees.
 * Three parts of them: those that each row sees completely, those that
 * causality or the piece's end cuts, and those that a window cuts. */
enum { FULL, LATEST, EARLIEST };

typedef struct {
    int before, tiles; /* before: keys of the piece before the first of them */
} part_of_piece;

CP_ALWAYS part_of_piece find_part(const block_memory *block,
                                  const cp_piece *piece, int which,
                                  int window) {
    /* Seen by the first and the last row, then hidden from them. */
    const int lane = (int)threadIdx.x % 32;
    const int keys =
        seen_before(block->positions[lane % 2 * (ROWS - 1)],
                    block->window ? lane / 2 % 2 * window : 0, piece);
    const int hidden = block->window ? from_lane(keys, 2) : 0;
    int full =
        block->window ? (from_lane(keys, 3) - hidden + KEYS - 1) / KEYS : 0;
    int latest = (from_lane(keys, 0) - hidden) / KEYS;
    int end = (from_lane(keys, 1) - hidden + KEYS - 1) / KEYS;
    if (block->window && full > latest)
        full = latest = 0;
    /* The part between two of these. */
    const bool earliest = block->window && which == EARLIEST;
    const int first = which == LATEST ? latest : earliest ? 0 : full;
    end = which == LATEST ? end : earliest ? full : latest;
    const part_of_piece part = {hidden + first * KEYS, end - first};
    return part;
}

CP_ALWAYS void hand_on_run(const block_memory *block, const cp_piece *piece,
                           int which, int window, handed_on *done) {
    const int lane = (int)threadIdx.x % 32, n = done->run.stage;
    const part_of_piece part = find_part(block, piece, which, window);
    run_of_keys *run = &block->runs[n];
    if (part.tiles == 0)
        return;
    barrier_wait(&block->barriers->runs_empty[n], done->run.phase ^ 1);
    if (lane == 0) {
        run->tiles = part.tiles;
        run->flags = (block->window ? which > FULL : which) | done->begins;
        run->row = (int)piece->row + part.before;
        run->count = (int)piece->span.count - part.before;
    }
    CP_NO_UNROLL for (int r = lane; r < ROWS; r += 32) {
        const int position = block->positions[r];
        run->seen[r] = seen_before(position, 0, piece) - part.before;
        if (block->window)
            block->hidden[n * ROWS + r] =
                seen_before(position, window, piece) - part.before;
    }
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

/* First the masked tiles of all pieces, then the unmasked ones. With a window,
 * whose masked tiles may be hidden from many rows, the unmasked ones first. */
CP_ALWAYS void hand_on_item(const prefill_call *a, const block_memory *block,
                            const item_of_work *item, int dim,
                            handed_on *done) {
    const cp_device_keys *lists = &a->call.keys_of;
    const bool known =
        item->sequence >= 0 && item->sequence < (int)lists->sequences;
    const int end = known ? (int)lists->first[item->sequence + 1] : 0;
    const int first = known ? (int)lists->first[item->sequence] : 0;
    const int window = (int)a->call.shape.window;
    begin_item(a, block, item, done);
    const int parts = block->window ? 3 : 2;
    CP_NO_UNROLL for (int left = parts - 1; left >= 0; left--)
        CP_NO_UNROLL for (int n = first; n < end; n++)
            hand_on_run(block, &lists->items[n],
                        block->window ? EARLIEST - left : left, window, done);
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

#endif
