/* Scenes that ranks play to check the contract of comm.h, for any communicator,
 * and the table of these scenes. */
#ifndef TESTS_COMM_CHECKS_H
#define TESTS_COMM_CHECKS_H

#include "group/comm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

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

/* Faults of this process where the run was expected to fail. */
static atomic_int comm_faults;

/* A row of the table; its function gets it as context. */
typedef struct {
    const char *name;
    int least, most; /* ranks */
    cp_rank_main function;
    int argument;
    cp_status status; /* expected of the run */
    const char *words;
    double timeout; /* 0: 10 seconds */
    int times;      /* 0: once; the argument counts the repetitions */
    bool heavy;     /* a few runs are enough */
} comm_scene;

static int comm_argument(const void *context) {
    return ((const comm_scene *)context)->argument;
}

enum { BLOCK = 100, BIG = 1 << 20 };

/* Begin to send to the next rank, and to receive from the previous one. */
static cp_status pass_on(cp_comm *comm, const void *out, void *in,
                         int64_t bytes) {
    const int next = (comm->rank + 1) % comm->ranks;
    const int previous = (comm->rank + comm->ranks - 1) % comm->ranks;
    return cp_comm_exchange(comm, next, out, bytes, previous, in, bytes);
}

/* Begin to send bytes from rank 0 to rank 1; both call this. */
static cp_status give(cp_comm *comm, void *data, int64_t sent,
                      int64_t expected) {
    const bool gives = comm->rank == 0;
    return cp_comm_exchange(comm, gives ? 1 : CP_NO_RANK, data, sent,
                            gives ? CP_NO_RANK : 0, data, expected);
}

static cp_status rotate(cp_comm *comm, void *context) {
    (void)context;
    const int ranks = comm->ranks, rank = comm->rank;
    int64_t slots[2][BLOCK];
    for (int i = 0; i < BLOCK; i++)
        slots[0][i] = 1000 * rank + i;
    for (int hop = 1; hop < ranks; hop++) {
        int64_t *held = slots[(hop + 1) % 2], *arriving = slots[hop % 2];
        CP_TRY(pass_on(comm, held, arriving, sizeof(slots[0])));
        CP_TRY(cp_comm_wait(comm));
        /* Check that the block of this hop arrived. */
        const int origin = (rank + ranks - hop) % ranks;
        for (int i = 0; i < BLOCK; i++)
            REQUIRE(arriving[i] == 1000 * origin + i,
                    "hop %d: element %d is %ld, not of rank %d", hop, i,
                    arriving[i], origin);
    }
    /* Check the count of hops and bytes. */
    const int64_t hops = ranks - 1, bytes = hops * (int64_t)sizeof(slots[0]);
    REQUIRE(comm->sent.hops == hops, "%ld hops, not %ld", comm->sent.hops,
            hops);
    REQUIRE(comm->sent.ring_bytes == bytes, "%ld bytes, not %ld",
            comm->sent.ring_bytes, bytes);
    return CP_OK;
}

/* Check that every rank's block has arrived, with the numbers of its sender
 * and, for an all-to-all, of its receiver. */
static cp_status expect_blocks(const cp_comm *comm, int64_t blocks[][3],
                               bool gathered) {
    for (int r = 0; r < comm->ranks; r++)
        for (int i = 0; i < 3; i++) {
            const int receiver = gathered ? r : comm->rank;
            const int64_t expected =
                r == comm->rank ? -1 : 10000 * r + 10 * receiver + i;
            REQUIRE(blocks[r][i] == expected, "%s: %ld from rank %d, not %ld",
                    gathered ? "all-gather" : "all-to-all", blocks[r][i], r,
                    expected);
        }
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
    const int64_t size = sizeof(blocks[0][0]), bytes = (ranks - 1) * size;
    CP_TRY(cp_comm_all_to_all(comm, send, receive, size));
    CP_TRY(expect_blocks(comm, blocks[1], false));
    CP_TRY(cp_comm_all_gather(comm, blocks[0][rank], receive, size));
    CP_TRY(expect_blocks(comm, blocks[1], true));
    REQUIRE(comm->sent.all_to_all_bytes == bytes, "all-to-all: %ld bytes",
            comm->sent.all_to_all_bytes);
    REQUIRE(comm->sent.all_gather_bytes == bytes, "all-gather: %ld bytes",
            comm->sent.all_gather_bytes);
    REQUIRE(comm->sent.hops == 0 && comm->sent.ring_bytes == 0,
            "a collective counts as hops");
    return CP_OK;
}

static cp_status send_in_order(cp_comm *comm, void *context) {
    (void)context;
    int64_t numbers[100];
    for (int i = 0; i < 100; i++) {
        numbers[i] = comm->rank == 0 ? i : -1;
        CP_TRY(give(comm, &numbers[i], 8, 8));
    }
    for (int i = 0; i < 100; i++) {
        CP_TRY(cp_comm_wait(comm));
        REQUIRE(numbers[i] == i, "message %d holds %ld", i, numbers[i]);
    }
    REQUIRE(comm->sent.hops == (comm->rank == 0 ? 100 : 0),
            "a receive alone counts as a hop");
    return CP_OK;
}

static cp_status wait_alone(cp_comm *comm, void *context) {
    (void)context;
    int32_t value = comm->rank == 0 ? 42 : 0, rank = comm->rank, others[2];
    void *gathered[2] = {&others[0], &others[1]};
    CP_TRY(give(comm, &value, 4, 4));
    if (comm->rank == 0)
        CP_TRY(cp_comm_wait(comm));
    CP_TRY(cp_comm_barrier(comm));
    CP_TRY(cp_comm_all_gather(comm, &rank, gathered, 4));
    REQUIRE(others[1 - comm->rank] == 1 - comm->rank, "lost in between");
    if (comm->rank == 1)
        CP_TRY(cp_comm_wait(comm));
    REQUIRE(value == 42, "%d arrived", (int)value);
    return CP_OK;
}

static cp_status exchange_size(cp_comm *comm, int64_t bytes, char *out,
                               char *in) {
    const int previous = (comm->rank + comm->ranks - 1) % comm->ranks;
    CP_TRY(pass_on(comm, bytes > 0 ? out : NULL, in, bytes));
    CP_TRY(cp_comm_wait(comm));
    for (int64_t b = 0; b < bytes; b++)
        REQUIRE(in[b] == 'a' + previous, "byte %ld of %ld is wrong", b, bytes);
    return CP_OK;
}

static cp_status exchange_sizes(cp_comm *comm, void *context) {
    (void)context;
    const int64_t sizes[] = {0, 1, 63, 4097, 1 << 20, 8 << 20};
    char *out, *in;
    CP_TRY(cp_allocate(&out, 8 << 20, 2, "a message"));
    in = out + (8 << 20);
    memset(out, 'a' + comm->rank, 8 << 20);
    cp_status status = CP_OK;
    for (int i = 0; i < 6 && status == CP_OK; i++)
        status = exchange_size(comm, sizes[i], out, in);
    free(out);
    return status;
}

static cp_status talk_to_oneself(cp_comm *comm, void *context) {
    (void)context;
    int32_t out = 5 + comm->rank, in = 0;
    CP_TRY(cp_comm_exchange(comm, comm->rank, &out, 4, comm->rank, &in, 4));
    CP_TRY(cp_comm_exchange(comm, CP_NO_RANK, NULL, 0, CP_NO_RANK, NULL, 0));
    CP_TRY(cp_comm_wait(comm));
    REQUIRE(in == out, "%d came back for %d", (int)in, (int)out);
    CP_TRY(cp_comm_wait(comm));
    return CP_OK;
}

static cp_status barrier_in_time(cp_comm *comm, void *context) {
    double entered[16], entry_time;
    void *receive[16];
    (void)context;
    for (int r = 0; r < comm->ranks; r++)
        receive[r] = &entered[r];
    nap(30 * ((comm->rank + 1) % comm->ranks) / comm->ranks);
    entered[comm->rank] = entry_time = cp_clock();
    CP_TRY(cp_comm_barrier(comm));
    const double left = cp_clock();
    CP_TRY(cp_comm_all_gather(comm, &entry_time, receive, sizeof(entry_time)));
    for (int r = 0; r < comm->ranks; r++)
        REQUIRE(entered[r] <= left, "rank %d came %g s late to the barrier", r,
                entered[r] - left);
    return CP_OK;
}

static cp_status call_wrongly(cp_comm *comm, int which) {
    char a[8] = "", b[8] = "";
    void *receive[2] = {b, NULL};
    switch (which) {
    case 0:
        return cp_comm_exchange(comm, 2, a, 8, CP_NO_RANK, NULL, 0);
    case 1:
        return cp_comm_exchange(comm, CP_NO_RANK, NULL, 0, -2, b, 8);
    case 2:
        return cp_comm_exchange(comm, 0, NULL, 8, CP_NO_RANK, NULL, 0);
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

static cp_status barrier_after_error(cp_comm *comm, void *context) {
    if (comm->rank == 0)
        return cp_comm_barrier(comm);
    const cp_status status = call_wrongly(comm, comm_argument(context));
    REQUIRE(cp_comm_barrier(comm) != CP_OK, "went on after an error");
    return status;
}

static cp_status leave_unwaited(cp_comm *comm, void *context) {
    static char in[4];
    (void)context;
    if (comm->rank == 1)
        return cp_comm_exchange(comm, CP_NO_RANK, NULL, 0, 0, in, 4);
    return CP_OK;
}

enum { RECEIVE, SEND, ALL_TO_ALL, ALL_GATHER, BARRIER, WAYS };
enum { ABORT, RETURN_ERROR, RETURN_EARLY };

/* Wait for rank 1, with messages larger than any transport buffers. */
static cp_status wait_for_one(cp_comm *comm, int way) {
    static char out[BIG];
    char in[16][8];
    const void *send[16];
    void *receive[16];
    for (int r = 0; r < comm->ranks; r++) {
        send[r] = out;
        receive[r] = in[r];
    }
    switch (way) {
    case RECEIVE:
        CP_TRY(cp_comm_exchange(comm, CP_NO_RANK, NULL, 0, 1, in, 8));
        return cp_comm_wait(comm);
    case SEND:
        CP_TRY(cp_comm_exchange(comm, 1, out, BIG, CP_NO_RANK, NULL, 0));
        return cp_comm_wait(comm);
    case ALL_TO_ALL:
        return cp_comm_all_to_all(comm, send, receive, 8);
    case ALL_GATHER:
        return cp_comm_all_gather(comm, out, receive, 8);
    default:
        return cp_comm_barrier(comm);
    }
}

/* Rank 1 fails, and the others, which wait for it, learn that. */
static cp_status wait_for_failure(cp_comm *comm, void *context) {
    const comm_scene *scene = context;
    const int end = scene->argument / WAYS;
    if (comm->rank == 1) {
        nap(5);
        if (end == ABORT)
            cp_comm_abort(comm, "enough");
        return end == RETURN_EARLY ? CP_OK : cp_fail(CP_FILE, "no such file");
    }
    const cp_status status = wait_for_one(comm, scene->argument % WAYS);
    const char *words = end == ABORT          ? "rank 1 failed first: enough"
                        : end == RETURN_ERROR ? "rank 1 failed first: no such"
                                              : "rank 1 has left";
    const bool right =
        end == RETURN_EARLY ? status != CP_OK : status == CP_ABORTED;
    if (!right || strstr(cp_message(), words) == NULL) {
        fprintf(stderr, "%s: rank %d got status %d, '%s'\n", scene->name,
                comm->rank, status, status == CP_OK ? "" : cp_message());
        comm_faults++;
    }
    return status;
}

static cp_status dawdle(cp_comm *comm, void *context) {
    if (comm->rank == 0)
        return wait_for_one(comm, comm_argument(context));
    nap(450);
    return CP_OK;
}

/* Rank 0 sends 96 or 64 bytes where 80 are expected. */
static cp_status disagree(cp_comm *comm, void *context) {
    const int which = comm_argument(context);
    char data[96] = "";
    if (comm->rank == which % 2)
        nap(5);
    CP_TRY(give(comm, data, which < 2 ? 96 : 64, 80));
    CP_TRY(cp_comm_wait(comm));
    return cp_comm_barrier(comm);
}

/* Ranks 0 and 1 exchange pages; the last rank aborts meanwhile, and each rank
 * unmaps its pages as soon as it knows. */
static cp_status snatch(cp_comm *comm, void *context) {
    const struct timespec delay = {0, comm_argument(context) * 40000L};
    const int other = 1 - comm->rank;
    char *pages = mmap(NULL, (size_t)2 * BIG, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED, "no pages");
    memset(pages, comm->rank + 1, BIG);
    cp_status status = CP_OK;
    if (other >= 0)
        status =
            cp_comm_exchange(comm, other, pages, BIG, other, pages + BIG, BIG);
    if (comm->rank == comm->ranks - 1) {
        nanosleep(&delay, NULL);
        cp_comm_progress(comm);
        cp_comm_abort(comm, "changed my mind");
        status = CP_ABORTED;
    } else if (status == CP_OK) {
        status = cp_comm_wait(comm);
        for (int i = 0; i < BIG && status == CP_OK; i++)
            if (pages[BIG + i] != other + 1)
                comm_faults++;
        if (status == CP_OK)
            status = cp_comm_barrier(comm);
    }
    munmap(pages, (size_t)2 * BIG);
    return status;
}

#define WRONG_CALL(n, text)                                                    \
    { "wrong call", 2, 2, barrier_after_error, n, CP_INVALID, .words = text }
#define TIMED_OUT(way, text)                                                   \
    {                                                                          \
        "timed out", 2, 2, dawdle, way, CP_BROKEN,                             \
            .words = text, .timeout = 0.3, .heavy = true                       \
    }

static const comm_scene comm_scenes[] = {
    {"rotate", 1, 16, .function = rotate},
    {"collectives", 1, 16, .function = gather_all},
    {"barrier", 1, 16, .function = barrier_in_time, .heavy = true},
    {"in order", 2, 2, .function = send_in_order},
    {"wait alone", 2, 2, .function = wait_alone},
    {"all sizes", 1, 3, .function = exchange_sizes, .heavy = true},
    {"oneself", 1, 3, .function = talk_to_oneself},
    WRONG_CALL(0, "rank 1: cannot send to rank 2: there are 2 ranks"),
    WRONG_CALL(1, "rank 1: cannot receive from rank -2: there are 2 ranks"),
    WRONG_CALL(2, "rank 1: cannot send to rank 0: 8 bytes at "),
    WRONG_CALL(3, "rank 1: cannot send to rank 0: -8 bytes at "),
    WRONG_CALL(4, "rank 1: 8 bytes to rank 0 overlap 1 from rank 0"),
    WRONG_CALL(5, "rank 1: cannot send to rank 0: 8 bytes at "),
    WRONG_CALL(6, "rank 1: cannot send to rank 0: 8 bytes at "),
    {"no exchange", 2, 2, barrier_after_error, 7, CP_BROKEN,
     .words = "rank 1: waits, but has no exchange outstanding"},
    {"unwaited", 2, 2, leave_unwaited, 0, CP_BROKEN,
     .words = "rank 1: returned, but never waited for an exchange"},
    {"aborted", 2, 16, wait_for_failure, ABORT *WAYS, CP_FILE,
     .words = "rank 1: enough", .times = WAYS},
    {"failed", 2, 16, wait_for_failure, RETURN_ERROR *WAYS, CP_FILE,
     .words = "rank 1: no such file", .times = WAYS},
    {"left", 2, 16, wait_for_failure, RETURN_EARLY *WAYS, CP_BROKEN,
     .words = "but rank 1 has left", .times = WAYS},
    TIMED_OUT(RECEIVE, "rank 0: waits in an exchange for 8 bytes from rank 1"),
    TIMED_OUT(SEND, "rank 0: waits in an exchange for rank 1 to take 1048576 "),
    TIMED_OUT(ALL_TO_ALL,
              "rank 0: waits in an all-to-all for 8 bytes from rank "),
    TIMED_OUT(BARRIER,
              "rank 0: waits in a barrier for rank 1; timed out after 0.3 s"),
    {"disagree", 2, 2, disagree, 0, CP_BROKEN,
     .words = "to rank 1 in an exchange, which expects 80 bytes", .times = 4},
    {"snatch", 2, 3, snatch, 0, CP_ABORTED, .words = "changed my mind",
     .times = 20},
};
enum { COMM_SCENES = sizeof(comm_scenes) / sizeof(comm_scenes[0]) };

/* Did a run of the scene end as expected? If not, prints how it ended. */
static bool comm_scene_ended(const comm_scene *scene, int ranks,
                             cp_status status) {
    const char *expected = scene->words != NULL ? scene->words : "";
    const bool right =
        status == scene->status &&
        (status == CP_OK || strstr(cp_message(), expected) != NULL);
    if (!right)
        fprintf(stderr, "%s %d, %d ranks: status %d, '%s'\n", scene->name,
                scene->argument, ranks, status,
                status == CP_OK ? "" : cp_message());
    return right && comm_faults == 0;
}

#endif
