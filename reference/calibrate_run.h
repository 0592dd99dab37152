/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* Calibration of ranks on CPUs, wherever they run. */
#ifndef CP_CALIBRATE_RUN_H
#define CP_CALIBRATE_RUN_H

#include "calibrate.h"
#include "place.h"

/* Measure what the calibration asks for where the ranks run, and fill in its
 * description. Fails as the ranks do, or with CP_MEMORY. */
cp_status cp_calibrate_run(const cp_place *place, const cp_calibration *wanted);

typedef struct cp_calibrating cp_calibrating;

/* Prepare; place and wanted must outlive it. Fails with CP_MEMORY. */
cp_status cp_calibrating_new(const cp_place *place,
                             const cp_calibration *wanted,
                             cp_calibrating **out);

/* One round over all subjects, as round number so many, 0 to CP_BENCH_ROUNDS - 1:
 * it replaces what that round had measured before. */
cp_status cp_calibrating_round(cp_calibrating *it, int round);

/* Describe the machine by the medians of rounds 0 to wanted->rounds - 1. */
void cp_calibrating_describe(cp_calibrating *it);
void cp_calibrating_free(cp_calibrating *it);

#endif
