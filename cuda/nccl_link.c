/* Tangled from book/13-nccl.nw; edit the chapter. */
/* Messages between GPUs, by NCCL, with patience. */
#define _POSIX_C_SOURCE 200809L /* monotonic clock, nanosleep */
#include "nccl_link.h"

#include <stdlib.h>
#include <time.h>

struct cp_nccl {
    cp_link link;
    ncclComm_t comm;
    int rank, ranks;
    double patience;
    bool aborted;
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static cp_status settle(cp_nccl *nccl, ncclResult_t result, const char *what) {
    const struct timespec pause = {0, 50000};
    const double began = seconds();
    while (result == ncclInProgress) {
        if (nccl->patience > 0 && seconds() - began > nccl->patience)
            return cp_fail(CP_BROKEN, "rank %d of %d waited %g s in vain, %s",
                           nccl->rank, nccl->ranks, nccl->patience, what);
        const ncclResult_t asked = ncclCommGetAsyncError(nccl->comm, &result);
        if (asked != ncclSuccess)
            result = asked;
        if (result == ncclInProgress)
            nanosleep(&pause, NULL);
    }
    if (result == ncclSuccess)
        return CP_OK;
    return cp_fail(CP_BROKEN, "rank %d, %s: NCCL: %s", nccl->rank, what,
                   ncclGetErrorString(result));
}

static cp_status trade(void *context, const cp_message_half *halves, int count,
                       cudaStream_t stream) {
    cp_nccl *nccl = context;
    if (nccl->aborted)
        return cp_fail(CP_BROKEN, "rank %d has given up its peers", nccl->rank);
    ncclResult_t result = ncclGroupStart();
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        const cp_message_half half = halves[i];
        result = half.receive
                     ? ncclRecv(half.buffer, (size_t)half.bytes, ncclInt8,
                                half.peer, nccl->comm, stream)
                     : ncclSend(half.buffer, (size_t)half.bytes, ncclInt8,
                                half.peer, nccl->comm, stream);
        result = result == ncclInProgress ? ncclSuccess : result;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return settle(nccl, result == ncclSuccess ? ended : result,
                  "enqueuing messages");
}

static cp_status check(void *context) {
    cp_nccl *nccl = context;
    ncclResult_t state = ncclSuccess;
    if (nccl->aborted)
        return cp_fail(CP_BROKEN, "rank %d has given up its peers", nccl->rank);
    const ncclResult_t asked = ncclCommGetAsyncError(nccl->comm, &state);
    state = asked == ncclSuccess ? state : asked;
    if (state == ncclSuccess || state == ncclInProgress)
        return CP_OK;
    return cp_fail(CP_BROKEN, "rank %d: NCCL: %s", nccl->rank,
                   ncclGetErrorString(state));
}

static void give_up(void *context) {
    cp_nccl *nccl = context;
    if (!nccl->aborted)
        ncclCommAbort(nccl->comm);
    nccl->aborted = true;
}

cp_status cp_nccl_new(const ncclUniqueId *id, int rank, int ranks,
                      double patience, cp_nccl **out) {
    *out = NULL;
    cp_nccl *nccl;
    cp_status status = cp_allocate(&nccl, 1, sizeof(*nccl), "a rank of NCCL");
    if (status != CP_OK)
        return status;
    *nccl = (cp_nccl){.link = {trade, check, give_up, nccl},
                      .rank = rank,
                      .ranks = ranks,
                      .patience = patience};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = 4;
    status = settle(
        nccl, ncclCommInitRankConfig(&nccl->comm, ranks, *id, rank, &config),
        "joining");
    if (status == CP_OK) {
        *out = nccl;
        return CP_OK;
    }
    if (nccl->comm != NULL)
        give_up(nccl);
    free(nccl);
    return status;
}

void cp_nccl_free(cp_nccl *nccl) {
    if (nccl == NULL)
        return;
    if (!nccl->aborted &&
        settle(nccl, ncclCommFinalize(nccl->comm), "leaving") == CP_OK) {
        ncclCommDestroy(nccl->comm);
        nccl->aborted = true;
    }
    give_up(nccl);
    free(nccl);
}

const cp_link *cp_nccl_link(const cp_nccl *nccl) {
    return &nccl->link;
}
