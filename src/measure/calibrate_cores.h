/* Calibration of ranks on cores. */
#ifndef CP_CALIBRATE_CORES_H
#define CP_CALIBRATE_CORES_H

#include "predict/calibrate.h"
#include "reference/run/runner.h"

/* What a runner's ranks share; its time function is not set. */
cp_timing_backend cp_timing_on_cores(const cp_runner *runner,
                                     const cp_calibration *calibration);

/* Measure ranks as a checked calibration asks, and fill in its description.
 * Fails as the ranks do, or with CP_MEMORY. */
cp_status cp_calibrate_cores(const cp_runner *runner,
                             const cp_calibration *calibration);

#endif
