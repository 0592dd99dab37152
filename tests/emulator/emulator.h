/* How a test controls the emulator of the CUDA runtime and NCCL: how late, in
 * which order and how broken the pretended machine is. Not seen by cuda/.
 *
 * A stream is a list of operations, and nothing runs when it is enqueued. Work
 * runs only while some host thread waits or polls (synchronise, query, free),
 * one step at a time, in an order that a seed decides. A copy, a fill or a
 * message starts as soon as its stream reaches it: its destination turns to
 * 0xFF (NaN) then and its source is remembered. It completes as late as the
 * events of the program allow. A read of the destination in between gives NaN;
 * a write to the source in between is reported, and the destination stays NaN.
 * Device memory starts as NaN, is closed to the host (PROT_NONE, unless
 * `open`), and is between guard pages. */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* When a started operation completes: after everything else that can run, which
 * detects a missing wait for an arrival; before everything else, which detects
 * a missing wait for a free buffer; sometimes one and sometimes the other; or
 * one of these three, by the seed. */
enum { EMULATOR_BY_SEED, EMULATOR_LATE, EMULATOR_EAGER, EMULATOR_MIXED };

typedef struct {
    uint64_t seed;  /* decides every choice; two runs with one seed are
                        identical while one thread makes all calls */
    bool bare;      /* there is no device (cudaErrorNoDevice) */
    int driver;     /* for cudaDriverGetVersion; 0: 13000; below 12000: too old
                        (cudaErrorInsufficientDriver); negative: none */
    int64_t bytes;  /* device memory; 0: 2^30 */
    int lateness;   /* EMULATOR_BY_SEED, _LATE, _EAGER or _MIXED */
    bool open;      /* the host may look at device memory directly */
    double timeout; /* seconds in which other threads may still provide what a
                        waiting thread needs, before it is a deadlock; 0: 5 */
} emulator_options;

/* Start a machine with these options. Before the first call there is no driver.
 * Counters and faults are reset. */
void emulator_begin(const emulator_options *options);

/* True; false where the same suites run on a real GPU, and no fault can be
 * planted. */
bool emulator_pretends(void);

/* Stop the machine, free what is left, and return the number of faults:
 * streams, events, graphs, communicators and allocations that were never
 * released, operations that never ran, bytes written past the end of an
 * allocation, sources overwritten while being read. emulator_report() lists
 * them. No other thread may be inside a call. */
int64_t emulator_end(void);

/* All faults since emulator_begin, one per line with its numbers; after
 * emulator_end, including those it found. Valid until the next fault. */
const char *emulator_report(void);

/* Faults on demand. n counts from 1, from now on; 0 removes the fault. */
void emulator_fail_allocation(int64_t n); /* cudaMalloc, cudaMallocHost, and
                                           * cudaGraphInstantiate */
void emulator_fail_launch(int64_t n);     /* kernels and graphs */
void emulator_fail_copy(int64_t n);       /* cudaMemcpy*, cudaMemset* */
void emulator_ignore_wait(int64_t k);     /* the k-th cudaStreamWaitEvent */

/* Graphs captured from now on, until this is reset, replay copies from the host
 * with the bytes at capture. A length copied this way is stale at the second
 * launch, like one passed as an argument. */
void emulator_freeze_uploads(bool frozen);

/* Kernels run without their first n blocks, from now on: to test the last
 * blocks of a grid of millions. */
void emulator_skip_blocks(int64_t n);

/* The n-th message from rank `from` to rank `to` never arrives. */
void emulator_drop_message(int from, int to, int64_t n);

/* Fail a NCCL rank below 64 (numbered by its communicator) after it has begun n
 * more operations: it begins no more; or it has an asynchronous error, which
 * the others of its communicator learn (ncclRemoteError). */
void emulator_dead_rank(int rank, int64_t n);
void emulator_failing_rank(int rank, int64_t n);

/* NCCL refuses captures by this rank (numbered by its first communicator), and
 * that communicator becomes unusable; -1 removes the fault.
 * */
void emulator_refuse_captures(int rank);

/* Set whether the pretended device multiplies FP8 rows, each with its scale, as
 * a GPU of compute capability 9.0 does. Initially it does. */
void emulator_pretend_f8(bool has);

/* Set whether the pretended device reports compute capability 9.0 instead of
 * 8.0, the initial value. */
void emulator_pretend_hopper(bool is);

/* What happened since emulator_begin. */
typedef struct {
    int64_t launches;       /* kernels run */
    int64_t allocations;    /* cudaMalloc, cudaMallocHost */
    int64_t graph_launches; /* enqueued */
    int64_t messages;       /* delivered by NCCL */
    int64_t waits;          /* waits for an event */
    int64_t timed_events;   /* events created with timing */
    int64_t ranges;         /* profiler ranges... */
    int64_t open_ranges;    /* ...and those that have not ended */
    int64_t calls;          /* host calls to CUDA, NCCL and cuBLASLt... */
    int64_t polls;          /* ...that only polled for completion */
    int64_t graph_nodes;    /* in all instantiated graphs */
} emulator_statistics;
emulator_statistics emulator_count(void);

#endif
