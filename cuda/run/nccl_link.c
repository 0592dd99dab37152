/* Tangled from book/13-nccl.nw; edit the chapter. */
/* Messages between GPUs, by NCCL, with timeouts. */
#define _POSIX_C_SOURCE 200809L /* unsetenv */
#include "cuda/run/nccl_link.h"

#include <stdio.h>
#include <stdlib.h>

static ncclResult_t query_nccl(const cp_nccl *nccl) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t error = ncclCommGetAsyncError(nccl->comm, &state);
    return error == ncclSuccess ? state : error;
}

static ncclResult_t state_of(const cp_nccl *nccl) {
    if (cp_watchdog_enter(nccl->watchdog, false) != NULL)
        return ncclRemoteError;
    const ncclResult_t state = query_nccl(nccl);
    cp_watchdog_leave(nccl->watchdog);
    return state;
}

static cudaError_t query_call(const void *nccl) {
    return state_of(nccl) == ncclInProgress ? cudaErrorNotReady : cudaSuccess;
}

static cp_status timed_out(const cp_nccl *nccl, const char *what) {
    return cp_fail(CP_BROKEN, "rank %d of %d timed out after %g s while %s",
                   nccl->rank, nccl->ranks, nccl->timeout, what);
}

static cp_status await_result(cp_nccl *nccl, ncclResult_t result,
                              const char *what) {
    bool late = false;
    if (result == ncclInProgress) {
        CP_TRY(cp_await(query_call, nccl, NULL, nccl->timeout, &late));
        result = state_of(nccl);
    }
    if (late)
        return timed_out(nccl, what);
    return result == ncclSuccess
               ? CP_OK
               : cp_fail(CP_BROKEN, "rank %d, %s: NCCL: %s", nccl->rank, what,
                         ncclGetErrorString(result));
}

static cp_status begin_to_talk(const cp_nccl *nccl) {
    const char *why = cp_watchdog_enter(nccl->watchdog, true);
    if (why != NULL)
        return cp_fail(CP_BROKEN, "rank %d has given up its peers: %s",
                       nccl->rank, why);
    if (!nccl->aborted)
        return CP_OK;
    cp_watchdog_leave(nccl->watchdog);
    return cp_fail(CP_BROKEN, "rank %d has given up its peers", nccl->rank);
}

static cp_status trade(void *context, const cp_message_half *halves, int count,
                       cudaStream_t stream) {
    cp_nccl *nccl = context;
    CP_TRY(begin_to_talk(nccl));
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
    cp_watchdog_leave(nccl->watchdog);
    return await_result(nccl, result == ncclSuccess ? ended : result,
                        "enqueuing messages");
}

static cp_status check(void *context) {
    const cp_nccl *nccl = context;
    do {
        CP_TRY(begin_to_talk(nccl));
        const ncclResult_t state = query_nccl(nccl);
        cp_watchdog_leave(nccl->watchdog);
        if (state != ncclSuccess && state != ncclInProgress)
            return cp_fail(CP_BROKEN, "rank %d: NCCL: %s", nccl->rank,
                           ncclGetErrorString(state));
        nccl = nccl->sibling;
    } while (nccl != context);
    return CP_OK;
}

static void abort_one(cp_nccl *nccl) {
    if (!nccl->aborted)
        ncclCommAbort(nccl->comm);
    nccl->aborted = true;
}
static ncclResult_t begun(ncclResult_t result) {
    return result == ncclSuccess ? ncclInProgress : result;
}

static ncclConfig_t config_of(int most_blocks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (most_blocks > 0) {
        config.maxCTAs = most_blocks;
        config.cgaClusterSize = 1;
    }
    return config;
}

static void abort_all(void *context) {
    cp_nccl *const first = context, *each = first;
    ncclGroupStart();
    do {
        abort_one(each);
        each = each->sibling;
    } while (each != first);
    ncclGroupEnd();
}

/* A fast survivor has aborted the old communicator by now, and others see an
 * error of it: only the new one counts. */
static cudaError_t query_successor(const void *context) {
    const cp_nccl *nccl = context;
    query_nccl(nccl);
    return *(ncclComm_t const volatile *)&nccl->successor == NULL
               ? cudaErrorNotReady
               : cudaSuccess;
}

/* NCCL may have it at build time and lack it at run time. */
#if NCCL_VERSION_CODE >= 22700
#pragma weak ncclCommShrink
#endif
static cp_status shrink(cp_nccl *nccl, cp_nccl_loss *loss) {
    bool late = false;
    ncclResult_t result = ncclInvalidUsage;
#if NCCL_VERSION_CODE >= 22700
    ncclConfig_t config = config_of(CP_SPARED);
    result = ncclCommShrink(nccl->comm, loss->lost, loss->count,
                            &nccl->successor, &config, NCCL_SHRINK_ABORT);
#endif
    if (result != ncclInProgress)
        CP_TRY(await_result(nccl, result, "shrinking"));
    CP_TRY(cp_await(query_successor, nccl, NULL, nccl->timeout, &late));
    return late ? timed_out(nccl, "shrinking") : CP_OK;
}

static bool can_shrink(const cp_nccl *nccl) {
#if NCCL_VERSION_CODE >= 22700
    return ncclCommShrink != NULL && !nccl->aborted &&
           query_nccl(nccl) == ncclSuccess;
#else
    (void)nccl;
    return false;
#endif
}

static cp_status make_successor(cp_nccl *nccl, cp_nccl_loss *loss) {
    ncclConfig_t config = config_of(CP_SPARED);
    cp_nccl successor = {.rank = nccl->rank,
                         .ranks = nccl->ranks - loss->count,
                         .timeout = nccl->timeout};
    ncclResult_t result = ncclInProgress;
    for (int n = 0; n < loss->count; n++)
        successor.rank -= nccl->rank > loss->lost[n];
    if (loss->sound) {
        CP_TRY(shrink(nccl, loss));
    } else {
        abort_all(nccl);
        result = ncclCommInitRankConfig(&nccl->successor, successor.ranks,
                                        loss->id, successor.rank, &config);
    }
    successor.comm = nccl->successor;
    return await_result(&successor, result, "joining the survivors");
}

static void agree_on_lost(cp_nccl *nccl) {
    char reason[512];
    cp_nccl_loss loss = {.sound = can_shrink(nccl)};
    snprintf(reason, sizeof(reason), "%s", cp_message());
    nccl->agreed = true;
    nccl->why[0] = '\0';
    unsetenv("NCCL_COMM_ID"); /* one survivor makes the id now */
    cp_status status = nccl->agree(nccl, &loss);
    if (status == CP_OK && loss.count > 0)
        status = make_successor(nccl, &loss);
    nccl->loss = loss;
    if (status != CP_OK)
        nccl->loss.count = 0;
    if (status != CP_OK)
        snprintf(nccl->why, sizeof(nccl->why), "%s", cp_message());
    cp_fail(CP_BROKEN, "%s", reason);
}

static void give_up(void *context) {
    cp_nccl *const first = context, *each = first;
    do {
        cp_graphs_end(each->graphs);
        each = each->sibling;
    } while (each != first);
    cp_watchdog_end(first->watchdog);
    if (first->agree != NULL && !first->agreed)
        agree_on_lost(first);
    abort_all(first);
}

static bool is_broken(void *context) {
    const cp_nccl *nccl = context;
    do {
        const ncclResult_t state = query_nccl(nccl);
        if (state != ncclSuccess && state != ncclInProgress)
            return true;
        nccl = nccl->sibling;
    } while (nccl != context);
    return false;
}

static void idle(void *context) {
    const cp_nccl *nccl = context;
    cp_watchdog_idle(nccl->watchdog);
}

static cudaError_t query_stream(const void *stream) {
    return cudaStreamQuery(*(const cudaStream_t *)stream);
}

cp_status cp_nccl_finish(cp_nccl *nccl, cudaStream_t stream, const char *what) {
    bool late;
    cp_status status =
        cp_await(query_stream, &stream, &nccl->link, nccl->timeout, &late);
    if (late)
        status = timed_out(nccl, what);
    if (status != CP_OK)
        give_up(nccl);
    return status;
}

static cp_status allocate(int rank, int ranks, double timeout, cp_nccl **out) {
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a rank of NCCL"));
    **out = (cp_nccl){.link = {trade, check, idle, give_up, *out,
                               &(*out)->graphs, &(*out)->progress_events},
                      .sibling = *out,
                      .rank = rank,
                      .ranks = ranks,
                      .timeout = timeout};
    return CP_OK;
}

static void forget(cp_nccl *nccl) {
    if (nccl == NULL)
        return;
    cp_nccl *before = nccl;
    while (before->sibling != nccl)
        before = before->sibling;
    if (before == nccl)
        cp_watchdog_free(nccl->watchdog);
    before->sibling = nccl->sibling;
    if (nccl->comm != NULL)
        abort_one(nccl);
    if (nccl->successor != NULL)
        ncclCommAbort(nccl->successor);
    cp_progress_events_free(&nccl->progress_events);
    free(nccl);
}

cp_status cp_nccl_id(ncclUniqueId *id) {
    const ncclResult_t result = ncclGetUniqueId(id);
    return result == ncclSuccess
               ? CP_OK
               : cp_fail(CP_BROKEN, "no id for ranks to join by: NCCL: %s",
                         ncclGetErrorString(result));
}

cp_status cp_nccl_new(const ncclUniqueId *id, int rank, int ranks,
                      double timeout, cp_nccl **out) {
    ncclConfig_t config = config_of(CP_SPARED);
    *out = NULL;
    CP_TRY(allocate(rank, ranks, timeout, out));
    cp_status status = await_result(
        *out, ncclCommInitRankConfig(&(*out)->comm, ranks, *id, rank, &config),
        "joining");
    if (status == CP_OK && ranks > 1)
        status = cp_watchdog_new(timeout, is_broken, abort_all, *out,
                                 &(*out)->watchdog);
    if (status == CP_OK)
        return CP_OK;
    forget(*out);
    *out = NULL;
    return status;
}

static cp_status leave(cp_nccl *nccl) {
    const ncclResult_t result = ncclCommFinalize(nccl->comm);
    cp_watchdog_leave(nccl->watchdog);
    return await_result(nccl, result, "leaving");
}

void cp_nccl_free(cp_nccl *nccl) {
    if (nccl == NULL)
        return;
    cp_watchdog_idle(nccl->watchdog);
    const bool is_local = cp_watchdog_enter(nccl->watchdog, false) == NULL;
    if (is_local && !nccl->aborted && leave(nccl) == CP_OK) {
        ncclCommDestroy(nccl->comm);
        nccl->aborted = true;
    } else {
        give_up(nccl);
    }
    forget(nccl);
}

void cp_nccl_set_timeout(cp_nccl *nccl, double seconds) {
    cp_nccl *each = nccl;
    cp_watchdog_set_timeout(nccl->watchdog, seconds);
    do {
        each->timeout = seconds;
        each = each->sibling;
    } while (each != nccl);
}

cp_status cp_nccl_shrink(cp_nccl *nccl, int *lost) {
    if (nccl->loss.count == 0)
        return nccl->why[0] != '\0' ? cp_fail(CP_BROKEN, "%s", nccl->why)
                                    : CP_BROKEN;
    *lost = nccl->loss.lost[--nccl->loss.count];
    nccl->rank -= nccl->rank > *lost;
    nccl->ranks--;
    if (nccl->loss.count > 0)
        return CP_OK;
    nccl->comm = nccl->successor;
    nccl->successor = NULL;
    nccl->aborted = nccl->agreed = false;
    cp_watchdog_free(nccl->watchdog);
    nccl->watchdog = NULL;
    return nccl->ranks > 1 ? cp_watchdog_new(nccl->timeout, is_broken,
                                             abort_all, nccl, &nccl->watchdog)
                           : CP_OK;
}

static cp_status split(cp_nccl *world, int color, int key, int ranks,
                       int most_blocks, cp_nccl **out) {
    ncclConfig_t config = config_of(most_blocks);
    CP_TRY(allocate(key, ranks, world->timeout, out));
    const cp_status status = await_result(
        world,
        begun(ncclCommSplit(world->comm, color, key, &(*out)->comm, &config)),
        "forming groups");
    if (status != CP_OK)
        give_up(world);
    CP_TRY(status);
    if ((*out)->comm == NULL)
        return cp_fail(CP_BROKEN, "rank %d got no group", world->rank);
    (*out)->watchdog = world->watchdog;
    (*out)->sibling = world->sibling;
    world->sibling = *out;
    return await_result(*out, ncclInProgress, "joining a group");
}

cp_status cp_nccl_split(cp_nccl *world, int tp_size, cp_nccl **tp,
                        cp_nccl **cp) {
    *tp = *cp = NULL;
    if (tp_size < 1 || world->ranks % tp_size != 0)
        return cp_refuse("%d ranks cannot form groups of %d", world->ranks,
                         tp_size);
    const int column = world->rank % tp_size, row = world->rank / tp_size;
    const int rows = world->ranks / tp_size;
    cp_watchdog_idle(world->watchdog);
    cp_status status = split(world, row, column, tp_size, 0, tp);
    if (status == CP_OK)
        status = split(world, column, row, rows, CP_SPARED, cp);
    if (status == CP_OK)
        return CP_OK;
    forget(*tp);
    forget(*cp);
    *tp = *cp = NULL;
    return status;
}

typedef struct {
    cp_nccl *alone;
    cp_queues queues;
    char *memory; /* two bytes */
} capture_trial;

static cp_status send_to_itself(void *context) {
    const capture_trial *trial = context;
    const cp_message_half halves[] = {{0, false, trial->memory, 1},
                                      {0, true, trial->memory + 1, 1}};
    return trade(trial->alone, halves, 2, trial->queues.compute);
}

static cp_status echo_twice(capture_trial *trial, cp_graph **graph) {
    CP_TRY(cp_queues_new(&trial->queues));
    CP_TRY(cp_device_reserve(2, "an echo", &trial->memory));
    CP_TRY(send_to_itself(trial));
    CP_TRY(cp_graph_capture(&trial->queues, 1, &trial->alone->link,
                            send_to_itself, trial, graph));
    CP_TRY(cp_graph_launch(*graph));
    return cp_nccl_finish(trial->alone, trial->queues.compute,
                          "waiting for an echo");
}

static cp_status split_off(cp_nccl *world, cp_nccl **alone) {
    const cp_status status = split(world, world->rank, 0, 1, CP_SPARED, alone);
    if (*alone != NULL && world->sibling == *alone) {
        world->sibling = (*alone)->sibling;
        (*alone)->sibling = *alone;
        (*alone)->watchdog = NULL;
    }
    return status;
}

cp_status cp_nccl_try_capture(cp_nccl *world) {
    capture_trial trial = {0};
    cp_graph *graph = NULL;
    cp_status status = split_off(world, &trial.alone);
    if (status == CP_OK)
        status = echo_twice(&trial, &graph);
    cp_graph_free(graph);
    if (status == CP_OK)
        cp_nccl_free(trial.alone);
    else
        forget(trial.alone);
    cp_queues_free(&trial.queues);
    cudaFree(trial.memory);
    return status;
}

cp_status cp_nccl_sum(cp_nccl *nccl, void *numbers, cp_element element,
                      int64_t count, cudaStream_t stream) {
    if (nccl->ranks == 1 || count == 0)
        return CP_OK;
    CP_TRY(begin_to_talk(nccl));
    const ncclResult_t result =
        ncclAllReduce(numbers, numbers, (size_t)count,
                      element == CP_F32 ? ncclFloat32 : ncclBfloat16, ncclSum,
                      nccl->comm, stream);
    cp_watchdog_leave(nccl->watchdog);
    return await_result(nccl, result, "enqueuing a sum");
}

cp_status cp_nccl_gather(cp_nccl *nccl, void *pieces, int64_t bytes,
                         cudaStream_t stream) {
    const char *piece = (char *)pieces + nccl->rank * bytes;
    CP_TRY(begin_to_talk(nccl));
    const ncclResult_t result = ncclAllGather(piece, pieces, (size_t)bytes,
                                              ncclInt8, nccl->comm, stream);
    cp_watchdog_leave(nccl->watchdog);
    return await_result(nccl, result, "enqueuing a gather");
}
