/* Tangled from book/13-model.nw; edit the chapter. */
/* The backends whose ranks are on GPUs. */
#include "model/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "cuda/model/device_attend.h"
#include "cuda/model/device_engine.h"
#include "cuda/model/device_laboratory.h"
#include "ring/agree.h"
#include "ring/launch.h"
#include "ring/meet.h"

static const cp_device_place here = {.only = CP_NOBODY, .graphs = true};
static cp_device_place apart = {.only = CP_NOBODY, .graphs = true};
static cp_device_share mine = {0, 1};

static const cp_device_place *place_of(int ranks) {
    const bool all = apart.crew != NULL && ranks > 1;
    return all && ranks * mine.parts == apart.crew->ranks ? &apart : &here;
}
static cp_nccl *world, *heads, *ring;
static cp_crew crew; /* with a leave that leaves NCCL first */
static int (*leave_the_crew)(int status);

static int leave(int status) {
    const cp_link *link = world != NULL ? cp_nccl_link(world) : NULL;
    if (status != 0 && link != NULL)
        link->abort(link->context); /* and with world all groups */
    cp_nccl_free(heads);
    cp_nccl_free(ring);
    cp_nccl_free(world);
    return leave_the_crew(status);
}

static void wait_at_most(double seconds) {
    apart.patience = seconds;
    if (world != NULL)
        cp_nccl_set_patience(world, seconds);
}

static cp_status take_device(void) {
    int devices = 0, local = 0, locals = 1;
    cp_status status = cp_device_count(&devices);
    if (status == CP_OK)
        status = cp_crew_local(&local, &locals);
    if (status == CP_OK && locals > devices && getenv("NCCL_HOSTID") == NULL)
        status = cp_fail(CP_INVALID,
                         "%d processes on a host of %d GPUs: one each is "
                         "wanted (without a launcher, ranks share one)",
                         locals, devices);
    return status == CP_OK ? cp_cuda(cudaSetDevice(local % devices),
                                     "taking GPU %d", local % devices)
                           : status;
}

static cp_status meet(int count, char *const *arguments) {
    const cp_backend *mpi = cp_backend_find("mpi");
    cp_meet_options options = {.patience = apart.patience,
                               .file = getenv("LONGRING_MEETING"),
                               .words = cp_fingerprint_words(count, arguments)};
    cp_status status = cp_launch_read(&options.launch);
    if (status != CP_OK || options.launch.ranks < 2)
        return status;
    const char *launcher = options.launch.launcher;
    if (mpi != NULL &&
        (strcmp(launcher, "Open MPI") == 0 || strcmp(launcher, "MPICH") == 0))
        return mpi->join(count, arguments);
    status = cp_meet(&options, &crew);
    if (status != CP_OK)
        return status;
    cp_crew_join(&crew);
    if (crew.rank != 0 && freopen("/dev/null", "w", stdout) == NULL)
        return cp_fail(CP_FILE, "/dev/null: cannot be opened");
    return CP_OK;
}

static cp_status join(int count, char *const *arguments) {
    apart.patience = 60;
    cp_status status = meet(count, arguments);
    if (status != CP_OK || cp_crew_mine()->share == NULL)
        return status;
    crew = *cp_crew_mine();
    leave_the_crew = crew.leave;
    crew.leave = leave;
    cp_crew_join(&crew);
    status = cp_crew_all_ready(&crew, take_device());
    if (status == CP_OK)
        status = cp_crew_all_ready(&crew,
                                   cp_nccl_join(&crew, apart.patience, &world));
    if (status != CP_OK)
        return status;
    apart.only = crew.rank;
    apart.crew = &crew;
    apart.link = cp_nccl_link(world);
    return CP_OK;
}

static cp_status divide(int parts) {
    const cp_status status = cp_nccl_split(world, parts, &heads, &ring);
    if (status != CP_OK)
        return status;
    mine = (cp_device_share){crew.rank % parts, parts};
    apart.only = crew.rank / parts;
    apart.link = cp_nccl_link(ring);
    apart.tensor = heads;
    return CP_OK;
}
static const cp_machine one_gpu = {
    .name = "ranks on one GPU",
    .flops = 20 * INT64_C(1000000000000),
    .bytes_per_second = 1500 * INT64_C(1000000000),
    .element_bytes = 2,
};
static const cp_machine one_gpu_fp32 = {
    .name = "ranks on one GPU",
    .flops = 20 * INT64_C(1000000000000),
    .bytes_per_second = 1500 * INT64_C(1000000000),
    .element_bytes = 4,
};

static cp_status open_bf16(const cp_gguf *file, cp_model **model) {
    return cp_device_model_open(file, CP_NUMBERS_BF16, mine, model);
}

static cp_status open_fp32(const cp_gguf *file, cp_model **model) {
    return cp_device_model_open(file, CP_NUMBERS_F32, mine, model);
}

static cp_status open_fp8(const cp_gguf *file, cp_model **model) {
    return cp_device_model_open(file, CP_NUMBERS_F8, mine, model);
}

static cp_status attend_bf16(cp_attend_job *job) {
    return cp_device_attend_run(place_of(job->ranks), &one_gpu, CP_BF16, job);
}

static cp_status attend_fp32(cp_attend_job *job) {
    return cp_device_attend_run(place_of(job->ranks), &one_gpu_fp32, CP_F32,
                                job);
}

static cp_status calibrate_bf16(const cp_calibration *wanted) {
    return cp_device_calibrate(place_of(wanted->ranks), CP_NUMBERS_BF16,
                               wanted);
}

static cp_status calibrate_fp32(const cp_calibration *wanted) {
    return cp_device_calibrate(place_of(wanted->ranks), CP_NUMBERS_F32, wanted);
}

static cp_status calibrate_fp8(const cp_calibration *wanted) {
    return cp_device_calibrate(place_of(wanted->ranks), CP_NUMBERS_F8, wanted);
}

static cp_status engine_new(const cp_model *model,
                            const cp_session_options *options,
                            cp_engine **out) {
    return cp_device_engine_new(place_of(options->ranks), model, options, out);
}

#define ON_GPUS                                                                \
    .communicator = "copies on one GPU; NCCL", .reserves = true,               \
    .patience = wait_at_most, .join = join, .divide = divide,                  \
    .model_close = cp_device_model_close, .engine_new = engine_new

const cp_backend cp_backend_cuda = {
    .name = "cuda",
    .kernels = "bf16, plain CUDA and cuBLASLt",
    .machine = &one_gpu,
    .attend = attend_bf16,
    .calibrate = calibrate_bf16,
    .model_open = open_bf16,
    ON_GPUS,
};

const cp_backend cp_backend_cuda_fp32 = {
    .name = "cuda-fp32",
    .kernels = "fp32, plain CUDA and cuBLASLt",
    .machine = &one_gpu_fp32,
    .attend = attend_fp32,
    .calibrate = calibrate_fp32,
    .model_open = open_fp32,
    ON_GPUS,
};

const cp_backend cp_backend_cuda_fp8 = {
    .name = "cuda-fp8",
    .kernels = "bf16 and FP8 weights, plain CUDA and cuBLASLt",
    .machine = &one_gpu,
    .attend = attend_bf16,
    .calibrate = calibrate_fp8,
    .model_open = open_fp8,
    ON_GPUS,
};
