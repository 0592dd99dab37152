/* Tangled from book/13-model.nw; edit the chapter. */
/* The backends whose ranks are on GPUs. */
#include "src/backend.h"

#include "device_attend.h"
#include "device_engine.h"

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

static cp_device_place here = {.only = CP_NOBODY, .graphs = true};
static cp_device_share mine = {0, 1};

static void wait_at_most(double seconds) {
    here.patience = seconds;
}

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
    return cp_device_attend_run(&one_gpu, CP_BF16, job);
}

static cp_status attend_fp32(cp_attend_job *job) {
    return cp_device_attend_run(&one_gpu_fp32, CP_F32, job);
}

static cp_status engine_new(const cp_model *model,
                            const cp_session_options *options,
                            cp_engine **out) {
    return cp_device_engine_new(&here, model, options, out);
}

#define ON_GPUS                                                                \
    .communicator = "copies on one GPU", .reserves = true,                     \
    .patience = wait_at_most, .model_close = cp_device_model_close,            \
    .engine_new = engine_new, .engine_free = cp_device_engine_free,            \
    .run = cp_device_engine_run, .logits = cp_device_engine_logits,            \
    .trace = cp_device_engine_trace

const cp_backend cp_backend_cuda = {
    .name = "cuda",
    .kernels = "bf16, plain CUDA and cuBLASLt",
    .machine = &one_gpu,
    .attend = attend_bf16,
    .model_open = open_bf16,
    ON_GPUS,
};

const cp_backend cp_backend_cuda_fp32 = {
    .name = "cuda-fp32",
    .kernels = "fp32, plain CUDA and cuBLASLt",
    .machine = &one_gpu_fp32,
    .attend = attend_fp32,
    .model_open = open_fp32,
    ON_GPUS,
};

const cp_backend cp_backend_cuda_fp8 = {
    .name = "cuda-fp8",
    .kernels = "bf16 and FP8 weights, plain CUDA and cuBLASLt",
    .machine = &one_gpu,
    .attend = attend_bf16,
    .model_open = open_fp8,
    ON_GPUS,
};
