/* The table of backends, and the one whose ranks are threads. */
#include "app/meter.h"

#include "reference/model/attend_job.h"
#include "app/bench_rows.h"
#include "app/subjects.h"
#include "reference/model/engine.h"
#include "reference/model/model.h"

static cp_status engine_new(const cp_model *model,
                            const cp_session_options *options,
                            cp_engine **out) {
    return cp_cores_engine_new(&cp_place_threads, model, options, out);
}

static cp_status attend(cp_attend_job *job) {
    return cp_attend_run(&cp_place_threads, job);
}

static cp_status bench(const cp_bench *bench) {
    return cp_bench_run(&cp_place_threads, bench);
}

static cp_status calibrate(const cp_calibration *calibration) {
    return cp_calibrate_run(&cp_place_threads, calibration);
}

static const cp_backend threads = {
    .name = "threads",
    .kernels = "fp32, OpenMP and BLIS",
    .communicator = "threads of one process",
    .machine = &cp_machine_threads,
    .attend = attend,
    .model_open = cp_llama_open,
    .model_close = cp_llama_close,
    .engine_new = engine_new,
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

static const cp_meter meters[] = {
    {&threads, bench, calibrate},
#ifdef CP_HAVE_MPI
    {&cp_backend_mpi, cp_mpi_bench, cp_mpi_calibrate},
#endif
#ifdef CP_HAVE_CUDA
    {&cp_backend_cuda, NULL, cp_cuda_calibrate},
    {&cp_backend_cuda_fp32, NULL, cp_cuda_calibrate_fp32},
    {&cp_backend_cuda_fp8, NULL, cp_cuda_calibrate_fp8},
#endif
};

const cp_meter *cp_meter_of(const cp_backend *backend) {
    const cp_meter *meter = meters;
    while (meter->backend != backend)
        meter++;
    return meter;
}
