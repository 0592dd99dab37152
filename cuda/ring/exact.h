/* Tangled from book/17-exact.nw; edit the chapter. */
/* Exact order on streams: which leaves the slots of a plan hold, and which
 * launches an attention and a merge are then; and the lists of keys by leaf
 * that these read. */
#ifndef CP_STREAMS_EXACT_H
#define CP_STREAMS_EXACT_H

#include "ring/plan.h"

#include "cuda/kernels/kernels.h"

/* The leaves that an operation reads, an attention of the keys, others in their
 * slot in; and those that its slot out holds before it. */
typedef struct {
    uint32_t in, out;
} cp_held;

/* Those of all operations of a rank: [count], for free(). Fails with CP_MEMORY.
 * And how many partials an attention of it needs room for, of so many bytes at
 * most, where so many leaves should be attended to at a time. */
cp_status cp_held_new(const cp_plan *plan, int rank, cp_held **out);
int64_t cp_held_room(const cp_plan *plan, int rank, int64_t wanted,
                     int64_t *bytes);

/* Nodes of some leaves, one behind the other as in a slot (forest.h). */
typedef struct {
    float *nodes;
    uint32_t leaves;
} cp_grove;

/* Put an attention to some leaves on a stream: what it gives is united with
 * into. Of the call, output, LSE and splits are not read; unfinished has room
 * for so many partials. And unite some that share no leaf, of so many rows of
 * heads; the result lies where the first does, which may be empty. */
cudaError_t cp_grove_attend(const cp_device_attention *call, int64_t room,
                            cp_grove into, cudaStream_t stream);
cudaError_t cp_grove_unite(int64_t rows, int64_t dim, const cp_grove *groves,
                           int count, cudaStream_t stream);

/* A list of keys for cp_device_keys: whole blocks, by sequence, leaf and
 * position. How many pieces it has; the list, and where those of each of so
 * many sequences' leaves begin, [sequences * CP_LEAVES + 1]; and whether it can
 * be made, of some rank's keys: CP_INVALID if one block's lie apart. */
int64_t cp_leaf_pieces(const cp_pieces *keys);
void cp_leaf_list(const cp_pieces *keys, int64_t sequences, int64_t *first,
                  cp_piece *to);
cp_status cp_leaf_check(const cp_pieces *keys, int rank);

#endif
