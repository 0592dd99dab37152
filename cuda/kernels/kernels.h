/* Tangled from book/13-kernels.nw; edit the chapter. */
/* Kernels that every GPU can run, and how to put them on a stream. Nothing
 * here waits, allocates, or looks at a kernel's results. */
#ifndef CP_KERNELS_H
#define CP_KERNELS_H

#include <cuda_runtime_api.h>

#include "tokens/leaves.h"
#include "tokens/pages.h"

/* How a number of a tensor is stored. */
typedef enum { CP_F32, CP_BF16 } cp_element;

/* Bytes of a number. */
static inline int64_t cp_element_bytes(cp_element element) {
    return element == CP_F32 ? 4 : 2;
}

/* Pieces of tokens, on the device, and their number; room is the most that
 * there can be, and the grid is made for it. */
typedef struct {
    const cp_piece *items;
    const int64_t *count;
    int64_t room;
} cp_device_tiles;

/* Pieces of keys, on the device, by sequence: those of sequence s are items
 * first[s] to first[s + 1] - 1. A sequence not in the table has no keys.
 * longest is the approximate number of keys of the longest sequence; splits are
 * planned for it. */
typedef struct {
    const cp_piece *items;
    const int64_t *first; /* [sequences + 1] */
    int64_t sequences, longest;
} cp_device_keys;

/* The kernels that compute an attention, the plainest first: loops; tiles for
 * tensor cores; those for few rows; and Hopper's: for prompts, in one split
 * (prefill.h), and for few rows. */
typedef enum {
    CP_ATTEND_LOOPS,
    CP_ATTEND_TILES,
    CP_ATTEND_FEW,
    CP_ATTEND_HOPPER,
    CP_ATTEND_HOPPER_FEW,
    CP_ATTEND_KERNELS
} cp_attend_kernel;

/* An attention as cp_attend computes it (attend.h), on a device: all pointers
 * are the device's. Shapes and meanings are those of cp_attention. Scores, sums
 * and partials are fp32. Every row that a tile of queries names is written, and
 * no other: with nothing to see and nothing to merge with, O = 0, LSE = -inf.
 *   queries_of    tiles of at most cp_device_query_tile tokens; one of a
 *                 sequence below 0 sees nothing
 *   output, lse   [rows][N_H][D_H], [rows][N_H]
 *   unfinished    with more than one split: outputs [splits][rows][N_H][D_H],
 *                 then LSEs [splits][rows][N_H]; overwritten
 *   tickets       then also [rows][N_H], and two for Hopper's kernel: all 0
 *                 before and after */
typedef struct {
    cp_attend_kernel kernel;
    cp_shape shape;
    cp_element element; /* of queries, keys and values */
    cp_device_tiles queries_of;
    cp_device_keys keys_of;
    const void *queries, *keys, *values;
    int64_t key_rows;  /* of the tensors of keys and values; for Hopper's */
    int64_t key_heads; /* in such a row, if more than the shape's: keys and
                          values then begin with the first head attended to;
                          0: as the shape's */
    bool merge;        /* into the contents of output and lse */
    int splits;
    float *unfinished;
    int32_t *tickets;
    int64_t rows;
    float *output, *lse;
    const void *chosen; /* sparse attention (chapter 16): the positions of the
                           only keys that a query attends to, [rows][top_k] of
                           32 bits, aligned to 2 bytes; by the loops, in one
                           split. NULL: to all that it sees */
    int64_t top_k;
    int spared; /* multiprocessors that Hopper's kernel leaves to messages */
    uint32_t leaves; /* in exact order (chapter 17): only these, whose keys are
                        a list each in keys_of. Unfinished, in one split, is
                        then a partial of each: output, then LSE. 0: all keys */
} cp_device_attention;

/* The fastest kernel for such numbers on the current device, where pieces of
 * queries have at most tokens tokens: 1 in decode. */
cudaError_t cp_device_choose(const cp_shape *shape, cp_element element,
                             int64_t tokens, cp_attend_kernel *kernel);

/* The most numbers that a head may have in these kernels: some wait in
 * registers. Other loops, without splits, serve uneven heads (chapter 16):
 * wider ones, and those whose values are part of their keys or not as wide. */
enum { CP_DEVICE_DIM_MAX = 256 };
bool cp_device_uneven(const cp_shape *shape);

/* Does a kernel take such numbers, on a device of that compute capability: 80
 * for 8.0? */
bool cp_device_takes(cp_attend_kernel kernel, const cp_shape *shape,
                     cp_element element, int capability);

/* The most tokens of a kernel's query tile. */
int64_t cp_device_query_tile(cp_attend_kernel kernel, const cp_shape *shape);

/* Blocks that the current device runs at a time: two a multiprocessor. */
cudaError_t cp_device_blocks(int *blocks);

/* Multiprocessors that attention leaves to messages: one for each of their
 * blocks, of which there are at most this many. */
enum { CP_SPARED = 4 };

/* The most splits for a rank of that many rows, at least 1: their unfinished
 * partials need room. And the number for a call, up to most, for which there is
 * room; only shape, kernel and lists are read. */
int64_t cp_device_most_splits(cp_attend_kernel kernel, const cp_shape *shape,
                              int blocks, int64_t rows);
int cp_device_splits(const cp_device_attention *call, int blocks, int64_t most);

/* The least number of parts, 1 to most, to cut that much work into so that the
 * waves of blocks are nearly as full as with any number. */
int cp_device_fill(int64_t work, int64_t blocks, int64_t most);

/* Merge addends into a partial, in their order (eq. 4). rows counts tokens
 * times heads.
 *   add_output, add_lse   [rows][dim], [rows] of the first addend; those of
 *                         the next are stride numbers further on
 *   output, lse           [rows][dim], [rows] */
typedef struct {
    int64_t rows, dim;
    int addends;
    int64_t stride;
    const float *add_output, *add_lse;
    float *output, *lse;
} cp_device_merge_args;

/* Rows to copy, on the device, and the number of moves; room is the most that
 * there can be, and the grid is made for it and for about rows rows in all. */
typedef struct {
    const cp_move *items;
    const int64_t *count;
    int64_t room, rows;
} cp_device_moves;

/* Columns of the rows of two tensors, in bytes. Both strides, the width and the
 * addresses are even; width 0: nothing. */
typedef struct {
    const void *from;
    void *to;
    int64_t from_stride, to_stride, width;
} cp_device_columns;

/* Copy rows of columns to others: of keys, say, and of values. */
typedef struct {
    cp_device_moves moves;
    cp_device_columns of[2];
} cp_device_copy_args;

/* Enqueue a call on a stream. A kernel over nothing is not launched. More
 * blocks than a grid can have (2^31 - 1) are cudaErrorInvalidConfiguration. */
cudaError_t cp_device_attend(const cp_device_attention *, cudaStream_t);
cudaError_t cp_device_merge(const cp_device_merge_args *, cudaStream_t);
cudaError_t cp_device_copy(const cp_device_copy_args *, cudaStream_t);

/* Hopper's kernels, as cp_device_attend: for prompts, in one split, the plain
 * one, which takes no window, or the fast one; and for few rows. They are in
 * the next chapter; without it these are NULL. */
enum { CP_PREFILL_PLAIN = 1, CP_PREFILL_FAST };
cudaError_t cp_device_prefill(const cp_device_attention *, int which,
                              cudaStream_t) __attribute__((weak));
cudaError_t cp_device_decode(const cp_device_attention *, cudaStream_t)
    __attribute__((weak));

#endif
