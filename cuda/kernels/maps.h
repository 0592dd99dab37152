/* Tangled from book/14-hopper.nw; edit the chapter. */
/* How TMA is told of a tensor. For kernel files only. */
#ifndef CP_MAPS_H
#define CP_MAPS_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor of bf16, [rows][apart][dim], of whose heads the first so many are
 * read, in boxes of [box_rows][box_heads][64]. A map of no rows is refused;
 * nothing asks for the row that stands for them. */
cudaError_t cp_tensor_map(const void *tensor, int64_t rows, int64_t apart,
                          int64_t heads, int64_t dim, int64_t box_rows,
                          int64_t box_heads, CUtensorMap *map);

#ifdef __cplusplus
}
#endif

#endif
