/* Tangled from book/14-hopper.nw; edit the chapter. */
/* The plain prompt kernel for Hopper: one loop over tiles, as in the reference.
 * For prefill.cu only. */
#ifndef CP_PREFILL_PLAIN_H
#define CP_PREFILL_PLAIN_H

#include "cuda/kernels/prefill_tile.h"

CP_ALWAYS void mask_plainly(float *scores, const rows_of_block *block_rows,
                            cp_span keys) {
    int seen[2];
    CP_UNROLL for (int h = 0; h < 2; h++) {
        const int r = row_of_thread(h), last = block_rows->count - 1;
        seen[h] =
            (int)keys_seen(keys, position(block_rows, r < last ? r : last));
    }
    mask_scores(scores, NULL, seen);
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
    const block_memory block = lay_out(shared, dim, false);
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

#endif
