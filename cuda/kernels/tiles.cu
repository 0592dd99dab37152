/* Tangled from book/13-tiles.nw; edit the chapter. */
/* Attention on any GPU of compute capability 8.0 or more: bf16, heads of 64 or
 * 128 dimensions. Tensor cores, and copies that overlap with them. */
#include "cuda/kernels/kernel_launch.h"

#include <math.h>
#include <stdint.h>

#include "cuda/kernels/shared_rows.h"

enum { KEYS = 64, WARPS = 4, THREADS = 32 * WARPS, ROW_BYTES = 2 };
enum { SLABS = 2, MOST_DIM = 128 }; /* at most */

/* dim is 64 or 128. A warp has slabs slabs of 16 rows; a ring of slots slots
 * holds tiles of keys or of values. */
typedef struct {
    int dim, slabs, slots;
    bool few;    /* all warps have the same rows, and different keys */
    bool window; /* a row may not see the first keys (chapter 16) */
} block_shape;

CP_INLINED int rows_of_tile(block_shape s) {
    return 16 * s.slabs * (s.few ? 1 : WARPS);
}

/* Bytes from a tile's beginning to a chunk of a row. */
CP_INLINED int chunk_at(block_shape s, int row, int chunk) {
    return row * s.dim * ROW_BYTES + 16 * (chunk ^ (row & 7));
}

CP_INLINED cp_shared deeper(block_shape s, cp_shared address, int k, int n) {
    return cp_shared_xor(address, 32 * k) + 16 * n * s.dim * ROW_BYTES;
}

/* A block's state, in shared memory to save registers. The walk is ahead of the
 * copies: thread 0 takes a step and notes the tile, and after the next barrier
 * all may read that. */
enum { NOTED = 8 };
typedef struct {
    rows_of_block block_rows;
    int tiles;
    keys_of_block walk;
    cp_piece noted[NOTED]; /* in turn */
} block_notes;

typedef struct {
    cp_shared memory;
    int used, filled; /* slots */
    int next, end;    /* to be copied: keys of a tile are even, values odd */
} slot_ring;

CP_INLINED int slot_bytes(block_shape s) {
    return KEYS * s.dim * ROW_BYTES;
}

CP_INLINED void copy_tile(const cp_device_attention *a, block_shape s,
                          const slot_ring *r, const cp_piece *keys,
                          const void *from) {
    const int chunks = s.dim / 8, step = THREADS / chunks;
    const int thread = (int)threadIdx.x;
    const int64_t head = (int64_t)blockIdx.y, heads = a->key_heads;
    const int64_t first = (keys->row + thread / chunks) * heads + head;
    const char *row =
        (const char *)from + (first * s.dim + thread % chunks * 8) * ROW_BYTES;
    const cp_shared to = r->memory + r->filled * slot_bytes(s) +
                         chunk_at(s, thread / chunks, thread % chunks);
    const int count = (int)keys->span.count - thread / chunks;
    CP_EACH(i, KEYS / step) {
        cp_copy_async(to + i * step * s.dim * ROW_BYTES, row,
                      i * step < count ? 16 : 0);
        row += step * heads * s.dim * ROW_BYTES;
    }
}

CP_INLINED void note_tile(block_notes *notes, int tile) {
    if (threadIdx.x == 0)
        next_keys(&notes->walk, &notes->noted[tile % NOTED]);
}

CP_INLINED void fill_slot(const cp_device_attention *a, block_shape s,
                          block_notes *notes, slot_ring *r) {
    const int tile = r->next / 2;
    if (r->next < r->end) {
        copy_tile(a, s, r, &notes->noted[tile % NOTED],
                  r->next % 2 == 0 ? a->keys : a->values);
        if (r->next % 2 == 0)
            note_tile(notes, tile + s.slots / 2);
    }
    r->next++;
    cp_copies_commit();
    r->filled = r->filled + 1 == s.slots ? 0 : r->filled + 1;
}

CP_INLINED cp_shared next_tile(const cp_device_attention *a, block_shape s,
                               block_notes *notes, slot_ring *r) {
    if (s.slots == 3)
        cp_copies_wait(1);
    else if (s.slots == 4)
        cp_copies_wait(2);
    else
        cp_copies_wait(5);
    __syncthreads();
    const cp_shared tile = r->memory + r->used * slot_bytes(s);
    r->used = r->used + 1 == s.slots ? 0 : r->used + 1;
    fill_slot(a, s, notes, r);
    return tile;
}

CP_INLINED void copy_queries(const cp_device_attention *a, block_shape s,
                             const rows_of_block *block_rows, cp_shared to) {
    const int chunks = s.dim / 8, step = THREADS / chunks;
    const int chunk = (int)threadIdx.x % chunks;
    for (int row = (int)threadIdx.x / chunks; row < rows_of_tile(s);
         row += step) {
        const bool exists = row < block_rows->count;
        const int64_t at =
            row_index(a, block_rows, exists ? row : 0) * s.dim + 8 * chunk;
        cp_copy_async(to + chunk_at(s, row, chunk),
                      (const char *)a->queries + at * ROW_BYTES,
                      exists ? 16 : 0);
    }
}

/* The fragments of a warp's rows, of depth k. */
CP_INLINED void load_queries(block_shape s, cp_shared row, int k,
                             uint32_t to[][4]) {
    CP_EACH(m, s.slabs)
        cp_load_matrices(to[m], deeper(s, row, k, m));
}

CP_INLINED void attend_tile(const cp_device_attention *a, block_shape s,
                            unsigned char *memory, block_notes *notes) {
    const rows_of_block *block_rows = &notes->block_rows;
    /* Find the block's rows and keys. */
    if (threadIdx.x == 0) {
        notes->block_rows = find_rows(a, rows_of_tile(s));
        if (block_rows->count > 0)
            notes->walk = find_keys(a, block_rows, KEYS);
        notes->tiles = notes->walk.left;
        for (int tile = 0; block_rows->count > 0 && tile < s.slots / 2; tile++)
            note_tile(notes, tile);
    }
    __syncthreads();
    if (block_rows->count <= 0)
        return;
    const int tiles = notes->tiles;
    /* Find this warp's part. */
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int columns = s.few ? KEYS / WARPS : KEYS;
    const int first_row = s.few ? 0 : 16 * s.slabs * warp;
    const int first_key = s.few ? columns * warp : 0;
    const bool in_registers = s.slabs * s.dim <= 128;
    const float scale = 1.44269504f / sqrtf((float)s.dim);
    float output[SLABS][MOST_DIM / 8][4] = {{{0.0f}}};
    float level[SLABS][2], total[SLABS][2] = {{0.0f}};
    CP_EACH(m, s.slabs)
        level[m][0] = level[m][1] = -INFINITY;
    /* Fetch the queries and begin with keys. */
    const cp_shared begin = cp_shared_at(memory);
    const cp_shared query_row =
        begin + chunk_at(s, first_row + lane % 16, lane / 16);
    slot_ring r = {begin + rows_of_tile(s) * s.dim * ROW_BYTES, 0, 0, 0,
                   2 * tiles};
    uint32_t queries[MOST_DIM / 16][SLABS][4];
    if (tiles > 0)
        copy_queries(a, s, block_rows, begin);
    for (int i = 0; i < s.slots - 1; i++)
        fill_slot(a, s, notes, &r);
    for (int tile = 0; tile < tiles; tile++) {
        /* Score a tile. */
        float scores[SLABS][KEYS / 8][4] = {{{0.0f}}};
        const cp_shared keys = next_tile(a, s, notes, &r);
        const cp_shared key_row =
            keys +
            chunk_at(s, first_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
        if (in_registers && tile == 0)
            CP_EACH(k, s.dim / 16)
                load_queries(s, query_row, k, queries[k]);
        CP_EACH(k, s.dim / 16) {
            if (!in_registers)
                load_queries(s, query_row, k, queries[0]);
            CP_EACH(n, columns / 16) {
                uint32_t b[4];
                cp_load_matrices(b, deeper(s, key_row, k, n));
                CP_EACH(m, 2 * s.slabs)
                    cp_multiply_add(scores[m / 2][2 * n + m % 2],
                                    queries[in_registers ? k : 0][m / 2],
                                    b + m % 2 * 2);
            }
        }
        /* Mask what must not be seen. */
        const cp_span seen = notes->noted[tile % NOTED].span;
        if (keys_seen(seen, position(block_rows, first_row)) < KEYS)
            CP_EACH(m, s.slabs)
                CP_EACH(half, 2) {
                    const int row = first_row + 16 * m + 8 * half + lane / 4;
                    const int reach =
                        (int)keys_seen(seen, position(block_rows, row)) -
                        first_key - lane % 4 * 2;
                    CP_EACH(n, columns / 4)
                        if (n / 2 * 8 + n % 2 >= reach)
                            scores[m][n / 2][2 * half + n % 2] = -INFINITY;
                }
        if (s.window)
            /* Mask what a window hides. */
            CP_EACH(m, s.slabs)
                CP_EACH(half, 2) {
                    const int row = first_row + 16 * m + 8 * half + lane / 4;
                    const int hidden =
                        (int)keys_hidden(a, seen, position(block_rows, row)) -
                        first_key - lane % 4 * 2;
                    if (hidden > 0)
                        CP_EACH(n, columns / 4)
                            if (n / 2 * 8 + n % 2 < hidden)
                                scores[m][n / 2][2 * half + n % 2] = -INFINITY;
                }
        /* Turn scores into weights. */
        CP_EACH(m, s.slabs)
            CP_EACH(half, 2) {
                float top = level[m][half];
                CP_EACH(n, columns / 4)
                    top = fmaxf(top, scores[m][n / 2][2 * half + n % 2]);
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                const float now = __fmul_rn(top, scale);
                const float base = top == -INFINITY ? 0.0f : now;
                const float before = __fmul_rn(level[m][half], scale);
                const float factor = cp_exp2(before - base);
                float sum = 0.0f;
                level[m][half] = top;
                /* Weigh this row's scores. */
                CP_EACH(n, columns / 4) {
                    float *score = &scores[m][n / 2][2 * half + n % 2];
                    *score = cp_exp2(fmaf(*score, scale, -base));
                    sum += *score;
                }
                total[m][half] = fmaf(total[m][half], factor, sum);
                if (factor != 1.0f)
                    CP_EACH(n, s.dim / 4)
                        output[m][n / 2][2 * half + n % 2] *= factor;
            }
        /* Add the values, weighed. */
        const cp_shared values = next_tile(a, s, notes, &r);
        const cp_shared value_row =
            values + chunk_at(s, first_key + lane % 16, lane / 16);
        uint32_t weights[KEYS / 16][SLABS][4];
        CP_EACH(k, columns / 16)
            CP_EACH(i, 4 * s.slabs) {
                const float *pair =
                    &scores[i / 4][2 * k + i / 2 % 2][i % 2 * 2];
                weights[k][i / 4][i % 4] = cp_pack_bf16(pair[0], pair[1]);
            }
        CP_EACH(d, s.dim / 16)
            CP_EACH(k, columns / 16) {
                uint32_t b[4];
                cp_load_transposed(b, deeper(s, value_row, d, k));
                CP_EACH(m, 2 * s.slabs)
                    cp_multiply_add(output[m / 2][2 * d + m % 2],
                                    weights[k][m / 2], b + m % 2 * 2);
            }
    }
    /* Write the rows. */
    CP_EACH(m, s.slabs)
        CP_EACH(half, 2) {
            float *sum = &total[m][half];
            *sum += __shfl_xor_sync(0xffffffffu, *sum, 1);
            *sum += __shfl_xor_sync(0xffffffffu, *sum, 2);
            level[m][half] *= scale;
        }
    if (s.few) {
        float *sums = (float *)memory;
        __syncthreads();
        leave_sums(s.dim, sums, output[0], level[0], total[0]);
        __syncthreads();
        for (int row = warp; row < block_rows->count; row += WARPS)
            write_shared(a, s.dim, WARPS, block_rows, sums, row);
    } else {
        /* Write the rows of a warp's fragments. */
        CP_EACH(m, s.slabs)
            CP_EACH(half, 2) {
                const int row = first_row + 16 * m + 8 * half + lane / 4;
                const row_weights weigh = weigh_row(
                    a, block_rows, row, level[m][half], total[m][half]);
                CP_EACH(n, s.dim / 4)
                    put_number(&weigh, n / 2 * 8 + lane % 4 * 2 + n % 2,
                               output[m][n / 2][2 * half + n % 2]);
            }
    }
    if (a->splits > 1)
        merge_splits(a, block_rows);
}

#define ATTEND_KERNEL(name, dim, slabs, slots, few, window)                    \
    CP_KERNEL(name, cp_device_attention) {                                     \
        CP_DYNAMIC(memory);                                                    \
        CP_SHARED(block_notes, notes, [1]);                                    \
        const block_shape s = {dim, slabs, slots, few, window};                \
        attend_tile(&a, s, memory, notes);                                     \
    }

ATTEND_KERNEL(attend_prompt_64, 64, 2, 3, false, false)
ATTEND_KERNEL(attend_prompt_128, 128, 2, 3, false, false)
ATTEND_KERNEL(attend_window_64, 64, 2, 3, false, true)
ATTEND_KERNEL(attend_window_128, 128, 2, 3, false, true)
ATTEND_KERNEL(attend_token_64, 64, 1, 7, true, true)
ATTEND_KERNEL(attend_token_128, 128, 1, 4, true, true)

#define LAUNCH(name, rows, slots)                                              \
    CP_LAUNCH_GRID_SHARED(                                                     \
        name, blocks_of(call) / heads, heads, parts_of(call), THREADS,         \
        (size_t)((rows + slots * KEYS) * dim * ROW_BYTES), stream, *call)

cudaError_t cp_attend_tiles(const cp_device_attention *call,
                            cudaStream_t stream) {
    const int64_t dim = call->shape.head_dim, heads = call->shape.kv_heads;
    if (call->kernel == CP_ATTEND_FEW)
        return dim == 64 ? LAUNCH(attend_token_64, 16, 7)
                         : LAUNCH(attend_token_128, 16, 4);
    if (call->shape.window > 0)
        return dim == 64 ? LAUNCH(attend_window_64, 128, 3)
                         : LAUNCH(attend_window_128, 128, 3);
    return dim == 64 ? LAUNCH(attend_prompt_64, 128, 3)
                     : LAUNCH(attend_prompt_128, 128, 3);
}
