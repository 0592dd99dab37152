/* Tangled from book/17-exact.nw; edit the chapter. */
/* Exact order on streams: the launches of an attention and of a merge, and the
 * lists of keys by leaf that these read. */
#ifndef CP_LEAF_LISTS_H
#define CP_LEAF_LISTS_H

#include "plan/steps.h"

#include "cuda/kernels/kernels.h"

/* For how many partials an attention of a rank needs room if a launch is to
 * cover `batch` leaves; sets the most bytes of one. */
int64_t cp_leaf_room(const cp_steps *steps, int64_t batch, int64_t *bytes);

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

/* A list of keys for cp_device_keys, of blocks: by sequence, leaf and position;
 * and where each leaf of each sequence begins, of which there are sequences *
 * CP_LEAVES + 1. */
void cp_leaf_list(const cp_pieces *blocks, int64_t sequences, int64_t *first,
                  cp_piece *to);

/* Can the keys of all ranks be cut into such blocks? CP_INVALID if the keys of
 * a block lie apart. */
cp_status cp_leaf_check(const cp_layout *layout);

#endif
