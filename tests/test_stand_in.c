/* The stand-in for CUDA and NCCL finds what it is there to find: waits that
 * are missing, buffers that are reused too early, sizes that differ,
 * deadlocks, stale captures, and accesses out of bounds. */
#include "device.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>

#include "harness/stand-in/kernel.h"

/* Open, which saves time: what closes device memory is tested elsewhere. */
static void begin_so(int seed, int lateness) {
    stand_in_options options = STAND_IN_DEFAULTS;
    options.open = true;
    options.seed = (uint64_t)seed;
    options.lateness = lateness;
    stand_in_begin(&options);
}

/* Floats that nobody has written. */
static float *device(int64_t count) {
    void *memory;
    must(cudaMalloc(&memory, (size_t)count * sizeof(float)));
    return keep(ON_DEVICE, memory);
}

enum { WIDTH = 100, BYTES = 4 * WIDTH, THREADS = 64, MOST = 8 };
static const dim3 one_block = {1, 1, 1};

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

static cudaError_t take_step(step arguments, cudaStream_t stream) {
    const dim3 grid = {(unsigned)((arguments.count + THREADS - 1) / THREADS), 1,
                       1};
    return CP_LAUNCH(sum_step, grid, THREADS, stream, arguments);
}

static cudaError_t fill(float *out, int64_t count, float first,
                        cudaStream_t stream) {
    return take_step((step){out, NULL, count, first}, stream);
}

static cudaError_t add(float *out, const float *in, cudaStream_t stream) {
    return take_step((step){out, in, WIDTH, 0.0f}, stream);
}

/* A right program: blocks go round a ring, and each rank adds them up. */

typedef struct {
    int rank, ranks;
    ncclComm_t comm;
    cudaStream_t compute, network;
    cudaEvent_t filled, arrived[2], used[2];
    float *block[2], *total, *answer;
} member;

static void join_ring(member *m, int rank, int ranks, ncclComm_t comm) {
    *m = (member){.rank = rank, .ranks = ranks, .comm = comm};
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

static int after(const member *m) {
    return (m->rank + 1) % m->ranks;
}

static int before(const member *m) {
    return (m->rank + m->ranks - 1) % m->ranks;
}

static ncclResult_t send_block(const member *m, int block, int to,
                               cudaStream_t stream) {
    return ncclSend(m->block[block], WIDTH, ncclFloat32, to, m->comm, stream);
}

static ncclResult_t receive_block(const member *m, int block, int from,
                                  cudaStream_t stream) {
    return ncclRecv(m->block[block], WIDTH, ncclFloat32, from, m->comm, stream);
}

/* Ask until nothing is in progress any more. */
static ncclResult_t ask(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        must(ncclCommGetAsyncError(comm, &state));
    return state;
}

static void exchange(member *m, int hop) {
    const int held = hop % 2, arriving = 1 - held;
    must(cudaStreamWaitEvent(m->network,
                             hop == 0 ? m->filled : m->used[arriving], 0));
    must(ncclGroupStart());
    must(send_block(m, held, after(m), m->network));
    must(receive_block(m, arriving, before(m), m->network));
    const ncclResult_t result = ncclGroupEnd();
    must(result == ncclInProgress ? ask(m->comm) : result);
    must(cudaEventRecord(m->arrived[arriving], m->network));
}

static void ring_step(member *m, int hop) {
    const int held = hop % 2;
    if (hop == 0) {
        must(fill(m->block[0], WIDTH, 1000.0f * (float)m->rank, m->compute));
        must(cudaEventRecord(m->filled, m->compute));
        must(cudaMemsetAsync(m->total, 0, BYTES, m->compute));
    }
    if (hop + 1 < m->ranks)
        exchange(m, hop);
    if (hop > 0)
        must(cudaStreamWaitEvent(m->compute, m->arrived[held], 0));
    must(add(m->total, m->block[held], m->compute));
    must(cudaEventRecord(m->used[held], m->compute));
    if (hop + 1 == m->ranks)
        must(cudaMemcpyAsync(m->answer, m->total, BYTES, cudaMemcpyDeviceToHost,
                             m->compute));
}

static bool ring_right(const member *m) {
    const int n = m->ranks;
    for (int i = 0; i < WIDTH; i++)
        if (m->answer[i] != (float)(1000 * n * (n - 1) / 2 + n * i))
            return false;
    return true;
}

static void new_world(ncclComm_t *comms, int ranks) {
    ncclUniqueId id;
    must(ncclGetUniqueId(&id));
    must(ncclGroupStart());
    for (int rank = 0; rank < ranks; rank++)
        must(ncclCommInitRank(&comms[rank], ranks, id, rank));
    must(ncclGroupEnd());
}

static void ring_open(member *ring, int ranks) {
    ncclComm_t comms[MOST];
    new_world(comms, ranks);
    for (int rank = 0; rank < ranks; rank++)
        join_ring(&ring[rank], rank, ranks, comms[rank]);
}

static void ring_enqueue(member *ring, int ranks) {
    for (int hop = 0; hop < ranks; hop++)
        for (int rank = 0; rank < ranks; rank++)
            ring_step(&ring[rank], hop);
}

/* Returns what stand_in_end() does. */
static int64_t ring_end(member *ring, int ranks) {
    cudaDeviceSynchronize();
    for (int rank = 0; rank < ranks; rank++)
        ncclCommDestroy(ring[rank].comm);
    release();
    return stand_in_end();
}

static void ring_ends_well(member *ring, int ranks) {
    ck_assert_msg(ring_end(ring, ranks) == 0, "%s", stand_in_report());
}

START_TENS(a_right_program_passes_on_every_seed) {
    const int ranks = 1 + _i % 5;
    member ring[MOST];
    begin(_i);
    ring_open(ring, ranks);
    for (int again = 0; again < 2; again++) {
        ring_enqueue(ring, ranks);
        for (int rank = 0; rank < ranks; rank++) {
            must(cudaStreamSynchronize(ring[rank].compute));
            ck_assert(ring_right(&ring[rank]));
        }
    }
    ring_ends_well(ring, ranks);
}
END_TENS

/* The same with a thread for each rank. */

typedef struct {
    member member; /* with its streams; its rank joins when it runs */
    ncclUniqueId id;
    bool right;
} thread_rank;

static void *run_thread(void *given) {
    thread_rank *mine = given;
    member *m = &mine->member;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t state =
        ncclCommInitRankConfig(&m->comm, m->ranks, mine->id, m->rank, &config);
    if (state != ncclInProgress || ask(m->comm) != ncclSuccess)
        return NULL;
    for (int hop = 0; hop < m->ranks; hop++)
        ring_step(m, hop);
    mine->right = cudaStreamSynchronize(m->compute) == cudaSuccess &&
                  ring_right(m) &&
                  cudaStreamSynchronize(m->network) == cudaSuccess;
    ncclCommDestroy(m->comm);
    return NULL;
}

START_TENS(ranks_may_be_threads) {
    const int ranks = 2 + _i % 4;
    pthread_t threads[MOST];
    thread_rank given[MOST];
    begin(_i);
    must(ncclGetUniqueId(&given[0].id));
    for (int rank = 0; rank < ranks; rank++) {
        given[rank] = (thread_rank){.id = given[0].id};
        join_ring(&given[rank].member, rank, ranks, NULL);
    }
    stand_in_leave(ranks);
    for (int rank = 0; rank < ranks; rank++)
        pthread_create(&threads[rank], NULL, run_thread, &given[rank]);
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
    begin(seed);
    order[0] = '\0';
    for (int i = 0; i < 4; i++)
        streams[i] = new_stream();
    for (int i = 0; i < 20; i++)
        must(cudaLaunchHostFunc(streams[i % 4], note_order, &letters[i]));
    must(cudaDeviceSynchronize());
    strcpy(result, order);
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
    begin(_i);
    float *x = device(WIDTH);
    must(cudaStreamCreateWithFlags(&stream, cudaStreamDefault));
    keep(STREAM, stream);
    must(fill(x, WIDTH, 1.0f, stream));
    must(add(x, x, NULL));
    must(add(x, x, stream));
    must(cudaMemcpy(host, x, sizeof(host), cudaMemcpyDeviceToHost));
    ck_assert_float_eq(host[3], 16.0f);
    ck_assert_int_eq(cudaStreamDestroy(NULL), cudaErrorInvalidResourceHandle);
    end();
}
END_TENS

enum { RANKS = 3, WAITS = RANKS * (1 + (RANKS - 1) + (RANKS - 2)) };

/* Whether the ring without its k-th wait gives itself away. */
static bool found_without(int k, int seed, int lateness) {
    member ring[MOST];
    begin_so(seed, lateness);
    stand_in_ignore_wait(k);
    ring_open(ring, RANKS);
    ring_enqueue(ring, RANKS);
    bool right = cudaDeviceSynchronize() == cudaSuccess;
    for (int rank = 0; rank < RANKS; rank++)
        right = right && ring_right(&ring[rank]);
    return ring_end(ring, RANKS) > 0 || !right;
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

/* Mistakes of two ranks, and what is said of them. Each is made on many seeds;
 * what it returns is what the host hears. */

static int how; /* which of the mistakes of a function */

enum { FORGOTTEN, IGNORED };

static cudaError_t copy_too_early(member *ring) {
    const member *m = ring;
    stand_in_ignore_wait(how == IGNORED);
    must(fill(m->total, WIDTH, 1.0f, m->compute));
    must(cudaEventRecord(m->filled, m->compute));
    if (how == IGNORED)
        must(cudaStreamWaitEvent(m->network, m->filled, 0));
    must(cudaMemcpyAsync(m->answer, m->total, BYTES, cudaMemcpyDeviceToHost,
                         m->network));
    must(cudaStreamSynchronize(m->network));
    const cudaError_t error = cudaStreamSynchronize(m->compute);
    ck_assert(isnan(m->answer[0]) && isnan(m->answer[WIDTH - 1]));
    return error;
}

static cudaError_t two_write_one_buffer(member *ring) {
    memset(ring->answer, 0, BYTES);
    must(cudaMemcpyAsync(ring->total, ring->answer, BYTES,
                         cudaMemcpyHostToDevice, ring->network));
    must(fill(ring->total, WIDTH, 1.0f, ring->compute));
    return cudaDeviceSynchronize();
}

static cudaError_t write_what_is_sent(member *ring) {
    for (int rank = 0; rank < 2; rank++)
        ring_step(&ring[rank], 0);
    must(fill(ring[0].block[0], WIDTH, 5.0f, ring[0].compute));
    return cudaDeviceSynchronize();
}

static cudaError_t receive_too_little(member *ring) {
    must(fill(ring[0].block[0], WIDTH, 1.0f, ring[0].network));
    must(send_block(&ring[0], 0, 1, ring[0].network));
    must(ncclRecv(ring[1].block[0], 96, ncclFloat32, 0, ring[1].comm,
                  ring[1].network));
    const cudaError_t error = cudaStreamSynchronize(ring[1].network);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(ask(ring[rank].comm), ncclInvalidUsage);
        must(ncclCommAbort(ring[rank].comm));
    }
    return error;
}

/* Both send and then receive, in no group: each send waits for the other. */
enum { ONE_STREAM, TWO_STREAMS };

static cudaError_t send_first(member *ring) {
    for (int rank = 0; rank < 2; rank++) {
        member *m = &ring[rank];
        must(fill(m->block[0], WIDTH, 1.0f, m->network));
        must(send_block(m, 0, 1 - rank, m->network));
        must(receive_block(m, 1, 1 - rank,
                           how == TWO_STREAMS ? m->compute : m->network));
    }
    return cudaDeviceSynchronize();
}

static void *wait_in_vain(void *given) {
    member *m = given;
    receive_block(m, 0, 1 - m->rank, m->network);
    return (void *)(intptr_t)cudaStreamSynchronize(m->network);
}

static cudaError_t receive_from_each_other(member *ring) {
    pthread_t threads[2];
    void *results[2];
    stand_in_leave(2);
    for (int rank = 0; rank < 2; rank++)
        pthread_create(&threads[rank], NULL, wait_in_vain, &ring[rank]);
    for (int rank = 0; rank < 2; rank++)
        pthread_join(threads[rank], &results[rank]);
    ck_assert(results[0] == results[1]);
    return (cudaError_t)(intptr_t)results[0];
}

static cudaError_t abort_a_rank(member *ring) {
    for (int rank = 0; rank < 2; rank++)
        must(receive_block(&ring[rank], 0, 1 - rank, ring[rank].network));
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

/* Two messages, the first of which is broken on demand. */
static cudaError_t break_a_message(member *ring) {
    float *host = on_host(2 * BYTES);
    int wrong = 0;
    stand_in_break_message((stand_in_message_fault)how, 0, 1, 1);
    for (int i = 0; i < 2; i++) {
        must(fill(ring[0].block[i], WIDTH, 10.0f * (float)(i + 1),
                  ring[0].network));
        must(send_block(&ring[0], i, 1, ring[0].network));
        must(receive_block(&ring[1], i, 0, ring[1].network));
    }
    const cudaError_t error = cudaStreamSynchronize(ring[1].network);
    for (int i = 0; i < 2 && error == cudaSuccess; i++)
        must(cudaMemcpy(host + i * WIDTH, ring[1].block[i], BYTES,
                        cudaMemcpyDefault));
    for (int i = 0; i < WIDTH; i++)
        wrong += !(host[i] == 10.0f + (float)i);
    if (how == STAND_IN_DUPLICATE)
        ck_assert(wrong == 0 && host[WIDTH] == 10.0f &&
                  host[2 * WIDTH - 1] == 109.0f);
    if (how == STAND_IN_TRUNCATE)
        ck_assert(wrong == 1 && isnan(host[WIDTH - 1]));
    if (how == STAND_IN_CORRUPT)
        ck_assert_int_eq(wrong, 1);
    return error;
}

enum { SLOW, DEAD, FAILING };

static cudaError_t lose_a_rank(member *ring) {
    if (how == SLOW)
        stand_in_slow_rank(1, 1, 0.01);
    if (how == DEAD)
        stand_in_dead_rank(1, 1);
    if (how == FAILING)
        stand_in_failing_rank(1, 1);
    ring_enqueue(ring, RANKS);
    const cudaError_t error = cudaStreamSynchronize(ring[0].compute);
    ck_assert_int_eq(ring_right(&ring[0]), how == SLOW);
    if (how == FAILING)
        ck_assert_int_eq(ask(ring[2].comm), ncclRemoteError);
    for (int rank = 0; rank < RANKS && how != SLOW; rank++)
        ncclCommAbort(ring[rank].comm);
    return error;
}

typedef enum { PASSES, RACES, FAILS } outcome;

static const struct {
    const char *name;
    cudaError_t (*make)(member *ring);
    int how, ranks;
    outcome outcome;
    const char *said; /* parts, between vertical bars */
} mistakes[] = {
    {"a wait is forgotten", copy_too_early, FORGOTTEN, 1, RACES,
     "the source of a copy of 400 bytes"},
    {"a wait is ignored", copy_too_early, IGNORED, 1, RACES,
     "the source of a copy of 400 bytes"},
    {"two write one buffer", two_write_one_buffer, 0, 1, RACES,
     "the destination of a copy of 400 bytes"},
    {"what is sent is written", write_what_is_sent, 0, 2, RACES,
     "the source of a send of 400 bytes by rank 0"},
    {"a wrong count", receive_too_little, 0, 2, FAILS,
     "rank 0 sends 400 bytes (100 of type 7) to rank 1, which receives 384 "
     "bytes (96 of type 7)"},
    {"a deadlock", send_first, ONE_STREAM, 2, FAILS,
     "deadlock: the host waits and nothing can run: |"
     "send of 400 bytes to rank 1 by rank 0 of communicator|"
     "send of 400 bytes to rank 0 by rank 1 of communicator|"
     "the other side has not started"},
    {"a communicator is one queue", send_first, TWO_STREAMS, 2, FAILS,
     "receive of 400 bytes from rank 0 by rank 1|"
     "an earlier operation of its communicator is not done"},
    {"threads wait for each other", receive_from_each_other, 0, 2, FAILS,
     "receive of 400 bytes from rank 1 by rank 0|the other side never comes"},
    {"an abort", abort_a_rank, 0, 2, FAILS, ""},
    {"a message is dropped", break_a_message, STAND_IN_DROP, 2, FAILS,
     "the message was dropped on demand"},
    {"a message comes twice", break_a_message, STAND_IN_DUPLICATE, 2, PASSES,
     ""},
    {"a message is cut", break_a_message, STAND_IN_TRUNCATE, 2, PASSES, ""},
    {"a bit is turned", break_a_message, STAND_IN_CORRUPT, 2, PASSES, ""},
    {"a rank is slow", lose_a_rank, SLOW, RANKS, PASSES, ""},
    {"a rank is dead", lose_a_rank, DEAD, RANKS, FAILS,
     "the rank is dead on demand"},
    {"a rank fails", lose_a_rank, FAILING, RANKS, FAILS, ""},
};
enum { MISTAKES = sizeof(mistakes) / sizeof(mistakes[0]) };

static void says_all(const char *parts) {
    char part[200];
    for (int length; *parts != '\0'; parts += length + (parts[length] == '|')) {
        length = (int)strcspn(parts, "|");
        snprintf(part, sizeof(part), "%.*s", length, parts);
        says(part);
    }
}

START_TEST(mistakes_are_found_on_every_seed) {
    const outcome expected = mistakes[_i].outcome;
    how = mistakes[_i].how;
    for (int seed = 0; seed < 20; seed++) {
        member ring[RANKS];
        begin_so(seed, expected == RACES ? STAND_IN_LATE : STAND_IN_BY_SEED);
        ring_open(ring, mistakes[_i].ranks);
        const cudaError_t error = mistakes[_i].make(ring);
        const int64_t problems = ring_end(ring, mistakes[_i].ranks);
        ck_assert_msg(
            error == (expected == FAILS ? cudaErrorLaunchFailure : 0) &&
                problems == (expected == RACES),
            "%s, seed %d: %s, and %lld problems: %s", mistakes[_i].name, seed,
            cudaGetErrorName(error), (long long)problems, stand_in_report());
        says_all(mistakes[_i].said);
        if (expected == RACES)
            says("was written while it was under way");
    }
}
END_TEST

START_TENS(a_communicator_is_not_asked) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    member m;
    config.blocking = 0;
    begin(_i);
    join_ring(&m, 0, 1, NULL);
    must(ncclGetUniqueId(&id));
    ck_assert_int_eq(ncclCommInitRankConfig(&m.comm, 1, id, 0, &config),
                     ncclInProgress);
    must(ask(m.comm));
    /* Send to oneself, twice, and ask only the second time. */
    for (int asks = 0; asks < 2; asks++) {
        must(fill(m.block[0], WIDTH, 7.0f, m.network));
        must(ncclGroupStart());
        must(send_block(&m, 0, 0, m.network));
        must(receive_block(&m, 1, 0, m.network));
        ck_assert_int_eq(ncclGroupEnd(), ncclInProgress);
        if (asks)
            must(ask(m.comm));
        must(cudaMemcpyAsync(m.answer, m.block[1], BYTES,
                             cudaMemcpyDeviceToHost, m.network));
        must(cudaStreamSynchronize(m.network));
        ck_assert(asks ? m.answer[0] == 7.0f : isnan(m.answer[0]));
        must(ask(m.comm));
    }
    ring_ends_well(&m, 1);
}
END_TENS

/* Graphs. */

/* What a stream that captured makes to run. */
static cudaGraphExec_t end_capture(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t run;
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&run, graph, 0));
    must(cudaGraphDestroy(graph));
    return run;
}

static void begin_capture(cudaStream_t stream) {
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
}

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

START_TENS(a_captured_length_goes_stale) {
    const bool stale = _i % 2 == 0;
    begin(_i);
    cudaStream_t stream = new_stream();
    float *x = device(WIDTH), *host = pinned(4);
    int64_t *length = (int64_t *)device(2);
    must(fill(x, WIDTH, 1.0f, stream));
    must(cudaStreamSynchronize(stream));
    const count_step step = {device(1), x, 3, stale ? NULL : length};
    begin_capture(stream);
    must(CP_LAUNCH(sum_all, one_block, 1, stream, step));
    must(cudaMemcpyAsync(host, step.out, 4, cudaMemcpyDeviceToHost, stream));
    cudaGraphExec_t run = end_capture(stream);
    for (int64_t now = 3; now < 6; now++) {
        must(cudaMemcpyAsync(length, &now, sizeof(now), cudaMemcpyHostToDevice,
                             stream));
        must(cudaGraphLaunch(run, stream));
        must(cudaStreamSynchronize(stream));
        ck_assert_float_eq(*host, (float)(stale ? 6 : now * (now + 1) / 2));
    }
    must(cudaGraphExecDestroy(run));
    end();
}
END_TENS

START_TENS(an_upload_in_a_graph_is_fresh_unless_frozen) {
    const bool frozen = _i % 2 == 1;
    begin(_i);
    cudaStream_t stream = new_stream();
    float *x = device(1), *from = pinned(4), *to = pinned(4);
    *from = 3.0f;
    stand_in_freeze_uploads(frozen);
    begin_capture(stream);
    must(cudaMemcpyAsync(x, from, 4, cudaMemcpyHostToDevice, stream));
    must(cudaMemcpyAsync(to, x, 4, cudaMemcpyDeviceToHost, stream));
    cudaGraphExec_t run = end_capture(stream);
    for (; *from < 6.0f; *from += 1.0f) {
        must(cudaGraphLaunch(run, stream));
        must(cudaStreamSynchronize(stream));
        ck_assert_float_eq(*to, frozen ? 3.0f : *from);
    }
    must(cudaGraphExecDestroy(run));
    end();
}
END_TENS

START_TENS(a_graph_keeps_its_edges) {
    const bool lost = _i % 2 == 1;
    member ring[MOST];
    begin_so(_i, lost ? STAND_IN_LATE : STAND_IN_BY_SEED);
    cudaStream_t origin = new_stream();
    cudaEvent_t all = new_event();
    ring_open(ring, RANKS);
    stand_in_ignore_wait(lost ? RANKS + 1 : 0);
    begin_capture(origin);
    must(cudaEventRecord(all, origin));
    for (int rank = 0; rank < RANKS; rank++)
        must(cudaStreamWaitEvent(ring[rank].compute, all, 0));
    ring_enqueue(ring, RANKS);
    for (int rank = 0; rank < RANKS; rank++) {
        must(cudaEventRecord(ring[rank].filled, ring[rank].compute));
        must(cudaStreamWaitEvent(origin, ring[rank].filled, 0));
    }
    cudaGraphExec_t run = end_capture(origin);
    for (int again = 0; again < 2; again++)
        must(cudaGraphLaunch(run, origin));
    must(cudaStreamSynchronize(origin));
    for (int rank = 0; rank < RANKS && !lost; rank++)
        ck_assert(ring_right(&ring[rank]));
    ck_assert_int_eq(stand_in_count().races > 0, lost);
    must(cudaGraphExecDestroy(run));
    ck_assert_int_eq(ring_end(ring, RANKS) > 0, lost);
}
END_TENS

START_TENS(a_graph_never_meets_itself) {
    begin(_i);
    cudaStream_t one = new_stream(), two = new_stream();
    order[0] = '\0';
    begin_capture(one);
    for (int i = 0; i < 5; i++)
        must(cudaLaunchHostFunc(one, note_order, &"abcde"[i]));
    cudaGraphExec_t run = end_capture(one);
    must(cudaGraphLaunch(run, one));
    must(cudaGraphLaunch(run, two));
    must(cudaDeviceSynchronize());
    ck_assert_str_eq(order, "abcdeabcde");
    must(cudaGraphExecDestroy(run));
    end();
}
END_TENS

START_TEST(a_capture_is_spoiled) {
    void *memory;
    cudaGraph_t graph;
    begin(_i);
    cudaStream_t stream = new_stream(), other = new_stream();
    cudaEvent_t outside = new_event(), inside = new_event();
    must(cudaEventRecord(outside, other));
    begin_capture(stream);
    if (_i == 0)
        ck_assert_int_eq(cudaStreamSynchronize(stream),
                         cudaErrorStreamCaptureUnsupported);
    if (_i == 1)
        ck_assert_int_eq(cudaStreamWaitEvent(stream, outside, 0),
                         cudaErrorStreamCaptureIsolation);
    if (_i == 2)
        ck_assert_int_eq(cudaMalloc(&memory, 4),
                         cudaErrorStreamCaptureUnsupported);
    if (_i == 3) {
        must(cudaEventRecord(inside, stream));
        must(cudaStreamWaitEvent(other, inside, 0));
        must(cudaLaunchHostFunc(other, note_order, ""));
    }
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph),
                     _i == 3 ? cudaErrorStreamCaptureUnjoined
                             : cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);
    end();
}
END_TEST

/* Kernels. */

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
    begin(_i);
    ck_assert_int_eq(turn_row(_i % 2 == 0 ? HALF_BARRIER : HALF_WARP, host),
                     cudaErrorLaunchFailure);
    says("kernel turn_around, block (0, 0, 0): ");
    says(_i % 2 == 0 ? "a barrier that not all threads reach: thread 0 waits at"
                     : "lanes that a mask names do not all come: thread");
    says("has ended");
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
    for (int turn = 16; turn > 0; turn /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, turn);
    a.sums[me] = sum;
    __syncwarp();
    a.votes[me] = __ballot_sync(0xFFFFFFFFu, me % 3 == 0);
    if (me % 32 < 16) /* half of the lanes vote again, and ask the other half */
        a.votes[me] += __ballot_sync(0xFFFFu, me == 7);
    if (me % 32 < 16 && !isnan(__shfl_xor_sync(0xFFFFu, 1.0f, 16)))
        a.sums[me] = 0.0f;
}

START_TENS(warps_shuffle_and_vote) {
    float sums[64];
    unsigned votes[64];
    begin(_i);
    const warp_test test = {device(64), (unsigned *)device(64)};
    must(CP_LAUNCH(warp_sums, one_block, 64, NULL, test));
    must(cudaMemcpy(sums, test.sums, sizeof(sums), cudaMemcpyDefault));
    must(cudaMemcpy(votes, test.votes, sizeof(votes), cudaMemcpyDefault));
    for (unsigned me = 0; me < 64; me++) {
        unsigned ballot = me < 16 ? 1u << 7 : 0, bit = 1;
        for (unsigned lane = me / 32 * 32; bit != 0; lane++, bit *= 2)
            ballot += lane % 3 == 0 ? bit : 0;
        hold(sums[me] == (float)(me / 32 * 32 * 32 + 496));
        hold(votes[me] == ballot);
    }
    end();
}
END_TENS

/* Memory. */

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
    static const char *const messages[][2] = {
        {"stand-in: kernel sum_step touched ",
         "bytes behind the end of allocation 1 of 256 bytes"},
        {"stand-in: the host touched byte 4 of allocation 1 of 256 bytes on "
         "device 0, which only the device may touch\n",
         ""},
        {"stand-in: the host touched byte 8 of pinned allocation 2 of 256 "
         "bytes, freed\n",
         ""}};
    char said[4096];
    begin(1);
    const int status = run_child(_i, said, sizeof(said));
    ck_assert(WIFSIGNALED(status));
    for (int n = 0; n < 2; n++)
        ck_assert_msg(strstr(said, messages[_i][n]) != NULL, "%s", said);
    end();
}
END_TEST

START_TEST(a_range_is_checked) {
    float host[20] = {0};
    void *x;
    begin(1);
    must(cudaMalloc(&x, 40));
    ck_assert_int_eq(
        cudaMemcpy((float *)x + 2, host, 36, cudaMemcpyHostToDevice),
        cudaErrorInvalidValue);
    says("copy into of 36 bytes from byte 8 of allocation 1 of 40 bytes on "
         "device 0");
    ck_assert_int_eq(cudaMemcpy(x, host, 8, cudaMemcpyDeviceToHost),
                     cudaErrorInvalidValue);
    says("a copy called device to host goes host to device");
    must(fill(x, 11, 0.0f, NULL));
    must(cudaFree(x));
    ck_assert_int_eq(cudaFree(x), cudaErrorInvalidValue);
    ck_assert_int_eq(stand_in_end(), 1);
    says("something wrote 0 bytes behind the end of allocation 1 of 40 bytes");
}
END_TEST

START_TEST(leaks_are_reported) {
    static const char *const said[] = {
        "operations that nobody waited for, first: kernel sum_step",
        "stream 3 of device 0 was never destroyed",
        "event 5 was never destroyed",
        "of 400 bytes on device 0 was never freed",
        "rank 0 never destroyed communicator 1"};
    member ring[1];
    begin(1);
    ring_open(ring, 1);
    must(fill(ring->block[0], WIDTH, 1.0f, ring->compute));
    ck_assert_int_eq(stand_in_end(), 1 + 2 + 5 + 4 + 1);
    for (int n = 0; n < 5; n++)
        says(said[n]);
}
END_TEST

START_TEST(the_nth_call_fails) {
    void *memory;
    begin(1);
    float *x = device(WIDTH);
    stand_in_fail_allocation(2);
    must(cudaMallocHost(&memory, 8));
    must(cudaFreeHost(memory));
    ck_assert_int_eq(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
    stand_in_fail_launch(1);
    ck_assert_int_eq(fill(x, 4, 0.0f, NULL), cudaErrorLaunchOutOfResources);
    must(fill(x, 4, 0.0f, NULL));
    stand_in_fail_copy(1);
    ck_assert_int_eq(cudaMemset(x, 0, 4), cudaErrorUnknown);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorUnknown);
    must(cudaGetLastError());
    ck_assert_int_eq(cudaMalloc(&memory, 1073741824),
                     cudaErrorMemoryAllocation);
    says("allocation of 1073741824 bytes on device 0, which has 1073741312 of "
         "1073741824 left");
    end();
}
END_TEST

START_TEST(there_may_be_no_driver) {
    static const struct {
        int driver, devices;
        cudaError_t error;
    } machines[] = {{0, 1, cudaErrorInsufficientDriver},
                    {11080, 1, cudaErrorInsufficientDriver},
                    {13000, 0, cudaErrorNoDevice}};
    stand_in_options options = STAND_IN_DEFAULTS;
    int count = 7, version = 7;
    options.driver = machines[_i].driver;
    options.devices = machines[_i].devices;
    stand_in_begin(&options);
    ck_assert_int_eq(cudaGetDeviceCount(&count), machines[_i].error);
    ck_assert_int_eq(count, 0);
    must(cudaDriverGetVersion(&version));
    ck_assert_int_eq(version, options.driver);
    end();
}
END_TEST

/* Communicators. */

START_TENS(collectives_are_right) {
    const int ranks = 1 + _i % 4, count = WIDTH / ranks;
    const bool in_place = _i % 2 == 1;
    const size_t all = (size_t)(count * ranks);
    member ring[MOST];
    float got[WIDTH];
    begin(_i);
    ring_open(ring, ranks);
    for (int rank = 0; rank < ranks; rank++) {
        member *m = &ring[rank];
        float *mine = in_place ? m->block[1] + rank * count : m->block[0];
        float *sums = in_place ? m->block[1] : m->total;
        must(fill(mine, count, 100.0f * (float)rank, m->network));
        must(ncclAllGather(mine, m->block[1], (size_t)count, ncclFloat32,
                           m->comm, m->network));
        must(ncclAllReduce(m->block[1], sums, all, ncclFloat32, ncclSum,
                           m->comm, m->network));
    }
    must(cudaDeviceSynchronize());
    for (int rank = 0; rank < ranks; rank++) {
        must(cudaMemcpy(got, in_place ? ring[rank].block[1] : ring[rank].total,
                        sizeof(got), cudaMemcpyDefault));
        for (int i = 0; i < (int)all; i++)
            hold(got[i] == (float)(ranks * (100 * (i / count) + i % count)));
    }
    ring_ends_well(ring, ranks);
}
END_TENS

static void check_place(ncclComm_t comm, int ranks, int rank) {
    int size, place;
    must(ncclCommCount(comm, &size));
    must(ncclCommUserRank(comm, &place));
    ck_assert(size == ranks && place == rank);
    must(ncclCommDestroy(comm));
}

START_TENS(communicators_split) {
    ncclComm_t world[6], row[6], column[6];
    begin(_i);
    new_world(world, 6);
    must(ncclGroupStart());
    for (int rank = 5; rank >= 0; rank--) {
        must(ncclCommSplit(world[rank], rank / 2, rank % 2, &row[rank], NULL));
        must(ncclCommSplit(world[rank], rank % 2, rank / 2, &column[rank],
                           NULL));
    }
    must(ncclGroupEnd());
    for (int rank = 0; rank < 6; rank++) {
        check_place(row[rank], 2, rank % 2);
        check_place(column[rank], 3, rank / 2);
        check_place(world[rank], 6, rank);
    }
    end();
}
END_TENS

START_TEST(a_peer_never_connects) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    begin(1);
    must(ncclGetUniqueId(&id));
    ck_assert_int_eq(ncclCommInitRank(&comm, 4, id, 2), ncclSystemError);
    says("rank 2 waited for the other 3 ranks of its communicator in vain");
    must(ncclCommAbort(comm));
    end();
}
END_TEST

SUITE("stand-in", {a_right_program_passes_on_every_seed, 0, 20},
      {ranks_may_be_threads, 0, 5}, {a_seed_is_an_order, 0, 1},
      {the_null_stream_orders_itself, 0, 2}, {every_wait_is_missed, 0, WAITS},
      {mistakes_are_found_on_every_seed, 0, MISTAKES},
      {a_communicator_is_not_asked, 0, 2}, {a_captured_length_goes_stale, 0, 2},
      {an_upload_in_a_graph_is_fresh_unless_frozen, 0, 2},
      {a_graph_keeps_its_edges, 0, 10}, {a_graph_never_meets_itself, 0, 2},
      {a_capture_is_spoiled, 0, 4}, {a_barrier_is_missing, 0, 1},
      {a_barrier_is_not_reached, 0, 2}, {warps_shuffle_and_vote, 0, 2},
      {a_bad_access_names_the_allocation, 0, 3}, {a_range_is_checked, 0, 1},
      {leaks_are_reported, 0, 1}, {the_nth_call_fails, 0, 1},
      {there_may_be_no_driver, 0, 3}, {collectives_are_right, 0, 4},
      {communicators_split, 0, 1}, {a_peer_never_connects, 0, 1})
