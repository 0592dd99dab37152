/* Tangled from book/16-experts.nw; edit the chapter. */
/* How many experts of a layer a GPU holds, and how many of these the tokens of
 * a call use. Assumes that all experts are used equally often. */
#ifndef CP_EXPERTS_H
#define CP_EXPERTS_H

#include "predict/machine.h"

typedef struct {
    double held;    /* experts on the GPU that has most */
    double copies;  /* of a token's row that leave its GPU; the mean */
    double touched; /* experts held that some token uses; the mean */
    double pairs;   /* of a token and an expert that it uses, on that GPU */
} cp_experts;

/* Count for a layer shared by gpus, and for tokens in all. All zero if the
 * model has no experts. With more GPUs than experts, some GPUs have one expert
 * and the others none. */
cp_experts cp_experts_of(const cp_model_sizes *model, int64_t gpus,
                         double tokens);

/* The inner width of the feed-forward part of a token, the mean over layers.
 */
double cp_mean_inner(const cp_model_sizes *model);

/* The parameters that one token uses. */
double cp_active_parameters(const cp_model_sizes *model);

#endif
