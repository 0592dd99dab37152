/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* Calibration of ranks on CPUs, wherever they run. */
#ifndef CP_CALIBRATE_RUN_H
#define CP_CALIBRATE_RUN_H

#include "calibrate.h"
#include "place.h"

/* Measure what the calibration asks for where the ranks run, and fill in its
 * description. Fails as the ranks do, or with CP_MEMORY. */
cp_status cp_calibrate_run(const cp_place *place, const cp_calibration *wanted);

#endif
