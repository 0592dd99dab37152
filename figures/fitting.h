/* Fitting a machine's constants to the paper's numbers. */
#ifndef FIGURES_FITTING_H
#define FIGURES_FITTING_H

#include <stdio.h>

#include "figures/numbers.h"

/* What a fit did. */
typedef struct {
    int constants, rows, rounds;
    double before, after; /* sums of squared relative errors */
} fit_report;

/* Move the fitted constants of a machine so that the sum of the squared
 * relative errors of the paper's fitted rows is least. Starts from crude
 * values, not from those that the description gives. Ends the program if there
 * are more than 16 such constants or fewer rows than constants, or if 200
 * rounds find no rest. */
fit_report fit_constants(const paper_numbers *paper, cp_hardware *hardware);

/* Write the text of a description again with the fitted values of hardware;
 * every other character stays. */
void fit_write(const cp_hardware *hardware, const char *text, FILE *out);

#endif
