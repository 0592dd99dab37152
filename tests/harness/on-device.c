/* The stand-in's interface for suites on a real GPU (make check-gpu): nothing
 * pretends, no fault can be planted, and nothing is counted. Linked instead of
 * tests/harness/stand-in. */
#include "stand-in/stand_in.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

bool stand_in_pretends(void) {
    return false;
}

int64_t stand_in_end(void) {
    return cudaDeviceSynchronize() != cudaSuccess;
}

const char *stand_in_report(void) {
    return cudaGetErrorString(cudaPeekAtLastError());
}

stand_in_statistics stand_in_count(void) {
    return (stand_in_statistics){0};
}

/* C11 requires names for unused parameters. */
#define IGNORES(name, type)                                                    \
    void name(type unused) {                                                   \
        (void)unused;                                                          \
    }
IGNORES(stand_in_fail_allocation, int64_t)
IGNORES(stand_in_fail_launch, int64_t)
IGNORES(stand_in_fail_copy, int64_t)
IGNORES(stand_in_ignore_wait, int64_t)
IGNORES(stand_in_freeze_uploads, bool)
IGNORES(stand_in_skip_blocks, int64_t)
IGNORES(stand_in_refuse_captures, int)
IGNORES(stand_in_pretend_f8, bool)
IGNORES(stand_in_pretend_hopper, bool)
IGNORES(stand_in_begin, const stand_in_options *)

void stand_in_dead_rank(int rank, int64_t n) {
    (void)rank, (void)n;
}

void stand_in_drop_message(int from, int to, int64_t n) {
    (void)from, (void)to, (void)n;
}
