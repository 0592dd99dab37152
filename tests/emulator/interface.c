/* Compares the emulator's headers with CUDA's, NCCL's and cuBLASLt's, where
 * those are installed. After a real header the emulator's own declares the same
 * functions again, which the compiler refuses if a prototype differs; the lists
 * of values are asserted here. */
#include <cublasLt.h>
#include <cuda.h>
#include <nccl.h>

#include "cublasLt.h"
#include "cuda.h"
#include "cuda_runtime_api.h"
#include "nccl.h"

#define IS(name, value) _Static_assert((int)(name) == (value), #name);
#define SAYS(name, value, text) IS(name, value)

CUDA_ERRORS(SAYS)
CUDA_COPY_KINDS(IS)
CUDA_ATTRIBUTES(IS)
CUDA_CAPTURE_STATES(IS)
IS(cudaStreamCaptureModeThreadLocal, 1)
IS(cudaGraphInstantiateFlagUseNodePriority, 8)
IS(cudaStreamNonBlocking, 1)
IS(cudaEventDefault, 0)
IS(cudaEventDisableTiming, 2)
IS(sizeof(dim3), 12)
IS(cudaDriverEntryPointSymbolNotFound, 1)

CUDA_TENSOR_MAP_VALUES(IS)
IS(sizeof(CUtensorMap), 128)

NCCL_RESULTS(SAYS)
NCCL_TYPES(IS)
IS(ncclSum, 0)
IS(sizeof(ncclUniqueId), 128)
IS(NCCL_CONFIG_UNDEF_INT, INT_MIN)
IS(NCCL_SHRINK_ABORT, 1)

CUBLAS_STATUSES(SAYS)
CUBLAS_TYPES(IS)
CUBLAS_DESCRIPTIONS(IS)
CUBLAS_PREFERENCES(IS)
CUBLAS_CONFIGS(IS)
CUBLAS_WAYS(IS)
IS(sizeof(cublasLtMatrixLayoutOpaque_t), 64)
IS(sizeof(cublasLtMatmulDescOpaque_t), 256)
IS(sizeof(cublasLtMatmulAlgo_t), 64)
IS(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), 64)
IS(offsetof(cublasLtMatmulHeuristicResult_t, state), 72)

const ncclConfig_t emulator_config = NCCL_CONFIG_INITIALIZER;
