/* Measures what one exchange of ranks in threads costs, on a ring, against the
 * size of the message and the number of ranks; prints CSV for the figure of
 * the chapter on ranks. Not a test: nothing fails when it is slow.
 *
 *   measure_ranks [repeats]
 *
 * ranks 0 is a plain memcpy, ranks 1 a rank that exchanges with itself. */
#define _POSIX_C_SOURCE 200809L

#include "figures/tools.h"
#include "reference/run/threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rank_measurement {
    int64_t bytes, rounds;
    double seconds;
};

/* Rounds of the ring on buffers of this rank; rank 0 keeps the time. */
static cp_status rotate(cp_comm *comm, struct rank_measurement *measurement,
                        char *held, char *arriving) {
    const int next = (comm->rank + 1) % comm->ranks;
    const int previous = (comm->rank + comm->ranks - 1) % comm->ranks;
    const int64_t bytes = measurement->bytes;
    cp_status status = cp_comm_barrier(comm);
    const double start = cp_clock();
    for (int64_t i = 0; i < measurement->rounds && status == CP_OK; i++) {
        status = cp_comm_exchange(comm, next, held, bytes, previous, arriving,
                                  bytes);
        if (status == CP_OK)
            status = cp_comm_wait(comm);
        char *swap = held;
        held = arriving;
        arriving = swap;
    }
    if (status == CP_OK)
        status = cp_comm_barrier(comm);
    if (comm->rank == 0)
        measurement->seconds = cp_clock() - start;
    return status;
}

/* Two buffers that begin at pages, as large tensors do. */
static cp_status make_buffers(int64_t bytes, char *buffers[2]) {
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;
        if (posix_memalign(&memory, 4096, (size_t)bytes) != 0)
            return cp_fail(CP_MEMORY, "no memory for buffers");
        buffers[i] = memset(memory, i, (size_t)bytes);
    }
    return CP_OK;
}

static cp_status measure_rank(cp_comm *comm, void *context) {
    struct rank_measurement *measurement = context;
    char *buffers[2] = {NULL, NULL};
    cp_status status = make_buffers(measurement->bytes, buffers);
    if (status == CP_OK)
        status = rotate(comm, measurement, buffers[0], buffers[1]);
    if (status != CP_OK)
        cp_comm_abort(comm, cp_message());
    free(buffers[0]);
    free(buffers[1]);
    return status;
}

static cp_status measure_memcpy(struct rank_measurement *measurement) {
    char *buffers[2] = {NULL, NULL};
    const cp_status status = make_buffers(measurement->bytes, buffers);
    const double start = cp_clock();
    for (int64_t i = 0; status == CP_OK && i < measurement->rounds; i++) {
        memcpy(buffers[i % 2], buffers[1 - i % 2], (size_t)measurement->bytes);
        __asm__ volatile("" : : "r"(buffers) : "memory");
    }
    measurement->seconds = cp_clock() - start;
    free(buffers[0]);
    free(buffers[1]);
    return status;
}

/* The fastest of the repeats, in seconds a round. */
static double best(int ranks, int64_t bytes, int repeats) {
    const cp_threads_options options = {.ranks = ranks};
    double least = INFINITY;
    for (int repeat = 0; repeat < repeats; repeat++) {
        struct rank_measurement measurement = {.bytes = bytes};
        measurement.rounds = bytes < 65536 ? 2000 : 8 + (64 << 20) / bytes;
        need(ranks == 0 ? measure_memcpy(&measurement)
                        : cp_threads_run(&options, measure_rank, &measurement));
        least = fmin(least, measurement.seconds / (double)measurement.rounds);
    }
    return least;
}

int main(int count, char **arguments) {
    static const int ranks[] = {0, 1, 2, 4, 8};
    const int repeats = count > 1 ? atoi(arguments[1]) : 5;
    printf("ranks,bytes,microseconds,gigabytes_per_second\n");
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
        for (int64_t bytes = 64; bytes <= 16 << 20; bytes *= 4) {
            const double seconds = best(ranks[i], bytes, repeats);
            const int64_t copies = ranks[i] > 1 ? ranks[i] : 1;
            printf("%d,%ld,%.3f,%.3f\n", ranks[i], bytes, seconds * 1e6,
                   (double)(copies * bytes) / seconds * 1e-9);
        }
    return EXIT_SUCCESS;
}
