/* How things are timed against each other, and against the machine. */
#ifndef CP_MEASURE_H
#define CP_MEASURE_H

#include "app/bench.h"

/* One of those that are compared. */
typedef struct {
    char what[64];    /* the name of its row */
    const char *unit; /* of its rates: "GFLOP/s" */
    double scale;     /* work per second that is one of that unit */
    double work;      /* of one run: operations, bytes */
    /* Run it once. Where not all of the run counts, *seconds becomes what
     * does; it is 0 before. */
    cp_status (*run)(void *context, double *seconds);
    void *context;
    bool warm; /* leave out the first run, which is not measured */
    double rates[CP_BENCH_ROUNDS]; /* work per second, round by round */
} cp_entrant;

/* Run each entrant once, unmeasured, unless it is warm; then so many rounds of
 * all of them in turn. Fails as an entrant does. */
cp_status cp_measure_rounds(int rounds, int count, cp_entrant *entrants);

/* Report a row: the rates of ours, and its quotients with base, which may be
 * NULL. */
void cp_measure_report(const cp_bench *bench, const cp_entrant *ours,
                       const cp_entrant *base);

/* The ceiling of multiply-adds, as an entrant; *threads must outlive it. */
cp_entrant cp_measure_fma(const int *threads);

/* The ceiling of reading memory, as an entrant, which the memory must
 * outlive. Free numbers, even of a failure. Fails with CP_MEMORY. */
typedef struct {
    int threads;
    float *numbers;
} cp_reading;
cp_status cp_measure_read(cp_reading *memory, cp_entrant *out);

/* cp_bench_model against these ceilings, of operations and of bytes, where a
 * number of keys and values has so many bytes. */
cp_status cp_measure_model(const cp_bench *bench, const cp_entrant ceilings[2],
                           int64_t element_bytes);

/* Fill a tensor with numbers between -1 and 1, from seed and place alone;
 * tensor[0] is at place first. */
void cp_measure_fill(float *tensor, int64_t first, int64_t count,
                     uint64_t seed);

/* Tensors of so many floats each, in one stretch of memory, on lines of 64
 * bytes, and filled. The caller frees tensors[0]; NULL if it failed, with
 * CP_MEMORY. The sum of the sizes must fit. */
cp_status cp_measure_tensors(int threads, int count, const int64_t *sizes,
                             float **tensors);

enum { CP_MEASURE_RANKS = 1024 };

/* What ranks at a place do together: all prepare, which may be NULL, then all
 * work, between two barriers. */
typedef struct {
    cp_rank_main prepare, work;
    void *context;
    double *busy;   /* [ranks] grows by what each one's thread had of a core */
    double seconds; /* out: how long the rank took that began first */
    int teller;     /* the rank that says so */
} cp_common_work;

/* Do it; all processes are told the same. At most CP_MEASURE_RANKS ranks. Fails as they
 * do. */
cp_status cp_measure_ranks(const cp_place *place, int ranks,
                           cp_common_work *common);

#endif
