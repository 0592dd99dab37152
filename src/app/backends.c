/* The table of backends, and the one whose ranks are threads. */
#include "app/meter.h"

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

const cp_place *cp_meter_cores(const cp_backend *backend) {
#ifdef CP_HAVE_MPI
    if (backend == &cp_backend_mpi)
        return cp_mpi_place;
#endif
    return backend == &threads ? &cp_place_threads : NULL;
}

cp_status cp_meter_calibrate(const cp_backend *backend,
                             const cp_calibration *wanted) {
    const cp_place *place = cp_meter_cores(backend);
#ifdef CP_HAVE_CUDA
    if (place == NULL)
        return cp_cuda_calibrate(backend, wanted);
#endif
    return cp_calibrate_run(place, wanted);
}
