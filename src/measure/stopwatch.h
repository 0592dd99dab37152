/* How things are timed: candidates in turn, and what ranks do together. */
#ifndef CP_STOPWATCH_H
#define CP_STOPWATCH_H

#include "reference/run/runner.h"

/* The seconds that this thread has run; other programs do not count. */
double cp_thread_clock(void);

enum { CP_BENCH_ROUNDS = 99, CP_MEASURE_RANKS = 1024 }; /* at most */

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
