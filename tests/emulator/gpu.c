/* The machine as a whole: begin and end, the one lock, errors and reports, the
 * host's waits and the deadlocks among them, faults on demand, and the calls
 * about devices and versions. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ground/ground.h"
#include "ground/random.h"
#include "gpu.h"

enum { MOST_STEPS = 256 }; /* for each poll of the host */

machine_state machine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t something_changed = PTHREAD_COND_INITIALIZER;

static char *report;
static size_t report_length;

void *take(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        fprintf(stderr, "emulator: out of memory\n");
        abort();
    }
    return memory;
}

void *copy_of(const void *from, size_t bytes) {
    return from == NULL ? NULL : memcpy(take(1, bytes), from, bytes);
}

void *grown(void *list, int count, size_t size) {
    void *longer = realloc(list, ((size_t)count + 1) * size);
    if (longer == NULL)
        abort();
    return longer;
}

static void *next_of(const void *link) {
    void *next;
    memcpy(&next, link, sizeof next);
    return next;
}

void enlist(void *list, void *first) {
    memcpy(first, list, sizeof(void *));
    memcpy(list, &first, sizeof first);
}

void unlist(void *list, const void *one) {
    void *link = list;
    while (next_of(link) != one)
        link = next_of(link);
    memcpy(link, one, sizeof(void *));
}

bool listed(const void *list, const void *one) {
    const void *at = next_of(list);
    while (at != NULL && at != one)
        at = next_of(at);
    return at != NULL;
}

void free_list(void *list) {
    for (void *first; (first = next_of(list)) != NULL; free(first))
        unlist(list, first);
}

uint64_t draw(uint64_t below) {
    return cp_random(&machine.random) % below;
}

/* Tell the other waiting threads to look again. */
void changed(void) {
    machine.changed = cp_clock();
    pthread_cond_broadcast(&something_changed);
}

bool countdown(int64_t *fault) {
    return *fault > 0 && --*fault == 0;
}

/* Every call begins with this. */
cudaError_t enter(void) {
    pthread_mutex_lock(&lock);
    machine.counted.calls++;
    if (pthread_equal(machine.thread, pthread_self()) == 0)
        machine.threads = true;
    if (!machine.begun || machine.options.driver < 12000)
        return cudaErrorInsufficientDriver;
    if (machine.options.bare)
        return cudaErrorNoDevice;
    return machine.failed;
}

/* Ranges belong to a profiler (nvtx3/nvToolsExt.h), and are not calls of the
 * machine. */
static int range(int opened) {
    pthread_mutex_lock(&lock);
    machine.counted.ranges += opened > 0;
    machine.counted.open_ranges += opened;
    pthread_mutex_unlock(&lock);
    return 0;
}

int nvtxRangePushA(const char *message) {
    (void)message;
    return range(1);
}

int nvtxRangePop(void) {
    return range(-1);
}

unsigned leave(unsigned result) {
    close_memory();
    pthread_mutex_unlock(&lock);
    return result;
}

/* One more line of the report. */
unsigned complain(unsigned error, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    report = grown(report, (int)(report_length + strlen(line)) + 1, 1);
    report_length += (size_t)sprintf(report + report_length, "%s\n", line);
    return error;
}

/* Waiting. */

static bool is_satisfied(const waiting *what) {
    if (what->empty != NULL)
        return what->empty->head == NULL;
    if (what->point != NULL)
        return what->point->done;
    if (what->room != NULL)
        return what->room->issued < MOST_ISSUED;
    for (const stream *s = machine.streams; s != NULL; s = s->next)
        if (s->head != NULL)
            return false;
    return true;
}

/* Sleep until another thread changes something, but only for a short time,
 * since other processes cannot wake us. False: nothing has changed for the
 * whole timeout. */
bool sleep_for_change(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += peers() > 0 ? 200000 : 20000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    close_memory();
    pthread_cond_timedwait(&something_changed, &lock, &until);
    return cp_clock() < machine.changed + machine.options.timeout;
}

/* Take steps, at most `most`, until the condition holds or the machine has
 * failed. */
bool run_until(const waiting *what, uint64_t most) {
    advance_streams();
    while (machine.failed == cudaSuccess && !is_satisfied(what)) {
        if (most-- == 0 || !step())
            return false;
        advance_streams();
    }
    return true;
}

/* Run the machine until the condition holds. If it never can, because nothing
 * can run and no other thread is left that could help, that is an error. */
cudaError_t await(waiting what) {
    while (!run_until(&what, UINT64_MAX)) {
        if (what.room == NULL && blocked_by_failure(what, 0))
            return cudaErrorLaunchFailure;
        if ((machine.threads || peers() > 0 || what.room != NULL) &&
            sleep_for_change())
            continue;
        complain(cudaSuccess,
                 "deadlock%s: the host waits and nothing can run: %s",
                 what.room != NULL ? " in a launch" : "", note_of_waits());
        return fail_machine();
    }
    return machine.failed;
}

/* Time passes while a host thread polls: a few steps for each poll. */
cudaError_t ask(waiting what) {
    return run_until(&what, 1 + draw(MOST_STEPS)) ? machine.failed
                                                  : cudaErrorNotReady;
}

cudaError_t fail_machine(void) {
    machine.failed = cudaErrorLaunchFailure;
    fail_communicators(ncclUnhandledCudaError);
    for (stream *s = machine.streams; s != NULL; s = s->next)
        forget_work(s);
    pthread_cond_broadcast(&something_changed);
    return machine.failed;
}

/* What tests call. */

/* Fill in options that are unset, and those that the seed decides. */
static void complete_options(emulator_options *options) {
    if (options->driver == 0)
        options->driver = CUDART_VERSION;
    if (options->bytes == 0)
        options->bytes = INT64_C(1) << 30;
    if (options->timeout == 0)
        options->timeout = 5;
    machine.random = options->seed;
    if (options->lateness == EMULATOR_BY_SEED)
        options->lateness = EMULATOR_LATE + (int)draw(3);
    machine.priority = draw(2) == 0 ? 0 : draw(UINT32_MAX) | 1;
}

bool emulator_pretends(void) {
    return true;
}

void emulator_begin(const emulator_options *options) {
    if (machine.begun)
        emulator_end();
    pthread_mutex_lock(&lock);
    machine = (machine_state){.options = *options,
                              .begun = true,
                              .changed = cp_clock(),
                              .thread = pthread_self()};
    complete_options(&machine.options);
    free(report);
    report = NULL;
    report_length = 0;
    add_stream(0); /* the null stream */
    watch_memory();
    pthread_mutex_unlock(&lock);
}

int64_t emulator_end(void) {
    pthread_mutex_lock(&lock);
    if (machine.begun) {
        finish_graphs();
        finish_streams();
        finish_messages();
        release_memory();
        machine.begun = false;
    }
    const int64_t problems = machine.problems;
    pthread_mutex_unlock(&lock);
    return problems;
}

const char *emulator_report(void) {
    return report != NULL ? report : "";
}

emulator_statistics emulator_count(void) {
    pthread_mutex_lock(&lock);
    const emulator_statistics counted = machine.counted;
    pthread_mutex_unlock(&lock);
    return counted;
}

/* Each of these sets one field of the machine. */
#define SETS(name, parameters, word, ...)                                      \
    void name parameters {                                                     \
        pthread_mutex_lock(&lock);                                             \
        machine.word = __VA_ARGS__;                                            \
        pthread_mutex_unlock(&lock);                                           \
    }
SETS(emulator_fail_allocation, (int64_t n), fail_allocation, n)
SETS(emulator_fail_launch, (int64_t n), fail_launch, n)
SETS(emulator_fail_copy, (int64_t n), fail_copy, n)
SETS(emulator_ignore_wait, (int64_t k), ignore_wait, k)
SETS(emulator_skip_blocks, (int64_t n), skip_blocks, n)
SETS(emulator_freeze_uploads, (bool frozen), freeze_uploads, frozen)
SETS(emulator_refuse_captures, (int rank), refuses, rank + 1)
SETS(emulator_pretend_f8, (bool has), no_f8, !has)
SETS(emulator_pretend_hopper, (bool is), hopper, is)
SETS(emulator_dead_rank, (int rank, int64_t n), rank_faults[rank],
     (rank_fault){DEAD, n})
SETS(emulator_failing_rank, (int rank, int64_t n), rank_faults[rank],
     (rank_fault){FAILING, n})
SETS(emulator_drop_message, (int from, int to, int64_t n), drop,
     (message_fault){from, to, n})

/* Devices, versions, errors. */

ERROR_TEXTS(cudaGetErrorString, cudaError_t, CUDA_ERRORS)

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion) {
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *driverVersion) {
    const int driver = machine.begun ? machine.options.driver : 0;
    *driverVersion = driver < 0 ? 0 : driver;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    const cudaError_t error = enter();
    *count = error == cudaSuccess;
    return leave(error);
}

cudaError_t cudaSetDevice(int device) {
    TRY(enter());
    return leave(device == 0 ? cudaSuccess
                             : complain(cudaErrorInvalidDevice,
                                        "device %d of 1", device));
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return leave(enter());
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
                                   int device) {
    const int values[] = {[cudaDevAttrMultiProcessorCount] = 2,
                          [cudaDevAttrComputeCapabilityMajor] =
                              machine.hopper ? 9 : 8,
                          [cudaDevAttrComputeCapabilityMinor] = 0};
    *value = values[attr];
    return cudaSetDevice(device);
}

cudaError_t cudaDeviceSynchronize(void) {
    TRY(enter());
    TRY(refuse_in_capture("cudaDeviceSynchronize"));
    return leave(await((waiting){0}));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority,
                                             int *greatestPriority) {
    *leastPriority = 0;
    *greatestPriority = -5;
    return leave(enter());
}
