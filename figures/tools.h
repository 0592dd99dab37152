/* What the programs that write figures/data share: they end at the first
 * failure, and draw the same random numbers on every machine. */
#ifndef FIGURES_TOOLS_H
#define FIGURES_TOOLS_H

#include "ground/ground.h"

/* Go on, or say why not and end the program with status 1. */
void need(cp_status status);

/* One of the modes that the only argument may name; each prints a file. */
typedef struct {
    const char *name;
    void (*print)(void);
} figure_mode;

/* Print the file that arguments[1] names, of modes up to a NULL name; the
 * status to exit with. */
int figure_main(int count, char **arguments, const figure_mode *modes);

/* Sorts the values. */
double median(double *values, int count);

/* Statistics of count magnitudes. Sorts the values. */
typedef struct {
    int count;
    double median, mean, ninth, most; /* ninth: nine tenths are below */
} figure_errors;
figure_errors errors_of(double *values, int count);

/* ||numbers - truth|| / ||truth|| of count numbers, and the largest
 * |number - truth|. NaN is infinitely far. */
double relative_error(const float *numbers, const double *truth, int64_t count);
double largest_error(const float *numbers, const double *truth, int64_t count);

/* xorshift64*; the state must not be 0. */
uint64_t draw(uint64_t *state);

/* Uniform in [-1, 1). */
float draw_uniform(uint64_t *state);

void fill(float *tensor, int64_t count, uint64_t seed);

/* Solve a symmetric positive definite system by elimination: matrix is
 * [count][count + 1] and has the right side in its last column. */
void solve(int count, double *matrix, double *x);

#endif
