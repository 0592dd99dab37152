/* What ranks do to find out whether their communicator keeps its promise.
 * Each returns CP_OK, or says what is wrong. For tests of communicators. */
#ifndef TESTS_COMM_CHECKS_H
#define TESTS_COMM_CHECKS_H

#include "ring/comm.h"

#include <string.h>
#include <stdlib.h>
#include <time.h>

#define TRY(call)                                                              \
    do {                                                                       \
        const cp_status tried = (call);                                        \
        if (tried != CP_OK)                                                    \
            return tried;                                                      \
    } while (0)

#define REQUIRE(condition, ...)                                                \
    do {                                                                       \
        if (!(condition))                                                      \
            return cp_fail(CP_BROKEN, __VA_ARGS__);                            \
    } while (0)

static void nap(int milliseconds) {
    const struct timespec time = {milliseconds / 1000,
                                  milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

enum { BLOCK = 100 };

static cp_status rotate(cp_comm *comm, void *context) {
    (void)context;
    const int ranks = comm->ranks, rank = comm->rank;
    int64_t slots[2][BLOCK];
    for (int i = 0; i < BLOCK; i++)
        slots[0][i] = 1000 * rank + i;
    for (int hop = 1; hop < ranks; hop++) {
        int64_t *held = slots[(hop + 1) % 2], *arriving = slots[hop % 2];
        TRY(cp_comm_exchange(comm, (rank + 1) % ranks, held, sizeof(slots[0]),
                             (rank + ranks - 1) % ranks, arriving,
                             sizeof(slots[0])));
        TRY(cp_comm_wait(comm));
        /* Check that the block of this hop arrived. */
        const int origin = (rank + ranks - hop) % ranks;
        for (int i = 0; i < BLOCK; i++)
            REQUIRE(arriving[i] == 1000 * origin + i,
                    "hop %d: element %d is %lld, not of rank %d", hop, i,
                    (long long)arriving[i], origin);
    }
    /* Check the count of hops and bytes. */
    const int64_t hops = ranks - 1, bytes = hops * (int64_t)sizeof(slots[0]);
    REQUIRE(comm->sent.hops == hops, "%lld hops, not %lld",
            (long long)comm->sent.hops, (long long)hops);
    REQUIRE(comm->sent.ring_bytes == bytes, "%lld bytes, not %lld",
            (long long)comm->sent.ring_bytes, (long long)bytes);
    return CP_OK;
}

static cp_status gather_all(cp_comm *comm, void *context) {
    (void)context;
    const int ranks = comm->ranks, rank = comm->rank;
    int64_t blocks[2][16][3];
    const void *send[16] = {NULL};
    void *receive[16] = {NULL};
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < 3; i++) {
            blocks[0][r][i] = 10000 * rank + 10 * r + i;
            blocks[1][r][i] = -1;
        }
        send[r] = rank % 2 == 0 && r == rank ? NULL : blocks[0][r];
        receive[r] = blocks[1][r];
    }
    TRY(cp_comm_all_to_all(comm, send, receive, sizeof(blocks[0][0])));
    /* Check that everybody's block arrived. */
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < 3; i++) {
            const int64_t due = r == rank ? -1 : 10000 * r + 10 * rank + i;
            REQUIRE(blocks[1][r][i] == due,
                    "all-to-all: %lld from rank %d, not %lld",
                    (long long)blocks[1][r][i], r, (long long)due);
        }
    TRY(cp_comm_all_gather(comm, blocks[0][rank], receive,
                           sizeof(blocks[0][0])));
    /* Check that everybody's own block arrived. */
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < 3; i++) {
            const int64_t due = r == rank ? -1 : 10000 * r + 10 * r + i;
            REQUIRE(blocks[1][r][i] == due,
                    "all-gather: %lld from rank %d, not %lld",
                    (long long)blocks[1][r][i], r, (long long)due);
        }
    /* Check the bytes of the collectives. */
    const int64_t bytes = (ranks - 1) * (int64_t)sizeof(blocks[0][0]);
    REQUIRE(comm->sent.all_to_all_bytes == bytes, "all-to-all: %lld bytes",
            (long long)comm->sent.all_to_all_bytes);
    REQUIRE(comm->sent.all_gather_bytes == bytes, "all-gather: %lld bytes",
            (long long)comm->sent.all_gather_bytes);
    REQUIRE(comm->sent.hops == 0 && comm->sent.ring_bytes == 0,
            "a collective counts as hops");
    return CP_OK;
}

static cp_status send_in_order(cp_comm *comm, void *context) {
    (void)context;
    int64_t numbers[100];
    for (int i = 0; i < 100; i++) {
        numbers[i] = comm->rank == 0 ? i : -1;
        const int to = comm->rank == 0 ? 1 : CP_NOBODY;
        const int from = comm->rank == 0 ? CP_NOBODY : 0;
        TRY(cp_comm_exchange(comm, to, &numbers[i], 8, from, &numbers[i], 8));
    }
    for (int i = 0; i < 100; i++) {
        TRY(cp_comm_wait(comm));
        REQUIRE(numbers[i] == i, "message %d holds %lld", i,
                (long long)numbers[i]);
    }
    REQUIRE(comm->sent.hops == (comm->rank == 0 ? 100 : 0),
            "a receive alone counts as a hop");
    return CP_OK;
}

static cp_status wait_alone(cp_comm *comm, void *context) {
    (void)context;
    int32_t value = comm->rank == 0 ? 42 : 0, own = comm->rank, others[2];
    void *gathered[2] = {&others[0], &others[1]};
    const int to = comm->rank == 0 ? 1 : CP_NOBODY;
    const int from = comm->rank == 0 ? CP_NOBODY : 0;
    TRY(cp_comm_exchange(comm, to, &value, 4, from, &value, 4));
    if (comm->rank == 0)
        TRY(cp_comm_wait(comm));
    TRY(cp_comm_barrier(comm));
    TRY(cp_comm_all_gather(comm, &own, gathered, 4));
    REQUIRE(others[1 - comm->rank] == 1 - comm->rank, "lost in between");
    if (comm->rank == 1)
        TRY(cp_comm_wait(comm));
    REQUIRE(value == 42, "%d arrived", (int)value);
    return CP_OK;
}

static cp_status exchange_sizes(cp_comm *comm, void *context) {
    (void)context;
    const int64_t sizes[] = {0, 1, 63, 4097, 1 << 20, 8 << 20};
    const int next = (comm->rank + 1) % comm->ranks;
    const int previous = (comm->rank + comm->ranks - 1) % comm->ranks;
    char *out, *in;
    TRY(cp_allocate(&out, 8 << 20, 2, "a message"));
    in = out + (8 << 20);
    memset(out, 'a' + comm->rank, 8 << 20);
    cp_status status = CP_OK;
    for (int i = 0; i < 6 && status == CP_OK; i++) {
        status = cp_comm_exchange(comm, next, sizes[i] > 0 ? out : NULL,
                                  sizes[i], previous, in, sizes[i]);
        if (status == CP_OK)
            status = cp_comm_wait(comm);
        for (int64_t b = 0; b < sizes[i] && status == CP_OK; b++)
            if (in[b] != 'a' + previous)
                status = cp_fail(CP_BROKEN, "byte %lld of %lld is wrong",
                                 (long long)b, (long long)sizes[i]);
    }
    free(out);
    return status;
}

static cp_status talk_to_oneself(cp_comm *comm, void *context) {
    (void)context;
    int32_t out = 5 + comm->rank, in = 0;
    TRY(cp_comm_exchange(comm, comm->rank, &out, 4, comm->rank, &in, 4));
    TRY(cp_comm_exchange(comm, CP_NOBODY, NULL, 0, CP_NOBODY, NULL, 0));
    TRY(cp_comm_wait(comm));
    REQUIRE(in == out, "%d came back for %d", (int)in, (int)out);
    TRY(cp_comm_wait(comm));
    return CP_OK;
}

static cp_status call_wrongly(cp_comm *comm, int which) {
    char a[8] = "", b[8] = "";
    void *receive[2] = {b, NULL};
    switch (which) {
    case 0:
        return cp_comm_exchange(comm, 2, a, 8, CP_NOBODY, NULL, 0);
    case 1:
        return cp_comm_exchange(comm, CP_NOBODY, NULL, 0, -2, b, 8);
    case 2:
        return cp_comm_exchange(comm, 0, NULL, 8, CP_NOBODY, NULL, 0);
    case 3:
        return cp_comm_exchange(comm, 0, a, -8, 0, b, 8);
    case 4:
        return cp_comm_exchange(comm, 0, a, 8, 0, a + 7, 1);
    case 5:
        return cp_comm_all_to_all(comm, NULL, receive, 8);
    case 6:
        return cp_comm_all_gather(comm, NULL, receive, 8);
    default:
        return cp_comm_wait(comm);
    }
}

enum { RECEIVE, SEND, ALL_TO_ALL, ALL_GATHER, BARRIER, WAYS };
enum { ABORT, RETURN_ERROR, RETURN_EARLY };

static cp_status wait_for_one(cp_comm *comm, int way) {
    char out[8] = "", in[4][8];
    const void *send[4] = {out, out, out, out};
    void *receive[4] = {in[0], in[1], in[2], in[3]};
    /* Wait for rank 1 in the given way. */
    switch (way) {
    case RECEIVE:
        TRY(cp_comm_exchange(comm, CP_NOBODY, NULL, 0, 1, in, 8));
        return cp_comm_wait(comm);
    case SEND:
        TRY(cp_comm_exchange(comm, 1, out, 8, CP_NOBODY, NULL, 0));
        return cp_comm_wait(comm);
    case ALL_TO_ALL:
        return cp_comm_all_to_all(comm, send, receive, 8);
    case ALL_GATHER:
        return cp_comm_all_gather(comm, out, receive, 8);
    default:
        return cp_comm_barrier(comm);
    }
}

#endif
