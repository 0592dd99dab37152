/* Tangled from book/16-experts.nw; edit the chapter. */
/* How the experts of a layer are shared by GPUs, and by the tokens of a call.
 * Experts are taken to be used alike. */
#ifndef CP_EXPERTS_H
#define CP_EXPERTS_H

#include "predict/machine.h"

typedef struct {
    double held;    /* experts of a GPU, at most */
    double copies;  /* of a token's row that leave its GPU, in the mean */
    double touched; /* of those held, how many so many tokens use: the mean */
    double pairs;   /* of a token and an expert that it uses, on that GPU */
} cp_experts;

/* All zero if the model has none. With more GPUs than experts, some have one
 * and the others none. */
cp_experts cp_experts_of(const cp_model_sizes *model, int64_t gpus,
                         double tokens);

/* The inner numbers of a token, in the mean over layers. */
double cp_mean_inner(const cp_model_sizes *model);

/* The parameters that one token uses. */
double cp_active_parameters(const cp_model_sizes *model);

#endif
