/* How things are timed against each other, and against the machine. */
#ifndef CP_MEASURE_H
#define CP_MEASURE_H

#include "reference/attend/attend.h"
#include "app/bench.h"

/* One of those that are compared. */
typedef struct {
    cp_status (*run)(void *context, double *seconds);
    void *context;
    double work; /* of one run: operations, bytes, tokens */
    bool warm;   /* leave out the first run, which is not measured */
    double rates[CP_BENCH_ROUNDS]; /* work per second, round by round */
} cp_entrant;

/* Run each entrant once, unmeasured, unless it is warm; then bench->rounds
 * times all of them in turn. Fails as an entrant does. */
cp_status cp_measure_rounds(const cp_bench *bench, int count,
                            cp_entrant *entrants);

/* Report a row of which what, unit and of are set: the rates of ours in units
 * of unit a second, and its quotients with base, which may be NULL. */
void cp_measure_report(const cp_bench *bench, cp_bench_row row, double unit,
                       const cp_entrant *ours, const cp_entrant *base);

/* The ceiling of multiply-adds, as an entrant; *threads must outlive it. */
cp_entrant cp_measure_fma(const int *threads);

/* The ceiling of reading memory, as an entrant that cp_measure_read_free
 * frees. Fails with CP_MEMORY. */
cp_status cp_measure_read(int threads, cp_entrant *out);
void cp_measure_read_free(cp_entrant *it);

/* Fill a tensor with numbers between -1 and 1, from seed and place alone;
 * tensor[0] is at place first. */
void cp_measure_fill(float *tensor, int64_t first, int64_t count, uint64_t seed,
                     int threads);

/* The kernel that the bench is about. */
cp_kernel cp_measure_kernel(const cp_bench *bench);

#endif
