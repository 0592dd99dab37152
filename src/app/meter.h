/* How each place is measured: what `longring bench` and `longring calibrate`
 * call there. A backend itself only computes. */
#ifndef CP_METER_H
#define CP_METER_H

#include "app/bench.h"
#include "predict/calibrate.h"

/* Either function may be NULL: nothing is measured there yet. */
typedef struct {
    const cp_backend *backend;
    cp_status (*bench)(const cp_bench *bench);
    cp_status (*calibrate)(const cp_calibration *calibration);
} cp_meter;

/* That of a backend of the table. */
const cp_meter *cp_meter_of(const cp_backend *backend);

/* Of ranks on GPUs, by their weights. */
cp_status cp_cuda_calibrate(const cp_calibration *calibration);
cp_status cp_cuda_calibrate_fp32(const cp_calibration *calibration);
cp_status cp_cuda_calibrate_fp8(const cp_calibration *calibration);

#endif
