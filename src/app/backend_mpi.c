/* Ranks as processes: joining and leaving a process group, and the backend. */
#include "model/backend.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "group/agree.h"
#include "group/process_group.h"
#include "reference/model/cores_engine.h"
#include "reference/run/processes.h"
#include "reference/model/model.h"

static cp_comm *world;
static cp_mpi_options options = {.timeout = 60};
static cp_process_group group;
static cp_runner processes;
static int output = -1; /* where rank 0 would print */

static cp_status run_processes(int ranks, cp_rank_main function,
                               void *context) {
    if (ranks != world->ranks)
        return cp_refuse("%d ranks on %d processes", ranks, world->ranks);
    return cp_mpi_run(world, function, context);
}

/* Data of this many bytes, and the collective that distributes them. */
typedef struct {
    cp_status (*spread)(cp_comm *comm, void *data, int64_t bytes);
    void *data;
    int64_t bytes;
} group_call;

static cp_status broadcast_rank(cp_comm *comm, void *context) {
    const group_call *call = context;
    return call->spread(comm, call->data, call->bytes);
}

/* A lost rank may still touch the data, so they are copied, and the copy is
 * then never freed. */
static cp_status spread(group_call how, void *data, int64_t all) {
    const size_t size = (size_t)all;
    CP_TRY(cp_allocate(&how.data, all, 1, "what is shared"));
    memcpy(how.data, data, size);
    const cp_status status = cp_mpi_run(world, broadcast_rank, &how);
    memcpy(data, how.data, size);
    if (!world->kept)
        free(how.data);
    return status;
}

static cp_status broadcast(void *data, int64_t bytes) {
    return spread((group_call){cp_comm_broadcast, NULL, bytes}, data, bytes);
}

static cp_status all_gather(void *items, int64_t bytes) {
    return spread((group_call){cp_comm_all_gather_in_place, NULL, bytes}, items,
                  world->ranks * bytes);
}

/* Mute standard output: the surviving ranks print again what this one began. */
static void mute_stdout(void) {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    close(nowhere);
}

static bool shrink(int *lost) {
    if (!cp_mpi_shrink(world, lost)) {
        if (cp_mpi_is_evicted(world))
            mute_stdout();
        return false;
    }
    processes.only = group.rank = world->rank;
    group.ranks = world->ranks;
    if (*lost == 0 && group.rank == 0) {
        fflush(stdout);
        dup2(output, STDOUT_FILENO);
    }
    return true;
}

/* Was the launcher told to keep the other processes alive when one dies? Open
 * MPI's mpirun --enable-recovery leaves this in their environment. */
static bool survives(void) {
    const char *word = getenv("OMPI_MCA_orte_enable_recovery");
    return word != NULL && strcmp(word, "0") != 0;
}

static void set_timeout(double seconds) {
    cp_mpi_set_timeout(world, seconds);
}

static int leave(int status) {
    char reason[512];
    snprintf(reason, sizeof(reason), "%s", cp_message());
    fflush(stdout);
    if (status != 0)
        cp_comm_abort(world, reason);
    bool is_reporter;
    const int worst = cp_mpi_close(world, status, &is_reporter);
    /* Rank 0 has already reported its own failure. */
    if (worst != 0 && is_reporter && (group.rank != 0 || status == 0))
        fprintf(stderr, "longring: %s\n", status == 0 ? cp_message() : reason);
    fflush(stderr);
    cp_mpi_end(worst >= 0);
    return worst < 0 ? 1 : worst;
}

/* Startup has a timeout, but options are read only after it: look for --timeout
 * now. */
static double timeout_of(int count, char *const *arguments) {
    double seconds = 60;
    for (int n = 1; n + 1 < count; n++)
        if (strcmp(arguments[n], "--timeout") == 0)
            seconds = strtod(arguments[n + 1], NULL);
    return seconds > 10 ? seconds : 10; /* starting may take a while */
}

static cp_status join(int count, char *const *arguments) {
    options.timeout = timeout_of(count, arguments);
    options.repairs = survives();
    CP_TRY(cp_mpi_open(&options, &world));
    processes = (cp_runner){.run = run_processes,
                            .machine = &cp_machine_processes,
                            .only = world->rank,
                            .local = cp_mpi_local(world),
                            .group = &group,
                            .bf16 = processes.bf16};
    group = (cp_process_group){.rank = world->rank,
                               .ranks = world->ranks,
                               .broadcast = broadcast,
                               .all_gather = all_gather,
                               .set_timeout = set_timeout,
                               .leave = leave,
                               .shrink = options.repairs ? shrink : NULL};
    cp_process_group_set(&group);
    output = dup(STDOUT_FILENO);
    if (world->rank != 0 && freopen("/dev/null", "w", stdout) == NULL)
        return cp_fail(CP_FILE, "/dev/null: cannot be opened");
    return cp_agree_on_arguments(count, arguments);
}

static cp_status join_bf16(int count, char *const *arguments) {
    processes.bf16 = true;
    return join(count, arguments);
}

static const cp_runner *runner_for(int ranks) {
    const bool apart = ranks > 1 && ranks == world->ranks;
    return apart            ? &processes
           : processes.bf16 ? &cp_runner_threads_bf16
                            : &cp_runner_threads;
}

static cp_status engine_new(const cp_model *model,
                            const cp_session_options *options,
                            cp_engine **out) {
    return cp_cores_engine_new(runner_for(options->ranks), model, options, out);
}

static cp_status attend(cp_attend_job *job) {
    return cp_attend_run(runner_for(job->ranks), job);
}

const cp_runner *const cp_runner_mpi = &processes;

#define BACKEND(suffix, shown, words)                                          \
    const cp_backend cp_backend_mpi##suffix = {                                \
        .name = shown,                                                         \
        .kernels = words ", OpenMP and BLIS",                                  \
        .communicator = "processes, over MPI",                                 \
        .machine = &cp_machine_processes,                                      \
        .join = join##suffix,                                                  \
        .attend = attend,                                                      \
        .model_open = cp_llama_open,                                           \
        .model_close = cp_llama_close,                                         \
        .engine_new = engine_new,                                              \
    };

BACKEND(, "mpi", "fp32")
BACKEND(_bf16, "mpi-bf16", "bf16 where rows are many")
