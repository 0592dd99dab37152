/* What `longring bench` and `longring calibrate` measure where a backend's
 * ranks run. A backend itself only computes. */
#ifndef CP_METER_H
#define CP_METER_H

#include "measure/bench.h"
#include "model/backend.h"
#include "predict/calibrate.h"
#include "reference/run/runner.h"

/* Where the ranks run if the backend computes on cores; NULL for GPUs. */
const cp_runner *cp_meter_cores(const cp_backend *backend);

/* What a runner's ranks share, for a calibration; its time function is not
 * set. */
cp_timing_backend cp_timing_on_cores(const cp_runner *runner,
                                     const cp_calibration *calibration);

/* Measure ranks on cores as a checked calibration asks, and fill in its
 * description. Fails as the ranks do, or with CP_MEMORY. */
cp_status cp_calibrate_run(const cp_runner *runner,
                           const cp_calibration *calibration);

/* The same for any backend's ranks; also fails as cp_device_calibrate
 * (calibrate_device.h) does. */
cp_status cp_meter_calibrate(const cp_backend *backend,
                             const cp_calibration *calibration);

/* Measure what bench asks for on that backend: attention and rings on cores, or
 * attention on a GPU. Fails as what is measured does, and with CP_BROKEN if a
 * GPU's result is wrong. */
cp_status cp_meter_bench(const cp_backend *backend, const cp_bench *bench);

/* The same for ranks on GPUs. */
cp_status cp_cuda_calibrate(const cp_backend *backend,
                            const cp_calibration *calibration);
cp_status cp_cuda_bench(const cp_backend *backend, const cp_bench *bench);

#endif
