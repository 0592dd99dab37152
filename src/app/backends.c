/* The table of backends, and those whose ranks are on cores: as threads, or
 * as processes that join and leave a crew over MPI. */
#include "app/meter.h"

#include <stdio.h>

#include "app/subjects.h"
#include "reference/model/engine.h"
#include "reference/model/model.h"
#include "reference/ring/processes.h"
#include "ring/agree.h"

static cp_comm *world; /* NULL: nobody joined */
static cp_mpi_options options = {.patience = 60};
static cp_crew crew;
static cp_place processes;

static cp_status run_processes(int ranks, cp_rank_main function,
                               void *context) {
    if (ranks != world->ranks)
        return cp_refuse("%d ranks on %d processes", ranks, world->ranks);
    return cp_mpi_run(world, function, context);
}

/* Data of so many bytes, and how all come to know them. */
typedef struct {
    cp_status (*spread)(cp_comm *comm, void *data, int64_t bytes);
    void *data;
    int64_t bytes;
} sharing;

static cp_status share_rank(cp_comm *comm, void *context) {
    const sharing *it = context;
    return it->spread(comm, it->data, it->bytes);
}

static cp_status share(void *data, int64_t bytes) {
    return cp_mpi_run(world, share_rank, &(sharing){cp_share, data, bytes});
}

static cp_status collect(void *items, int64_t bytes) {
    return cp_mpi_run(world, share_rank, &(sharing){cp_collect, items, bytes});
}

static void set_patience(double seconds) {
    cp_mpi_set_patience(world, seconds);
}

static int leave(int status) {
    char own[512];
    snprintf(own, sizeof(own), "%s", cp_message());
    fflush(stdout);
    if (status != 0)
        cp_comm_abort(world, own);
    bool speaks;
    const int worst = cp_mpi_close(world, status, &speaks);
    /* Rank 0 has said what it failed of. */
    if (worst != 0 && speaks && (crew.rank != 0 || status == 0))
        fprintf(stderr, "longring: %s\n", status == 0 ? cp_message() : own);
    fflush(stderr);
    cp_mpi_end(worst >= 0);
    return worst < 0 ? 1 : worst;
}

static cp_status join(int count, char *const *arguments) {
    CP_TRY(cp_mpi_open(&options, &world));
    processes = (cp_place){run_processes, &cp_machine_processes, world->rank,
                           cp_mpi_local(world), &crew};
    crew = (cp_crew){.rank = world->rank,
                     .ranks = world->ranks,
                     .share = share,
                     .collect = collect,
                     .patience = set_patience,
                     .leave = leave};
    cp_crew_join(&crew);
    if (world->rank != 0 && freopen("/dev/null", "w", stdout) == NULL)
        return cp_fail(CP_FILE, "/dev/null: cannot be opened");
    return cp_crew_agree_words(count, arguments);
}

/* One rank alone needs no other process. */
static const cp_place *place_of(bool apart, int ranks) {
    return apart && ranks > 1 && ranks == world->ranks ? &processes
                                                       : &cp_place_threads;
}

static cp_status engine_new(const cp_model *model,
                            const cp_session_options *wanted, cp_engine **out) {
    const bool apart = model->backend->join != NULL;
    return cp_cores_engine_new(place_of(apart, wanted->ranks), model, wanted,
                               out);
}

static cp_status attend_here(cp_attend_job *job) {
    return cp_attend_run(&cp_place_threads, job);
}

static cp_status attend_apart(cp_attend_job *job) {
    return cp_attend_run(place_of(true, job->ranks), job);
}

#define ON_CORES                                                               \
    .kernels = "fp32, OpenMP and BLIS", .model_open = cp_llama_open,           \
    .model_close = cp_llama_close, .engine_new = engine_new

static const cp_backend threads = {
    .name = "threads",
    .communicator = "threads of one process",
    .machine = &cp_machine_threads,
    .attend = attend_here,
    ON_CORES,
};

const cp_backend cp_backend_mpi = {
    .name = "mpi",
    .communicator = "processes, over MPI",
    .machine = &cp_machine_processes,
    .join = join,
    .attend = attend_apart,
    ON_CORES,
};

const cp_backend *const cp_backends[] = {
    &threads,
#ifdef CP_HAVE_MPI
    &cp_backend_mpi,
#endif
#ifdef CP_HAVE_CUDA
    &cp_backend_cuda,
    &cp_backend_cuda_fp32,
    &cp_backend_cuda_fp8,
#endif
    NULL,
};

const cp_place *cp_meter_cores(const cp_backend *backend) {
    if (backend == &cp_backend_mpi)
        return &processes;
    return backend == &threads ? &cp_place_threads : NULL;
}

cp_status cp_meter_calibrate(const cp_backend *backend,
                             const cp_calibration *wanted) {
#ifdef CP_HAVE_CUDA
    if (backend == &cp_backend_cuda)
        return cp_cuda_calibrate(wanted);
    if (backend == &cp_backend_cuda_fp32)
        return cp_cuda_calibrate_fp32(wanted);
    if (backend == &cp_backend_cuda_fp8)
        return cp_cuda_calibrate_fp8(wanted);
#endif
    return cp_calibrate_run(cp_meter_cores(backend), wanted);
}
