/* The table of backends, and what is measured at their places. */
#include "app/backends.h"

#include <stdio.h>
#include <string.h>

#include "measure/calibrate_cores.h"
#ifdef CP_HAVE_CUDA
#include "measure/calibrate_device.h"
#endif
#include "reference/attend/bf16.h"
#include "reference/attend/micro.h"

const char *const cp_backend_names[CP_BACKEND_NAMES] = {
    "threads", "threads-bf16", "mpi",     "mpi-bf16",
    "cuda",    "cuda-fp32",    "cuda-fp8"};

const cp_backend *const cp_backends[] = {
    &cp_backend_threads,
    &cp_backend_threads_bf16,
#ifdef CP_HAVE_MPI
    &cp_backend_mpi,
    &cp_backend_mpi_bf16,
#endif
#ifdef CP_HAVE_CUDA
    &cp_backend_cuda,
    &cp_backend_cuda_fp32,
    &cp_backend_cuda_fp8,
#endif
    NULL,
};

const cp_backend *cp_backend_find(const char *name) {
    for (int n = 0; cp_backends[n] != NULL; n++)
        if (strcmp(cp_backends[n]->name, name) == 0)
            return cp_backends[n];
    return NULL;
}

const cp_runner *cp_backend_cores(const cp_backend *backend) {
#ifdef CP_HAVE_MPI
    if (backend == &cp_backend_mpi || backend == &cp_backend_mpi_bf16)
        return cp_runner_mpi;
#endif
    if (backend == &cp_backend_threads_bf16)
        return &cp_runner_threads_bf16;
    return backend == &cp_backend_threads ? &cp_runner_threads : NULL;
}

cp_status cp_backend_bench(const cp_backend *backend, const cp_bench *bench) {
#ifdef CP_HAVE_CUDA
    if (cp_backend_cores(backend) == NULL)
        return cp_bench_device(bench, backend == &cp_backend_cuda_fp32);
#endif
    (void)backend;
    return cp_bench_cores(bench);
}

cp_status cp_backend_calibrate(const cp_backend *backend,
                               const cp_calibration *calibration) {
    const cp_runner *runner = cp_backend_cores(backend);
#ifdef CP_HAVE_CUDA
    const cp_numbers numbers = backend == &cp_backend_cuda_fp32 ? CP_NUMBERS_F32
                               : backend == &cp_backend_cuda_fp8
                                   ? CP_NUMBERS_F8
                                   : CP_NUMBERS_BF16;
    if (runner == NULL)
        return cp_calibrate_device(cp_cuda_runner(calibration->ranks), numbers,
                                   calibration);
#endif
    return cp_calibrate_cores(runner, calibration);
}

const char *cp_cores_out_of_order(void) {
    const cp_micro *micro = cp_micro_get();
    if (micro->in_order)
        return NULL;
    return micro->fuses ? "the kernel fuses multiply and add, but this program "
                          "was built without FMA; build it with -mfma"
                        : "on this processor BLIS sums in its own order";
}

const char *cp_cores_kernel(void) {
    static char about[200];
    snprintf(about, sizeof(about), "%s; bf16: %s", cp_micro_get()->about,
             cp_bf16_about());
    return about;
}
