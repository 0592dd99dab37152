/* What the stand-in's headers promise, as assertions about whichever headers are
 * found: compiled against the stand-in's and, where CUDA and NCCL are installed,
 * against theirs. A value or prototype that differs does not compile. */
#include <cuda_runtime_api.h>
#include <nccl.h>

#define IS(name, value) _Static_assert((int)(name) == (value), #name)

IS(cudaSuccess, 0);
IS(cudaErrorInvalidValue, 1);
IS(cudaErrorMemoryAllocation, 2);
IS(cudaErrorInvalidConfiguration, 9);
IS(cudaErrorInvalidPitchValue, 12);
IS(cudaErrorInvalidMemcpyDirection, 21);
IS(cudaErrorInsufficientDriver, 35);
IS(cudaErrorNoDevice, 100);
IS(cudaErrorInvalidDevice, 101);
IS(cudaErrorInvalidResourceHandle, 400);
IS(cudaErrorNotReady, 600);
IS(cudaErrorLaunchOutOfResources, 701);
IS(cudaErrorLaunchFailure, 719);
IS(cudaErrorNotPermitted, 800);
IS(cudaErrorNotSupported, 801);
IS(cudaErrorStreamCaptureUnsupported, 900);
IS(cudaErrorStreamCaptureInvalidated, 901);
IS(cudaErrorStreamCaptureMerge, 902);
IS(cudaErrorStreamCaptureUnmatched, 903);
IS(cudaErrorStreamCaptureUnjoined, 904);
IS(cudaErrorStreamCaptureIsolation, 905);
IS(cudaErrorCapturedEvent, 907);
IS(cudaErrorStreamCaptureWrongThread, 908);
IS(cudaErrorUnknown, 999);

IS(cudaMemcpyHostToHost, 0);
IS(cudaMemcpyHostToDevice, 1);
IS(cudaMemcpyDeviceToHost, 2);
IS(cudaMemcpyDeviceToDevice, 3);
IS(cudaMemcpyDefault, 4);

IS(cudaDevAttrMultiProcessorCount, 16);
IS(cudaDevAttrL2CacheSize, 38);
IS(cudaDevAttrComputeCapabilityMajor, 75);
IS(cudaDevAttrComputeCapabilityMinor, 76);

IS(cudaStreamCaptureModeGlobal, 0);
IS(cudaStreamCaptureModeThreadLocal, 1);
IS(cudaStreamCaptureModeRelaxed, 2);
IS(cudaStreamCaptureStatusNone, 0);
IS(cudaStreamCaptureStatusActive, 1);
IS(cudaStreamCaptureStatusInvalidated, 2);
IS(cudaStreamDefault, 0);
IS(cudaStreamNonBlocking, 1);
IS(cudaEventDefault, 0);
IS(cudaEventDisableTiming, 2);

IS(ncclSuccess, 0);
IS(ncclUnhandledCudaError, 1);
IS(ncclSystemError, 2);
IS(ncclInternalError, 3);
IS(ncclInvalidArgument, 4);
IS(ncclInvalidUsage, 5);
IS(ncclRemoteError, 6);
IS(ncclInProgress, 7);
IS(ncclInt8, 0);
IS(ncclUint8, 1);
IS(ncclInt32, 2);
IS(ncclUint32, 3);
IS(ncclInt64, 4);
IS(ncclUint64, 5);
IS(ncclFloat16, 6);
IS(ncclFloat32, 7);
IS(ncclFloat64, 8);
IS(ncclBfloat16, 9);
IS(ncclSum, 0);
IS(ncclProd, 1);
IS(ncclMax, 2);
IS(ncclMin, 3);
IS(ncclAvg, 4);
IS(NCCL_UNIQUE_ID_BYTES, 128);
IS(NCCL_SPLIT_NOCOLOR, -1);
IS(sizeof(ncclUniqueId), 128);
IS(sizeof(dim3), 12);
_Static_assert(NCCL_CONFIG_UNDEF_INT < 0, "NCCL_CONFIG_UNDEF_INT");

/* One structure with a pointer to every function, of the type we call it by. */
const struct {
    const char *(*error_name)(cudaError_t), *(*error_string)(cudaError_t);
    cudaError_t (*last_error)(void), (*peek)(void), (*device_synchronize)(void);
    cudaError_t (*runtime)(int *), (*driver)(int *), (*count)(int *);
    cudaError_t (*set_device)(int), (*get_device)(int *);
    cudaError_t (*attribute)(int *, enum cudaDeviceAttr, int);
    cudaError_t (*info)(size_t *, size_t *);
    cudaError_t (*malloc)(void **, size_t), (*malloc_host)(void **, size_t);
    cudaError_t (*free)(void *), (*free_host)(void *);
    cudaError_t (*copy)(void *, const void *, size_t, enum cudaMemcpyKind);
    cudaError_t (*copy_async)(void *, const void *, size_t, enum cudaMemcpyKind,
                              cudaStream_t);
    cudaError_t (*copy_2d)(void *, size_t, const void *, size_t, size_t, size_t,
                           enum cudaMemcpyKind, cudaStream_t);
    cudaError_t (*set)(void *, int, size_t);
    cudaError_t (*set_async)(void *, int, size_t, cudaStream_t);
    cudaError_t (*priorities)(int *, int *);
    cudaError_t (*stream_new)(cudaStream_t *, unsigned int);
    cudaError_t (*stream_with)(cudaStream_t *, unsigned int, int);
    cudaError_t (*stream_free)(cudaStream_t), (*synchronize)(cudaStream_t);
    cudaError_t (*stream_query)(cudaStream_t);
    cudaError_t (*wait)(cudaStream_t, cudaEvent_t, unsigned int);
    cudaError_t (*host)(cudaStream_t, cudaHostFn_t, void *);
    cudaError_t (*launch)(const void *, dim3, dim3, void **, size_t,
                          cudaStream_t);
    cudaError_t (*event_new)(cudaEvent_t *);
    cudaError_t (*event_with)(cudaEvent_t *, unsigned int);
    cudaError_t (*record)(cudaEvent_t, cudaStream_t);
    cudaError_t (*event_query)(cudaEvent_t), (*event_wait)(cudaEvent_t);
    cudaError_t (*event_free)(cudaEvent_t);
    cudaError_t (*elapsed)(float *, cudaEvent_t, cudaEvent_t);
    cudaError_t (*begin)(cudaStream_t, enum cudaStreamCaptureMode);
    cudaError_t (*end)(cudaStream_t, cudaGraph_t *);
    cudaError_t (*capturing)(cudaStream_t, enum cudaStreamCaptureStatus *);
    cudaError_t (*nodes)(cudaGraph_t, cudaGraphNode_t *, size_t *);
    cudaError_t (*instantiate)(cudaGraphExec_t *, cudaGraph_t,
                               unsigned long long);
    cudaError_t (*replay)(cudaGraphExec_t, cudaStream_t);
    cudaError_t (*exec_free)(cudaGraphExec_t), (*graph_free)(cudaGraph_t);
} stand_in_cuda_prototypes = {
    cudaGetErrorName,
    cudaGetErrorString,
    cudaGetLastError,
    cudaPeekAtLastError,
    cudaDeviceSynchronize,
    cudaRuntimeGetVersion,
    cudaDriverGetVersion,
    cudaGetDeviceCount,
    cudaSetDevice,
    cudaGetDevice,
    cudaDeviceGetAttribute,
    cudaMemGetInfo,
    cudaMalloc,
    cudaMallocHost,
    cudaFree,
    cudaFreeHost,
    cudaMemcpy,
    cudaMemcpyAsync,
    cudaMemcpy2DAsync,
    cudaMemset,
    cudaMemsetAsync,
    cudaDeviceGetStreamPriorityRange,
    cudaStreamCreateWithFlags,
    cudaStreamCreateWithPriority,
    cudaStreamDestroy,
    cudaStreamSynchronize,
    cudaStreamQuery,
    cudaStreamWaitEvent,
    cudaLaunchHostFunc,
    cudaLaunchKernel,
    cudaEventCreate,
    cudaEventCreateWithFlags,
    cudaEventRecord,
    cudaEventQuery,
    cudaEventSynchronize,
    cudaEventDestroy,
    cudaEventElapsedTime,
    cudaStreamBeginCapture,
    cudaStreamEndCapture,
    cudaStreamIsCapturing,
    cudaGraphGetNodes,
    cudaGraphInstantiate,
    cudaGraphLaunch,
    cudaGraphExecDestroy,
    cudaGraphDestroy,
};

const struct {
    ncclResult_t (*version)(int *), (*id)(ncclUniqueId *);
    const char *(*error)(ncclResult_t), *(*last)(ncclComm_t);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*init_config)(ncclComm_t *, int, ncclUniqueId, int,
                                ncclConfig_t *);
    ncclResult_t (*split)(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
    ncclResult_t (*finalize)(ncclComm_t), (*destroy)(ncclComm_t);
    ncclResult_t (*abort)(ncclComm_t);
    ncclResult_t (*async_error)(ncclComm_t, ncclResult_t *);
    ncclResult_t (*count)(const ncclComm_t, int *);
    ncclResult_t (*device)(const ncclComm_t, int *);
    ncclResult_t (*rank)(const ncclComm_t, int *);
    ncclResult_t (*start)(void), (*end)(void);
    ncclResult_t (*send)(const void *, size_t, ncclDataType_t, int, ncclComm_t,
                         cudaStream_t);
    ncclResult_t (*receive)(void *, size_t, ncclDataType_t, int, ncclComm_t,
                            cudaStream_t);
    ncclResult_t (*gather)(const void *, void *, size_t, ncclDataType_t,
                           ncclComm_t, cudaStream_t);
    ncclResult_t (*reduce)(const void *, void *, size_t, ncclDataType_t,
                           ncclRedOp_t, ncclComm_t, cudaStream_t);
    ncclConfig_t config;
} stand_in_nccl_prototypes = {
    ncclGetVersion,
    ncclGetUniqueId,
    ncclGetErrorString,
    ncclGetLastError,
    ncclCommInitRank,
    ncclCommInitRankConfig,
    ncclCommSplit,
    ncclCommFinalize,
    ncclCommDestroy,
    ncclCommAbort,
    ncclCommGetAsyncError,
    ncclCommCount,
    ncclCommCuDevice,
    ncclCommUserRank,
    ncclGroupStart,
    ncclGroupEnd,
    ncclSend,
    ncclRecv,
    ncclAllGather,
    ncclAllReduce,
    NCCL_CONFIG_INITIALIZER,
};
