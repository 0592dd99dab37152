/* Tangled from book/13-streams.nw; edit the chapter. */
/* The host's waits, for messages and for queues. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "cuda/run/message_link.h"

#include <sched.h>
#include <time.h>

static void pause_a_little(double waited, int64_t polls) {
    const struct timespec pause = {0, 20000};
    if (waited < 2e-4)
        sched_yield();
    else if (polls % 64 == 0 || waited > 0.01)
        nanosleep(&pause, NULL);
}

cp_status cp_await(cudaError_t (*query)(const void *what), const void *what,
                   const cp_link *link, double timeout, bool *late) {
    const double began = cp_clock();
    cudaError_t error;
    *late = false;
    for (int64_t n = 1; (error = query(what)) == cudaErrorNotReady; n++) {
        const double came =
            link != NULL && link->progress_events != NULL
                ? cp_progress_events_query(link->progress_events)
                : 0.0;
        const double since = came > began ? came : began;
        *late = timeout > 0 && cp_clock() - since > timeout;
        if (link != NULL)
            CP_TRY(link->check(link->context));
        if (*late)
            return CP_OK;
        pause_a_little(cp_clock() - began, n);
    }
    if (link != NULL)
        link->idle(link->context);
    return cp_cuda(error, "waiting for a GPU");
}

static cudaError_t are_through(const void *what) {
    const cp_queues *queues = what;
    const cudaError_t error = cudaStreamQuery(queues->compute);
    return error == cudaSuccess ? cudaStreamQuery(queues->communication)
                                : error;
}

cp_status cp_queues_await(const cp_queues *queues, const cp_link *link,
                          double timeout, bool *late) {
    return cp_await(are_through, queues, link, timeout, late);
}

void cp_queues_drain(const cp_queues *queues, int count, const cp_link *link) {
    if (link != NULL)
        link->abort(link->context);
    for (int r = 0; r < count; r++) {
        cudaStreamSynchronize(queues[r].communication);
        cudaStreamSynchronize(queues[r].compute);
    }
}
