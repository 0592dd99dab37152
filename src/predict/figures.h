/* Tangled from book/15-command.nw; edit the chapter. */
/* The paper's Figures 6 to 10: its points, our predictions, and a band. */
#ifndef CP_FIGURES_H
#define CP_FIGURES_H

#include "predict/tables.h"

/* Print a figure of the paper, 6 to 10, as lines of series, x, the paper's
 * value where it gives one, ours, and what is likely. */
cp_status cp_figure_print(FILE *out, int figure, bool csv,
                          const cp_hardware *hardware,
                          const cp_model_sizes *model);

#endif
