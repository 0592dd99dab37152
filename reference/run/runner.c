/* Tangled from book/12-model.nw; edit the chapter. */
/* The runner whose ranks are threads, and how cores are shared. */
#define _POSIX_C_SOURCE 200809L
#include "reference/run/runner.h"

#include <unistd.h>

#include "ground/host.h"

static cp_status run_threads(int ranks, cp_rank_main function, void *context) {
    const cp_threads_options threads = {.ranks = ranks};
    return cp_threads_run(&threads, function, context);
}

const cp_runner cp_runner_threads = {
    .run = run_threads, .machine = &cp_machine_threads, .only = CP_NO_RANK};
const cp_runner cp_runner_threads_bf16 = {.run = run_threads,
                                          .machine = &cp_machine_threads,
                                          .only = CP_NO_RANK,
                                          .bf16 = true};

int cp_runner_cores(const cp_runner *runner, int cores, int ranks) {
    const int host_cores = cp_host_cores();
    if (runner->local == 0)
        return (int)cp_max(1, (cores > 0 ? cores : host_cores) / ranks);
    const int64_t all =
        cores > 0 ? cores : (int64_t)sysconf(_SC_NPROCESSORS_ONLN);
    return (int)cp_max(1, cp_min(host_cores, all / runner->local));
}
