/* Tangled from book/16-latent.nw; edit the chapter. */
/* Layers whose keys and values are made of a latent (MLA), counted in both
 * forms. */
#ifndef CP_LATENT_H
#define CP_LATENT_H

#include "predict/machine.h"
#include "ring/choose.h"

/* What such a layer costs a GPU that has one of n parts of the heads. */
typedef struct {
    double project, output; /* weights before the attention and after it */
    double making; /* of these, what makes keys and values of latents */
    double pair;   /* FLOPs of a pair, expanded */
} cp_latent;

cp_latent cp_latent_of(const cp_model_sizes *model, int64_t n);

/* Does it take fewer FLOPs to make keys and values of each latent, on so many
 * ranks that all see it, and to attend to these, than to attend to latents? */
bool cp_latent_expands(const cp_model_sizes *model, int ranks,
                       const cp_load *load);

#endif
