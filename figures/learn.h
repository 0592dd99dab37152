/* Calls of which both rings were timed: what a rule's choices would have cost,
 * and the empirical rule that they teach. */
#ifndef FIGURES_LEARN_H
#define FIGURES_LEARN_H

#include "figures/numbers.h"
#include "predict/rules.h"

/* A call of which both variants were timed, in any one unit. */
typedef struct {
    int64_t ranks; /* 0: the file does not say */
    int64_t fresh, cached;
    double pass_kv, pass_q;
} trial;

enum { MOST_TRIALS = 4096 };

typedef struct {
    trial items[MOST_TRIALS];
    int count;
} trials;

/* Table 4's fourteen calls. */
void trials_of_table_4(const paper_numbers *paper, trials *out);

/* The calls of a CSV file whose columns are new, cached, pass_kv, pass_q and
 * perhaps ranks, in any order; ranks 0: all of them. Ends the program, and
 * names file and line, where a cell is no count above 0 (cached: at least 0)
 * or no time. */
void trials_read(const char *path, int64_t ranks, trials *out);

typedef struct {
    int right, of;       /* calls for which the faster variant was chosen */
    double chosen, best; /* total times */
} score;

/* Add a choice; did it choose right? Equal times are right either way. */
bool score_add(score *score, const trial *trial, cp_variant variant);

/* How much longer all calls take as chosen, less 1. */
double score_regret(const score *score);

/* The empirical rule that best tells apart which variant was faster, by
 * weighted logistic regression. *apart is false if the trials cannot tell
 * alpha from beta: they lie on one line of the plane, and the rule holds on
 * that line only. False if one variant always won. */
bool learn(const trials *trials, cp_empirical *fit, bool *apart);

/* Each trial judged by what the others teach: what the fit is worth on calls
 * that it has not seen. Where the others teach nothing, their winner is
 * taken. */
score learn_score(const trials *trials);

/* The gammas with which alpha and beta of fit get the most trials right: from
 * low to high, both exclusive, maybe infinite. Returns how many. */
int learn_gamma(const trials *trials, const cp_empirical *fit, double *low,
                double *high);

#endif
