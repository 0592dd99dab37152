/* What `longring bench` and `longring calibrate` measure at a backend's place.
 * A backend itself only computes. */
#ifndef CP_METER_H
#define CP_METER_H

#include "model/backend.h"
#include "predict/calibrate.h"
#include "reference/ring/place.h"

/* Where the ranks of a backend run that computes on cores; NULL for GPUs, of
 * which nothing is benched yet. */
const cp_place *cp_meter_cores(const cp_backend *backend);

/* Calibrate a backend's ranks. Fails as cp_calibrate_run (subjects.h) and
 * cp_device_calibrate (device_laboratory.h) do. */
cp_status cp_meter_calibrate(const cp_backend *backend,
                             const cp_calibration *wanted);

/* Of ranks as processes over MPI, and of ranks on GPUs by their weights. */
extern const cp_place *const cp_mpi_place;
cp_status cp_cuda_calibrate(const cp_calibration *wanted);
cp_status cp_cuda_calibrate_fp32(const cp_calibration *wanted);
cp_status cp_cuda_calibrate_fp8(const cp_calibration *wanted);

#endif
