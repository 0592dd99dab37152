/* What `longring bench` and `longring calibrate` measure at a backend's place.
 * A backend itself only computes. */
#ifndef CP_METER_H
#define CP_METER_H

#include "app/bench.h"
#include "model/backend.h"
#include "predict/calibrate.h"
#include "reference/ring/place.h"

/* Where the ranks of a backend run that computes on cores; NULL for GPUs. */
const cp_place *cp_meter_cores(const cp_backend *backend);

/* What ranks at a place share; nothing is timed in it yet. */
cp_laboratory cp_place_laboratory(const cp_place *place,
                                  const cp_calibration *wanted);

/* Measure what a calibration that was checked asks for where the ranks run on
 * cores, and fill in its description. Fails as the ranks do, or with
 * CP_MEMORY. */
cp_status cp_calibrate_run(const cp_place *place, const cp_calibration *wanted);

/* The same of any backend's ranks; fails also as cp_device_calibrate
 * (device_laboratory.h) does. */
cp_status cp_meter_calibrate(const cp_backend *backend,
                             const cp_calibration *wanted);

/* Bench what bench asks for where that backend computes: attention and rings on
 * cores, or attention on a GPU. Fails as what is measured does, and with
 * CP_BROKEN if a GPU's answer is wrong. */
cp_status cp_meter_bench(const cp_backend *backend, const cp_bench *bench);

/* Of ranks on GPUs. */
cp_status cp_cuda_calibrate(const cp_backend *backend,
                            const cp_calibration *wanted);
cp_status cp_cuda_bench(const cp_backend *backend, const cp_bench *bench);

#endif
