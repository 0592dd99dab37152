/* Tangled from book/13-nccl.nw; edit the chapter. */
/* Messages between GPUs, by NCCL, with patience. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "cuda/ring/nccl_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct cp_nccl {
    cp_link link;
    cp_carry carry;
    cp_nccl *kin; /* the next of this process's; itself if alone */
    ncclComm_t comm;
    int rank, ranks;
    double patience;
    bool aborted;
};

static cp_status settle(cp_nccl *nccl, ncclResult_t result, const char *what) {
    const struct timespec pause = {0, 50000};
    const double began = cp_clock();
    while (result == ncclInProgress) {
        if (nccl->patience > 0 && cp_clock() - began > nccl->patience)
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

static cp_status carry(void *context, void *to, const void *from, int64_t bytes,
                       cudaStream_t stream) {
    cp_message_half halves[2] = {
        {.peer = 0, .buffer = (void *)(uintptr_t)from, .bytes = bytes},
        {.peer = 0, .receive = true, .buffer = to, .bytes = bytes}};
    return trade(context, halves, 2, stream);
}

static cp_status check_one(cp_nccl *nccl) {
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

static cp_status check(void *context) {
    cp_nccl *first = context, *nccl = first;
    cp_status status = CP_OK;
    do {
        status = check_one(nccl);
        nccl = nccl->kin;
    } while (nccl != first && status == CP_OK);
    return status;
}

static void abort_one(cp_nccl *nccl) {
    if (!nccl->aborted)
        ncclCommAbort(nccl->comm);
    nccl->aborted = true;
}

static void give_up(void *context) {
    cp_nccl *first = context, *nccl = first;
    do {
        abort_one(nccl);
        nccl = nccl->kin;
    } while (nccl != first);
}

enum { FEW_BLOCKS = 4 };

static ncclConfig_t config_of(int most_blocks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (most_blocks > 0)
        config.maxCTAs = most_blocks;
    return config;
}

static cp_status allocate(int rank, int ranks, double patience, cp_nccl **out) {
    const cp_status status =
        cp_allocate(out, 1, sizeof(**out), "a rank of NCCL");
    if (status != CP_OK)
        return status;
    **out = (cp_nccl){.link = {trade, check, give_up, *out},
                      .carry = {carry, *out},
                      .kin = *out,
                      .rank = rank,
                      .ranks = ranks,
                      .patience = patience};
    return CP_OK;
}

static void forget(cp_nccl *nccl) {
    cp_nccl *before = nccl;
    while (before->kin != nccl)
        before = before->kin;
    before->kin = nccl->kin;
    if (nccl->comm != NULL)
        abort_one(nccl);
    free(nccl);
}

cp_status cp_nccl_new(const ncclUniqueId *id, int rank, int ranks,
                      double patience, cp_nccl **out) {
    *out = NULL;
    cp_nccl *nccl;
    cp_status status = allocate(rank, ranks, patience, &nccl);
    if (status != CP_OK)
        return status;
    ncclConfig_t config = config_of(FEW_BLOCKS);
    status = settle(
        nccl, ncclCommInitRankConfig(&nccl->comm, ranks, *id, rank, &config),
        "joining");
    if (status == CP_OK)
        *out = nccl;
    else
        forget(nccl);
    return status;
}

void cp_nccl_free(cp_nccl *nccl) {
    if (nccl == NULL)
        return;
    if (!nccl->aborted &&
        settle(nccl, ncclCommFinalize(nccl->comm), "leaving") == CP_OK) {
        ncclCommDestroy(nccl->comm);
        nccl->aborted = true;
    } else {
        give_up(nccl);
    }
    forget(nccl);
}

const cp_link *cp_nccl_link(const cp_nccl *nccl) {
    return &nccl->link;
}

int cp_nccl_rank(const cp_nccl *nccl) {
    return nccl->rank;
}

int cp_nccl_ranks(const cp_nccl *nccl) {
    return nccl->ranks;
}

void cp_nccl_set_patience(cp_nccl *nccl, double seconds) {
    cp_nccl *each = nccl;
    do {
        each->patience = seconds;
        each = each->kin;
    } while (each != nccl);
}

typedef struct {
    int64_t status;
    char message[256];
    ncclUniqueId id;
} invitation;

static cp_status invite(invitation *it) {
    const ncclResult_t result = ncclGetUniqueId(&it->id);
    it->status = result == ncclSuccess ? CP_OK : CP_BROKEN;
    snprintf(it->message, sizeof(it->message), "rank 0 has no id: NCCL: %s",
             ncclGetErrorString(result));
    return CP_OK;
}

cp_status cp_nccl_join(const cp_crew *crew, double patience, cp_nccl **out) {
    invitation it = {0};
    *out = NULL;
    cp_status status = crew->rank == 0 ? invite(&it) : CP_OK;
    if (status == CP_OK && crew->ranks > 1)
        status = crew->share(&it, sizeof(it));
    if (status == CP_OK && it.status != CP_OK)
        status = cp_fail((cp_status)it.status, "%s", it.message);
    if (status != CP_OK)
        return status;
    return cp_nccl_new(&it.id, crew->rank, crew->ranks, patience, out);
}

static cp_status split(cp_nccl *world, int color, int key, int ranks,
                       int most_blocks, cp_nccl **out) {
    ncclConfig_t config = config_of(most_blocks);
    cp_nccl *nccl;
    cp_status status = allocate(key, ranks, world->patience, &nccl);
    if (status != CP_OK)
        return status;
    status = settle(
        world, ncclCommSplit(world->comm, color, key, &nccl->comm, &config),
        "forming groups");
    if (status == CP_OK && nccl->comm == NULL)
        status = cp_fail(CP_BROKEN, "rank %d got no group", world->rank);
    if (status == CP_OK)
        status = settle(nccl, ncclInProgress, "joining a group");
    if (status == CP_OK) {
        nccl->kin = world->kin;
        world->kin = nccl;
        *out = nccl;
    } else {
        forget(nccl);
    }
    return status;
}

cp_status cp_nccl_split(cp_nccl *world, int tp_size, cp_nccl **tp,
                        cp_nccl **cp) {
    *tp = *cp = NULL;
    if (tp_size < 1 || world->ranks % tp_size != 0)
        return cp_fail(CP_INVALID, "%d ranks cannot form groups of %d",
                       world->ranks, tp_size);
    const int mine = world->rank % tp_size, row = world->rank / tp_size;
    cp_status status = split(world, row, mine, tp_size, 0, tp);
    if (status == CP_OK)
        status =
            split(world, mine, row, world->ranks / tp_size, FEW_BLOCKS, cp);
    if (status != CP_OK && *tp != NULL) {
        forget(*tp);
        *tp = NULL;
    }
    return status;
}

cp_status cp_nccl_sum(cp_nccl *nccl, float *numbers, int64_t count,
                      cudaStream_t stream) {
    if (nccl->aborted)
        return cp_fail(CP_BROKEN, "rank %d has given up its peers", nccl->rank);
    if (nccl->ranks == 1 || count == 0)
        return CP_OK;
    return settle(nccl,
                  ncclAllReduce(numbers, numbers, (size_t)count, ncclFloat32,
                                ncclSum, nccl->comm, stream),
                  "enqueuing a sum");
}

const cp_carry *cp_nccl_carry(const cp_nccl *nccl) {
    return &nccl->carry;
}
