/* Tangled from book/16-latent.nw; edit the chapter. */
/* The costs of latent attention, counted. */
#include "predict/latent.h"

/* How many numbers there are in a head's matrices that expand a latent. */
static double made_of_latent(const cp_model_sizes *model) {
    const int64_t plain = model->head_dim - model->rotary;
    return (double)(plain + model->value_dim) * (double)model->latent;
}

bool cp_latent_expands(const cp_model_sizes *model, int ranks,
                       const cp_load *load) {
    const double absorbed = (double)(2 * model->latent + model->rotary);
    const double expanded = (double)(model->head_dim + model->value_dim);
    return (double)load->causal * (absorbed - expanded) >
           (double)load->keys * ranks * made_of_latent(model);
}

/* The projections to latents are not cut: each GPU has all of them. */
cp_latent cp_latent_of(const cp_model_sizes *model, int64_t n) {
    const double heads = (double)model->query_heads / (double)n;
    const double width = (double)model->width, rank = (double)model->query_rank;
    const double queries = heads * (double)model->head_dim;
    const double values = heads * (double)model->value_dim;
    const double out = values * (double)model->latent;
    const double expand = heads * made_of_latent(model);
    return (cp_latent){
        .project = width * (double)(model->latent + model->rotary) +
                   (rank > 0 ? (width + queries) * rank : width * queries) +
                   expand - out,
        .output = out + width * values,
        .expand = expand,
        .pair = 2 * (queries + values),
    };
}
