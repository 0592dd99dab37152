/* What every test on a device does: begin a machine, record allocations, and at
 * the end release them all and check that nothing went wrong. For suites
 * only. */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include <cuda_runtime_api.h>

#include "emulator/emulator.h"

#define EXPECT_ALSO emulator_report()
#include "expect.h"

/* Something went wrong, and the report has these words. */
#define says(text)                                                             \
    ck_assert_msg(strstr(emulator_report(), text) != NULL, "no \"%s\" in: %s", \
                  text, emulator_report())

typedef enum { ON_HOST, ON_DEVICE, PINNED, STREAM, EVENT } resource_kind;

enum { MOST_RESOURCES = 256 };
static struct {
    resource_kind kind;
    void *what;
} resources[MOST_RESOURCES];
static int resource_count;

static inline void *free_later(resource_kind kind, void *what) {
    ck_assert_ptr_nonnull(what);
    ck_assert_int_lt(resource_count, MOST_RESOURCES);
    resources[resource_count].kind = kind;
    return resources[resource_count++].what = what;
}

/* Memory that starts as NaN, one byte more than requested. */
static inline void *on_host(int64_t bytes) {
    return memset(free_later(ON_HOST, malloc((size_t)bytes + 1)), 0xFF,
                  (size_t)bytes + 1);
}

static inline void *on_device(int64_t bytes) {
    void *memory = NULL;
    must(cudaMalloc(&memory, (size_t)bytes + 1));
    must(cudaMemset(memory, 0xFF, (size_t)bytes + 1));
    must(cudaStreamSynchronize(NULL));
    return free_later(ON_DEVICE, memory);
}

static inline void *pinned(int64_t bytes) {
    void *memory = NULL;
    must(cudaMallocHost(&memory, (size_t)bytes));
    return free_later(PINNED, memory);
}

/* cudaMemcpy from memory that is not pinned may return before the bytes have
 * arrived; then only the null stream waits for them. */
static inline void bring(void *to, const void *from, int64_t bytes) {
    must(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyHostToDevice));
    must(cudaStreamSynchronize(NULL));
}

static inline void *upload(const void *from, int64_t bytes) {
    void *to = on_device(bytes);
    bring(to, from, bytes);
    return to;
}

static inline void *fetch(const void *from, int64_t bytes) {
    void *to = on_host(bytes);
    must(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyDeviceToHost));
    return to;
}

static inline cudaStream_t new_stream(void) {
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return free_later(STREAM, stream);
}

static inline cudaEvent_t new_event(void) {
    cudaEvent_t event;
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return free_later(EVENT, event);
}

/* Release what was recorded, newest first. */
static inline void release(void) {
    cudaDeviceSynchronize();
    while (resource_count > 0) {
        void *what = resources[--resource_count].what;
        const resource_kind kind = resources[resource_count].kind;
        if (kind == ON_HOST)
            free(what);
        else if (kind == ON_DEVICE)
            cudaFree(what);
        else if (kind == PINNED)
            cudaFreeHost(what);
        else if (kind == STREAM)
            cudaStreamDestroy(what);
        else
            cudaEventDestroy(what);
    }
}

static inline void begin(int seed) {
    emulator_begin(&(emulator_options){.seed = (uint64_t)seed});
}

/* Begin with device memory open to the host, which saves much time; for tests
 * that also run with it closed. */
static inline void begin_late(int seed, int lateness) {
    emulator_begin(&(emulator_options){
        .seed = (uint64_t)seed, .lateness = lateness, .open = true});
}

static inline void begin_open(int seed) {
    begin_late(seed, EMULATOR_BY_SEED);
}

/* Check that nothing went wrong and that every allocation was freed. */
static inline void end(void) {
    release();
    ck_assert_msg(emulator_end() == 0, "%s", emulator_report());
}

#endif
