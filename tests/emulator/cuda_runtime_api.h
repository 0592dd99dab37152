/* The part of the CUDA runtime that this project calls, for machines without
 * CUDA: names, types, values and prototypes as in CUDA 12 and 13, implemented
 * by the emulator (emulator.h), which runs streams on the CPU. Not a CUDA
 * installation: what we do not call is not here. interface.c reads this file
 * after the real header; then only the prototypes and the lists remain, and one
 * that differs does not compile. */
#ifndef EMULATOR_CUDA_RUNTIME_API_H
#define EMULATOR_CUDA_RUNTIME_API_H

#include <stddef.h>

/* Names and values that CUDA fixes; the emulator returns most of them. */
#define CUDA_ERRORS(X)                                                         \
    X(cudaSuccess, 0, "no error")                                              \
    X(cudaErrorInvalidValue, 1, "invalid argument")                            \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                           \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")      \
    X(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                \
    X(cudaErrorInsufficientDriver, 35,                                         \
      "the driver is missing or older than the runtime")                       \
    X(cudaErrorNoDevice, 100, "no device")                                     \
    X(cudaErrorInvalidDevice, 101, "invalid device number")                    \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")          \
    X(cudaErrorNotReady, 600, "not ready")                                     \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources for a launch")   \
    X(cudaErrorLaunchFailure, 719, "launch failure")                           \
    X(cudaErrorNotSupported, 801, "not supported")                             \
    X(cudaErrorStreamCaptureUnsupported, 900, "not permitted in a capture")    \
    X(cudaErrorStreamCaptureInvalidated, 901, "the capture was invalidated")   \
    X(cudaErrorStreamCaptureUnmatched, 903, "not the stream of the capture")   \
    X(cudaErrorStreamCaptureUnjoined, 904, "a captured stream was not joined") \
    X(cudaErrorStreamCaptureIsolation, 905,                                    \
      "a captured operation depends on one that is not")                       \
    X(cudaErrorCapturedEvent, 907, "the event belongs to a capture")           \
    X(cudaErrorUnknown, 999, "unknown error")

#define CUDA_COPY_KINDS(X)                                                     \
    X(cudaMemcpyHostToDevice, 1)                                               \
    X(cudaMemcpyDeviceToHost, 2)                                               \
    X(cudaMemcpyDeviceToDevice, 3)                                             \
    X(cudaMemcpyDefault, 4)
#define CUDA_ATTRIBUTES(X)                                                     \
    X(cudaDevAttrMultiProcessorCount, 16)                                      \
    X(cudaDevAttrComputeCapabilityMajor, 75)                                   \
    X(cudaDevAttrComputeCapabilityMinor, 76)
#define CUDA_CAPTURE_STATES(X)                                                 \
    X(cudaStreamCaptureStatusNone, 0)                                          \
    X(cudaStreamCaptureStatusActive, 1)                                        \
    X(cudaStreamCaptureStatusInvalidated, 2)

#ifndef CUDART_VERSION
#define CUDART_VERSION 13000
#define CUDA_NAMED(name, value, ...) name = (value),
enum cudaError { CUDA_ERRORS(CUDA_NAMED) };
typedef enum cudaError cudaError_t;
enum cudaMemcpyKind { CUDA_COPY_KINDS(CUDA_NAMED) };
enum cudaDeviceAttr { CUDA_ATTRIBUTES(CUDA_NAMED) };
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaStreamCaptureStatus { CUDA_CAPTURE_STATES(CUDA_NAMED) };
enum { cudaGraphInstantiateFlagUseNodePriority = 8 };
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventDisableTiming 0x02

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

struct dim3 {
    unsigned int x, y, z;
};
typedef struct dim3 dim3;
#endif

/* Errors, versions, devices. */
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaRuntimeGetVersion(int *runtimeVersion);
cudaError_t cudaDriverGetVersion(int *driverVersion);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
                                   int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *symbol, void **funcPtr, unsigned int cudaVersion,
    unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *driverStatus);

/* Memory. */
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **devPtr, size_t size);
cudaError_t cudaFree(void *devPtr);
cudaError_t cudaMallocHost(void **ptr, size_t size);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count,
                       enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count,
                            enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src,
                              size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemset(void *devPtr, int value, size_t count);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
                            cudaStream_t stream);

/* Streams. */
cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority,
                                             int *greatestPriority);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream,
                                      unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream,
                                         unsigned int flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags);

/* Events. */
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

/* Graphs. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  enum cudaStreamCaptureStatus *pCaptureStatus);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

#endif
