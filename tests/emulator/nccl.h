/* The part of NCCL that this project calls, for machines without it: names,
 * values and prototypes as in NCCL 2.28, implemented by the emulator
 * (emulator.h), whose ranks are threads, or processes of this host. Not NCCL.
 * After the real header only the prototypes and lists are read
 * (interface.c). */
#ifndef EMULATOR_NCCL_H
#define EMULATOR_NCCL_H

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stddef.h>

#define NCCL_RESULTS(X)                                                        \
    X(ncclSuccess, 0, "no error")                                              \
    X(ncclUnhandledCudaError, 1, "unhandled cuda error")                       \
    X(ncclSystemError, 2, "unhandled system error")                            \
    X(ncclInvalidArgument, 4, "invalid argument")                              \
    X(ncclInvalidUsage, 5, "invalid usage")                                    \
    X(ncclRemoteError, 6,                                                      \
      "remote process exited or there was a network error")                    \
    X(ncclInProgress, 7, "NCCL operation in progress")
#define NCCL_TYPES(X) X(ncclInt8, 0) X(ncclFloat32, 7) X(ncclBfloat16, 9)

#ifndef NCCL_VERSION_CODE
typedef enum { NCCL_RESULTS(CUDA_NAMED) } ncclResult_t;
typedef enum { NCCL_TYPES(CUDA_NAMED) } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

/* Only `blocking` matters here. The real structure has more members. */
typedef struct {
    size_t size;
    int blocking, cgaClusterSize, maxCTAs;
} ncclConfig_t;

#define NCCL_VERSION_CODE 22809
#define NCCL_SHRINK_DEFAULT 0
#define NCCL_SHRINK_ABORT 1
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_INITIALIZER                                                \
    {                                                                          \
        sizeof(ncclConfig_t), NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,    \
            NCCL_CONFIG_UNDEF_INT                                              \
    }
#endif

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
const char *ncclGetErrorString(ncclResult_t result);

/* Communicators. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks,
                                    ncclUniqueId commId, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
                           ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList,
                            int excludeRanksCount, ncclComm_t *newcomm,
                            ncclConfig_t *config, int shrinkFlags);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

/* Messages. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t on);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t on);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t on);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t on);

#endif
