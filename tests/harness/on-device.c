/* The emulator's interface for suites on a real GPU (make check-gpu): nothing
 * pretends, no fault can be planted, and nothing is counted. Linked instead of
 * tests/emulator. */
#include "emulator/emulator.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

bool emulator_pretends(void) {
    return false;
}

int64_t emulator_end(void) {
    return cudaDeviceSynchronize() != cudaSuccess;
}

const char *emulator_report(void) {
    return cudaGetErrorString(cudaPeekAtLastError());
}

emulator_statistics emulator_count(void) {
    return (emulator_statistics){0};
}

/* C11 requires names for unused parameters. */
#define IGNORES(name, type)                                                    \
    void name(type unused) {                                                   \
        (void)unused;                                                          \
    }
IGNORES(emulator_fail_allocation, int64_t)
IGNORES(emulator_fail_launch, int64_t)
IGNORES(emulator_fail_copy, int64_t)
IGNORES(emulator_ignore_wait, int64_t)
IGNORES(emulator_freeze_uploads, bool)
IGNORES(emulator_skip_blocks, int64_t)
IGNORES(emulator_refuse_captures, int)
IGNORES(emulator_pretend_f8, bool)
IGNORES(emulator_pretend_hopper, bool)
IGNORES(emulator_begin, const emulator_options *)

void emulator_dead_rank(int rank, int64_t n) {
    (void)rank, (void)n;
}

void emulator_drop_message(int from, int to, int64_t n) {
    (void)from, (void)to, (void)n;
}
