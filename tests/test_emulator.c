/* The emulator of CUDA and NCCL finds the faults that it exists to find:
 * missing waits, buffers reused too early, sizes that differ, deadlocks, stale
 * captures, and accesses out of bounds. */
#define _DEFAULT_SOURCE /* usleep */
#include "on_device.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>

#include "emulator/kernel.h"

/* With memory open, which saves time: closed device memory is tested elsewhere.
 * A short timeout is enough, since a test's threads do nothing else. */
static void begin_so(int seed, int lateness) {
    emulator_begin(&(emulator_options){.seed = (uint64_t)seed,
                                       .lateness = lateness,
                                       .open = true,
                                       .timeout = 0.1});
}

/* Floats that were never written. */
static float *device(int64_t count) {
    void *memory;
    must(cudaMalloc(&memory, (size_t)count * sizeof(float)));
    return free_later(ON_DEVICE, memory);
}

enum { WIDTH = 100, BYTES = 4 * WIDTH, THREADS = 64, MOST = 8 };
static const dim3 one_block = {1, 1, 1};

typedef struct {
    float *out;
    const float *in; /* added to the contents; NULL: store first + i */
    int64_t count;
    float first;
} step;

CP_KERNEL(sum_step, step) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count)
        return;
    if (a.in != NULL)
        a.out[i] += a.in[i];
    else
        a.out[i] = a.first + (float)i;
}

static cudaError_t take_step(step arguments, cudaStream_t stream) {
    const dim3 grid = {(unsigned)((arguments.count + THREADS - 1) / THREADS), 1,
                       1};
    return CP_LAUNCH(sum_step, grid, THREADS, stream, arguments);
}

static cudaError_t fill(float *out, int64_t count, float first,
                        cudaStream_t stream) {
    return take_step((step){out, NULL, count, first}, stream);
}

/* A correct program: blocks go round a ring, and each rank sums them. */

typedef struct {
    int rank;
    ncclComm_t comm;
    cudaStream_t compute, network;
    cudaEvent_t filled, arrived[2], used[2];
    float *block[2], *total, *answer;
} emulator_member;

static emulator_member ring[MOST];
static int ranks; /* of the current ring */

static void join_ring(emulator_member *m, int rank) {
    *m = (emulator_member){.rank = rank};
    m->compute = new_stream();
    m->network = new_stream();
    m->filled = new_event();
    m->total = device(WIDTH);
    m->answer = pinned(BYTES);
    for (int i = 0; i < 2; i++) {
        m->block[i] = device(WIDTH);
        m->arrived[i] = new_event();
        m->used[i] = new_event();
    }
}

/* A nonblocking NCCL call, and polling until it is done. */
#define begins(call) ck_assert_int_eq(call, ncclInProgress)

static ncclResult_t ask(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        must(ncclCommGetAsyncError(comm, &state));
    return state;
}

static void send(const emulator_member *m, int block, int to) {
    begins(
        ncclSend(m->block[block], WIDTH, ncclFloat32, to, m->comm, m->network));
    must(ask(m->comm));
}

static void receive(const emulator_member *m, int block, int count, int from,
                    cudaStream_t stream) {
    begins(ncclRecv(m->block[block], (size_t)count, ncclFloat32, from, m->comm,
                    stream));
    must(ask(m->comm));
}

static void send_and_receive(const emulator_member *m, int held, int to,
                             int from) {
    must(ncclGroupStart());
    must(ncclSend(m->block[held], WIDTH, ncclFloat32, to, m->comm, m->network));
    must(ncclRecv(m->block[1 - held], WIDTH, ncclFloat32, from, m->comm,
                  m->network));
    begins(ncclGroupEnd());
}

static void exchange(emulator_member *m, int hop) {
    const int held = hop % 2, arriving = 1 - held;
    must(cudaStreamWaitEvent(m->network,
                             hop == 0 ? m->filled : m->used[arriving], 0));
    send_and_receive(m, held, (m->rank + 1) % ranks,
                     (m->rank + ranks - 1) % ranks);
    must(ask(m->comm));
    must(cudaEventRecord(m->arrived[arriving], m->network));
}

static void ring_step(emulator_member *m, int hop) {
    const int held = hop % 2;
    if (hop == 0) {
        must(fill(m->block[0], WIDTH, 1000.0f * (float)m->rank, m->compute));
        must(cudaEventRecord(m->filled, m->compute));
        must(cudaMemsetAsync(m->total, 0, BYTES, m->compute));
    }
    if (hop + 1 < ranks)
        exchange(m, hop);
    if (hop > 0)
        must(cudaStreamWaitEvent(m->compute, m->arrived[held], 0));
    must(take_step((step){m->total, m->block[held], WIDTH, 0.0f}, m->compute));
    must(cudaEventRecord(m->used[held], m->compute));
    if (hop + 1 == ranks)
        must(cudaMemcpyAsync(m->answer, m->total, BYTES, cudaMemcpyDeviceToHost,
                             m->compute));
}

static bool ring_right(const emulator_member *m) {
    for (int i = 0; i < WIDTH; i++)
        if (m->answer[i] != (float)(1000 * ranks * (ranks - 1) / 2 + ranks * i))
            return false;
    return true;
}

static void ring_open(int members) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ranks = members;
    must(ncclGetUniqueId(&id));
    for (int rank = 0; rank < ranks; rank++) {
        join_ring(&ring[rank], rank);
        begins(
            ncclCommInitRankConfig(&ring[rank].comm, ranks, id, rank, &config));
    }
    for (int rank = 0; rank < ranks; rank++)
        must(ask(ring[rank].comm));
}

static void ring_enqueue(void) {
    for (int hop = 0; hop < ranks; hop++)
        for (int rank = 0; rank < ranks; rank++)
            ring_step(&ring[rank], hop);
}

/* Returns what emulator_end() does. */
static int64_t ring_end(void) {
    cudaDeviceSynchronize();
    for (int rank = 0; rank < ranks; rank++)
        ncclCommDestroy(ring[rank].comm);
    release();
    return emulator_end();
}

/* Kernels that record the order in which they run: how many, then which. */
enum { NOTES = 20 };

typedef struct {
    float *order, id;
} note;

CP_KERNEL(note_order, note) {
    a.order[1 + (int)a.order[0]] = a.id;
    a.order[0] += 1.0f;
}

static float *new_order(void) {
    float *order = device(NOTES + 1);
    must(cudaMemset(order, 0, 4 * (NOTES + 1)));
    must(cudaStreamSynchronize(NULL));
    return order;
}

static cudaError_t take_note(float *order, int id, cudaStream_t stream) {
    const note arguments = {order, (float)id};
    return CP_LAUNCH(note_order, one_block, 1, stream, arguments);
}

static void run_notes(int seed, float *result) {
    cudaStream_t streams[4];
    begin(seed);
    float *order = new_order();
    for (int i = 0; i < 4; i++)
        streams[i] = new_stream();
    for (int i = 0; i < NOTES; i++)
        must(take_note(order, i, streams[i % 4]));
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(result, order, 4 * (NOTES + 1), cudaMemcpyDefault));
    end();
}

TEST(a_seed_is_an_order) {
    float once[NOTES + 1], again[NOTES + 1], last[NOTES + 1] = {0};
    int changes = 0;
    for (int seed = 0; seed < 50; seed++) {
        run_notes(seed, once);
        run_notes(seed, again);
        ck_assert(once[0] == NOTES);
        ck_assert_mem_eq(once, again, sizeof(once));
        changes += memcmp(once, last, sizeof(once)) != 0;
        memcpy(last, once, sizeof(once));
    }
    ck_assert_int_gt(changes, 40);
}

/* Graphs. */

static void begin_capture(cudaStream_t stream) {
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

/* The executable graph of a stream's capture. */
static cudaGraphExec_t end_capture(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t run;
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&run, graph, 0));
    must(cudaGraphDestroy(graph));
    return run;
}

enum { RANKS = 3, WAITS = RANKS * (1 + (RANKS - 1) + (RANKS - 2)) };

/* The whole ring as a graph: its streams are forked from one, and joined
 * again. */
static cudaGraphExec_t capture_ring(cudaStream_t origin) {
    begin_capture(origin);
    cudaEvent_t all = new_event();
    must(cudaEventRecord(all, origin));
    for (int rank = 0; rank < ranks; rank++)
        must(cudaStreamWaitEvent(ring[rank].compute, all, 0));
    ring_enqueue();
    for (int rank = 0; rank < ranks; rank++) {
        must(cudaEventRecord(ring[rank].filled, ring[rank].compute));
        must(cudaStreamWaitEvent(origin, ring[rank].filled, 0));
    }
    return end_capture(origin);
}

/* Is the ring without its k-th wait (0: with all) detected as wrong? */
static bool found_without(int k, int seed, int lateness, bool captured) {
    begin_so(seed, lateness);
    ring_open(RANKS);
    emulator_ignore_wait(captured && k > 0 ? k + RANKS : k);
    if (captured) {
        cudaStream_t origin = new_stream();
        cudaGraphExec_t run = capture_ring(origin);
        for (int again = 0; again < 2; again++)
            must(cudaGraphLaunch(run, origin));
        must(cudaStreamSynchronize(origin));
        must(cudaGraphExecDestroy(run));
    } else {
        ring_enqueue();
    }
    bool right = cudaDeviceSynchronize() == cudaSuccess;
    for (int rank = 0; rank < ranks; rank++)
        right = right && ring_right(&ring[rank]);
    return ring_end() > 0 || !right;
}

LOOP_BY_TENS(a_right_program_passes_on_every_seed, 20) {
    hold(!found_without(0, _i, EMULATOR_BY_SEED, _i % 2 == 0));
}

/* Waits are called hop by hop, rank by rank: first for the filled block; then
 * for room, except in the last hop, and for the arrival. */
static bool waits_for_room(int k) {
    return k > RANKS && k <= 3 * RANKS && (k - RANKS) % 2 == 1;
}

/* In a capture the last arrivals rejoin the network's streams, without which it
 * cannot end: those waits are not tried there. */
LOOP(every_wait_is_missed, 0, 2 * WAITS - RANKS) {
    const bool captured = _i >= WAITS;
    const int k = 1 + _i % WAITS;
    int late = 0, any = 0;
    for (int seed = 0; seed < 50; seed++) {
        late += found_without(k, seed, EMULATOR_LATE, captured);
        any += found_without(k, seed, EMULATOR_BY_SEED, captured);
    }
    ck_assert_int_eq(late, waits_for_room(k) ? 0 : 50);
    ck_assert_int_gt(any, 0);
}

/* More of graphs. */

typedef struct {
    float *out;
    const float *in;
    float count;         /* taken when `length` is NULL */
    const float *length; /* in device memory */
} count_step;

CP_KERNEL(sum_all, count_step) {
    const float count = a.length != NULL ? *a.length : a.count;
    float sum = 0.0f;
    for (int i = 0; (float)i < count; i++)
        sum += a.in[i];
    *a.out = sum;
}

enum { CAPTURED, UPLOADED, FROZEN };

LOOP_BY_TENS(a_captured_length_goes_stale, 3) {
    const int kind = _i % 3;
    begin(_i);
    cudaStream_t stream = new_stream();
    float *x = device(WIDTH), *length = device(1);
    float *from = pinned(4), *to = pinned(4);
    must(fill(x, WIDTH, 1.0f, stream));
    must(cudaStreamSynchronize(stream));
    *from = 3.0f;
    const count_step step = {device(1), x, 3.0f,
                             kind == CAPTURED ? NULL : length};
    emulator_freeze_uploads(kind == FROZEN);
    begin_capture(stream);
    must(cudaMemcpyAsync(length, from, 4, cudaMemcpyHostToDevice, stream));
    must(CP_LAUNCH(sum_all, one_block, 1, stream, step));
    must(cudaMemcpyAsync(to, step.out, 4, cudaMemcpyDeviceToHost, stream));
    cudaGraphExec_t run = end_capture(stream);
    for (; *from < 6.0f; *from += 1.0f) {
        must(cudaGraphLaunch(run, stream));
        must(cudaStreamSynchronize(stream));
        const float fresh = *from * (*from + 1.0f) / 2.0f;
        ck_assert_float_eq(*to, kind == UPLOADED ? fresh : 6.0f);
    }
    must(cudaGraphExecDestroy(run));
    end();
}

LOOP_BY_TENS(launches_of_one_graph_never_overlap, 2) {
    float host[NOTES + 1];
    begin(_i);
    cudaStream_t one = new_stream(), two = new_stream();
    float *order = new_order();
    begin_capture(one);
    for (int i = 0; i < NOTES / 2; i++)
        must(take_note(order, i, one));
    cudaGraphExec_t run = end_capture(one);
    must(cudaGraphLaunch(run, one));
    must(cudaGraphLaunch(run, two));
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(host, order, sizeof(host), cudaMemcpyDefault));
    for (int i = 0; i < NOTES; i++)
        ck_assert(host[1 + i] == (float)(i % (NOTES / 2)));
    must(cudaGraphExecDestroy(run));
    end();
}

/* Kernels. */

enum { BARRIER, NO_BARRIER, LEFT, HALF_BARRIER, HALF_WARP };

typedef struct {
    float *x;
    int kind;
} emulator_turn;

CP_KERNEL(turn_around, emulator_turn) {
    CP_SHARED(float, row, [THREADS]);
    row[threadIdx.x] = a.x[threadIdx.x];
    if (a.kind == BARRIER || (a.kind == HALF_BARRIER && threadIdx.x < 32))
        __syncthreads();
    if (a.kind == HALF_WARP && threadIdx.x % 2 == 0)
        __syncwarp();
    const unsigned left = threadIdx.x - (threadIdx.x > 0);
    a.x[threadIdx.x] = row[a.kind == LEFT ? left : THREADS - 1 - threadIdx.x];
}

static cudaError_t turn_row(int kind, float *host) {
    const emulator_turn arguments = {device(THREADS), kind};
    must(fill(arguments.x, THREADS, 0.0f, NULL));
    must(CP_LAUNCH(turn_around, one_block, THREADS, NULL, arguments));
    return cudaMemcpy(host, arguments.x, THREADS * 4, cudaMemcpyDeviceToHost);
}

static bool turned_right(int kind, int seed) {
    float host[THREADS];
    bool right = true;
    begin(seed);
    must(turn_row(kind, host));
    for (int i = 0; i < THREADS; i++) {
        const int left = i > 0 ? i - 1 : 0;
        right =
            right && host[i] == (float)(kind == LEFT ? left : THREADS - 1 - i);
    }
    end();
    return right;
}

TEST(a_barrier_is_missing) {
    int missed[2] = {0, 0};
    for (int seed = 0; seed < 50; seed++) {
        ck_assert(turned_right(BARRIER, seed));
        missed[0] += turned_right(NO_BARRIER, seed);
        missed[1] += turned_right(LEFT, seed);
    }
    ck_assert_int_eq(missed[0], 0);
    ck_assert_int_lt(missed[1], 10);
}

/* Memory that a launch requests: `bytes` bytes, of which one is written. */
typedef struct {
    int64_t *found; /* how many bytes were not poison, and the memory's
                       address */
    size_t bytes;
    int64_t at;
} share;

CP_KERNEL(share_room, share) {
    CP_DYNAMIC(room);
    a.found[0] = 0;
    a.found[1] = (int64_t)(uintptr_t)room;
    for (size_t i = 0; i < a.bytes; i++)
        a.found[0] += room[i] != 0xFF;
    room[a.at] = 7;
}

static cudaError_t share_memory(size_t bytes, int64_t at, int64_t found[2]) {
    const share arguments = {(int64_t *)(void *)device(4), bytes, at};
    const cudaError_t error =
        CP_LAUNCH_SHARED(share_room, one_block, 1, bytes, NULL, arguments);
    return error != cudaSuccess
               ? error
               : cudaMemcpy(found, arguments.found, 16, cudaMemcpyDeviceToHost);
}

TEST(blocks_share_what_the_launch_says) {
    static const size_t sizes[] = {16, 1000, 1024, 99 * 1024, 227 * 1024};
    begin(1);
    for (int n = 0; n < COUNT_OF(sizes); n++) {
        int64_t found[2];
        emulator_pretend_hopper(n == 4);
        must(share_memory(sizes[n], (int64_t)sizes[n] - 1, found));
        ck_assert_int_eq(found[0], 0);
        ck_assert_int_eq(found[1] % 1024, 0);
    }
    end();
}

/* Mistakes, and the expected reports. Each is made on many seeds; it returns
 * the error that the host gets. */

static int how; /* which mistake of a function */

static cudaError_t copy_too_early(void) {
    const emulator_member *m = ring;
    must(fill(m->total, WIDTH, 1.0f, m->compute));
    must(cudaMemcpyAsync(m->answer, m->total, BYTES, cudaMemcpyDeviceToHost,
                         m->network));
    must(cudaStreamSynchronize(m->network));
    const cudaError_t error = cudaStreamSynchronize(m->compute);
    ck_assert(isnan(m->answer[0]) && isnan(m->answer[WIDTH - 1]));
    return error;
}

static cudaError_t two_write_one_buffer(void) {
    memset(ring->answer, 0, BYTES);
    must(cudaMemcpyAsync(ring->total, ring->answer, BYTES,
                         cudaMemcpyHostToDevice, ring->network));
    must(fill(ring->total, WIDTH, 1.0f, ring->compute));
    return cudaDeviceSynchronize();
}

static cudaError_t write_what_is_sent(void) {
    for (int rank = 0; rank < 2; rank++)
        ring_step(&ring[rank], 0);
    must(fill(ring[0].block[0], WIDTH, 5.0f, ring[0].compute));
    return cudaDeviceSynchronize();
}

static cudaError_t receive_too_little(void) {
    must(fill(ring[0].block[0], WIDTH, 1.0f, ring[0].network));
    send(&ring[0], 0, 1);
    receive(&ring[1], 0, 96, 0, ring[1].network);
    const cudaError_t error = cudaStreamSynchronize(ring[1].network);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(ask(ring[rank].comm), ncclInvalidUsage);
        must(ncclCommAbort(ring[rank].comm));
    }
    return error;
}

/* Both send and then receive, without a group: each send waits for the
 * other. */
enum { ONE_STREAM, TWO_STREAMS };

static cudaError_t send_first(void) {
    for (int rank = 0; rank < 2; rank++) {
        emulator_member *m = &ring[rank];
        must(fill(m->block[0], WIDTH, 1.0f, m->network));
        send(m, 0, 1 - rank);
        receive(m, 1, WIDTH, 1 - rank,
                how == TWO_STREAMS ? m->compute : m->network);
    }
    return cudaDeviceSynchronize();
}

static void *wait_in_vain(void *stream) {
    return (void *)(intptr_t)cudaStreamSynchronize(stream);
}

static cudaError_t receive_from_each_other(void) {
    pthread_t threads[2];
    void *results[2];
    for (int rank = 0; rank < 2; rank++)
        receive(&ring[rank], 0, WIDTH, 1 - rank, ring[rank].network);
    for (int rank = 0; rank < 2; rank++)
        pthread_create(&threads[rank], NULL, wait_in_vain, ring[rank].network);
    for (int rank = 0; rank < 2; rank++)
        pthread_join(threads[rank], &results[rank]);
    ck_assert(results[0] == results[1]);
    return (cudaError_t)(intptr_t)results[0];
}

static cudaError_t abort_a_rank(void) {
    for (int rank = 0; rank < 2; rank++)
        receive(&ring[rank], 0, WIDTH, 1 - rank, ring[rank].network);
    ck_assert_int_eq(cudaStreamQuery(ring[0].network), cudaErrorNotReady);
    must(ncclCommAbort(ring[0].comm));
    must(cudaStreamSynchronize(ring[0].network));
    ck_assert_int_eq(cudaStreamQuery(ring[1].network), cudaErrorNotReady);
    ck_assert_int_eq(ask(ring[1].comm), ncclRemoteError);
    const cudaError_t error = cudaStreamSynchronize(ring[1].network);
    must(ncclCommAbort(ring[1].comm));
    must(cudaStreamSynchronize(ring[1].network));
    return error;
}

/* An abort of a communicator whose messages are in a graph: before the graph is
 * destroyed; while another thread destroys it; or after that, although it
 * runs. */
enum { GRAPH_LEFT, GRAPH_ENDS, GRAPH_GONE };

static void *abort_ring(void *comm) {
    return (void *)(intptr_t)ncclCommAbort(comm);
}

static cudaError_t abort_what_a_graph_has(void) {
    emulator_member *m = ring;
    begin_capture(m->network);
    send_and_receive(m, 0, 0, 0);
    must(ask(m->comm));
    cudaGraphExec_t run = end_capture(m->network);
    pthread_t other;
    if (how == GRAPH_ENDS) {
        pthread_create(&other, NULL, abort_ring, m->comm);
        usleep(3000);
        must(cudaGraphExecDestroy(run));
        pthread_join(other, NULL);
    }
    if (how == GRAPH_GONE) {
        must(cudaGraphLaunch(run, m->network));
        must(cudaGraphExecDestroy(run));
    }
    if (how != GRAPH_ENDS)
        must(ncclCommAbort(m->comm));
    if (how == GRAPH_LEFT)
        must(cudaGraphExecDestroy(run));
    return cudaStreamSynchronize(m->network);
}

static cudaError_t receive_what_a_graph_sends(void) {
    begin_capture(ring[0].network);
    send(&ring[0], 0, 1);
    cudaGraphExec_t run = end_capture(ring[0].network);
    must(cudaGraphLaunch(run, ring[0].network));
    receive(&ring[1], 0, WIDTH, 0, ring[1].network);
    const cudaError_t error = cudaStreamSynchronize(ring[1].network);
    must(cudaGraphExecDestroy(run));
    for (int rank = 0; rank < 2; rank++)
        must(ncclCommAbort(ring[rank].comm));
    return error;
}

/* Rank 0 waits in two communicators, and aborts both: one by one, or in a
 * group. */
enum { ONE_BY_ONE, TOGETHER };

static cudaError_t abort_two(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    emulator_member sibling[2];
    config.blocking = 0;
    for (int rank = 0; rank < 2; rank++) {
        sibling[rank] = ring[rank];
        const ncclResult_t answer = ncclCommSplit(ring[rank].comm, 0, rank,
                                                  &sibling[rank].comm, &config);
        ck_assert(answer == ncclSuccess || answer == ncclInProgress);
    }
    for (int rank = 0; rank < 2; rank++) {
        must(ask(ring[rank].comm));
        must(ask(sibling[rank].comm));
    }
    receive(&ring[0], 0, WIDTH, 1, ring[0].network);
    receive(&sibling[0], 1, WIDTH, 1, ring[0].compute);
    if (how == TOGETHER)
        must(ncclGroupStart());
    must(ncclCommAbort(ring[0].comm));
    must(ncclCommAbort(sibling[0].comm));
    if (how == TOGETHER)
        must(ncclGroupEnd());
    must(ncclCommDestroy(sibling[1].comm));
    return cudaDeviceSynchronize();
}

/* Ranks 0 and 1 continue without rank 2, from which rank 0 still expects a
 * message. Or they do not, if rank 2 has left midway. */
enum { SHRINK_ABORTS, SHRINK_AT_WORK, SHRINK_FAILED };

static cudaError_t shrink(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    emulator_member left[2] = {ring[0], ring[1]};
    int gone = 2;
    config.blocking = 0;
    receive(&ring[0], 0, WIDTH, 2, ring[0].network);
    receive(&ring[2], 0, WIDTH, 1, ring[2].network);
    ck_assert_int_eq(cudaStreamQuery(ring[0].network), cudaErrorNotReady);
    if (how == SHRINK_FAILED)
        must(ncclCommAbort(ring[2].comm));
    for (int rank = 0; rank < 2; rank++) {
        const ncclResult_t answer = ncclCommShrink(
            ring[rank].comm, &gone, 1, &left[rank].comm, &config,
            how == SHRINK_AT_WORK ? NCCL_SHRINK_DEFAULT : NCCL_SHRINK_ABORT);
        ck_assert(how == SHRINK_FAILED
                      ? answer == ncclRemoteError
                      : answer == ncclSuccess || answer == ncclInProgress);
    }
    for (int rank = 0; rank < 2 && how != SHRINK_FAILED; rank++) {
        must(ask(ring[rank].comm));
        must(ask(left[rank].comm));
    }
    if (how == SHRINK_ABORTS) { /* and waiting work continues */
        must(cudaStreamSynchronize(ring[0].network));
        must(fill(left[0].block[1], WIDTH, 3.0f, left[0].network));
        send(&left[0], 1, 1);
        receive(&left[1], 0, WIDTH, 0, left[1].network);
        must(cudaStreamSynchronize(left[1].network));
    }
    for (int rank = 0; rank < 3; rank++) {
        ncclCommAbort(ring[rank].comm);
        if (rank < 2 && how != SHRINK_FAILED)
            must(ncclCommDestroy(left[rank].comm));
    }
    return cudaDeviceSynchronize();
}

enum { DROPPED, DEAD, FAILING };

static cudaError_t lose_a_rank(void) {
    if (how == DROPPED)
        emulator_drop_message(0, 1, 1);
    if (how == DEAD)
        emulator_dead_rank(1, 1);
    if (how == FAILING)
        emulator_failing_rank(1, 1);
    ring_enqueue();
    const cudaError_t error = cudaStreamSynchronize(ring[0].compute);
    ck_assert(!ring_right(&ring[0]));
    if (how == FAILING)
        ck_assert_int_eq(ask(ring[2].comm), ncclRemoteError);
    for (int rank = 0; rank < RANKS; rank++)
        ncclCommAbort(ring[rank].comm);
    return error;
}

/* Rank 0 launches after a message that never comes, until a launch does not
 * return, or until another thread aborts. */
enum { UNHELPED, HELPED };

static void *abort_soon(void *comm) {
    usleep(20000);
    must(ncclCommAbort(comm));
    return NULL;
}

static cudaError_t launch_behind_the_dead(void) {
    emulator_member *m = ring;
    pthread_t helper;
    cudaError_t error = cudaSuccess;
    int launched = 0;
    emulator_dead_rank(1, 0);
    receive(&m[0], 0, WIDTH, 1, m->network);
    if (how == HELPED)
        pthread_create(&helper, NULL, abort_soon, m->comm);
    while (launched < 1500 && error == cudaSuccess) {
        error = fill(m->total, WIDTH, 0.0f, m->network);
        launched += error == cudaSuccess;
    }
    ck_assert_int_eq(launched, how == HELPED ? 1500 : 1023);
    if (how == HELPED)
        pthread_join(helper, NULL);
    for (int rank = 0; rank < 2; rank++)
        ncclCommAbort(m[rank].comm);
    return error != cudaSuccess ? error : cudaStreamSynchronize(m->network);
}

/* A rank sends to itself, twice, and polls only the second time: before that,
 * the synchronising host finds an empty stream, and its buffer unchanged. */
static cudaError_t ask_too_late(void) {
    emulator_member *m = ring;
    for (int asks = 0; asks < 2; asks++) {
        must(fill(m->block[0], WIDTH, 7.0f, m->network));
        send_and_receive(m, 0, 0, 0);
        if (asks)
            must(ask(m->comm));
        must(cudaMemcpyAsync(m->answer, m->block[1], BYTES,
                             cudaMemcpyDeviceToHost, m->network));
        must(cudaStreamSynchronize(m->network));
        ck_assert(asks ? m->answer[0] == 7.0f : isnan(m->answer[0]));
        must(ask(m->comm));
    }
    return cudaSuccess;
}

enum { WAITS_INSIDE, WAITS_OUTSIDE, ALLOCATES, JOINS_NOT };

static cudaError_t spoil_a_capture(void) {
    void *memory;
    cudaGraph_t graph;
    cudaStream_t stream = new_stream(), other = new_stream();
    cudaEvent_t outside = new_event(), inside = new_event();
    cudaError_t error = cudaSuccess;
    must(cudaEventRecord(outside, other));
    begin_capture(stream);
    if (how == WAITS_INSIDE)
        error = cudaStreamSynchronize(stream);
    if (how == WAITS_OUTSIDE)
        error = cudaStreamWaitEvent(stream, outside, 0);
    if (how == ALLOCATES)
        error = cudaMalloc(&memory, 4);
    if (how == JOINS_NOT) {
        must(cudaEventRecord(inside, stream));
        must(cudaStreamWaitEvent(other, inside, 0));
        must(take_note(NULL, 0, other));
    }
    const cudaError_t end = cudaStreamEndCapture(stream, &graph);
    ck_assert_ptr_null(graph);
    ck_assert(how == JOINS_NOT || end == cudaErrorStreamCaptureInvalidated);
    return how == JOINS_NOT ? end : error;
}

static cudaError_t miss_a_barrier(void) {
    float host[THREADS];
    return turn_row(how, host);
}

enum { SHARE_BEHIND, SHARE_BEFORE, SHARE_MORE, SHARE_MOST };

static cudaError_t share_wrongly(void) {
    static const int64_t bytes[] = {1000, 16, 99 * 1024 + 1, 227 * 1024 + 1};
    static const int64_t at[] = {1000, -1, 0, 0};
    int64_t found[2];
    emulator_pretend_hopper(how == SHARE_MOST);
    return share_memory((size_t)bytes[how], at[how], found);
}

enum { COPY_BEYOND, WRONG_WAY, FREE_TWICE, WRITE_BEHIND, TOO_MUCH };

static cudaError_t misuse_memory(void) {
    float host[20] = {0};
    void *x, *huge;
    must(cudaMalloc(&x, 40));
    cudaError_t error = cudaSuccess;
    if (how == COPY_BEYOND)
        error = cudaMemcpy((float *)x + 2, host, 36, cudaMemcpyHostToDevice);
    if (how == WRONG_WAY)
        error = cudaMemcpy(x, host, 8, cudaMemcpyDeviceToHost);
    if (how == WRITE_BEHIND)
        error = fill(x, 11, 0.0f, NULL);
    if (how == TOO_MUCH)
        error = cudaMalloc(&huge, 1073741824);
    must(cudaFree(x));
    return how == FREE_TWICE ? cudaFree(x) : error;
}

static const struct {
    const char *name;
    cudaError_t (*make)(void);
    int how, ranks;
    cudaError_t error;
    int problems;
    const char *report;
} mistakes[] = {
    {"a wait is forgotten", copy_too_early, 0, 1, cudaSuccess, 1,
     "race: the source of a copy of 400 bytes was written while it was under"},
    {"two write one buffer", two_write_one_buffer, 0, 1, cudaSuccess, 1,
     "race: the destination of a copy of 400 bytes"},
    {"what is sent is written", write_what_is_sent, 0, 2, cudaSuccess, 1,
     "race: the source of a send of 400 bytes by rank 0 was written while"},
    {"a wrong count", receive_too_little, 0, 2, cudaErrorLaunchFailure, 0,
     "rank 0 sends 400 bytes (a message, of type 7) to rank 1, which receives|"
     "receives 384 bytes"},
    {"a deadlock", send_first, ONE_STREAM, 2, cudaErrorLaunchFailure, 0,
     "deadlock: the host waits and nothing can run: |"
     "send of 400 bytes to rank 1 by rank 0 of communicator|"
     "send of 400 bytes to rank 0 by rank 1 of communicator|"
     "the other side has not started"},
    {"a communicator is one queue", send_first, TWO_STREAMS, 2,
     cudaErrorLaunchFailure, 0,
     "receive of 400 bytes from rank 0 by rank 1|"
     "an earlier operation of its communicator is not done"},
    {"threads wait for each other", receive_from_each_other, 0, 2,
     cudaErrorLaunchFailure, 0,
     "receive of 400 bytes from rank 1 by rank 0|the other side never arrives"},
    {"an abort", abort_a_rank, 0, 2, cudaErrorLaunchFailure, 0, ""},
    {"an abort while there is a graph", abort_what_a_graph_has, GRAPH_LEFT, 1,
     cudaSuccess, 1, "rank 0 aborts communicator|while graph|holds it"},
    {"an abort that a graph delays", abort_what_a_graph_has, GRAPH_ENDS, 1,
     cudaSuccess, 0, ""},
    {"an abort behind a graph", abort_what_a_graph_has, GRAPH_GONE, 1,
     cudaSuccess, 0, ""},
    {"two aborts", abort_two, ONE_BY_ONE, 2, cudaSuccess, 1,
     "rank 0 aborts communicator|while its communicator|waits"},
    {"two aborts in a group", abort_two, TOGETHER, 2, cudaSuccess, 0, ""},
    {"a shrink that aborts", shrink, SHRINK_ABORTS, 3, cudaSuccess, 0, ""},
    {"a shrink at work", shrink, SHRINK_AT_WORK, 3, cudaSuccess, 1,
     "rank 0 shrinks communicator|while it has work"},
    {"a shrink after an error", shrink, SHRINK_FAILED, 3, cudaSuccess, 0, ""},
    {"a message half in a graph", receive_what_a_graph_sends, 0, 2,
     cudaErrorLaunchFailure, 1,
     "rank 0 sends to rank 1 from a graph what is received outside of one"},
    {"a message is dropped", lose_a_rank, DROPPED, RANKS,
     cudaErrorLaunchFailure, 0, "the message was dropped on demand"},
    {"a rank is dead", lose_a_rank, DEAD, RANKS, cudaErrorLaunchFailure, 0,
     "the rank is dead on demand"},
    {"a rank fails", lose_a_rank, FAILING, RANKS, cudaErrorLaunchFailure, 0,
     "rank 1 of communicator"},
    {"a launch behind a dead rank", launch_behind_the_dead, UNHELPED, 2,
     cudaErrorLaunchFailure, 0,
     "deadlock in a launch: the host waits and nothing can run: |"
     "receive of 400 bytes from rank 1 by rank 0|the other side never arrives"},
    {"a launch that an abort frees", launch_behind_the_dead, HELPED, 2,
     cudaSuccess, 0, "rank 0 aborts communicator"},
    {"a communicator is not asked", ask_too_late, 0, 1, cudaSuccess, 0, ""},
    {"a wait in a capture", spoil_a_capture, WAITS_INSIDE, 0,
     cudaErrorStreamCaptureUnsupported, 0, "cudaStreamSynchronize on stream"},
    {"a wait for an event from outside", spoil_a_capture, WAITS_OUTSIDE, 0,
     cudaErrorStreamCaptureIsolation, 0, "was recorded outside the capture"},
    {"an allocation in a capture", spoil_a_capture, ALLOCATES, 0,
     cudaErrorStreamCaptureUnsupported, 0, "cudaMalloc while stream"},
    {"a stream that is not joined", spoil_a_capture, JOINS_NOT, 0,
     cudaErrorStreamCaptureUnjoined, 0, "was not joined to it again"},
    {"half a barrier", miss_a_barrier, HALF_BARRIER, 0, cudaErrorLaunchFailure,
     0,
     "kernel turn_around, block (0, 0, 0): |has ended|"
     "a barrier that not all threads reach: thread 0 waits at"},
    {"half a warp", miss_a_barrier, HALF_WARP, 0, cudaErrorLaunchFailure, 0,
     "lanes of a warp that do not all arrive: thread|has ended"},
    {"behind what a block shares", share_wrongly, SHARE_BEHIND, 0,
     cudaErrorLaunchFailure, 0,
     "written outside of the 1000 bytes that the launch named"},
    {"before what a block shares", share_wrongly, SHARE_BEFORE, 0,
     cudaErrorLaunchFailure, 0,
     "written outside of the 16 bytes that the launch named"},
    {"more than a block can share", share_wrongly, SHARE_MORE, 0,
     cudaErrorInvalidValue, 0,
     "kernel share_room with 101377 bytes shared by a block"},
    {"more than a block of 9.0 can share", share_wrongly, SHARE_MOST, 0,
     cudaErrorInvalidValue, 0,
     "kernel share_room with 232449 bytes shared by a block"},
    {"a copy beyond the end", misuse_memory, COPY_BEYOND, 0,
     cudaErrorInvalidValue, 0,
     "copy into of 36 bytes from byte 8 of allocation 1 of 40 bytes"},
    {"a copy the wrong way", misuse_memory, WRONG_WAY, 0, cudaErrorInvalidValue,
     0, "a copy called device to host goes host to device"},
    {"freed twice", misuse_memory, FREE_TWICE, 0, cudaErrorInvalidValue, 0,
     "allocation 1 is freed a second time"},
    {"a kernel behind the end", misuse_memory, WRITE_BEHIND, 0, cudaSuccess, 1,
     "something wrote 0 bytes past the end of allocation 1 of 40 bytes"},
    {"more than there is", misuse_memory, TOO_MUCH, 0,
     cudaErrorMemoryAllocation, 0,
     "allocation of 1073741824 bytes on a device that has 1073741568 of"},
};

/* Check that a text has all parts, which vertical bars separate. */
static void has_all(const char *text, const char *parts) {
    char part[200];
    for (int length; *parts != '\0'; parts += length + (parts[length] == '|')) {
        length = (int)strcspn(parts, "|");
        snprintf(part, sizeof(part), "%.*s", length, parts);
        ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in: %s", part,
                      text);
    }
}

/* A late machine finds each race. */
LOOP(mistakes_are_found_on_every_seed, 0, COUNT_OF(mistakes)) {
    const int problems = mistakes[_i].problems;
    how = mistakes[_i].how;
    for (int seed = 0; seed < 20; seed++) {
        begin_so(seed, problems > 0 ? EMULATOR_LATE : EMULATOR_BY_SEED);
        ring_open(mistakes[_i].ranks);
        const cudaError_t error = mistakes[_i].make();
        const int64_t found = ring_end();
        ck_assert_msg(error == mistakes[_i].error && found == problems,
                      "%s, seed %d: %s, and %ld problems: %s",
                      mistakes[_i].name, seed, cudaGetErrorString(error), found,
                      emulator_report());
        has_all(emulator_report(), mistakes[_i].report);
    }
}

/* A blocking copy is followed by a kernel on another stream. Only a copy from
 * pinned memory has ended by then; from other memory, only if the null stream
 * has ended. */
LOOP_BY_TENS(a_copy_may_be_in_flight, 6) {
    static float pageable[WIDTH];
    begin_so(_i / 3, EMULATOR_LATE);
    ring_open(1);
    emulator_member *m = ring;
    float *from = _i % 3 == 0 ? memset(m->answer, 0, BYTES) : pageable;
    must(fill(m->total, WIDTH, 0.0f, m->compute));
    must(cudaMemcpy(m->block[0], from, BYTES, cudaMemcpyHostToDevice));
    if (_i % 3 == 1)
        must(cudaStreamSynchronize(NULL));
    must(take_step((step){m->total, m->block[0], WIDTH, 0.0f}, m->compute));
    must(cudaMemcpyAsync(m->answer, m->total, BYTES, cudaMemcpyDeviceToHost,
                         m->compute));
    must(cudaDeviceSynchronize());
    hold(isnan(m->answer[1]) == (_i % 3 == 2));
    hold(ring_end() == 0);
}

enum { KERNEL_TOUCHES, HOST_TOUCHES, HOST_TOUCHES_FREED };

static void touch_badly(int kind) {
    float *x = device(64);
    if (kind == KERNEL_TOUCHES)
        fill(x, 64 + THREADS, 0.0f, NULL);
    if (kind == HOST_TOUCHES)
        x[1] = 0.0f;
    if (kind == HOST_TOUCHES_FREED) {
        float *pages = pinned(256);
        cudaFreeHost(pages);
        pages[2] = 0.0f;
    }
    cudaDeviceSynchronize();
    _exit(0);
}

LOOP(a_bad_access_names_the_allocation, 0, 3) {
    static const char *const messages[] = {
        "emulator: kernel sum_step touched |"
        "bytes past the end of allocation 1 of 256 bytes\n",
        "emulator: the host touched byte 4 of allocation 1 of 256 bytes, "
        "which only the device may touch\n",
        "emulator: the host touched byte 8 of pinned allocation 2 of 256 "
        "bytes, freed\n"};
    char message[400] = "";
    int ends[2], status;
    begin(1);
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        touch_badly(_i);
    }
    waitpid(child, &status, 0);
    ck_assert(WIFSIGNALED(status));
    ck_assert(read(ends[0], message, sizeof(message) - 1) > 0);
    has_all(message, messages[_i]);
    end();
}

TEST(leaks_are_reported) {
    begin(1);
    ring_open(1);
    must(fill(ring->block[0], WIDTH, 1.0f, ring->compute));
    ck_assert_int_eq(emulator_end(), 1 + 2 + 5 + 4 + 1);
    has_all(emulator_report(),
            "ended with work left, first: kernel sum_step|"
            "stream 2 was never destroyed|event 5 was never destroyed|"
            "of 400 bytes was never freed|"
            "rank 0 never destroyed communicator");
}
