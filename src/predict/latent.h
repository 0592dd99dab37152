/* Tangled from book/16-latent.nw; edit the chapter. */
/* The costs of layers whose keys and values come from a latent (MLA), counted
 * absorbed and expanded. */
#ifndef CP_LATENT_H
#define CP_LATENT_H

#include "predict/machine.h"
#include "variants/choose.h"

/* What such a layer costs a GPU that has one of n parts of the heads. */
typedef struct {
    double project, output; /* weights before the attention and after it */
    double expand;          /* of these, the weights that expand latents */
    double pair;            /* FLOPs of a pair, expanded */
} cp_latent;

cp_latent cp_latent_of(const cp_model_sizes *model, int64_t n);

/* Whether expanding takes fewer FLOPs than attending to latents, if each of
 * the ranks expands every latent and then attends to its keys and values. */
bool cp_latent_expands(const cp_model_sizes *model, int ranks,
                       const cp_load *load);

#endif
