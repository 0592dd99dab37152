/* Tangled from book/15-command.nw; edit the chapter. */
/* The paper's tables beside our predictions, with the errors. */
#ifndef CP_TABLES_H
#define CP_TABLES_H

#include "predict/paper.h"

/* Which of the paper's numbers: table is "4" to "8", "text", or NULL for all.
 * Prints a line for each, and below it what the errors of those come to that
 * were not fitted; "summary": this alone, of all. Fails as cp_simulate does. */
cp_status cp_tables_print(FILE *out, const char *table, bool csv,
                          const cp_hardware *hardware,
                          const cp_model_sizes *model);

/* Errors of the numbers that were not fitted, in percent. */
typedef struct {
    int count;
    double median, mean, ninth, most; /* ninth: nine tenths are below */
} cp_errors;

/* Of prefill or of decode; without the contradicted ones. */
cp_status cp_tables_errors(const cp_hardware *hardware,
                           const cp_model_sizes *model, bool decode,
                           cp_errors *errors);

/* Whether these are what was fitted to the paper: the built-in gtt in every
 * field, and the paper's model. */
bool cp_tables_fitted(const cp_hardware *hardware, const cp_model_sizes *model);

#endif
