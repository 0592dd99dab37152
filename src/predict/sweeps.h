/* Tangled from book/15-command.nw; edit the chapter. */
/* What-ifs: one thing of a scenario varied, as CSV. */
#ifndef CP_SWEEPS_H
#define CP_SWEEPS_H

#include "predict/simulate.h"

typedef enum {
    CP_SWEEP_RANKS,   /* 1 to 1024 */
    CP_SWEEP_TOKENS,  /* new tokens: 1K to 10M */
    CP_SWEEP_NETWORK, /* links between nodes: 4 times as fast to 100 times
                         slower */
    CP_SWEEP_BATCH,   /* decode steps of 1 to 64 sequences */
    CP_SWEEP_HEADS,   /* key heads: 1 to as many as queries have */
} cp_sweep;

/* Vary one thing of a scenario; print a CSV line for each value and variant.
 * A value that the model or the plan cannot have is left out. */
cp_status cp_sweep_print(FILE *out, cp_sweep sweep,
                         const cp_scenario *scenario);

#endif
