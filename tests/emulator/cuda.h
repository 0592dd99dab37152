/* The part of the CUDA driver's interface that this project calls: tensor maps,
 * which are not linked but found by name (cudaGetDriverEntryPointByVersion).
 * Unlike CUDA's, not over-aligned: the emulator does not need that. */
#ifndef EMULATOR_CUDA_H
#define EMULATOR_CUDA_H

#include <stdint.h>

#define CUDA_TENSOR_MAP_VALUES(X)                                              \
    X(CUDA_SUCCESS, 0)                                                         \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                             \
    X(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 9)                                     \
    X(CU_TENSOR_MAP_INTERLEAVE_NONE, 0)                                        \
    X(CU_TENSOR_MAP_SWIZZLE_128B, 3)                                           \
    X(CU_TENSOR_MAP_L2_PROMOTION_L2_128B, 2)                                   \
    X(CU_TENSOR_MAP_L2_PROMOTION_L2_256B, 3)                                   \
    X(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, 0)

#ifndef CUDA_VERSION
#define CUDA_NAMED_VALUE(name, value) name = (value),
enum { CUDA_TENSOR_MAP_VALUES(CUDA_NAMED_VALUE) };
typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef int CUresult;
typedef int CUtensorMapDataType;
typedef int CUtensorMapInterleave;
typedef int CUtensorMapSwizzle;
typedef int CUtensorMapL2promotion;
typedef int CUtensorMapFloatOOBfill;
typedef struct {
    cuuint64_t opaque[16];
} CUtensorMap;
#endif

CUresult cuTensorMapEncodeTiled(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
    cuuint32_t tensorRank, void *globalAddress, const cuuint64_t *globalDim,
    const cuuint64_t *globalStrides, const cuuint32_t *boxDim,
    const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill);

#endif
