/* Tangled from book/16-experts.nw; edit the chapter. */
/* The experts of a layer, counted. */
#include "predict/experts.h"

#include <math.h>

static double copies_of(const cp_model_sizes *model, double gpus) {
    const double experts = (double)model->experts;
    const double holders = fmin(gpus, experts), each = experts / holders;
    double missed = 1; /* chance that a holder has none that a token uses */
    for (int64_t i = 0; i < model->experts_used; i++)
        missed *= fmax(0, 1 - each / (experts - (double)i));
    return holders * (1 - missed) * (gpus - 1) / gpus;
}

cp_experts cp_experts_of(const cp_model_sizes *model, int64_t gpus,
                         double tokens) {
    const double experts = (double)model->experts;
    const double used = (double)model->experts_used;
    if (experts <= 0)
        return (cp_experts){0};
    const double held = ceil(experts / (double)gpus);
    return (cp_experts){
        .held = held,
        .copies = copies_of(model, (double)gpus),
        .touched = held * (1 - pow(1 - used / experts, tokens)),
        .pairs = tokens * used * held / experts,
    };
}

double cp_mean_inner(const cp_model_sizes *model) {
    const double with = (double)cp_expert_layers(model) / (double)model->layers;
    const double experts =
        (double)((model->experts_used + model->experts_shared) *
                 model->expert_inner);
    return (1 - with) * (double)model->inner + with * experts;
}

double cp_active_parameters(const cp_model_sizes *model) {
    const double idle = (double)(model->experts - model->experts_used);
    return (double)model->parameters - (double)cp_expert_layers(model) * idle *
                                           3 * (double)model->width *
                                           (double)model->expert_inner;
}
