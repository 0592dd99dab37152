/* Tangled from book/16-state.nw; edit the chapter. */
/* Predicts the time of a layer with a state on a described machine. */
#ifndef CP_HYBRID_H
#define CP_HYBRID_H

#include "predict/pace.h"
#include "variants/scan.h"

typedef struct {
    double seconds; /* of a layer */
    double run;     /* of these, for pairs and answers */
    double scan;    /* and for the fastest scan, */
    cp_scan by;     /* which is this one */
    double bytes;   /* of the states of a layer on a GPU, at most */
} cp_state_forecast;

/* Predict a layer with a state, of the call's model; plan is its attention's
 * plan. The forecast is all zero if the model has no such layers. Assumes
 * that its linear layers cost as much as those of a layer that attends, and
 * that a decode step leaves states where they are, and sends rows to them at no
 * cost. Fails as cp_plan_scan and
 * cp_timeline_run do. */
cp_status cp_state_foresee(const cp_pace *pace, const cp_plan *plan,
                           cp_state_forecast *forecast);

#endif
