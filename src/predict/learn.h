/* Tangled from book/10-choose.nw; edit the chapter. */
/* The empirical rule from measured calls. */
#ifndef CP_LEARN_H
#define CP_LEARN_H

#include "predict/trials.h"

/* The empirical rule that best tells apart which variant was faster, by
 * weighted logistic regression. *apart is false if the trials cannot tell
 * alpha from beta: they lie on one line of the plane, and the rule holds on
 * that line only. Fails with CP_INVALID if one variant always won. */
cp_status cp_learn(const cp_trials *trials, cp_empirical *fit, bool *apart);

/* Each trial judged by what the others teach: what the fit is worth on calls
 * that it has not seen. Where the others teach nothing, their winner is
 * taken. */
cp_status cp_learn_score(const cp_trials *trials, cp_score *score);

/* The gammas with which alpha and beta of fit get the most trials right: from
 * low to high, both exclusive, maybe infinite. Returns how many. */
int64_t cp_learn_gamma(const cp_trials *trials, const cp_empirical *fit,
                       double *low, double *high);

#endif
