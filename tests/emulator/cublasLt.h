/* The part of cuBLASLt that this project calls, for machines without it: names,
 * types, values and prototypes as in CUDA 12.9 and 13, implemented by a
 * multiplication on the CPU (cublas.c) that runs in its stream like a kernel.
 * After the real header only the prototypes and lists are read
 * (interface.c). */
#ifndef EMULATOR_CUBLASLT_H
#define EMULATOR_CUBLASLT_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#define CUBLAS_STATUSES(X)                                                     \
    X(CUBLAS_STATUS_SUCCESS, 0, "success")                                     \
    X(CUBLAS_STATUS_NOT_INITIALIZED, 1, "the library was not initialized")     \
    X(CUBLAS_STATUS_ALLOC_FAILED, 3, "the resource allocation failed")         \
    X(CUBLAS_STATUS_INVALID_VALUE, 7,                                          \
      "an unsupported value or parameter was passed to the function")          \
    X(CUBLAS_STATUS_EXECUTION_FAILED, 13,                                      \
      "the function failed to launch on the GPU")                              \
    X(CUBLAS_STATUS_INTERNAL_ERROR, 14, "an internal operation failed")        \
    X(CUBLAS_STATUS_NOT_SUPPORTED, 15,                                         \
      "the functionality requested is not supported")
#define CUBLAS_TYPES(X)                                                        \
    X(CUDA_R_32F, 0) X(CUDA_R_16BF, 14) X(CUDA_R_8F_E4M3, 28)
#define CUBLAS_DESCRIPTIONS(X)                                                 \
    X(CUBLASLT_MATMUL_DESC_TRANSA, 3)                                          \
    X(CUBLASLT_MATMUL_DESC_TRANSB, 4)                                          \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17)                                \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18)                                \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 31)                                   \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 32)
#define CUBLAS_PREFERENCES(X)                                                  \
    X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)                             \
    X(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)                           \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)                           \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)                           \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)                           \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)
#define CUBLAS_CONFIGS(X)                                                      \
    X(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 2)                                      \
    X(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 3)
#define CUBLAS_WAYS(X)                                                         \
    X(CUBLASLT_REDUCTION_SCHEME_NONE, 0)                                       \
    X(CUBLASLT_REDUCTION_SCHEME_MASK, 7)                                       \
    X(CUBLAS_OP_N, 0)                                                          \
    X(CUBLAS_OP_T, 1)                                                          \
    X(CUBLAS_COMPUTE_32F, 68)                                                  \
    X(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, 3)

#ifndef CUBLAS_VERSION
typedef enum { CUBLAS_STATUSES(CUDA_NAMED) } cublasStatus_t;
typedef enum { CUBLAS_TYPES(CUDA_NAMED) } cudaDataType;
typedef enum { CUBLAS_DESCRIPTIONS(CUDA_NAMED) } cublasLtMatmulDescAttributes_t;
typedef enum {
    CUBLAS_PREFERENCES(CUDA_NAMED)
} cublasLtMatmulPreferenceAttributes_t;
typedef enum {
    CUBLAS_CONFIGS(CUDA_NAMED)
} cublasLtMatmulAlgoConfigAttributes_t;
typedef enum { CUBLAS_WAYS(CUDA_NAMED) } cublasComputeType_t;
typedef cudaDataType cudaDataType_t;
typedef struct cublasLtContext *cublasLtHandle_t;

/* Opaque to a caller, which knows only their sizes. Each begins with a mark
 * that it was initialised. */
typedef union {
    uint64_t data[8];
    struct {
        uint64_t mark;
        int64_t rows, columns, stride;
        cudaDataType type;
    };
} cublasLtMatrixLayoutOpaque_t, *cublasLtMatrixLayout_t;

typedef union {
    uint64_t data[32];
    struct {
        uint64_t mark;
        const float *scales[2]; /* of A, of B */
        int32_t compute, scale_type, transposed[2], modes[2];
    };
} cublasLtMatmulDescOpaque_t, *cublasLtMatmulDesc_t;

typedef union {
    uint64_t data[8];
    struct {
        uint64_t mark, workspace;
        uint32_t alignments[4], reductions;
    };
} cublasLtMatmulPreferenceOpaque_t, *cublasLtMatmulPreference_t;

typedef union {
    uint64_t data[8];
    struct {
        uint64_t kind, workspace; /* what it was found for, and needs */
        int64_t columns;          /* columns of B it was found for */
        uint32_t alignments[4], reductions;
    };
} cublasLtMatmulAlgo_t;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;
#endif

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
size_t cublasLtGetVersion(void);
const char *cublasLtGetStatusString(cublasStatus_t status);

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout,
                                        cudaDataType type, uint64_t rows,
                                        uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t how,
                                      cublasComputeType_t computeType,
                                      cudaDataType_t scaleType);
cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t how,
                               cublasLtMatmulDescAttributes_t attr,
                               const void *buf, size_t bytes);
cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t pref);
cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                     cublasLtMatmulPreferenceAttributes_t attr,
                                     const void *buf, size_t bytes);

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most,
    cublasLtMatmulHeuristicResult_t found[], int *count);

cublasStatus_t
cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t how,
                        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                        const cublasLtMatmulAlgo_t *algo,
                        cublasLtMatmulHeuristicResult_t *found);

cublasStatus_t
cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                     cublasLtMatmulAlgoConfigAttributes_t attr,
                                     void *buf, size_t bytes, size_t *written);

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t how,
                              const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D,
                              cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t bytes, cudaStream_t stream);

#endif
