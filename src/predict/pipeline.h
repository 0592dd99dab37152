/* Tangled from book/16-pipeline.nw; edit the chapter. */
/* Predicts a pipeline by virtual clocks: a call that divides its layers, not
 * its tokens, over its ranks. */
#ifndef CP_PIPELINE_H
#define CP_PIPELINE_H

#include "predict/simulate.h"

enum { CP_PIECE_LEAST = 512 };

/* Predict a call on a pipeline with one stage for each rank. The tensor GPUs of
 * a stage share the experts of its layers. A call of CP_DECODE is one step, in
 * groups of sequences; any other call goes through in pieces of `piece` tokens
 * of a sequence (0: the fastest of some sizes, none below CP_PIECE_LEAST).
 * Layers are divided as evenly as possible, or by the speeds of unlike devices.
 * In the forecast, sent is what one stage hands to the next, and the times of a
 * layer are sums over all pieces. Ranks that share cores are assumed always to
 * share them. Fails with CP_INVALID if there are fewer layers than stages, and
 * as cp_simulate. */
cp_status cp_pipeline(const cp_scenario *call, int64_t piece,
                      cp_forecast *forecast);

#endif
