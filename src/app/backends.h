/* Where a backend's ranks run, and what `longring bench` and `longring
 * calibrate` measure there. A backend itself only computes. */
#ifndef CP_BACKENDS_H
#define CP_BACKENDS_H

#include "measure/bench.h"
#include "model/backend.h"
#include "predict/calibrate.h"

/* All that a program may have, as options name them, and as --on shows them. */
enum { CP_BACKEND_NAMES = 7 };
extern const char *const cp_backend_names[CP_BACKEND_NAMES];
#define CP_COMMAND_PLACES                                                      \
    "threads|threads-bf16|mpi|mpi-bf16|cuda|cuda-fp32|cuda-fp8"

/* Where the ranks run if the backend computes on cores; NULL for GPUs. */
const cp_runner *cp_backend_cores(const cp_backend *backend);

/* The kernel that runs attention and linear layers on cores, and why: "zen3, 6
 * by 16: BLIS's choice; the processor has no AVX-512". */
const char *cp_cores_kernel(void);

/* Why the cores of this machine do not sum in the order that --exact-order
 * requires; NULL: they do. */
const char *cp_cores_out_of_order(void);

/* Measure its ranks as a checked calibration asks, and fill in its description.
 * Fails as cp_calibrate_cores and cp_calibrate_device do. */
cp_status cp_backend_calibrate(const cp_backend *backend,
                               const cp_calibration *calibration);

/* Measure what bench asks for: on cores, or on a GPU. Fails as cp_bench_cores
 * and cp_bench_device do. */
cp_status cp_backend_bench(const cp_backend *backend, const cp_bench *bench);

#endif
