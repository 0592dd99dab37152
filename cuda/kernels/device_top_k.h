/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Sparse attention on a GPU: makes lists of the best keys. Plain loops. */
#ifndef CP_DEVICE_TOP_K_H
#define CP_DEVICE_TOP_K_H

#include "cuda/kernels/kernels.h"
#include "tokens/indexer.h"

/* Computes the lists of cp_select (select.h) on a device, with the same bits as
 * a processor with fused multiply-add. Writes every row that a tile of queries
 * names.
 *   queries, weights, keys   [rows][heads][dim], [rows][heads], [rows][dim]
 *   lists                    [rows][top_k], best first */
typedef struct {
    cp_indexer indexer;
    cp_element element; /* of queries, weights and keys */
    cp_device_tiles queries_of;
    cp_device_keys keys_of;
    const void *queries, *weights, *keys;
    bool merge; /* add to the lists as they are; otherwise clear them first */
    cp_candidate *lists;
} cp_device_selection;

/* Lists [rows][room], one for each query. */
typedef struct {
    int64_t rows, room;
    const cp_candidate *from;
    cp_candidate *to;
} cp_device_lists;

#ifdef __cplusplus
extern "C" {
#endif
/* Launch on a stream, as the functions of kernels.h do: a selection; a merge
 * into other lists, over disjoint keys. */
cudaError_t cp_device_select(const cp_device_selection *, cudaStream_t);
cudaError_t cp_device_merge_lists(const cp_device_lists *, cudaStream_t);
#ifdef __cplusplus
}
#endif

#endif
