/* Tangled from book/14-hopper.nw; edit the chapter. */
#include "cuda/kernels/maps.h"

#include <string.h>

#include "ground/ground.h"

/* The driver's function that encodes a tensor map; found by name, since nothing
 * here links to the driver. */
typedef CUresult (*map_encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t,
                                void *, const cuuint64_t *, const cuuint64_t *,
                                const cuuint32_t *, const cuuint32_t *,
                                CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill);

static cudaError_t find_encoder(map_encoder *encode) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, 0, &result);
    memcpy(encode, &found, sizeof found);
    return error == cudaSuccess && found == NULL ? cudaErrorNotSupported
                                                 : error;
}

cudaError_t cp_tensor_map(const void *tensor, int64_t rows, int64_t apart,
                          int64_t heads, int64_t dim, int64_t box_rows,
                          int64_t box_heads, CUtensorMap *map) {
    map_encoder encode;
    const cudaError_t error = find_encoder(&encode);
    const cuuint64_t sizes[] = {(cuuint64_t)dim, (cuuint64_t)heads,
                                (cuuint64_t)cp_max(1, rows)};
    const cuuint64_t strides[] = {(cuuint64_t)dim * 2,
                                  (cuuint64_t)(apart * dim) * 2};
    const cuuint32_t box[] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_rows};
    const cuuint32_t ones[] = {1, 1, 1};
    if (error != cudaSuccess)
        return error;
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)tensor,
                  sizes, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? cudaSuccess
               : cudaErrorInvalidValue;
}
