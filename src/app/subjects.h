/* What a calibration times on CPUs: one thing at a time, on all ranks at once.
 * Not what follows from it. */
#ifndef CP_SUBJECTS_H
#define CP_SUBJECTS_H

#include "predict/calibrate.h"
#include "reference/ring/place.h"

/* What ranks at a place share; nothing is timed in it yet. */
cp_laboratory cp_place_laboratory(const cp_place *place,
                                  const cp_calibration *wanted);

/* Measure what a calibration that was checked asks for where the ranks run,
 * and fill in its description. Fails as the ranks do, or with CP_MEMORY. */
cp_status cp_calibrate_run(const cp_place *place, const cp_calibration *wanted);

#endif
