/* What the stand-in's cublasLt.h promises, as assertions about whichever header
 * is found: see interface.c, which does the same for CUDA and NCCL. */
#include <cublasLt.h>

#define IS(name, value) _Static_assert((int)(name) == (value), #name)

IS(CUBLAS_STATUS_SUCCESS, 0);
IS(CUBLAS_STATUS_NOT_INITIALIZED, 1);
IS(CUBLAS_STATUS_ALLOC_FAILED, 3);
IS(CUBLAS_STATUS_INVALID_VALUE, 7);
IS(CUBLAS_STATUS_EXECUTION_FAILED, 13);
IS(CUBLAS_STATUS_INTERNAL_ERROR, 14);
IS(CUBLAS_STATUS_NOT_SUPPORTED, 15);
IS(CUBLAS_OP_N, 0);
IS(CUBLAS_OP_T, 1);
IS(CUBLAS_COMPUTE_32F, 68);
IS(CUDA_R_32F, 0);
IS(CUDA_R_16F, 2);
IS(CUDA_R_16BF, 14);
IS(CUDA_R_8F_E4M3, 28);
IS(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, 3);
IS(CUBLASLT_MATMUL_DESC_TRANSA, 3);
IS(CUBLASLT_MATMUL_DESC_TRANSB, 4);
IS(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17);
IS(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18);
IS(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 31);
IS(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 32);
IS(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8);
IS(sizeof(cublasLtMatrixLayoutOpaque_t), 64);
IS(sizeof(cublasLtMatmulDescOpaque_t), 256);
IS(sizeof(cublasLtMatmulAlgo_t), 64);
IS(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), 64);
IS(offsetof(cublasLtMatmulHeuristicResult_t, state), 72);

/* One structure with a pointer to every function, of the type we call it by. */
const struct {
    cublasStatus_t (*create)(cublasLtHandle_t *), (*destroy)(cublasLtHandle_t);
    size_t (*version)(void);
    const char *(*words)(cublasStatus_t);
    cublasStatus_t (*layout)(cublasLtMatrixLayout_t, cudaDataType, uint64_t,
                             uint64_t, int64_t);
    cublasStatus_t (*describe)(cublasLtMatmulDesc_t, cublasComputeType_t,
                               cudaDataType_t);
    cublasStatus_t (*set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                          const void *, size_t);
    cublasStatus_t (*prefer)(cublasLtMatmulPreference_t);
    cublasStatus_t (*preference)(cublasLtMatmulPreference_t,
                                 cublasLtMatmulPreferenceAttributes_t,
                                 const void *, size_t);
    cublasStatus_t (*search)(cublasLtHandle_t, cublasLtMatmulDesc_t,
                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                             cublasLtMatmulPreference_t, int,
                             cublasLtMatmulHeuristicResult_t *, int *);
    cublasStatus_t (*multiply)(cublasLtHandle_t, cublasLtMatmulDesc_t,
                               const void *, const void *,
                               cublasLtMatrixLayout_t, const void *,
                               cublasLtMatrixLayout_t, const void *,
                               const void *, cublasLtMatrixLayout_t, void *,
                               cublasLtMatrixLayout_t,
                               const cublasLtMatmulAlgo_t *, void *, size_t,
                               cudaStream_t);
} stand_in_cublas_prototypes = {
    cublasLtCreate,
    cublasLtDestroy,
    cublasLtGetVersion,
    cublasLtGetStatusString,
    cublasLtMatrixLayoutInit,
    cublasLtMatmulDescInit,
    cublasLtMatmulDescSetAttribute,
    cublasLtMatmulPreferenceInit,
    cublasLtMatmulPreferenceSetAttribute,
    cublasLtMatmulAlgoGetHeuristic,
    cublasLtMatmul,
};
