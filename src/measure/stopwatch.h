/* How candidates are timed against each other, and against the machine. */
#ifndef CP_STOPWATCH_H
#define CP_STOPWATCH_H

#include "measure/bench.h"

/* One candidate of a comparison. */
typedef struct {
    char what[64];    /* the name of its row */
    const char *unit; /* of its rates: "GFLOP/s" */
    double scale;     /* work per second that makes one unit */
    double work;      /* of one run: operations or bytes */
    /* Run it once. *seconds is 0 before; if only a part of the run counts, it
     * becomes that part's time. */
    cp_status (*run)(void *context, double *seconds);
    void *context;
    bool warm;                     /* skip the first, unmeasured run */
    double rates[CP_BENCH_ROUNDS]; /* work per second, round by round */
} cp_bench_case;

/* Run each candidate once, unmeasured, unless it is warm; then run this many
 * rounds, in each of which all run in turn. Fails as a candidate does. */
cp_status cp_measure_rounds(int rounds, int count, cp_bench_case *entries);

/* Report a row: the rates of bench_case, and their ratios to those of base,
 * which may be NULL. */
void cp_measure_report(const cp_bench *bench, const cp_bench_case *bench_case,
                       const cp_bench_case *base);

/* The ceiling of multiply-adds, as a candidate; *threads must outlive it. */
cp_bench_case cp_measure_fma(const int *threads);

/* The ceiling of reading memory, as a candidate, which the memory must outlive.
 * The caller frees numbers, even after a failure. Fails with CP_MEMORY. */
typedef struct {
    int threads;
    float *numbers;
} cp_reading;
cp_status cp_measure_read(cp_reading *memory, cp_bench_case *out);

/* cp_bench_model against these ceilings, of operations and of bytes; a number
 * of keys and values has element_bytes bytes. */
cp_status cp_measure_model(const cp_bench *bench,
                           const cp_bench_case ceilings[2],
                           int64_t element_bytes);

/* Fill a tensor with numbers between -1 and 1 that depend only on seed and
 * index; tensor[0] has index first. */
void cp_measure_fill(float *tensor, int64_t first, int64_t count,
                     uint64_t seed);

/* Allocate and fill tensors of these many floats, in one block of memory, each
 * aligned to a line of 64 bytes. The caller frees tensors[0], which is NULL
 * after a failure. Fails with CP_MEMORY. The sum of the sizes must not
 * overflow. */
cp_status cp_measure_tensors(int threads, int count, const int64_t *sizes,
                             float **tensors);

enum { CP_MEASURE_RANKS = 1024 };

/* What ranks do together: all run prepare, which may be NULL, then all run work
 * between two barriers. */
typedef struct {
    cp_rank_main prepare, work;
    void *context;
    double *busy;   /* [ranks] the core time of each rank's thread is added */
    double seconds; /* out: time of the rank that began first */
    int reporter;   /* out: the rank that measured it */
} cp_common_work;

/* Run it; all processes get the same result. At most CP_MEASURE_RANKS ranks.
 * Fails as they do. */
cp_status cp_measure_ranks(const cp_runner *runner, int ranks,
                           cp_common_work *common);

#endif
