/* Tangled from book/17-exact.nw; edit the chapter. */
/* Exact order on streams: the leaves that the slots of a plan hold, the
 * launches of an attention and of a merge, and the lists of keys by leaf that
 * these read. */
#ifndef CP_LEAF_LISTS_H
#define CP_LEAF_LISTS_H

#include "plan/plan.h"

#include "cuda/kernels/kernels.h"

/* The leaves that an operation reads (an attention those of its keys, any other
 * those of its slot `in`), and those that its slot `out` holds before it. */
typedef struct {
    uint32_t in, out;
} cp_leaf_use;

/* The first lists those of all operations of a rank, [count], for free(); it
 * fails with CP_MEMORY. The second returns for how many partials an attention
 * needs room if a launch is to cover `batch` leaves, and sets the most bytes
 * of one. */
cp_status cp_leaf_uses_new(const cp_plan *plan, int rank, cp_leaf_use **out);
int64_t cp_leaf_uses_room(const cp_plan *plan, int rank, int64_t batch,
                          int64_t *bytes);

/* Nodes of a set of leaves, one after another as in a slot (node_lists.h). */
typedef struct {
    float *nodes;
    uint32_t leaves;
} cp_node_list;

/* Both launch on a stream. The first attends to some leaves and merges the
 * result with `into`; the call's output, LSE and splits are not read, and its
 * `unfinished` has room for `room` partials. The second merges lists that share
 * no leaf; rows counts tokens times heads. The result lies where the first list
 * does, which may be empty. */
cudaError_t cp_node_list_attend(const cp_device_attention *call, int64_t room,
                                cp_node_list into, cudaStream_t stream);
cudaError_t cp_node_lists_merge(int64_t rows, int64_t dim,
                                const cp_node_list *lists, int count,
                                cudaStream_t stream);

/* A list of keys for cp_device_keys: whole blocks, by sequence, leaf and
 * position. The functions give, in this order: how many pieces it has; the
 * list, and where each leaf of each sequence begins, of which there are
 * sequences * CP_LEAVES + 1; and whether it can be made of a rank's keys
 * (CP_INVALID if the keys of a block lie apart). */
int64_t cp_leaf_pieces(const cp_pieces *keys);
void cp_leaf_list(const cp_pieces *keys, int64_t sequences, int64_t *first,
                  cp_piece *to);
cp_status cp_leaf_check(const cp_pieces *keys, int rank);

#endif
