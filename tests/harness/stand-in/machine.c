/* The machine as a whole: begin and end, the one lock, errors and reports, the
 * host's waits and the deadlocks among them, faults on demand, and the calls
 * about devices and versions. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "machine.h"

machine_state machine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t something_changed = PTHREAD_COND_INITIALIZER;
static pthread_key_t at_exit_of_thread;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int64_t epoch; /* counts begins, so that old threads are not ours */

static char *report;
static size_t report_length;
static char last_error[1024];

static _Thread_local int device_of_thread;
static _Thread_local cudaError_t error_of_thread;
static _Thread_local int64_t registered_in;
static _Thread_local int in_call;

void *take(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        fprintf(stderr, "stand-in: out of memory\n");
        abort();
    }
    return memory;
}

void *copy_of(const void *from, size_t bytes) {
    return from == NULL ? NULL : memcpy(take(1, bytes), from, bytes);
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

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

uint64_t draw(uint64_t below) {
    uint64_t *state = &machine.random;
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return below == 0 ? 0 : (*state * 0x2545F4914F6CDD1Du >> 16) % below;
}

int *current_device(void) {
    return &device_of_thread;
}

/* Tell the other waiting threads to look again. */
void changed(void) {
    machine.changed = now();
    if (machine.waits != NULL)
        pthread_cond_broadcast(&something_changed);
}

bool countdown(int64_t *fault) {
    if (*fault <= 0)
        return false;
    return --*fault == 0;
}

/* Threads that take part: all that called since begin and still live. */
static void thread_gone(void *value) {
    pthread_mutex_lock(&lock);
    if ((int64_t)(intptr_t)value == epoch) {
        machine.threads--;
        pthread_cond_broadcast(&something_changed);
    }
    pthread_mutex_unlock(&lock);
}

static void make_key(void) {
    pthread_key_create(&at_exit_of_thread, thread_gone);
}

static void register_thread(void) {
    if (registered_in == epoch)
        return;
    registered_in = epoch;
    device_of_thread = 0;
    error_of_thread = cudaSuccess;
    machine.threads++;
    if (machine.coming > 0)
        machine.coming--;
    pthread_setspecific(at_exit_of_thread, (void *)(intptr_t)epoch);
}

void enter_quietly(void) {
    pthread_mutex_lock(&lock);
    in_call++;
    if (machine.begun)
        register_thread();
}

void leave_quietly(void) {
    in_call--;
    close_memory();
    pthread_mutex_unlock(&lock);
}

/* Every call begins so. A host function in a stream may call nothing. */
cudaError_t enter(void) {
    if (in_call > 0) {
        in_call++;
        return cudaErrorNotPermitted;
    }
    enter_quietly();
    if (!machine.begun || machine.options.driver < 12000)
        return cudaErrorInsufficientDriver;
    if (machine.options.devices <= 0)
        return cudaErrorNoDevice;
    return machine.failed;
}

cudaError_t leave(cudaError_t result) {
    if (result != cudaSuccess && result != cudaErrorNotReady)
        error_of_thread = result;
    if (in_call > 1)
        in_call--;
    else
        leave_quietly();
    return result;
}

static void add_to_report(const char *line) {
    const size_t length = strlen(line);
    char *longer = realloc(report, report_length + length + 2);
    if (longer == NULL)
        return;
    report = longer;
    report_length += (size_t)sprintf(report + report_length, "%s\n", line);
}

static void say(const char *format, va_list arguments) {
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    add_to_report(last_error);
}

cudaError_t complain(cudaError_t error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    return error;
}

void accuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    machine.problems++;
}

/* Waiting. */

bool met(const waiting *what) {
    if (what->empty != NULL)
        return what->empty->head == NULL;
    if (what->point != NULL)
        return what->point->done;
    if (what->ready != NULL)
        return communicator_ready(what->ready) ||
               communicator_failed(what->ready);
    for (const stream *s = machine.streams; s != NULL; s = s->next)
        if (s->device == what->device && s->head != NULL)
            return false;
    return true;
}

/* All threads of the host wait, and none of them for something that is there
 * already: nobody is left to bring anything. */
static bool everyone_waits(void) {
    int waiters = 0;
    for (const waiting *w = machine.waits; w != NULL; w = w->next) {
        if (met(w))
            return false;
        waiters++;
    }
    return waiters >= machine.threads && machine.coming == 0;
}

static void deadlock(void) {
    complain(cudaErrorLaunchFailure,
             "deadlock: the host waits and nothing can run: %s",
             note_of_waits());
    fail_machine(cudaErrorLaunchFailure);
}

/* Sleep until another thread changes something; false: nobody did for the
 * whole of the patience. A slow rank's time may come first. */
static bool sleep_for_change(void) {
    const double wake = messages_wake();
    double until = machine.changed + machine.options.patience;
    const bool slow = wake > 0.0;
    if (slow)
        until = wake;
    if (peers() > 0 && until > now() + 2e-4) /* who cannot wake us */
        until = now() + 2e-4;
    const double rest = until - now();
    if (rest <= 0.0)
        return slow;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    const double then = (double)time.tv_nsec * 1e-9 + rest;
    time.tv_sec += (time_t)then;
    time.tv_nsec = (long)((then - (double)(time_t)then) * 1e9);
    close_memory();
    const int result = pthread_cond_timedwait(&something_changed, &lock, &time);
    return result != ETIMEDOUT || slow ||
           now() < machine.changed + machine.options.patience;
}

static bool wait_until_met(const waiting *what) {
    for (;;) {
        settle();
        if (machine.failed != cudaSuccess)
            return false;
        if (met(what))
            return true;
        if (step()) {
            changed();
            continue;
        }
        if (blocked_by_failure(what))
            return false;
        const bool lonely =
            messages_wake() <= 0.0 && everyone_waits() && peers() == 0;
        if (!lonely && sleep_for_change())
            continue;
        if (what->ready != NULL)
            return false;
        deadlock();
        return false;
    }
}

/* Run the machine until it is so. False: it can never be. */
bool wait_for(waiting *what) {
    enlist(&machine.waits, what);
    const bool result = wait_until_met(what);
    unlist(&machine.waits, what);
    return result;
}

cudaError_t await(waiting what) {
    return wait_for(&what) ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t await_device(int device) {
    return await((waiting){.device = device});
}

void fail_machine(cudaError_t error) {
    machine.failed = error;
    fail_communicators(ncclUnhandledCudaError);
    for (stream *s = machine.streams; s != NULL; s = s->next)
        forget_work(s);
    pthread_cond_broadcast(&something_changed);
}

/* What tests call. */

static void seed_machine(uint64_t seed) {
    machine.random = (seed + 1) * 0x9E3779B97F4A7C15u | 1;
    for (int turn = 0; turn < 8; turn++)
        draw(1);
    if (machine.options.lateness == STAND_IN_BY_SEED)
        machine.lateness = STAND_IN_LATE + (int)draw(3);
    else
        machine.lateness = machine.options.lateness;
    machine.priority = draw(2) == 0 ? 0 : draw(UINT32_MAX) | 1;
}

bool stand_in_pretends(void) {
    return true;
}

void stand_in_begin(const stand_in_options *options) {
    const stand_in_options defaults = STAND_IN_DEFAULTS;
    pthread_once(&key_once, make_key);
    if (machine.begun)
        stand_in_end();
    pthread_mutex_lock(&lock);
    machine = (machine_state){.options = options ? *options : defaults};
    machine.begun = true;
    machine.changed = now();
    seed_machine(machine.options.seed);
    free(report);
    report = NULL;
    report_length = 0;
    last_error[0] = '\0';
    epoch++;
    register_thread();
    make_null_streams();
    watch_memory();
    pthread_mutex_unlock(&lock);
}

int64_t stand_in_end(void) {
    pthread_mutex_lock(&lock);
    if (machine.begun) {
        open_memory();
        finish_graphs();
        finish_streams();
        finish_messages();
        release_memory();
        machine.begun = false;
    }
    const int64_t problems = machine.problems;
    epoch++;
    pthread_mutex_unlock(&lock);
    return problems;
}

void stand_in_leave(int threads) {
    pthread_mutex_lock(&lock);
    machine.coming = threads;
    if (machine.begun && registered_in == epoch) {
        registered_in = 0;
        machine.threads--;
        pthread_setspecific(at_exit_of_thread, NULL);
        pthread_cond_broadcast(&something_changed);
    }
    pthread_mutex_unlock(&lock);
}

const char *stand_in_error(void) {
    static _Thread_local char text[sizeof last_error];
    pthread_mutex_lock(&lock);
    memcpy(text, last_error, sizeof text);
    pthread_mutex_unlock(&lock);
    return text;
}

const char *stand_in_report(void) {
    return report != NULL ? report : "";
}

stand_in_statistics stand_in_count(void) {
    pthread_mutex_lock(&lock);
    const stand_in_statistics counted = machine.counted;
    pthread_mutex_unlock(&lock);
    return counted;
}

/* Each of these sets one word of the machine. */
#define SETS(name, type, word)                                                 \
    void name(type value) {                                                    \
        pthread_mutex_lock(&lock);                                             \
        machine.word = value;                                                  \
        pthread_mutex_unlock(&lock);                                           \
    }
SETS(stand_in_fail_allocation, int64_t, fail_allocation)
SETS(stand_in_fail_launch, int64_t, fail_launch)
SETS(stand_in_fail_copy, int64_t, fail_copy)
SETS(stand_in_ignore_wait, int64_t, ignore_wait)
SETS(stand_in_freeze_uploads, bool, freeze_uploads)

/* Devices, versions, errors. */

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_names[] = {
#define NAMED(name, value, text) {name, #name, text},
    CUDA_ERRORS(NAMED)
#undef NAMED
};

static int find_error(cudaError_t error) {
    const int last = (int)(sizeof error_names / sizeof error_names[0]) - 1;
    int i = 0;
    while (i < last && error_names[i].error != error)
        i++;
    return i;
}

const char *cudaGetErrorName(cudaError_t error) {
    return error_names[find_error(error)].name;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error_names[find_error(error)].text;
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = error_of_thread;
    error_of_thread = machine.failed;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return error_of_thread;
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion) {
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *driverVersion) {
    *driverVersion = machine.begun ? machine.options.driver : 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    const cudaError_t error = enter();
    *count = error == cudaSuccess ? machine.options.devices : 0;
    return leave(error);
}

cudaError_t cudaSetDevice(int device) {
    TRY(enter());
    if (device < 0 || device >= machine.options.devices)
        return leave(complain(cudaErrorInvalidDevice, "device %d of %d", device,
                              machine.options.devices));
    device_of_thread = device;
    return leave(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device) {
    const cudaError_t error = enter();
    *device = device_of_thread;
    return leave(error);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
                                   int device) {
    TRY(enter());
    if (device < 0 || device >= machine.options.devices)
        return leave(cudaErrorInvalidDevice);
    switch (attr) {
    case cudaDevAttrMultiProcessorCount:
        *value = 2;
        return leave(cudaSuccess);
    case cudaDevAttrL2CacheSize:
        *value = 1 << 20;
        return leave(cudaSuccess);
    case cudaDevAttrComputeCapabilityMajor:
        *value = 8;
        return leave(cudaSuccess);
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return leave(cudaSuccess);
    }
    return leave(complain(cudaErrorInvalidValue, "attribute %d", (int)attr));
}

cudaError_t cudaDeviceSynchronize(void) {
    TRY(enter());
    TRY(refuse_in_capture("cudaDeviceSynchronize"));
    return leave(await_device(device_of_thread));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority,
                                             int *greatestPriority) {
    const cudaError_t error = enter();
    *leastPriority = 0;
    *greatestPriority = -5;
    return leave(error);
}
