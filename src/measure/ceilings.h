/* What cores can do at most, as candidates to be timed beside others: multiply
 * and add, and read memory. */
#ifndef CP_CEILINGS_H
#define CP_CEILINGS_H

#include "measure/stopwatch.h"

/* The ceiling of multiply-adds; *threads must outlive it. */
cp_bench_case cp_measure_fma(const int *threads);

/* The ceiling of reading memory, which the memory must outlive. The caller
 * frees numbers, even after a failure. Fails with CP_MEMORY. */
typedef struct {
    int threads;
    float *numbers;
} cp_reading;
cp_status cp_measure_read(cp_reading *memory, cp_bench_case *out);

#endif
