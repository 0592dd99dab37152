/* The stand-in for CUDA and NCCL finds what it is there to find: waits that
 * are missing, buffers that are reused too early, sizes that differ,
 * deadlocks, stale captures, and accesses out of bounds. */
#include "harness/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>

#include "harness/stand-in/kernel.h"
#include "harness/stand-in/stand_in.h"

#define OK(call) ck_assert_msg((call) == 0, "%s: %s", #call, stand_in_error())

static void begin(int seed, int lateness) {
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)seed;
    options.lateness = lateness;
    stand_in_begin(&options);
}

/* All is well, to the last allocation. */
static void end(void) {
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
#define SAYS(text)                                                             \
    ck_assert_msg(strstr(stand_in_report(), text) != NULL, "no \"%s\" in: %s", \
                  text, stand_in_report())

static float *device(int64_t count) {
    void *memory;
    OK(cudaMalloc(&memory, (size_t)count * sizeof(float)));
    return memory;
}

static float *pinned(int64_t count) {
    void *memory;
    OK(cudaMallocHost(&memory, (size_t)count * sizeof(float)));
    return memory;
}

static cudaStream_t new_stream(void) {
    cudaStream_t stream;
    OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    return stream;
}

static cudaEvent_t new_event(void) {
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

enum { WIDTH = 100, THREADS = 64 };

typedef struct {
    float *out;
    const float *in; /* added to what is there; NULL: first + i is put there */
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

static cudaError_t fill(float *out, int64_t count, float first,
                        cudaStream_t stream) {
    const step arguments = {out, NULL, count, first};
    const dim3 grid = {(unsigned)((count + THREADS - 1) / THREADS), 1, 1};
    return CP_LAUNCH(sum_step, grid, THREADS, stream, arguments);
}

static cudaError_t add(float *out, const float *in, int64_t count,
                       cudaStream_t stream) {
    const step arguments = {out, in, count, 0.0f};
    const dim3 grid = {(unsigned)((count + THREADS - 1) / THREADS), 1, 1};
    return CP_LAUNCH(sum_step, grid, THREADS, stream, arguments);
}

enum { MOST = 8 };

typedef struct {
    int rank, ranks;
    ncclComm_t comm;
    cudaStream_t compute, network;
    cudaEvent_t filled, arrived[2], used[2];
    float *block[2], *total, *answer;
} member;

static void member_open(member *m, int rank, int ranks, ncclComm_t comm) {
    *m = (member){.rank = rank, .ranks = ranks, .comm = comm};
    m->compute = new_stream();
    m->network = new_stream();
    m->filled = new_event();
    m->total = device(WIDTH);
    m->answer = pinned(WIDTH);
    for (int i = 0; i < 2; i++) {
        m->block[i] = device(WIDTH);
        m->arrived[i] = new_event();
        m->used[i] = new_event();
    }
}
static void member_close(member *m) {
    cudaStreamSynchronize(m->compute);
    cudaStreamSynchronize(m->network);
    for (int i = 0; i < 2; i++) {
        cudaEventDestroy(m->arrived[i]);
        cudaEventDestroy(m->used[i]);
        cudaFree(m->block[i]);
    }
    cudaEventDestroy(m->filled);
    cudaFree(m->total);
    cudaFreeHost(m->answer);
    ncclCommDestroy(m->comm);
    cudaStreamDestroy(m->compute);
    cudaStreamDestroy(m->network);
}
static void exchange(member *m, int hop) {
    const int held = hop % 2, arriving = 1 - held;
    const int next = (m->rank + 1) % m->ranks;
    const int previous = (m->rank + m->ranks - 1) % m->ranks;
    if (hop == 0)
        OK(cudaStreamWaitEvent(m->network, m->filled, 0));
    else
        OK(cudaStreamWaitEvent(m->network, m->used[arriving], 0));
    OK(ncclGroupStart());
    OK(ncclSend(m->block[held], WIDTH, ncclFloat32, next, m->comm, m->network));
    OK(ncclRecv(m->block[arriving], WIDTH, ncclFloat32, previous, m->comm,
                m->network));
    /* End a group, and ask if that takes asking. */
    ncclResult_t result = ncclGroupEnd();
    while (result == ncclInProgress)
        OK(ncclCommGetAsyncError(m->comm, &result));
    OK(result);
    OK(cudaEventRecord(m->arrived[arriving], m->network));
}

static void ring_step(member *m, int hop) {
    const int held = hop % 2;
    if (hop == 0) {
        OK(fill(m->block[0], WIDTH, 1000.0f * (float)m->rank, m->compute));
        OK(cudaEventRecord(m->filled, m->compute));
        OK(cudaMemsetAsync(m->total, 0, WIDTH * sizeof(float), m->compute));
    }
    if (hop + 1 < m->ranks)
        exchange(m, hop);
    if (hop > 0)
        OK(cudaStreamWaitEvent(m->compute, m->arrived[held], 0));
    OK(add(m->total, m->block[held], WIDTH, m->compute));
    OK(cudaEventRecord(m->used[held], m->compute));
    if (hop + 1 == m->ranks)
        OK(cudaMemcpyAsync(m->answer, m->total, WIDTH * sizeof(float),
                           cudaMemcpyDeviceToHost, m->compute));
}

static bool ring_right(const member *m) {
    const int n = m->ranks;
    for (int i = 0; i < WIDTH; i++)
        if (m->answer[i] != (float)(1000 * n * (n - 1) / 2 + n * i))
            return false;
    return true;
}
static void ring_open(member *ring, int ranks) {
    ncclUniqueId id;
    ncclComm_t comms[MOST];
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (int rank = 0; rank < ranks; rank++)
        OK(ncclCommInitRank(&comms[rank], ranks, id, rank));
    OK(ncclGroupEnd());
    for (int rank = 0; rank < ranks; rank++)
        member_open(&ring[rank], rank, ranks, comms[rank]);
}

static void ring_enqueue(member *ring, int ranks) {
    for (int hop = 0; hop < ranks; hop++)
        for (int rank = 0; rank < ranks; rank++)
            ring_step(&ring[rank], hop);
}

static void ring_close(member *ring, int ranks) {
    for (int rank = 0; rank < ranks; rank++)
        member_close(&ring[rank]);
}

START_TENS(a_right_program_passes_on_every_seed) {
    const int ranks = 1 + _i % 5;
    member ring[MOST];
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, ranks);
    for (int again = 0; again < 2; again++) {
        ring_enqueue(ring, ranks);
        for (int rank = 0; rank < ranks; rank++) {
            OK(cudaStreamSynchronize(ring[rank].compute));
            ck_assert(ring_right(&ring[rank]));
        }
    }
    ring_close(ring, ranks);
    end();
}
END_TENS
typedef struct {
    int rank, ranks;
    ncclUniqueId id;
    bool right;
} thread_rank;

static void *run_thread(void *given) {
    thread_rank *mine = given;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state;
    ncclComm_t comm;
    member m;
    config.blocking = 0;
    state = ncclCommInitRankConfig(&comm, mine->ranks, mine->id, mine->rank,
                                   &config);
    while (state == ncclInProgress)
        ncclCommGetAsyncError(comm, &state);
    member_open(&m, mine->rank, mine->ranks, comm);
    for (int hop = 0; hop < mine->ranks; hop++)
        ring_step(&m, hop);
    mine->right = cudaStreamSynchronize(m.compute) == cudaSuccess;
    mine->right = mine->right && ring_right(&m);
    member_close(&m);
    return NULL;
}
START_TENS(ranks_may_be_threads) {
    const int ranks = 2 + _i % 4;
    pthread_t threads[MOST];
    thread_rank given[MOST];
    ncclUniqueId id;
    begin(_i, STAND_IN_BY_SEED);
    OK(ncclGetUniqueId(&id));
    stand_in_leave(ranks);
    for (int rank = 0; rank < ranks; rank++) {
        given[rank] = (thread_rank){.rank = rank, .ranks = ranks, .id = id};
        pthread_create(&threads[rank], NULL, run_thread, &given[rank]);
    }
    for (int rank = 0; rank < ranks; rank++) {
        pthread_join(threads[rank], NULL);
        ck_assert(given[rank].right);
    }
    end();
}
END_TENS
static char order[64];

static void note_order(void *letter) {
    strncat(order, letter, 1);
}

static void run_letters(int seed, char *result) {
    static char letters[] = "abcdefghijklmnopqrst";
    cudaStream_t streams[4];
    begin(seed, STAND_IN_BY_SEED);
    order[0] = '\0';
    for (int i = 0; i < 4; i++)
        streams[i] = new_stream();
    for (int i = 0; i < 20; i++)
        OK(cudaLaunchHostFunc(streams[i % 4], note_order, &letters[i]));
    OK(cudaDeviceSynchronize());
    strcpy(result, order);
    for (int i = 0; i < 4; i++)
        OK(cudaStreamDestroy(streams[i]));
    end();
}

START_TEST(a_seed_is_an_order) {
    char once[64], again[64], last[64] = "";
    int changes = 0;
    for (int seed = 0; seed < 50; seed++) {
        run_letters(seed, once);
        run_letters(seed, again);
        ck_assert_uint_eq(strlen(once), 20);
        ck_assert_str_eq(once, again);
        changes += strcmp(once, last) != 0;
        strcpy(last, once);
    }
    ck_assert_int_gt(changes, 40);
}
END_TEST
START_TENS(the_null_stream_orders_itself) {
    float host[WIDTH];
    cudaStream_t stream;
    begin(_i, STAND_IN_BY_SEED);
    float *x = device(WIDTH);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamDefault));
    OK(fill(x, WIDTH, 1.0f, stream));
    OK(add(x, x, WIDTH, NULL));
    OK(add(x, x, WIDTH, stream));
    OK(cudaMemcpy(host, x, sizeof(host), cudaMemcpyDeviceToHost));
    ck_assert_float_eq(host[3], 16.0f);
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(x));
    end();
}
END_TENS

START_TENS(a_copy_overtakes_a_kernel) {
    begin(_i, STAND_IN_LATE);
    cudaStream_t compute = new_stream(), copies = new_stream();
    cudaEvent_t filled = new_event();
    float *x = device(WIDTH), *host = pinned(WIDTH);
    if (_i >= 50)
        stand_in_ignore_wait(1);
    OK(fill(x, WIDTH, 1.0f, compute));
    OK(cudaEventRecord(filled, compute));
    if (_i >= 50)
        OK(cudaStreamWaitEvent(copies, filled, 0));
    OK(cudaMemcpyAsync(host, x, WIDTH * sizeof(float), cudaMemcpyDeviceToHost,
                       copies));
    OK(cudaStreamSynchronize(copies));
    OK(cudaStreamSynchronize(compute));
    ck_assert(isnan(host[0]) && isnan(host[WIDTH - 1]));
    /* Give both streams back, and what they used. */
    OK(cudaStreamDestroy(compute));
    OK(cudaStreamDestroy(copies));
    OK(cudaEventDestroy(filled));
    OK(cudaFree(x));
    OK(cudaFreeHost(host));
    ck_assert_int_eq(stand_in_end(), 1);
    SAYS("race: the source of a copy of 400 bytes was written while it was "
         "under way");
}
END_TENS
START_TENS(two_write_one_buffer) {
    begin(_i, STAND_IN_LATE);
    cudaStream_t compute = new_stream(), copies = new_stream();
    cudaEvent_t filled = new_event();
    float *x = device(WIDTH), *host = pinned(WIDTH);
    memset(host, 0, WIDTH * sizeof(float));
    OK(cudaMemcpyAsync(x, host, WIDTH * sizeof(float), cudaMemcpyHostToDevice,
                       copies));
    OK(fill(x, WIDTH, 1.0f, compute));
    OK(cudaDeviceSynchronize());
    /* Give both streams back, and what they used. */
    OK(cudaStreamDestroy(compute));
    OK(cudaStreamDestroy(copies));
    OK(cudaEventDestroy(filled));
    OK(cudaFree(x));
    OK(cudaFreeHost(host));
    ck_assert_int_eq(stand_in_end(), 1);
    SAYS("race: the destination of a copy of 400 bytes was written while it "
         "was under way");
}
END_TENS
enum { RANKS = 3, WAITS = RANKS * (1 + (RANKS - 1) + (RANKS - 2)) };

/* Whether the ring without its k-th wait gives itself away. */
static bool found_without(int k, int seed, int lateness) {
    member ring[MOST];
    begin(seed, lateness);
    stand_in_ignore_wait(k);
    ring_open(ring, RANKS);
    ring_enqueue(ring, RANKS);
    bool right = cudaDeviceSynchronize() == cudaSuccess;
    for (int rank = 0; rank < RANKS; rank++)
        right = right && ring_right(&ring[rank]);
    ring_close(ring, RANKS);
    return stand_in_end() > 0 || !right;
}
/* Waits are called hop by hop, rank by rank: first for the filled block; from
 * then on for room, except in the last hop, and for the arrival. */
static bool waits_for_room(int k) {
    return k > RANKS && k <= 3 * RANKS && (k - RANKS) % 2 == 1;
}

START_TEST(every_wait_is_missed) {
    const int k = _i + 1;
    int late = 0, any = 0;
    for (int seed = 0; seed < 50; seed++) {
        late += found_without(k, seed, STAND_IN_LATE);
        any += found_without(k, seed, STAND_IN_BY_SEED);
    }
    ck_assert_int_eq(late, waits_for_room(k) ? 0 : 50);
    ck_assert_int_gt(any, 0);
    ck_assert(!found_without(WAITS + 1, 1, STAND_IN_BY_SEED));
}
END_TEST
START_TENS(a_communicator_is_not_asked) {
    ncclUniqueId id;
    ncclComm_t comm;
    ncclResult_t state = ncclInProgress;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    begin(_i, STAND_IN_BY_SEED);
    OK(ncclGetUniqueId(&id));
    ck_assert_int_eq(ncclCommInitRankConfig(&comm, 1, id, 0, &config),
                     ncclInProgress);
    while (state == ncclInProgress)
        OK(ncclCommGetAsyncError(comm, &state));
    /* Send to oneself, twice, and ask only the second time. */
    cudaStream_t stream = new_stream();
    float *x = device(2), *host = pinned(1);
    for (int asks = 0; asks < 2; asks++) {
        OK(fill(x, 1, 7.0f, stream));
        OK(ncclGroupStart());
        OK(ncclSend(x, 1, ncclFloat32, 0, comm, stream));
        OK(ncclRecv(x + 1, 1, ncclFloat32, 0, comm, stream));
        ck_assert_int_eq(ncclGroupEnd(), ncclInProgress);
        for (state = ncclInProgress; asks && state == ncclInProgress;)
            OK(ncclCommGetAsyncError(comm, &state));
        OK(cudaMemcpyAsync(host, x + 1, sizeof(float), cudaMemcpyDeviceToHost,
                           stream));
        OK(cudaStreamSynchronize(stream));
        ck_assert(asks ? host[0] == 7.0f : isnan(host[0]));
        for (state = ncclInProgress; state == ncclInProgress;)
            OK(ncclCommGetAsyncError(comm, &state));
    }
    OK(ncclCommDestroy(comm));
    /* Give the stream of the self-send back. */
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(x));
    OK(cudaFreeHost(host));
    end();
}
END_TENS

START_TENS(a_buffer_is_written_while_it_is_sent) {
    member ring[2];
    begin(_i, STAND_IN_LATE);
    ring_open(ring, 2);
    for (int rank = 0; rank < 2; rank++)
        ring_step(&ring[rank], 0);
    OK(fill(ring[0].block[0], WIDTH, 5.0f, ring[0].compute));
    OK(cudaDeviceSynchronize());
    ring_close(ring, 2);
    ck_assert_int_eq(stand_in_end(), 1);
    SAYS("race: the source of a send of 400 bytes by rank 0 was written while "
         "it was under way");
}
END_TENS
START_TENS(a_wrong_count_is_named) {
    member ring[2];
    ncclResult_t state;
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, 2);
    OK(fill(ring[0].block[0], WIDTH, 1.0f, ring[0].network));
    OK(ncclSend(ring[0].block[0], WIDTH, ncclFloat32, 1, ring[0].comm,
                ring[0].network));
    OK(ncclRecv(ring[1].block[0], 96, ncclFloat32, 0, ring[1].comm,
                ring[1].network));
    ck_assert_int_eq(cudaStreamSynchronize(ring[1].network),
                     cudaErrorLaunchFailure);
    ck_assert_str_eq(stand_in_error(),
                     "rank 0 sends 400 bytes (100 of type 7) to rank 1, which "
                     "receives 384 bytes (96 of type 7)");
    for (int rank = 0; rank < 2; rank++) {
        OK(ncclCommGetAsyncError(ring[rank].comm, &state));
        ck_assert_int_eq(state, ncclInvalidUsage);
        OK(ncclCommAbort(ring[rank].comm));
    }
    ring_close(ring, 2);
    end();
}
END_TENS
START_TENS(a_deadlock_says_who_waits) {
    member ring[2];
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, 2);
    for (int rank = 0; rank < 2; rank++) {
        member *m = &ring[rank];
        OK(fill(m->block[0], WIDTH, 1.0f, m->network));
        OK(ncclSend(m->block[0], WIDTH, ncclFloat32, 1 - rank, m->comm,
                    m->network));
        OK(ncclRecv(m->block[1], WIDTH, ncclFloat32, 1 - rank, m->comm,
                    m->network));
    }
    ck_assert_int_eq(cudaStreamSynchronize(ring[0].network),
                     cudaErrorLaunchFailure);
    SAYS("deadlock: the host waits and nothing can run: ");
    SAYS("send of 400 bytes to rank 1 by rank 0 of communicator");
    SAYS("send of 400 bytes to rank 0 by rank 1 of communicator");
    SAYS("the other side has not started");
    ring_close(ring, 2);
    end();
}
END_TENS
START_TENS(a_communicator_is_one_queue) {
    member ring[2];
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, 2);
    for (int rank = 0; rank < 2; rank++) {
        member *m = &ring[rank];
        OK(fill(m->block[0], WIDTH, 1.0f, m->network));
        OK(ncclSend(m->block[0], WIDTH, ncclFloat32, 1 - rank, m->comm,
                    m->network));
        OK(ncclRecv(m->block[1], WIDTH, ncclFloat32, 1 - rank, m->comm,
                    m->compute));
    }
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    SAYS("receive of 400 bytes from rank 0 by rank 1");
    SAYS("an earlier operation of its communicator is not done");
    ring_close(ring, 2);
    end();
}
END_TENS
static void *wait_in_vain(void *given) {
    member *m = given;
    ncclRecv(m->block[0], WIDTH, ncclFloat32, 1 - m->rank, m->comm, m->network);
    return (void *)(intptr_t)cudaStreamSynchronize(m->network);
}

START_TENS(threads_wait_for_each_other) {
    member ring[2];
    pthread_t threads[2];
    void *result;
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, 2);
    stand_in_leave(2);
    for (int rank = 0; rank < 2; rank++)
        pthread_create(&threads[rank], NULL, wait_in_vain, &ring[rank]);
    for (int rank = 0; rank < 2; rank++) {
        pthread_join(threads[rank], &result);
        ck_assert_int_eq((int)(intptr_t)result, cudaErrorLaunchFailure);
    }
    SAYS("receive of 400 bytes from rank 1 by rank 0");
    SAYS("the other side never comes");
    ring_close(ring, 2);
    end();
}
END_TENS

typedef struct {
    float *out;
    const float *in;
    int64_t count;         /* taken when `length` is NULL */
    const int64_t *length; /* in device memory */
} count_step;

CP_KERNEL(sum_all, count_step) {
    const int64_t count = a.length != NULL ? *a.length : a.count;
    float sum = 0.0f;
    if (threadIdx.x > 0)
        return;
    for (int64_t i = 0; i < count; i++)
        sum += a.in[i];
    *a.out = sum;
}

static cudaGraphExec_t capture_sum(count_step arguments, float *host,
                                   cudaStream_t stream) {
    const dim3 grid = {1, 1, 1};
    cudaGraph_t graph;
    cudaGraphExec_t run;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(CP_LAUNCH(sum_all, grid, 1, stream, arguments));
    OK(cudaMemcpyAsync(host, arguments.out, sizeof(float),
                       cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&run, graph, 0));
    OK(cudaGraphDestroy(graph));
    return run;
}
START_TENS(a_captured_length_goes_stale) {
    const bool stale = _i % 2 == 0;
    begin(_i, STAND_IN_BY_SEED);
    cudaStream_t stream = new_stream();
    float *x = device(WIDTH), *sum = device(1), *host = pinned(1);
    int64_t *length = (int64_t *)device(2);
    OK(fill(x, WIDTH, 1.0f, stream));
    OK(cudaStreamSynchronize(stream));
    const count_step step = {sum, x, 3, stale ? NULL : length};
    cudaGraphExec_t run = capture_sum(step, host, stream);
    for (int64_t now = 3; now < 6; now++) {
        OK(cudaMemcpyAsync(length, &now, sizeof(now), cudaMemcpyHostToDevice,
                           stream));
        OK(cudaGraphLaunch(run, stream));
        OK(cudaStreamSynchronize(stream));
        ck_assert_float_eq(*host, (float)(stale ? 6 : now * (now + 1) / 2));
    }
    /* Give the graph back. */
    OK(cudaGraphExecDestroy(run));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(x));
    OK(cudaFree(sum));
    OK(cudaFree(length));
    OK(cudaFreeHost(host));
    end();
}
END_TENS
START_TENS(an_upload_in_a_graph_is_fresh_unless_frozen) {
    const bool frozen = _i % 2 == 1;
    cudaGraph_t graph;
    cudaGraphExec_t run;
    begin(_i, STAND_IN_BY_SEED);
    cudaStream_t stream = new_stream();
    float *x = device(1), *from = pinned(1), *to = pinned(1);
    *from = 3.0f;
    stand_in_freeze_uploads(frozen);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMemcpyAsync(x, from, 4, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(to, x, 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&run, graph, 0));
    OK(cudaGraphDestroy(graph));
    for (; *from < 6.0f; *from += 1.0f) {
        OK(cudaGraphLaunch(run, stream));
        OK(cudaStreamSynchronize(stream));
        ck_assert_float_eq(*to, frozen ? 3.0f : *from);
    }
    OK(cudaGraphExecDestroy(run));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(x));
    OK(cudaFreeHost(from));
    OK(cudaFreeHost(to));
    end();
}
END_TENS
static cudaGraphExec_t capture_ring(member *ring, cudaStream_t origin,
                                    cudaEvent_t all) {
    cudaGraph_t graph;
    cudaGraphExec_t run;
    OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(all, origin));
    for (int rank = 0; rank < RANKS; rank++)
        OK(cudaStreamWaitEvent(ring[rank].compute, all, 0));
    ring_enqueue(ring, RANKS);
    for (int rank = 0; rank < RANKS; rank++) {
        OK(cudaEventRecord(ring[rank].filled, ring[rank].compute));
        OK(cudaStreamWaitEvent(origin, ring[rank].filled, 0));
    }
    OK(cudaStreamEndCapture(origin, &graph));
    OK(cudaGraphInstantiate(&run, graph, 0));
    OK(cudaGraphDestroy(graph));
    return run;
}
START_TENS(a_graph_keeps_its_edges) {
    const bool lost = _i % 2 == 1;
    member ring[MOST];
    begin(_i, lost ? STAND_IN_LATE : STAND_IN_BY_SEED);
    cudaStream_t origin = new_stream();
    cudaEvent_t all = new_event();
    ring_open(ring, RANKS);
    stand_in_ignore_wait(lost ? RANKS + 1 : 0);
    cudaGraphExec_t run = capture_ring(ring, origin, all);
    for (int again = 0; again < 2; again++)
        OK(cudaGraphLaunch(run, origin));
    OK(cudaStreamSynchronize(origin));
    for (int rank = 0; rank < RANKS && !lost; rank++)
        ck_assert(ring_right(&ring[rank]));
    ck_assert_int_eq(stand_in_count().races > 0, lost);
    OK(cudaGraphExecDestroy(run));
    ring_close(ring, RANKS);
    OK(cudaStreamDestroy(origin));
    OK(cudaEventDestroy(all));
    ck_assert_int_eq(stand_in_end() > 0, lost);
}
END_TENS
START_TENS(a_graph_never_meets_itself) {
    cudaGraph_t graph;
    cudaGraphExec_t run;
    begin(_i, STAND_IN_BY_SEED);
    cudaStream_t one = new_stream(), two = new_stream();
    order[0] = '\0';
    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 5; i++)
        OK(cudaLaunchHostFunc(one, note_order, &"abcde"[i]));
    OK(cudaStreamEndCapture(one, &graph));
    OK(cudaGraphInstantiate(&run, graph, 0));
    OK(cudaGraphLaunch(run, one));
    OK(cudaGraphLaunch(run, two));
    OK(cudaDeviceSynchronize());
    ck_assert_str_eq(order, "abcdeabcde");
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphExecDestroy(run));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
    end();
}
END_TENS
START_TEST(a_capture_is_spoiled) {
    cudaGraph_t graph;
    begin(_i, STAND_IN_BY_SEED);
    cudaStream_t stream = new_stream(), other = new_stream();
    cudaEvent_t outside = new_event(), inside = new_event();
    OK(cudaEventRecord(outside, other));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    if (_i == 0)
        ck_assert_int_eq(cudaStreamSynchronize(stream),
                         cudaErrorStreamCaptureUnsupported);
    if (_i == 1)
        ck_assert_int_eq(cudaStreamWaitEvent(stream, outside, 0),
                         cudaErrorStreamCaptureIsolation);
    if (_i == 2) {
        void *memory;
        ck_assert_int_eq(cudaMalloc(&memory, 4),
                         cudaErrorStreamCaptureUnsupported);
    }
    if (_i == 3) {
        OK(cudaEventRecord(inside, stream));
        OK(cudaStreamWaitEvent(other, inside, 0));
        OK(cudaLaunchHostFunc(other, note_order, ""));
    }
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph),
                     _i == 3 ? cudaErrorStreamCaptureUnjoined
                             : cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    OK(cudaEventDestroy(outside));
    OK(cudaEventDestroy(inside));
    end();
}
END_TEST

enum { BARRIER, NO_BARRIER, LEFT, HALF_BARRIER, HALF_WARP };

typedef struct {
    float *x;
    int kind;
} turn;

CP_KERNEL(turn_around, turn) {
    CP_SHARED(float, row, [THREADS]);
    row[threadIdx.x] = a.x[threadIdx.x];
    if (a.kind == BARRIER)
        __syncthreads();
    if (a.kind == HALF_BARRIER && threadIdx.x < 32)
        __syncthreads();
    if (a.kind == HALF_WARP && threadIdx.x % 2 == 0)
        __syncwarp();
    const unsigned left = threadIdx.x - (threadIdx.x > 0);
    a.x[threadIdx.x] = row[a.kind == LEFT ? left : THREADS - 1 - threadIdx.x];
}

static cudaError_t turn_row(int kind, float *host) {
    const turn arguments = {device(THREADS), kind};
    const dim3 grid = {1, 1, 1};
    OK(fill(arguments.x, THREADS, 0.0f, NULL));
    OK(CP_LAUNCH(turn_around, grid, THREADS, NULL, arguments));
    const cudaError_t error =
        cudaMemcpy(host, arguments.x, THREADS * 4, cudaMemcpyDeviceToHost);
    cudaFree(arguments.x);
    return error;
}
static bool turned_right(int kind, int seed) {
    float host[THREADS];
    bool right = true;
    begin(seed, STAND_IN_BY_SEED);
    OK(turn_row(kind, host));
    for (int i = 0; i < THREADS; i++) {
        const int left = i > 0 ? i - 1 : 0;
        right =
            right && host[i] == (float)(kind == LEFT ? left : THREADS - 1 - i);
    }
    end();
    return right;
}

START_TEST(a_barrier_is_missing) {
    int missed[2] = {0, 0};
    for (int seed = 0; seed < 50; seed++) {
        ck_assert(turned_right(BARRIER, seed));
        missed[0] += turned_right(NO_BARRIER, seed);
        missed[1] += turned_right(LEFT, seed);
    }
    ck_assert_int_eq(missed[0], 0);
    ck_assert_int_lt(missed[1], 10);
}
END_TEST

START_TENS(a_barrier_is_not_reached) {
    float host[THREADS];
    begin(_i, STAND_IN_BY_SEED);
    ck_assert_int_eq(turn_row(_i % 2 == 0 ? HALF_BARRIER : HALF_WARP, host),
                     cudaErrorLaunchFailure);
    SAYS("kernel turn_around, block (0, 0, 0): ");
    SAYS(_i % 2 == 0 ? "a barrier that not all threads reach: thread 0 waits at"
                     : "lanes that a mask names do not all come: thread");
    SAYS("has ended");
    end();
}
END_TENS
typedef struct {
    float *sums;
    unsigned *votes;
} warp_test;

CP_KERNEL(warp_sums, warp_test) {
    const unsigned me = threadIdx.x;
    float sum = (float)me;
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    a.sums[3 * me] = sum;
    a.sums[3 * me + 1] = __shfl_down_sync(0xFFFFFFFFu, (float)me, 1);
    a.sums[3 * me + 2] = __shfl_sync(0xFFFFFFFFu, (float)me, 5);
    __syncwarp();
    a.votes[me] = __ballot_sync(0xFFFFFFFFu, me % 3 == 0);
    if (me % 32 < 16) /* half of the lanes vote again */
        a.votes[me] += __any_sync(0xFFFFu, me == 7) ? 1 : 0;
    atomicAdd(&a.votes[64], 1u);
}

START_TENS(warps_shuffle_and_vote) {
    float sums[3 * 64];
    unsigned votes[65];
    begin(_i, STAND_IN_BY_SEED);
    const warp_test test = {device(3 * 64), (unsigned *)device(65)};
    const dim3 grid = {1, 1, 1};
    OK(cudaMemset(test.votes, 0, sizeof(votes)));
    OK(CP_LAUNCH(warp_sums, grid, 64, NULL, test));
    OK(cudaMemcpy(sums, test.sums, sizeof(sums), cudaMemcpyDefault));
    OK(cudaMemcpy(votes, test.votes, sizeof(votes), cudaMemcpyDefault));
    /* Each lane has what its warp gives it. */
    for (int me = 0; me < 64; me++) {
        const int first = me / 32 * 32, last = first + 31;
        unsigned ballot = 0, bit = 1;
        for (int lane = first; lane <= last; lane++, bit *= 2)
            ballot += lane % 3 == 0 ? bit : 0;
        ballot += me < 16 ? 1 : 0;
        ck_assert_float_eq(sums[3 * me], (float)(32 * first + 496));
        ck_assert_float_eq(sums[3 * me + 1], (float)(me < last ? me + 1 : me));
        ck_assert_float_eq(sums[3 * me + 2], (float)(first + 5));
        ck_assert_uint_eq(votes[me], ballot);
    }
    ck_assert_uint_eq(votes[64], 64);
    OK(cudaFree(test.sums));
    OK(cudaFree(test.votes));
    end();
}
END_TENS

static void touch_badly(int kind) {
    float *x = device(64);
    if (kind == 0)
        fill(x, 64 + THREADS, 0.0f, NULL);
    if (kind == 1)
        x[1] = 0.0f;
    if (kind == 2) {
        float *pages = pinned(64);
        cudaFreeHost(pages);
        pages[2] = 0.0f;
    }
    cudaDeviceSynchronize();
    _exit(0);
}

static int run_child(int kind, char *said, size_t bytes) {
    int ends[2], status;
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        touch_badly(kind);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t more = 1; more > 0 && length + 1 < bytes;) {
        more = read(ends[0], said + length, bytes - 1 - length);
        length += more > 0 ? (size_t)more : 0;
    }
    said[length] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}
START_TEST(a_bad_access_names_the_allocation) {
    static const char *const messages[] = {
        "stand-in: kernel sum_step touched ",
        "stand-in: the host touched byte 4 of allocation 1 of 256 bytes on "
        "device 0, which only the device may touch\n",
        "stand-in: the host touched byte 8 of pinned allocation 2 of 256 "
        "bytes, freed\n"};
    char said[4096];
    begin(1, STAND_IN_BY_SEED);
    const int status = run_child(_i, said, sizeof(said));
    ck_assert(WIFSIGNALED(status));
    ck_assert_msg(strstr(said, messages[_i]) != NULL, "%s", said);
    if (_i == 0)
        ck_assert_ptr_nonnull(strstr(said, "bytes behind the end of "
                                           "allocation 1 of 256 bytes"));
    end();
}
END_TEST
START_TEST(a_range_is_checked) {
    float host[20] = {0};
    begin(1, STAND_IN_BY_SEED);
    float *x = device(10);
    ck_assert_int_eq(cudaMemcpy(x + 2, host, 36, cudaMemcpyHostToDevice),
                     cudaErrorInvalidValue);
    SAYS("copy into of 36 bytes from byte 8 of allocation 1 of 40 bytes on "
         "device 0");
    ck_assert_int_eq(cudaMemcpy(x, host, 8, cudaMemcpyDeviceToHost),
                     cudaErrorInvalidValue);
    SAYS("a copy called device to host goes host to device");
    OK(fill(x, 11, 0.0f, NULL));
    OK(cudaFree(x));
    ck_assert_int_eq(cudaFree(x), cudaErrorInvalidValue);
    ck_assert_int_eq(stand_in_end(), 1);
    SAYS("something wrote 0 bytes behind the end of allocation 1 of 40 bytes");
}
END_TEST

START_TEST(leaks_are_reported) {
    member ring[1];
    begin(1, STAND_IN_BY_SEED);
    ring_open(ring, 1);
    OK(fill(ring->block[0], WIDTH, 1.0f, ring->compute));
    ck_assert_int_eq(stand_in_end(), 1 + 2 + 5 + 4 + 1);
    SAYS("operations that nobody waited for, first: kernel sum_step");
    SAYS("stream 3 of device 0 was never destroyed");
    SAYS("was never destroyed");
    SAYS("of 400 bytes on device 0 was never freed");
    SAYS("rank 0 never destroyed communicator 1");
}
END_TEST

START_TEST(the_nth_call_fails) {
    void *memory;
    begin(1, STAND_IN_BY_SEED);
    float *x = device(WIDTH);
    stand_in_fail_allocation(2);
    OK(cudaMallocHost(&memory, 8));
    OK(cudaFreeHost(memory));
    ck_assert_int_eq(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
    stand_in_fail_launch(1);
    ck_assert_int_eq(fill(x, 4, 0.0f, NULL), cudaErrorLaunchOutOfResources);
    OK(fill(x, 4, 0.0f, NULL));
    stand_in_fail_copy(1);
    ck_assert_int_eq(cudaMemset(x, 0, 4), cudaErrorUnknown);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorUnknown);
    OK(cudaGetLastError());
    ck_assert_int_eq(cudaMalloc(&memory, 1073741824),
                     cudaErrorMemoryAllocation);
    SAYS("allocation of 1073741824 bytes on device 0, which has 1073741312 of "
         "1073741824 left");
    OK(cudaFree(x));
    end();
}
END_TEST

START_TEST(there_may_be_no_driver) {
    stand_in_options options = STAND_IN_DEFAULTS;
    int count = 7, version = 7;
    options.driver = _i == 0 ? 0 : 11080;
    options.devices = 1;
    if (_i == 2)
        options = (stand_in_options){.driver = 13000};
    stand_in_begin(&options);
    ck_assert_int_eq(cudaGetDeviceCount(&count),
                     _i == 2 ? cudaErrorNoDevice : cudaErrorInsufficientDriver);
    ck_assert_int_eq(count, 0);
    OK(cudaDriverGetVersion(&version));
    ck_assert_int_eq(version, options.driver);
    end();
}
END_TEST
static cudaError_t send_two(member *ring, float *one, float *two) {
    for (int i = 0; i < 2; i++) {
        OK(fill(ring[0].block[i], WIDTH, 10.0f * (float)(i + 1),
                ring[0].network));
        OK(ncclSend(ring[0].block[i], WIDTH, ncclFloat32, 1, ring[0].comm,
                    ring[0].network));
        OK(ncclRecv(ring[1].block[i], WIDTH, ncclFloat32, 0, ring[1].comm,
                    ring[1].network));
    }
    const cudaError_t error = cudaStreamSynchronize(ring[1].network);
    if (error == cudaSuccess) {
        OK(cudaMemcpy(one, ring[1].block[0], WIDTH * 4, cudaMemcpyDefault));
        OK(cudaMemcpy(two, ring[1].block[1], WIDTH * 4, cudaMemcpyDefault));
    }
    return error;
}

START_TEST(a_message_is_broken) {
    member ring[2];
    float one[WIDTH], two[WIDTH];
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, 2);
    stand_in_break_message((stand_in_message_fault)_i, 0, 1, 1);
    const cudaError_t error = send_two(ring, one, two);
    /* Each fault shows. */
    ck_assert_int_eq(error, _i == STAND_IN_DROP ? cudaErrorLaunchFailure
                                                : cudaSuccess);
    int wrong = 0;
    for (int i = 0; i < WIDTH && _i != STAND_IN_DROP; i++)
        wrong += one[i] != 10.0f + (float)i;
    if (_i == STAND_IN_DROP)
        SAYS("the message was dropped on demand");
    if (_i == STAND_IN_DUPLICATE)
        ck_assert(wrong == 0 && two[0] == 10.0f && two[WIDTH - 1] == 109.0f);
    if (_i == STAND_IN_TRUNCATE)
        ck_assert(wrong == 1 && isnan(one[WIDTH - 1]));
    if (_i == STAND_IN_CORRUPT)
        ck_assert_int_eq(wrong, 1);
    ring_close(ring, 2);
    end();
}
END_TEST
START_TEST(a_rank_is_slow_dead_or_failing) {
    member ring[3];
    ncclResult_t state;
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, 3);
    if (_i == 0)
        stand_in_slow_rank(1, 1, 0.05);
    if (_i == 1)
        stand_in_dead_rank(1, 1);
    if (_i == 2)
        stand_in_failing_rank(1, 1);
    ring_enqueue(ring, 3);
    ck_assert_int_eq(cudaStreamSynchronize(ring[0].compute),
                     _i == 0 ? cudaSuccess : cudaErrorLaunchFailure);
    ck_assert_int_eq(ring_right(&ring[0]), _i == 0);
    OK(_i == 1 ? 0 : ncclCommGetAsyncError(ring[2].comm, &state));
    if (_i == 1)
        SAYS("the rank is dead on demand");
    if (_i == 2)
        ck_assert_int_eq(state, ncclRemoteError);
    for (int rank = 0; rank < 3 && _i > 0; rank++)
        ncclCommAbort(ring[rank].comm);
    ring_close(ring, 3);
    end();
}
END_TEST
START_TENS(an_abort_is_heard) {
    member ring[2];
    ncclResult_t state;
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, 2);
    for (int rank = 0; rank < 2; rank++)
        OK(ncclRecv(ring[rank].block[0], WIDTH, ncclFloat32, 1 - rank,
                    ring[rank].comm, ring[rank].network));
    ck_assert_int_eq(cudaStreamQuery(ring[0].network), cudaErrorNotReady);
    OK(ncclCommAbort(ring[0].comm));
    OK(cudaStreamSynchronize(ring[0].network));
    ck_assert_int_eq(cudaStreamQuery(ring[1].network), cudaErrorNotReady);
    OK(ncclCommGetAsyncError(ring[1].comm, &state));
    ck_assert_int_eq(state, ncclRemoteError);
    ck_assert_int_eq(cudaStreamSynchronize(ring[1].network),
                     cudaErrorLaunchFailure);
    OK(ncclCommAbort(ring[1].comm));
    OK(cudaStreamSynchronize(ring[1].network));
    ring_close(ring, 2);
    end();
}
END_TENS

START_TENS(collectives_are_right) {
    const int ranks = 1 + _i % 4;
    member ring[MOST];
    float all[WIDTH];
    begin(_i, STAND_IN_BY_SEED);
    ring_open(ring, ranks);
    const int count = WIDTH / ranks;
    for (int rank = 0; rank < ranks; rank++) {
        member *m = &ring[rank];
        float *mine = _i % 2 ? m->block[1] + rank * count : m->block[0];
        OK(fill(mine, count, 100.0f * (float)rank, m->network));
        OK(ncclAllGather(mine, m->block[1], (size_t)count, ncclFloat32, m->comm,
                         m->network));
        OK(ncclAllReduce(m->block[1], _i % 2 ? m->block[1] : m->total,
                         (size_t)(count * ranks), ncclFloat32, ncclSum, m->comm,
                         m->network));
    }
    OK(cudaDeviceSynchronize());
    /* Every rank has the sums of all. */
    for (int rank = 0; rank < ranks; rank++) {
        OK(cudaMemcpy(all, _i % 2 ? ring[rank].block[1] : ring[rank].total,
                      sizeof(all), cudaMemcpyDefault));
        for (int i = 0; i < count * ranks; i++) {
            const int value = 100 * (i / count) + i % count;
            ck_assert_float_eq(all[i], (float)(ranks * value));
        }
    }
    ring_close(ring, ranks);
    end();
}
END_TENS
START_TENS(communicators_split) {
    ncclUniqueId id;
    ncclComm_t world[6], row[6], column[6];
    begin(_i, STAND_IN_BY_SEED);
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (int rank = 0; rank < 6; rank++)
        OK(ncclCommInitRank(&world[rank], 6, id, rank));
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    for (int rank = 5; rank >= 0; rank--) {
        OK(ncclCommSplit(world[rank], rank / 2, rank % 2, &row[rank], NULL));
        OK(ncclCommSplit(world[rank], rank % 2, rank / 2, &column[rank], NULL));
    }
    OK(ncclGroupEnd());
    for (int rank = 0; rank < 6; rank++) {
        int size, place;
        OK(ncclCommCount(row[rank], &size));
        OK(ncclCommUserRank(row[rank], &place));
        ck_assert(size == 2 && place == rank % 2);
        OK(ncclCommCount(column[rank], &size));
        OK(ncclCommUserRank(column[rank], &place));
        ck_assert(size == 3 && place == rank / 2);
        OK(ncclCommDestroy(row[rank]));
        OK(ncclCommDestroy(column[rank]));
        OK(ncclCommDestroy(world[rank]));
    }
    end();
}
END_TENS
START_TEST(a_peer_never_connects) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    begin(1, STAND_IN_BY_SEED);
    OK(ncclGetUniqueId(&id));
    ck_assert_int_eq(ncclCommInitRank(&comm, 4, id, 2), ncclSystemError);
    SAYS("rank 2 waited for the other 3 ranks of its communicator in vain");
    OK(ncclCommAbort(comm));
    end();
}
END_TEST

static Suite *stand_in_suite(void) {
    Suite *suite = suite_create("stand-in");
    TCase *tests = harness_case("stand-in");
    /* The cases of the stand-in. */
    tcase_add_loop_test(tests, a_right_program_passes_on_every_seed, 0, 20);
    tcase_add_loop_test(tests, ranks_may_be_threads, 0, 5);
    tcase_add_test(tests, a_seed_is_an_order);
    tcase_add_loop_test(tests, the_null_stream_orders_itself, 0, 2);
    tcase_add_loop_test(tests, a_copy_overtakes_a_kernel, 0, 10);
    tcase_add_loop_test(tests, two_write_one_buffer, 0, 5);
    tcase_add_loop_test(tests, every_wait_is_missed, 0, WAITS);
    tcase_add_loop_test(tests, a_communicator_is_not_asked, 0, 2);
    tcase_add_loop_test(tests, a_buffer_is_written_while_it_is_sent, 0, 5);
    tcase_add_loop_test(tests, a_wrong_count_is_named, 0, 2);
    tcase_add_loop_test(tests, a_deadlock_says_who_waits, 0, 2);
    tcase_add_loop_test(tests, a_communicator_is_one_queue, 0, 2);
    tcase_add_loop_test(tests, threads_wait_for_each_other, 0, 2);
    tcase_add_loop_test(tests, a_captured_length_goes_stale, 0, 2);
    tcase_add_loop_test(tests, an_upload_in_a_graph_is_fresh_unless_frozen, 0,
                        2);
    tcase_add_loop_test(tests, a_graph_keeps_its_edges, 0, 10);
    tcase_add_loop_test(tests, a_graph_never_meets_itself, 0, 2);
    tcase_add_loop_test(tests, a_capture_is_spoiled, 0, 4);
    tcase_add_test(tests, a_barrier_is_missing);
    tcase_add_loop_test(tests, a_barrier_is_not_reached, 0, 2);
    tcase_add_loop_test(tests, warps_shuffle_and_vote, 0, 2);
    tcase_add_loop_test(tests, a_bad_access_names_the_allocation, 0, 3);
    tcase_add_test(tests, a_range_is_checked);
    tcase_add_test(tests, leaks_are_reported);
    tcase_add_test(tests, the_nth_call_fails);
    tcase_add_loop_test(tests, there_may_be_no_driver, 0, 3);
    tcase_add_loop_test(tests, a_message_is_broken, 0, 4);
    tcase_add_loop_test(tests, a_rank_is_slow_dead_or_failing, 0, 3);
    tcase_add_loop_test(tests, an_abort_is_heard, 0, 2);
    tcase_add_loop_test(tests, collectives_are_right, 0, 4);
    tcase_add_loop_test(tests, communicators_split, 0, 1);
    tcase_add_test(tests, a_peer_never_connects);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(stand_in_suite)
