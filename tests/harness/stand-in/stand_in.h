/* What a test says to the stand-in for the CUDA runtime and NCCL: how late, in
 * which order and how broken the pretended machine is. Not seen by cuda/.
 *
 * A stream is a list of operations, and nothing runs when it is enqueued. Work
 * runs only while some host thread waits or asks (synchronise, query, free),
 * one step at a time, in an order that a seed decides. A copy, a fill or a
 * message starts as soon as its stream reaches it: its destination turns to
 * 0xFF (NaN) then and its source is remembered. It completes as late as the
 * events of the program allow. Whoever reads the destination in between
 * reads NaN; whoever writes the source in between is reported, and the
 * destination stays NaN. Device memory begins as NaN, is closed to the host
 * (PROT_NONE, unless `open`), and lies between guard pages. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* When a started operation completes: after everything else that could run,
 * which finds whoever does not wait for an arrival; before everything else,
 * which finds whoever does not wait until a buffer is free; now so and now so;
 * or one of these three, as the seed says. */
enum { STAND_IN_BY_SEED, STAND_IN_LATE, STAND_IN_EAGER, STAND_IN_MIXED };

typedef struct {
    uint64_t seed;   /* decides every choice; two runs of one seed are alike
                       * while one thread makes all the calls */
    bool bare;       /* there is no device (cudaErrorNoDevice) */
    int driver;      /* as cudaDriverGetVersion; 0: 13000; below 12000: too old
                       * (cudaErrorInsufficientDriver); negative: none */
    int64_t bytes;   /* memory of the device; 0: 2^30 */
    int lateness;    /* STAND_IN_BY_SEED, _LATE, _EAGER or _MIXED */
    bool open;       /* the host may look at device memory directly */
    double patience; /* seconds in which other threads may still bring what
                       * a waiting thread needs, before it is a deadlock;
                       * 0: 5 */
} stand_in_options;

/* Start a machine with these options. Before the first call there is no driver.
 * Counters and faults start afresh. */
void stand_in_begin(const stand_in_options *options);

/* True. Where the same suites run on a real GPU, false: there no fault can be
 * planted. */
bool stand_in_pretends(void);

/* Take the machine down, free what is left, and return the number of things
 * that were wrong: streams, events, graphs, communicators and allocations that
 * nobody released, operations that never ran, bytes written behind the end
 * of an allocation, sources overwritten while they were being read.
 * stand_in_report() says which. Let no other thread be inside a call. */
int64_t stand_in_end(void);

/* Everything that went wrong since stand_in_begin, one a line with its numbers;
 * after stand_in_end, with what it found. Valid until more goes wrong. */
const char *stand_in_report(void);

/* Faults on demand. n counts from 1, from now on; 0 takes the fault back. */
void stand_in_fail_allocation(int64_t n); /* cudaMalloc, cudaMallocHost, and
                                           * cudaGraphInstantiate */
void stand_in_fail_launch(int64_t n);     /* kernels and graphs */
void stand_in_fail_copy(int64_t n);       /* cudaMemcpy*, cudaMemset* */
void stand_in_ignore_wait(int64_t k);     /* the k-th cudaStreamWaitEvent */

/* Graphs replay copies from the host with the bytes that lay there when they
 * were captured: captured from now on, until it is taken back. A length that
 * travels so is stale at the second launch, as one that is an argument is. */
void stand_in_freeze_uploads(bool frozen);

/* Kernels run without their first n blocks, from now on: for what a grid of
 * millions does with its last ones. */
void stand_in_skip_blocks(int64_t n);

/* The n-th message from rank `from` to rank `to` never arrives. */
void stand_in_drop_message(int from, int to, int64_t n);

/* What becomes of a NCCL rank below 64 (as its communicator numbers it) after
 * it has begun n more operations: none begins any more; or the rank has an
 * asynchronous error, and the others of its communicator learn of it
 * (ncclRemoteError). */
void stand_in_dead_rank(int rank, int64_t n);
void stand_in_failing_rank(int rank, int64_t n);

/* NCCL refuses to be captured by this rank (as the communicator numbers it that
 * it came by), and that communicator is of no use then; -1 takes the fault back.
 */
void stand_in_refuse_captures(int rank);

/* Whether the pretended device multiplies FP8 rows, each with its scale, as a
 * GPU of compute capability 9.0 does. It does at first. */
void stand_in_pretend_f8(bool has);

/* Whether the pretended device says that its compute capability is 9.0, and not
 * 8.0. It says 8.0 at first. */
void stand_in_pretend_hopper(bool is);

/* What happened since stand_in_begin. */
typedef struct {
    int64_t launches;       /* kernels run */
    int64_t allocations;    /* cudaMalloc, cudaMallocHost */
    int64_t graph_launches; /* enqueued */
    int64_t messages;       /* delivered by NCCL */
    int64_t waits;          /* edges that waited for an event */
    int64_t timed_events;   /* events made that keep the time */
    int64_t ranges;         /* that a profiler was told of... */
    int64_t open_ranges;    /* ...and those of them that have not ended */
    int64_t calls;          /* of the host, to CUDA, NCCL and cuBLASLt... */
    int64_t polls;          /* ...that only asked whether something is over */
    int64_t graph_nodes;    /* of all graphs made ready to launch */
} stand_in_statistics;
stand_in_statistics stand_in_count(void);

#endif
