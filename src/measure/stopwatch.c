/* How things are timed. */
#define _POSIX_C_SOURCE 200809L /* thread clocks */
#include "measure/stopwatch.h"

#include <math.h>
#include <time.h>

double cp_thread_clock(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

cp_status cp_measure_rounds(int rounds, int count, cp_bench_case *entries) {
    for (int round = -1; round < rounds; round++)
        for (int i = 0; i < count; i++) {
            cp_bench_case *bench_case = &entries[i];
            double seconds = 0;
            if (round < 0 && bench_case->warm)
                continue;
            const double start = cp_clock();
            CP_TRY(bench_case->run(bench_case->context, &seconds));
            if (seconds <= 0)
                seconds = cp_clock() - start;
            if (round >= 0)
                bench_case->rates[round] =
                    bench_case->work / fmax(seconds, 1e-9);
        }
    return CP_OK;
}

/* What a rank measured, in seconds: core time, and time from start to end. */
typedef struct {
    double busy, elapsed;
} time_sample;

static cp_status rank_time(cp_comm *comm, void *context) {
    cp_common_work *common = context;
    time_sample seen[CP_MEASURE_RANKS], *sample = &seen[comm->rank];
    if (common->prepare != NULL)
        CP_TRY(common->prepare(comm, common->context));
    CP_TRY(cp_comm_barrier(comm));
    const double start = cp_clock(), busy = cp_thread_clock();
    CP_TRY(common->work(comm, common->context));
    sample->busy = cp_thread_clock() - busy;
    CP_TRY(cp_comm_barrier(comm));
    sample->elapsed = fmax(cp_clock() - start, 1e-9);
    CP_TRY(cp_comm_all_gather_in_place(comm, seen, sizeof(time_sample)));
    for (int r = 0; r < comm->ranks && comm->rank == common->reporter; r++) {
        common->seconds = fmax(common->seconds, seen[r].elapsed);
        common->busy[r] += seen[r].busy;
    }
    return CP_OK;
}

cp_status cp_measure_ranks(const cp_runner *runner, int ranks,
                           cp_common_work *common) {
    common->reporter = (int)cp_max(0, runner->only);
    common->seconds = 0;
    return runner->run(ranks, rank_time, common);
}
