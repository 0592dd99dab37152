/* What a calibration times on CPUs: one thing at a time, on all ranks at once.
 * Not what follows from it. */
#ifndef CP_SUBJECTS_H
#define CP_SUBJECTS_H

#include "predict/calibrate.h"
#include "reference/ring/place.h"

/* Ranks on CPUs, at a place, with memory for the largest sizes of a
 * calibration. Fails with CP_INVALID if these overflow, or with CP_MEMORY. */
typedef struct cp_stage cp_stage;
cp_status cp_stage_new(const cp_place *place, const cp_calibration *wanted,
                       cp_stage **out);
void cp_stage_free(cp_stage *stage);

/* Of these ranks. Lives as long as the stage; its time fails as they do. */
const cp_laboratory *cp_stage_laboratory(const cp_stage *stage);

/* Measure what the calibration asks for where the ranks run, and fill in its
 * description. Fails as the ranks do, or with CP_MEMORY. */
cp_status cp_calibrate_run(const cp_place *place, const cp_calibration *wanted);

#endif
