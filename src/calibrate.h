/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* What a calibration measures, and what it says. Not how: that is a
 * backend's. */
#ifndef CP_CALIBRATE_H
#define CP_CALIBRATE_H

#include "machine.h"
#include "options.h"
#include "span.h"

enum {
    CP_CALIBRATE_ROWS = CP_SURFACE_ROWS,
    CP_CALIBRATE_SIZES = CP_CURVE_POINTS,
};

/* What to measure. */
typedef struct {
    cp_shape shape;   /* of attention; a linear layer is from the width of all
                        query heads to four times as many numbers */
    int ranks, cores; /* cores: of this machine, for all of its ranks */
    int rounds;
    cp_counts rows, keys, bytes; /* sizes, ascending */
    cp_hardware *hardware;       /* out, but for its name */
} cp_calibration;

/* Fails with CP_INVALID and a line that names the field: a size too small or
 * too large, too many of them, or not ascending. */
cp_status cp_calibration_check(const cp_calibration *calibration);

/* Say that a field of the description was measured, and how. */
void cp_calibration_note(const cp_calibration *calibration, const char *field,
                         const char *how);

#endif
