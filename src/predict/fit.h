/* Tangled from book/15-fit.nw; edit the chapter. */
/* Fitting a machine's constants to the paper's numbers. */
#ifndef CP_FIT_H
#define CP_FIT_H

#include <stdio.h>

#include "predict/paper.h"

enum { CP_FIT_CONSTANTS = 16 };

/* What a fit did. */
typedef struct {
    int constants, rows, rounds;
    double before, after; /* sums of squared relative errors */
} cp_fit_report;

/* Move the fitted constants of a machine so that the sum of the squared
 * relative errors of the paper's fitted rows is least. Starts from crude
 * values, not from those that the description gives. Fails with CP_INVALID if
 * there are more than 16 such constants or fewer rows than constants, or if
 * 200 rounds find no rest. */
cp_status cp_fit(cp_hardware *hardware, const cp_model_sizes *model,
                 const cp_paper *paper, cp_fit_report *report);

/* Write the text of a description again with the fitted values of hardware;
 * every other character stays. */
void cp_fit_write(const cp_hardware *hardware, const char *text, FILE *out);

#endif
