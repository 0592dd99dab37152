/* Tangled from book/14-hopper.nw; edit the chapter. */
/* Describes a tensor to TMA. For kernel files only. */
#ifndef CP_MAPS_H
#define CP_MAPS_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Describe a tensor of bf16, [rows][apart][dim], of which the first `heads`
 * heads are read, in boxes of [box_rows][box_heads][64]. CUDA refuses a map of
 * 0 rows; the map then has 1 row, which nothing reads. */
cudaError_t cp_tensor_map(const void *tensor, int64_t rows, int64_t apart,
                          int64_t heads, int64_t dim, int64_t box_rows,
                          int64_t box_heads, CUtensorMap *map);

#ifdef __cplusplus
}
#endif

#endif
