/* Tangled from book/16-state.nw; edit the chapter. */
/* What a layer with a state takes on a described machine. */
#ifndef CP_HYBRID_H
#define CP_HYBRID_H

#include "predict/pace.h"
#include "ring/scan.h"

typedef struct {
    double seconds; /* of a layer */
    double run;     /* of it, what pairs and answers take */
    double scan;    /* and the fastest of the scans */
    cp_scan by;     /* which is this one */
    double bytes;   /* of the states of a layer on a GPU, at most */
} cp_state_forecast;

/* Predict a layer with a state of the model of a call, whose plan is that of
 * its attention; all zero if the model has none. Linear layers are taken to be
 * those of a layer that attends. A decode step leaves states where they are.
 * Fails as cp_plan_scan and cp_timeline_run do. */
cp_status cp_state_foresee(const cp_pace *pace, const cp_plan *plan,
                           cp_state_forecast *forecast);

#endif
