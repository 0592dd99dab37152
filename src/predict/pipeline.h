/* Tangled from book/16-pipeline.nw; edit the chapter. */
/* A call whose layers, and not whose tokens, are divided over its ranks: the
 * stages of a pipeline, by virtual clocks. */
#ifndef CP_PIPELINE_H
#define CP_PIPELINE_H

#include "predict/simulate.h"

enum { CP_PIECE_LEAST = 512 };

/* Predict a call over so many stages as it has ranks, of tensor GPUs each,
 * which share the experts of their layers. A call of CP_DECODE is one step, in
 * groups of sequences; another one goes through in pieces of so many tokens of
 * a sequence, 0: the fastest of some sizes, none below CP_PIECE_LEAST. Layers
 * are divided as evenly as they go, or by the speeds of unlike devices. Of the
 * forecast, sent is what one stage hands to the next; the times of a layer are
 * sums over all pieces. Ranks that share cores do so all the time. Fails with
 * CP_INVALID with fewer layers than stages, and as cp_simulate. */
cp_status cp_pipeline(const cp_scenario *call, int64_t piece,
                      cp_forecast *forecast);

#endif
