/* The backends whose ranks are on GPUs. */
#include "model/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/kernels/device.h"
#include "cuda/model/device_engine.h"
#include "cuda/run/nccl_group.h"
#include "group/agree.h"

static const cp_device_runner local_runner = {.only = CP_NO_RANK,
                                              .graphs = true};
static cp_device_runner group_runner = {.only = CP_NO_RANK, .graphs = true};
static cp_device_slice own_slice = {0, 1};

/* A ring of one rank may still share its heads with other processes. */
const cp_device_runner *cp_cuda_runner(int64_t ranks) {
    const bool all =
        group_runner.group != NULL && (ranks > 1 || own_slice.parts > 1);
    return all && ranks * own_slice.parts == group_runner.group->ranks
               ? &group_runner
               : &local_runner;
}

static cp_nccl *world, *heads, *ring;
static cp_process_group group;
static int (*leave_the_group)(int status);
static bool (*shrink_the_group)(int *lost);
static bool by_mpi; /* leave NCCL first; otherwise the group, which is NCCL's */

static cp_status take_device(const cp_launch *launch) {
    const int local = launch->local >= 0 ? launch->local : launch->rank;
    const int locals = (int)cp_max(launch->locals, launch->local + 1);
    int devices = 0;
    CP_TRY(cp_device_count(&devices));
    if (locals > devices && getenv("NCCL_HOSTID") == NULL)
        return cp_refuse("%d processes on a host with %d GPUs: each process "
                         "needs its own (without a launcher, ranks share one)",
                         locals, devices);
    return cp_cuda(cudaSetDevice(local % devices), "taking GPU %d",
                   local % devices);
}

static void wait_at_most(double seconds) {
    group_runner.timeout = seconds;
    if (world != NULL)
        cp_nccl_set_timeout(world, seconds);
}

static void leave_nccl(int status) {
    if (world != NULL)
        world->agree = NULL;
    if (status != 0 && world != NULL)
        world->link.abort(world->link.context); /* and all groups with world */
    cp_nccl_free(heads);
    cp_nccl_free(ring);
    cp_nccl_free(world);
}

static int leave(int status) {
    if (by_mpi)
        leave_nccl(status);
    status = leave_the_group(status);
    if (!by_mpi)
        leave_nccl(status);
    return status;
}

static cp_nccl_loss lost_to_mpi; /* but not yet removed from NCCL */

static bool mpi_has_shrunk(void) {
    int *all = lost_to_mpi.lost, rank;
    for (int n = lost_to_mpi.count = 0;
         n < CP_MOST_LOST && shrink_the_group(&rank); n = ++lost_to_mpi.count) {
        memmove(all + 1, all, (size_t)n * sizeof(int));
        all[0] = rank;
        group.rank -= group.rank > rank;
        group.ranks--;
    }
    return lost_to_mpi.count > 0;
}

/* MPI learns which rank is lost from a run that fails without it. Other ranks
 * may still be waiting for NCCL, as long as this one has waited. */
static bool mpi_finds_losses(void) {
    enum { GRACE = 5 };
    int64_t nothing = 0;
    group.set_timeout(2 * group_runner.timeout + GRACE);
    const cp_status status = group.broadcast(&nothing, sizeof(nothing));
    group.set_timeout(group_runner.timeout);
    return status != CP_OK && mpi_has_shrunk();
}

static cp_status agree_by_mpi(cp_nccl *nccl, cp_nccl_loss *loss) {
    bool *sound;
    (void)nccl;
    if (lost_to_mpi.count == 0 && !mpi_finds_losses())
        return CP_BROKEN;
    CP_TRY(cp_allocate(&sound, group.ranks, sizeof(bool), "the ranks"));
    sound[group.rank] = loss->sound;
    *loss = lost_to_mpi;
    lost_to_mpi.count = 0;
    const cp_status status = group.all_gather(sound, sizeof(bool));
    loss->sound = true;
    for (int r = 0; r < group.ranks; r++)
        loss->sound = loss->sound && sound[r];
    free(sound);
    CP_TRY(status);
    return cp_process_group_broadcast(group.rank == 0 ? cp_nccl_id(&loss->id)
                                                      : CP_OK,
                                      &loss->id, sizeof(loss->id), NULL, NULL);
}

static bool shrink_by_mpi(int *lost) {
    if (!world->aborted && !mpi_has_shrunk())
        return false;
    if (world->loss.count == 0)
        world->link.abort(world->link.context);
    return cp_nccl_shrink(world, lost) == CP_OK;
}

static int output = -1; /* where rank 0 would print */

static bool shrink(int *lost) {
    const bool recovered =
        by_mpi ? shrink_by_mpi(lost) : shrink_the_group(lost);
    group_runner.only = group.rank;
    if (recovered && !by_mpi && *lost == 0 && group.rank == 0) {
        fflush(stdout);
        dup2(output, STDOUT_FILENO);
    }
    return recovered;
}

static void adopt(void) {
    leave_the_group = group.leave;
    shrink_the_group = group.shrink;
    group.leave = leave;
    group.shrink = shrink_the_group != NULL ? shrink : NULL;
    cp_process_group_set(&group);
}

static cp_status join_by_mpi(const cp_backend *mpi, const cp_launch *launch,
                             int count, char *const *arguments) {
    ncclUniqueId id;
    CP_TRY(mpi->join(count, arguments));
    group = *cp_process_group_own();
    adopt();
    CP_TRY(cp_agree_to_start(&group, take_device(launch)));
    CP_TRY(cp_process_group_broadcast(group.rank == 0 ? cp_nccl_id(&id) : CP_OK,
                                      &id, sizeof(id), NULL, NULL));
    CP_TRY(
        cp_agree_to_start(&group, cp_nccl_new(&id, group.rank, group.ranks,
                                              group_runner.timeout, &world)));
    world->agree = group.shrink != NULL ? agree_by_mpi : NULL;
    return CP_OK;
}

/* torchrun ends all processes when one has failed. */
static bool survives(void) {
    return getenv("TORCHELASTIC_RUN_ID") == NULL;
}

static cp_status join_by_nccl(const cp_launch *launch) {
    const cp_status taken = take_device(launch);
    if (taken != CP_OK) /* without a group every process reports for itself */
        return cp_fail(taken, "rank %d: %s", launch->rank, cp_message());
    CP_TRY(cp_nccl_group_join(launch, group_runner.timeout, survives(), &world,
                              &group));
    adopt();
    output = dup(STDOUT_FILENO);
    if (group.rank != 0 && freopen("/dev/null", "w", stdout) == NULL)
        return cp_fail(CP_FILE, "/dev/null: cannot be opened");
    return CP_OK;
}

/* Either all ranks decode from graphs, or none does. */
static bool can_capture(void) {
    const bool all =
        cp_agree_to_start(&group, cp_nccl_try_capture(world)) == CP_OK;
    if (!all && group.rank == 0)
        fprintf(stderr, "longring: decoding without graphs: %s\n",
                cp_message());
    return all;
}

static cp_status join(int count, char *const *arguments) {
    const cp_backend *mpi = NULL;
    cp_launch launch;
#ifdef CP_HAVE_MPI
    mpi = &cp_backend_mpi;
#endif
    group_runner.timeout = 60;
    CP_TRY(cp_launch_read(&launch));
    if (launch.ranks < 2)
        return CP_OK;
    by_mpi = mpi != NULL && (strcmp(launch.launcher, "Open MPI") == 0 ||
                             strcmp(launch.launcher, "MPICH") == 0);
    CP_TRY(by_mpi ? join_by_mpi(mpi, &launch, count, arguments)
                  : join_by_nccl(&launch));
    group_runner.only = group.rank;
    group_runner.group = &group;
    group_runner.link = &world->link;
    CP_TRY(by_mpi ? CP_OK : cp_agree_on_arguments(count, arguments));
    group_runner.graphs = can_capture();
    return CP_OK;
}

/* The processes that share a rank's heads cannot continue without one of
 * them. */
static cp_status divide(int parts) {
    world->agree = NULL;
    group.shrink = NULL;
    CP_TRY(cp_nccl_split(world, parts, &heads, &ring));
    own_slice = (cp_device_slice){group.rank % parts, parts};
    group_runner.only = group.rank / parts;
    group_runner.link = &ring->link;
    group_runner.tensor = heads;
    return CP_OK;
}

static cp_status engine_new(const cp_model *model,
                            const cp_session_options *options,
                            cp_engine **out) {
    return cp_device_engine_new(cp_cuda_runner(options->ranks), model, options,
                                out);
}

/* A backend, given how it stores its blocks' matrices and the bytes of a number
 * of its keys and values. */
#define BACKEND(suffix, shown, words, numbers, bytes)                          \
    static const cp_machine machine##suffix = {                                \
        .name = "ranks on one GPU",                                            \
        .flops = 20 * INT64_C(1000000000000),                                  \
        .bytes_per_second = 1500 * INT64_C(1000000000),                        \
        .element_bytes = bytes,                                                \
    };                                                                         \
    static cp_status attend##suffix(cp_attend_job *job) {                      \
        return cp_device_attend_run(cp_cuda_runner(job->ranks),                \
                                    &machine##suffix, job);                    \
    }                                                                          \
    static cp_status model_open##suffix(const cp_gguf *file,                   \
                                        cp_model **model) {                    \
        return cp_device_model_open(file, numbers, own_slice, model);          \
    }                                                                          \
    const cp_backend cp_backend_cuda##suffix = {                               \
        .name = shown,                                                         \
        .kernels = words ", plain CUDA and cuBLASLt",                          \
        .communicator = "copies on one GPU; NCCL",                             \
        .machine = &machine##suffix,                                           \
        .set_timeout = wait_at_most,                                           \
        .join = join,                                                          \
        .divide = divide,                                                      \
        .attend = attend##suffix,                                              \
        .model_open = model_open##suffix,                                      \
        .model_close = cp_device_model_close,                                  \
        .engine_new = engine_new,                                              \
    };

BACKEND(, "cuda", "bf16", CP_NUMBERS_BF16, 2)
BACKEND(_fp32, "cuda-fp32", "fp32", CP_NUMBERS_F32, 4)
BACKEND(_fp8, "cuda-fp8", "bf16 and FP8 weights", CP_NUMBERS_F8, 2)
